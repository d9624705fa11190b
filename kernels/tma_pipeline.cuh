// The producer of the wgmma stages that compute several tiles of C per block: it fills their pipeline from tensor maps.
#pragma once

#include "pipeline.cuh"
#include "tile_scheduler.cuh"

// What the producer's one thread does: for each tile of its block, k_tiles stages of A and B.
__device__ __forceinline__ void tma_producer(unsigned shared, unsigned full, unsigned empty, const CUtensorMap* mapA,
                                             const CUtensorMap* mapB, const TileScheduler& scheduler, int k_tiles,
                                             PipelineState& pipe)
{
    for (int index = blockIdx.x; index < scheduler.tiles(); index += BLOCKS) {
        const Tile tile = scheduler.tile(index);
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
            const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
            mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
            mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
            tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
#pragma unroll
            for (int i = 0; i < TILE_N / PANEL; ++i)
                tma_load_2d(to + A_BYTES + i * PANEL_BYTES, mapB, tile.column + i * PANEL, k * TILE_K, bar);
        }
    }
}

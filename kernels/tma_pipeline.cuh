// The producer of the wgmma stages that compute several tiles of C per block: it fills their pipeline from tensor maps.
#pragma once

#include "cluster_pipeline.cuh"

#define PANELS (TILE_N / PANEL)  // of B

// What the producer's one thread does: for each tile of its block, k_tiles stages of A and B.
__device__ __forceinline__ void tma_producer(unsigned shared, unsigned full, unsigned empty, const CUtensorMap* mapA,
                                             const CUtensorMap* mapB, const TileScheduler& scheduler, int k_tiles,
                                             int rank, PipelineState& pipe)
{
    for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
        const Tile tile = tile_of(scheduler, index, rank);
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
            const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
            mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
            mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
            tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
#pragma unroll
            for (int i = 0; i < PANELS; i += CLUSTER) {  // those of this block
                const int panel = i + rank;
                if (PANELS % CLUSTER == 0 || panel < PANELS)
                    tma_load_2d_to_all(to + A_BYTES + panel * PANEL_BYTES, mapB, tile.column + panel * PANEL, k * TILE_K, bar);
            }
        }
    }
}

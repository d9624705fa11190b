// The producer of operands of 8 bits whose rows are along K: TILE_K of it are a row of a box, 128 bytes.
#pragma once

#include "cluster_pipeline.cuh"

#define PART_N (TILE_N / CLUSTER)  // columns of B that a block copies

// What the producer's one thread does: for each tile of its block, k_tiles stages of A and B, whose rows are along K.
__device__ __forceinline__ void produce(unsigned shared, unsigned full, unsigned empty, const CUtensorMap* mapA,
                                        const CUtensorMap* mapB, const TileScheduler& scheduler, int k_tiles, int rank,
                                        PipelineState& pipe)
{
    for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
        const Tile tile = tile_of(scheduler, index, rank);
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
            const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
            const unsigned part = to + A_BYTES + rank * PART_N * 128;
            mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
            mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
            tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
            tma_load_2d_to_all(part, mapB, k * TILE_K, tile.column + rank * PART_N, bar);
        }
    }
}

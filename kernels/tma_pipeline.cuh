// The pipeline of the wgmma stages: a ring of STAGES in shared memory, which a producer warp fills by TMA while
// warpgroups multiply. Two mbarriers per stage: `full` when its bytes have come, `empty` when all consumers
// have read it.
#pragma once

#include "tile_scheduler.cuh"
#include "tma_ptx.cuh"

#define PANEL_BYTES (TILE_K * 128)
#define A_BYTES (TILE_M * 128)
#define STAGE_BYTES (A_BYTES + TILE_N * 128)

// Where in the ring a thread is: the stage, and the parity of the phase in which it is filled.
struct PipelineState {
    int stage;
    unsigned phase;
};
__device__ __forceinline__ void advance(PipelineState& pipe)
{
    const bool wraps = pipe.stage == STAGES - 1;
    pipe.stage = wraps ? 0 : pipe.stage + 1, pipe.phase ^= wraps;
}

// `full` is completed by the producer's one arrival and the bytes, `empty` by one arrival of each warpgroup.
__device__ __forceinline__ void init_pipeline(unsigned full, unsigned empty)
{
    for (int i = 0; i < STAGES; ++i)
        mbarrier_init(full + i * 8, 1), mbarrier_init(empty + i * 8, GROUPS);
    fence_mbarrier_init();
}

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

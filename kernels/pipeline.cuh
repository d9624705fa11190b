// The pipeline of the wgmma stages: a ring of STAGES in shared memory, which a producer warp fills by TMA while
// warpgroups multiply. Two mbarriers per stage: `full` when its bytes have come, `empty` when all consumers
// have read it. With PINGPONG two warpgroups compute tiles of their own, by turns.
#pragma once

#include "tma_ptx.cuh"

#ifndef PINGPONG
#define PINGPONG 0
#endif
static_assert(PINGPONG == 0 || GROUPS == 2, "PINGPONG: two groups that take turns");

#define PANEL_BYTES (TILE_K * 128)
#define A_BYTES (TILE_M * 128)
#ifndef B_BYTES
#define B_BYTES (TILE_N * 128)
#endif
#define STAGE_BYTES (A_BYTES + B_BYTES)

// So many groups read a stage. Where they share the rows of a tile, each has M_BLOCKS of 64, from M_BLOCK(group) on.
#define CONSUMERS (PINGPONG ? 1 : GROUPS)
#define M_BLOCKS (TILE_M / 64 / CONSUMERS)
#define M_BLOCK(group) (PINGPONG ? 0 : (group) * M_BLOCKS)
#define MOST_SUMS (GROUPS == 1 ? 128 : GROUPS == 2 ? 192 : 96)  // that a thread has registers for

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

__device__ __forceinline__ void advance_by(PipelineState& pipe, int stages)
{
    const int stage = pipe.stage + stages;
    pipe.stage = stage % STAGES, pipe.phase ^= stage / STAGES & 1;
}

// `full` is completed by the producer's one arrival and the bytes, `empty` by an arrival of each of the consumers.
__device__ __forceinline__ void init_pipeline(unsigned full, unsigned empty, int consumers = CONSUMERS)
{
    for (int i = 0; i < STAGES; ++i)
        mbarrier_init(full + i * 8, 1), mbarrier_init(empty + i * 8, consumers);
    fence_mbarrier_init();
}

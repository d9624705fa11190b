// wgmma_tf32: tensor cores of Hopper in TF32. The transposed product: columns of B from registers.
//
// The idea    In TF32, wgmma wants both operands along K in shared memory, which A is and B is not. So it computes
//             Cᵀ = Bᵀ · Aᵀ (operands swapped): the first may come from registers, there 64 columns of B; the second is
//             the tile of A. The columns of the next step are loaded while those of this one are multiplied. Producer,
//             consumers and several tiles per block as in wgmma.
// Layout      Boxes as in mma_tma, rounded by TMA. Which column a register stands for is free: a lane takes two
//             neighbours, loads them as one and stores them as one. Sixteen lanes load two chunks, four apart, from
//             four rows, which as they are swizzled lie in all banks.
// The limit   The tensor cores, but for the stores of a tile's sums: 6 % of 4096³.
// Next        pack, for rows that TMA cannot take.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma_tf32 needs -D TILE_M, TILE_N, STAGES and BLOCKS"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#define TILE_K 32             // a row of a box, 128 bytes
#define PANEL 32              // columns of B in a row of a box
#define GROUPS (TILE_N / 64)  // each multiplies 64 columns of B
#define THREADS (GROUPS * 128 + 128)
#define STEPS (TILE_K / 8)

#include "tma_pipeline.cuh"
#include "vectors.cuh"
#include "wgmma_tf32.cuh"

static_assert(STAGES >= 3, "STAGES: one that is multiplied, one that is loaded, at least one in flight");
static_assert(TILE_M == 64 || TILE_M == 128 || TILE_M == 256, "TILE_M: 64, 128 or 256");
static_assert(TILE_N == 64 || TILE_N == 128, "TILE_N: 64 or 128");

using Accumulators = float[TILE_M / 2];

// C = alpha · accum + beta · C for rows 8j + 2t and 8j + 2t + 1 of a tile, and two of its columns, that a lane holds.
// `whole`: the tile crosses no edge, rows of C are aligned and beta is 0.
__device__ __forceinline__ void epilogue(const Accumulators& accum, int M, int N, float alpha, float beta, float* C,
                                         int ldc, int row0, int col0, bool whole)
{
    float* c = C + (size_t)row0 * ldc + col0;
#pragma unroll
    for (int j = 0; j < TILE_M / 8; ++j, c += (size_t)8 * ldc)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            float* const to = c + (odd ? ldc : 0);
            const float two[2] = {alpha * accum[j * 4 + odd], alpha * accum[j * 4 + 2 + odd]};
            if (whole) {
                *reinterpret_cast<float2*>(to) = make_float2(two[0], two[1]);
            } else if (row0 + j * 8 + odd < M) {
#pragma unroll
                for (int n = 0; n < 2; ++n)
                    if (n < N - col0) to[n] = beta == 0.0f ? two[n] : two[n] + beta * to[n];
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_tf32(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N, int K,
                float alpha, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and panels of B; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, k_tiles = (K - 1) / TILE_K + 1;
    const TileScheduler scheduler = {(M - 1) / TILE_M + 1, (N - 1) / TILE_N + 1};
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) init_pipeline(full, empty);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    __syncthreads();

    if (group == GROUPS) {
        if (warp == GROUPS * 4 && elect_one_sync())
            tma_producer(shared, full, empty, &mapA, &mapB, scheduler, k_tiles, 0, pipe);
        return;
    }

    const unsigned t = threadIdx.x % 4, column = lane_column(warp);
    const LanePlaces places(column);
    const bool aligned = rows_aligned(C, ldc);

    const SmemDesc a = make_smem_desc(shared, 0, 1024);  // counts in 16 bytes: a stage further on is a sum away
    for (int index = blockIdx.x; index < scheduler.tiles(); index += BLOCKS) {
        Accumulators accum;
        Fragment fragments[2];
        int prev_stage = 0;  // the stage that running wgmma read
        auto release_stage = [&](int stage) {
            if (threadIdx.x % 128 == 0) mbarrier_arrive(empty + stage * 8);
        };
        auto load = [&](Fragment& b, int step) { places.load(b, shared + pipe.stage * STAGE_BYTES, step); };
        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
        load(fragments[0], 0);
        for (int k = 0; k < k_tiles; ++k) {
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {  // lesson: begin
                warpgroup_arrive();
                wgmma<TILE_M>(accum, fragments[step % 2], a + stage + step * 2, k > 0 || step > 0);
                warpgroup_commit_batch();
                warpgroup_wait<1>();  // those before these: their registers are free
                if (step == 0 && k > 0) release_stage(prev_stage);
                if (step < STEPS - 1) {
                    load(fragments[1 - step % 2], step + 1);  // lesson: end
                } else {
                    prev_stage = pipe.stage;
                    advance(pipe);
                    if (k + 1 < k_tiles) {
                        mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
                        load(fragments[1 - step % 2], 0);
                    }
                }
            }
        }
        warpgroup_wait<0>();
        release_stage(prev_stage);

        const Tile tile = scheduler.tile(index);
        const bool whole = aligned && beta == 0.0f && tile.row + TILE_M <= M && tile.column + TILE_N <= N;
        epilogue(accum, M, N, alpha, beta, C, ldc, tile.row + t * 2, tile.column + column, whole);
    }
}

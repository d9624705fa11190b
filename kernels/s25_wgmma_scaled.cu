// wgmma_scaled: FP8 with scales for blocks, 1 × 128 of A and 128 × 128 of B, and sums that are promoted to FP32.
//
// The idea    FP8 has four bits of significand and few exponents, so each 128 elements of a row of A, and each block of
//             128 × 128 of B, have a factor of their own. A stage is 128 of K: one factor for a row of it and one for its
//             columns. So its products are summed by themselves, in the 14 bits or so of the tensor cores, and then
//             multiplied by both factors and added to sums in FP32, in which nothing is lost however long K is.
// Layout      As in wgmma_bytes. A thread has 64 sums of the tensor cores and as many promoted ones, of two rows.
// The limit   64 multiply-adds of a thread for each stage: half the time of its products. A warpgroup promotes a stage
//             while its next one is multiplied, from a second set of sums. Factors are read a stage ahead.
// Next        Groups of rows with a B of their own, as the experts of a mixture have.

#if !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS) || !defined(CLUSTER)
#error "wgmma_scaled needs -D GROUPS, STAGES, BLOCKS and CLUSTER"
#endif
#if defined(DTYPE_E4M3) != 1
#error "wgmma_scaled needs -D DTYPE_E4M3"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#define TILE_M (GROUPS * 64)
#define TILE_N 128  // columns of B that have a factor
#define TILE_K 128  // elements along K that have one, a row of a box
#define THREADS (GROUPS * 128 + 128)  // the consumer warpgroups, and one for the producer warp
#define PART_N (TILE_N / CLUSTER)     // columns of B that a block copies

#include <cuda_bf16.h>

#include "cluster_pipeline.cuh"
#include "wgmma_ptx.cuh"

#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = float;
#endif

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(GROUPS == 1 || GROUPS == 2, "GROUPS: 1 or 2");

// accum (64 × 128) = a (64 × 32) · b (128 × 32)ᵀ, plus accum if scale_d; both operands from shared memory. It runs until
// warpgroup_wait returns for its group.
__device__ __forceinline__ void wgmma(float (&accum)[64], SmemDesc a, SmemDesc b, bool scale_d)
{
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 ACCUM_NAMES_64 "}, %64, %65, p, 1, 1; }"
                 : ACCUM_64(0)
                 : "l"(a), "l"(b), "r"((int)scale_d)
                 : "memory");
}

// The factors of a thread for 128 of K: of its two rows of A, and of the columns of B.
struct Scales {
    float rows[2], columns;
};

__device__ __forceinline__ Scales load_scales(const float* a_scales, const float* b_scales, int M, int k_tiles, int row,
                                              int column, int k)
{
    Scales scales;
#pragma unroll
    for (int half = 0; half < 2; ++half)
        scales.rows[half] = row + half * 8 < M ? __ldg(a_scales + (size_t)(row + half * 8) * k_tiles + k) : 0.0f;
    scales.columns = __ldg(b_scales + (size_t)(column / TILE_N) * k_tiles + k);
    return scales;
}

// sums += accum · the factor of its row · that of the columns.
__device__ __forceinline__ void promote(float (&sums)[64], const float (&accum)[64], const Scales& scales)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float scale = scales.rows[half] * scales.columns;
#pragma unroll
        for (int n = 0; n < 64; n += 4)
#pragma unroll
            for (int j = half * 2; j < half * 2 + 2; ++j) sums[n + j] += scale * accum[n + j];
    }
}

// A lane has columns 2i and 2i + 1 of rows row and row + 8 of every eight columns.
__device__ __forceinline__ void store(const float (&sums)[64], int M, int N, Output* C, int ldc, int row, int column)
{
    struct alignas(2 * sizeof(Output)) Two {
        Output at[2];
    };
    const bool pairs = ldc % 2 == 0 && reinterpret_cast<size_t>(C) % sizeof(Two) == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (row + half * 8 >= M) continue;
        Output* const c = C + (size_t)(row + half * 8) * ldc;
#pragma unroll
        for (int n = 0; n < 64; n += 4) {
            const int at = column + n * 2;
            const Two two = {Output(sums[n + half * 2]), Output(sums[n + half * 2 + 1])};
            if (pairs && at + 1 < N) {
                *reinterpret_cast<Two*>(c + at) = two;
            } else {
                if (at < N) c[at] = two.at[0];
                if (at + 1 < N) c[at + 1] = two.at[1];
            }
        }
    }
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 1)
gemm_wgmma_scaled(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N, int K,
                  const float* __restrict__ a_scales, const float* __restrict__ b_scales, Output* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and B; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, rank = rank_in_cluster(), k_tiles = K / TILE_K;
    const TileScheduler scheduler = {(M - 1) / (TILE_M * CLUSTER) + 1, (N - 1) / TILE_N + 1};
    PipelineState pipe = {0, 0};

    if (threadIdx.x == 0) init_pipeline(full, empty, GROUPS * CLUSTER);
    sync_before();

    if (group == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<40>();  // what 128 threads give, 256 take
        if (warp == GROUPS * 4 && elect_one_sync())
            for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
                const Tile tile = tile_of(scheduler, index, rank);
                for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
                    const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
                    const unsigned part = to + A_BYTES + rank * PART_N * 128;
                    mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
                    mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
                    tma_load_2d(to, &mapA, k * TILE_K, tile.row, bar);
                    tma_load_2d_to_all(part, &mapB, k * TILE_K, tile.column + rank * PART_N, bar);
                }
            }
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<232>();

    for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
        const Tile tile = tile_of(scheduler, index, rank);
        const int row = tile.row + group * 64 + warp % 4 * 16 + threadIdx.x % 32 / 4;
        const int column = tile.column + threadIdx.x % 4 * 2;
        float sums[64] = {}, even[64], odd[64];  // of the products of every second stage
        Scales next = load_scales(a_scales, b_scales, M, k_tiles, row, tile.column, 0);
        auto multiply = [&](float (&accum)[64]) {  // lesson: begin
            const unsigned a = shared + pipe.stage * STAGE_BYTES + group * 64 * 128;
            const unsigned b = shared + pipe.stage * STAGE_BYTES + A_BYTES;
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < TILE_K / 32; ++step)
                wgmma(accum, make_smem_desc(a + step * 32, 0, 1024), make_smem_desc(b + step * 32, 0, 1024), step > 0);
            warpgroup_commit_batch();
        };
        // The stage is multiplied: it can be filled again, and its products are promoted.
        auto finish = [&](int k, int stage, const float (&accum)[64]) {
            release_stage_to_all(empty + stage * 8);
            const Scales now = next;
            if (k + 1 < k_tiles) next = load_scales(a_scales, b_scales, M, k_tiles, row, tile.column, k + 1);
            promote(sums, accum, now);
        };
        // The products of stage k + 1 run while those of stage k are promoted.
        auto finish_beside = [&](int k, const float (&accum)[64], float (&following)[64]) {
            const int stage = pipe.stage;
            advance(pipe);
            multiply(following);
            warpgroup_wait<1>();
            finish(k, stage, accum);
        };
        int k = 0;
        multiply(even);
        for (; k + 2 < k_tiles; k += 2) {
            finish_beside(k, even, odd);
            finish_beside(k + 1, odd, even);
        }
        if (k + 1 < k_tiles) {
            finish_beside(k, even, odd);
            warpgroup_wait<0>();
            finish(k + 1, pipe.stage, odd);
        } else {
            warpgroup_wait<0>();
            finish(k, pipe.stage, even);
        }
        advance(pipe);  // lesson: end
        store(sums, M, N, C, ldc, row, column);
    }
    sync_after();
}

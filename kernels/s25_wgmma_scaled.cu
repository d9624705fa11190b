// wgmma_scaled: FP8 with scales for blocks, 1 × 128 of A and 128 × 128 of B, and sums that are promoted to FP32.
//
// The idea    FP8 has four bits of significand and few exponents, so each 128 elements of a row of A, and each block of
//             128 × 128 of B, have a factor of their own. A stage is 128 of K: one factor for a row of it and one for its
//             columns. So its products are summed by themselves, in the 14 bits or so of the tensor cores, and then
//             multiplied by both factors and added to sums in FP32, in which nothing is lost however long K is.
// Layout      As in wgmma_bytes. A thread has 64 sums of the tensor cores, and promoted ones of two rows. It holds the
//             factors of four stages with three other lanes, and reads them four stages ahead.
// The limit   A warpgroup promotes 64 sums in a quarter of the time of their products, and the tensor cores are busy as long
//             as another warpgroup has products to do: what is between the end of some and the start of the next counts.
// Next        Groups of rows with a B of their own, as the experts of a mixture have.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS) || !defined(CLUSTER)
#error "wgmma_scaled needs -D TILE_M, TILE_N, GROUPS, STAGES, BLOCKS and CLUSTER"
#endif
#if defined(DTYPE_E4M3) != 1
#error "wgmma_scaled needs -D DTYPE_E4M3"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#define SCALE_N 128  // columns of B that have a factor
#define TILE_K 128   // elements along K that have one, a row of a box
#define PARTS (TILE_N / SCALE_N)
#define THREADS (GROUPS * 128 + 128)  // the consumer warpgroups, and one for the producer warp

#include <cuda_bf16.h>

#include "cluster_producer.cuh"
#include "wgmma.cuh"

#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = float;
#endif
using Sum = float;

#include "wgmma_epilogue.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(GROUPS >= 1 && GROUPS <= 3, "GROUPS: 1 to 3");
static_assert(TILE_M == 64 * GROUPS, "TILE_M: 64 rows for each group");
static_assert(TILE_N == 128 || TILE_N == 256 && GROUPS < 3, "TILE_N: 128, or 256 of two groups");

// The factors of four stages, one in each lane of four: of a thread's two rows of A, and of its columns of B. The address
// of a load depends on the lane, so ptxas does not move what is loaded to a uniform register, for which it would wait.
struct Scales {
    float rows[2], columns[PARTS];
};

__device__ __forceinline__ Scales load_scales(const float* a_scales, const float* b_scales, int M, int N, int k_tiles,
                                              int row, int column, int k)
{
    Scales scales;
    k += threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        scales.rows[half] = at < M && k < k_tiles ? __ldg(a_scales + (size_t)at * k_tiles + k) : 0.0f;
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int at = column / SCALE_N + part;
        scales.columns[part] = at * SCALE_N < N && k < k_tiles ? __ldg(b_scales + (size_t)at * k_tiles + k) : 0.0f;
    }
    return scales;
}

// Those of stage k: of each of the two rows, times that of the columns.
struct Factors {
    float rows[2];
};

__device__ __forceinline__ Factors factors_of(const Scales& scales, int part, int k)
{
    auto of_stage = [&](float four) { return __shfl_sync(0xffffffff, four, k % 4, 4); };
    const float columns = of_stage(scales.columns[part]);
    return {{of_stage(scales.rows[0]) * columns, of_stage(scales.rows[1]) * columns}};
}

// sums += accum · the factors of their rows.
__device__ __forceinline__ void promote(float (&sums)[64], const float (&accum)[64], const Factors& factors)
{
#pragma unroll
    for (int n = 0; n < 64; n += 4)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n + j] += factors.rows[j / 2] * accum[n + j];
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
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB);
    sync_before();

    if (group == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<40>();  // what 128 threads give, the others take
        if (GROUPS == 3) setmaxnreg_dec<32>();
        if (warp == GROUPS * 4 && elect_one_sync())
            produce(shared, full, empty, &mapA, &mapB, scheduler, k_tiles, rank, pipe);
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<232>();
    if (GROUPS == 3) setmaxnreg_inc<160>();

    // They count in 16 bytes: a stage, or 32 of K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared + group * 64 * 128, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    for (int index = blockIdx.x / CLUSTER; index < scheduler.tiles(); index += BLOCKS / CLUSTER) {
        const Tile tile = tile_of(scheduler, index, rank);
        const int row0 = tile.row + group * 64 + warp % 4 * 16, row = row0 + threadIdx.x % 32 / 4;
        float sums[PARTS][64] = {}, accum[64];
        Scales now, next = load_scales(a_scales, b_scales, M, N, k_tiles, row, tile.column, 0);
#pragma unroll 4  // ptxas promotes while it waits for the next stage, and knows in which lane a factor is
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < TILE_K / 32; ++step)
                    wgmma<SCALE_N>(accum, a + stage + step * 2, b + stage + part * SCALE_N * 8 + step * 2, step > 0);
                warpgroup_commit_batch();
                if (part == 0 && k % 4 == 0) {
                    now = next;
                    next = load_scales(a_scales, b_scales, M, N, k_tiles, row, tile.column, k + 4);
                }
                const Factors factors = factors_of(now, part, k);
                warpgroup_wait<0>();
                if (part == PARTS - 1) release_stage_to_all(empty + pipe.stage * 8);
                promote(sums[part], accum, factors);
            }
        }  // lesson: end

        Output* const staging =
            reinterpret_cast<Output*>(tiles + STAGES * (STAGE_BYTES + 16)) + warp * 16 * STAGING_STRIDE;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            epilogue<false>(sums[part], M, N, 1.0f, 0.0f, C, ldc, staging, row0, tile.column + part * SCALE_N);
    }
    sync_after();
}

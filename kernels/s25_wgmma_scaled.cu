// wgmma_scaled: FP8 with scales for blocks, 1 × 128 of A and 128 × 128 of B, and sums that are promoted to FP32.
//
// The idea    FP8 has four bits of significand and few exponents, so each 128 elements of a row of A, and each block of
//             128 × 128 of B, have a factor of their own. A stage is 128 of K: one factor for a row of it and one for its
//             columns. So its products are summed by themselves, in the 14 bits or so of the tensor cores, and then
//             multiplied by both factors and added to sums in FP32, in which nothing is lost however long K is.
// Layout      As in wgmma_bytes. A thread has 64 sums of the tensor cores, and promoted ones of two rows. It holds the
//             factors of four stages with three other lanes, and reads them four stages ahead, those of the next tile too.
//             While the first products of a tile run, the sums of the last one are stored, by a tensor map of C: that
//             takes a few instructions, and TMA does the rest. With TILE_N 264 a tile has 256 columns and 8 of a strip
//             that N leaves over at its end: 2112 are 8 tiles, not 9 of which one has 64 columns.
// The limit   A warpgroup promotes 64 sums in a quarter of the time of their products, and the tensor cores are busy as long
//             as another warpgroup has products to do: what is between the end of some and the start of the next counts.
// Next        Groups of rows with a B of their own, as the experts of a mixture have.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma_scaled needs -D TILE_M, TILE_N, GROUPS, STAGES and BLOCKS"
#endif
#if defined(DTYPE_E4M3) != 1
#error "wgmma_scaled needs -D DTYPE_E4M3"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 16
#endif

#define SCALE_N 128  // columns of B that have a factor
#define TILE_K 128   // elements along K that have one, a row of a box
#define STRIP (TILE_N % SCALE_N)
#define MAIN_N (TILE_N - STRIP)
#define PARTS (MAIN_N / SCALE_N)
#define LAST_N (SCALE_N + STRIP)  // columns of the last part
#define BOX_N (STRIP ? 32 : TILE_N)  // columns of B in a box: smaller ones take TMA longer
#define B_BYTES ((MAIN_N + (STRIP ? BOX_N : 0)) * 128)
#define BOXES (STRIP ? 1 : 2)  // of C that a warp stages at once
#define BATCH BOXES
#define THREADS (GROUPS * 128 + 128)  // the consumer warpgroups, and one for the producer warp

#include <cuda_bf16.h>

#include "pipeline.cuh"
#include "tile_scheduler.cuh"
#include "wgmma.cuh"

#if defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
#else
using Output = float;
#endif

#include "tma_epilogue.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(GROUPS == 1 || GROUPS == 2, "GROUPS: 1 or 2");
static_assert(TILE_M == 64 * GROUPS, "TILE_M: 64 rows for each group");
static_assert((PARTS == 1 || PARTS == 2) && (STRIP == 0 || STRIP == 8), "TILE_N: 128 or 256, or 8 more");

// The first of the 8 columns of the strip that belong to the tile from `column` on.
__device__ __forceinline__ int strip_column(const TileScheduler& scheduler, int column)
{
    return scheduler.columns * MAIN_N + column / MAIN_N * STRIP;
}

__device__ __forceinline__ Tile tile_of(const TileScheduler& scheduler, int index)
{
    const Tile tile = scheduler.tile(index);
    return {tile.row, tile.column / TILE_N * MAIN_N};
}

// What the producer's one thread does: for each tile of its block, k_tiles stages of A and B.
__device__ __forceinline__ void produce(unsigned shared, unsigned full, unsigned empty, const CUtensorMap* mapA,
                                        const CUtensorMap* mapB, const TileScheduler& scheduler, int k_tiles)
{
    PipelineState pipe = {0, 0};
    for (int index = blockIdx.x; index < scheduler.tiles(); index += BLOCKS) {
        const Tile tile = tile_of(scheduler, index);
        for (int k = 0; k < k_tiles; ++k, advance(pipe)) {
            const unsigned to = shared + pipe.stage * STAGE_BYTES, bar = full + pipe.stage * 8;
            mbarrier_wait_parity(empty + pipe.stage * 8, pipe.phase ^ 1);
            mbarrier_arrive_expect_tx(bar, STAGE_BYTES);
            tma_load_2d(to, mapA, k * TILE_K, tile.row, bar);
#pragma unroll
            for (int n = 0; n < TILE_N; n += BOX_N)
                tma_load_2d(to + A_BYTES + n * 128, mapB, k * TILE_K,
                            n < MAIN_N ? tile.column + n : strip_column(scheduler, tile.column), bar);
        }
    }
}

// The factors of four stages, one in each lane of four: of a thread's two rows of A; and of the blocks of B, one in each
// four lanes. The address of a load depends on the lane, so ptxas does not move what is loaded to a uniform register, for
// which it would wait.
struct Scales {
    float rows[2], blocks;
};

__device__ __forceinline__ Scales load_scales(const float* a_scales, const float* b_scales, int M, int N, int k_tiles,
                                              int row, int column, int strip, int k)
{
    Scales scales;
    k += threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + half * 8;
        scales.rows[half] = at < M && k < k_tiles ? __ldg(a_scales + (unsigned)at * k_tiles + k) : 0.0f;
    }
    const int part = threadIdx.x % 32 / 4, at = part < PARTS ? column + part * SCALE_N : strip;
    scales.blocks = at < N && k < k_tiles ? __ldg(b_scales + (unsigned)(at / SCALE_N) * k_tiles + k) : 0.0f;
    return scales;
}

// Those of stage k: of each of the two rows, times that of the columns of a part.
struct Factors {
    float rows[2];
};

__device__ __forceinline__ Factors factors_of(const Scales& scales, int part, int k)
{
    const float columns = __shfl_sync(0xffffffff, scales.blocks, part * 4 + k % 4);
    auto of_stage = [&](float four) { return __shfl_sync(0xffffffff, four, k % 4, 4); };
    return {{of_stage(scales.rows[0]) * columns, of_stage(scales.rows[1]) * columns}};
}

// sums += accum · the factors of their rows.
template <int COLUMNS>
__device__ __forceinline__ void promote(float* sums, const float* accum, const Factors& factors)
{
#pragma unroll
    for (int n = 0; n < COLUMNS / 2; n += 4)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n + j] += factors.rows[j / 2] * accum[n + j];
}

// The groups meet: they are faster in step, when both multiply by the same columns of B.
__device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");
}

// accum = a · b of a stage, for so many columns: asked for, and to be waited for.
template <int COLUMNS>
__device__ __forceinline__ void multiply(float* accum, SmemDesc a, SmemDesc b)
{
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < TILE_K / 32; ++step)
        wgmma<COLUMNS>(reinterpret_cast<float(&)[COLUMNS / 2]>(*accum), a + step * 2, b + step * 2, step > 0);
    warpgroup_commit_batch();
}

// Of the strip the columns of a tile, by two.
__device__ __forceinline__ void store_strip(const float (&sums)[4], Output* C, int ldc, int M, int N, int row, int column)
{
    const int lane = threadIdx.x % 32;
    column += lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = row + lane / 4 + half * 8;
        if (at < M && column < N) store_two(C + (size_t)at * ldc + column, sums[half * 2], sums[half * 2 + 1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma_scaled(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB,
                  const __grid_constant__ CUtensorMap mapC, int M, int N, int K, const float* __restrict__ a_scales,
                  const float* __restrict__ b_scales, Output* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and B; boxes of C; mbarriers
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned boxes = shared + STAGES * STAGE_BYTES, full = boxes + STAGING_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, k_tiles = K / TILE_K;
    const TileScheduler scheduler = {(M - 1) / TILE_M + 1, (N - 1) / TILE_N + 1};

    if (threadIdx.x == 0) init_pipeline(full, empty, GROUPS);
    if (threadIdx.x == GROUPS * 128) prefetch_tensormap(&mapA), prefetch_tensormap(&mapB), prefetch_tensormap(&mapC);
    __syncthreads();

    if (group == GROUPS) {
        if (GROUPS == 2) setmaxnreg_dec<40>();  // what 128 threads give, the others take
        if (warp == GROUPS * 4 && elect_one_sync()) produce(shared, full, empty, &mapA, &mapB, scheduler, k_tiles);
        return;
    }
    if (GROUPS == 2) setmaxnreg_inc<232>();

    // They count in 16 bytes: a stage, or 32 of K, further on is a sum away.
    const SmemDesc a = make_smem_desc(shared + group * 64 * 128, 0, 1024), b = make_smem_desc(shared + A_BYTES, 0, 1024);
    const int row0 = group * 64 + warp % 4 * 16, row = row0 + threadIdx.x % 32 / 4;  // of a tile
    PipelineState pipe = {0, 0};
    Tile tile = tile_of(scheduler, blockIdx.x), last = tile;
    Scales now, next = load_scales(a_scales, b_scales, M, N, k_tiles, tile.row + row, tile.column,
                                   strip_column(scheduler, tile.column), 0);
    float sums[PARTS][SCALE_N / 2] = {}, strip[4] = {}, accum[LAST_N / 2];

    auto store_part = [&](int part) {
        store<SCALE_N>(sums[part], boxes + warp * BOXES * BOX_BYTES, &mapC, last.row + row0, last.column + part * SCALE_N,
                       [](unsigned, int) {});
        if (STRIP && part == PARTS - 1)
            store_strip(strip, C, ldc, M, N, last.row + row0, strip_column(scheduler, last.column));
    };
    bool first = true;  // asked of `index`, ptxas serializes the products of 128×264 (C7511)
    for (int index = blockIdx.x; index < scheduler.tiles(); first = false) {
        index += BLOCKS;
        const Tile following = tile_of(scheduler, min(index, scheduler.tiles() - 1));
        auto multiply_stage = [&](int k, auto meanwhile) {  // lesson: begin
            const SmemDesc stage = pipe.stage * (STAGE_BYTES / 16);
            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                if (part == PARTS - 1)
                    multiply<LAST_N>(accum, a + stage, b + stage + part * SCALE_N * 8);
                else
                    multiply<SCALE_N>(accum, a + stage, b + stage);
                meanwhile(part);
                if (part == 0 && k % 4 == 0) {
                    const bool more = k + 4 < k_tiles;
                    const Tile of = more ? tile : following;
                    now = next;
                    next = load_scales(a_scales, b_scales, M, N, k_tiles, of.row + row, of.column,
                                       strip_column(scheduler, of.column), more ? k + 4 : 0);
                }
                const Factors factors = factors_of(now, part, k);
                warpgroup_wait<0>();
                if (part == PARTS - 1 && threadIdx.x % 128 == 0) mbarrier_arrive(empty + pipe.stage * 8);
                promote<SCALE_N>(sums[part], accum, factors);
                if (STRIP && part == PARTS - 1) promote<STRIP>(strip, accum + SCALE_N / 2, factors_of(now, PARTS, k));
            }
            advance(pipe);
        };  // lesson: end
        multiply_stage(0, [&](int part) {
            if (!first) store_part(part);
#pragma unroll
            for (int n = 0; n < SCALE_N / 2; ++n) sums[part][n] = 0.0f;
            if (part == PARTS - 1) strip[0] = strip[1] = strip[2] = strip[3] = 0.0f;
        });
        consumers_sync();
#pragma unroll  // the rest of four, so that the loop over the others has whole fours
        for (int k = 1; k < 4; ++k)
            if (k < k_tiles) multiply_stage(k, [](int) {});
#pragma unroll 4  // ptxas promotes while it waits for the next stage, and knows in which lane a factor is
        for (int k = 4; k < k_tiles; ++k) multiply_stage(k, [](int) {});
        last = tile, tile = following;
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) store_part(part);
    bulk_wait_group_read<0>();
}

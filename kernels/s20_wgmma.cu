// wgmma: tensor cores of Hopper, which read A and B from shared memory themselves.
//
// The idea    Four warps, a warpgroup, ask for a product of 64 rows and all columns of a tile, and go on: no fragment
//             is loaded, no register holds A or B. While the products of one stage are under way, those of the next
//             are asked for. One warp does nothing but copy, by TMA, and never waits for sums to be stored: each of
//             BLOCKS blocks has several tiles of C, and the first stages of its next one come during that.
// Layout      Boxes as in mma_tma. A descriptor says where one begins, how far apart its groups of eight rows are,
//             and its panels. Columns of B lie next to one another: wgmma turns them around, of 16 bits: no TF32.
// The limit   The power of the board: the tensor cores are hardly ever idle.
// Next        wgmma_tf32, for which nothing turns B around.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(GROUPS) || !defined(STAGES) || !defined(BLOCKS)
#error "wgmma needs -D TILE_M, TILE_N, GROUPS, STAGES and BLOCKS"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) != 1
#error "wgmma needs one of -D DTYPE_F16 and DTYPE_BF16"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#define TILE_K 64  // a row of a box, 128 bytes
#define PANEL 64   // columns of B in a row of a box
#define THREADS (GROUPS * 128 + 128)  // those that multiply; and of a whole group the warp that copies
#define PARTS (TILE_M / 64 / GROUPS)  // of 64 rows, of each group
#define COLUMNS 32                    // whose sums a warp stores at once
#define SUM_STRIDE (COLUMNS + 8)      // spreads the rows of a fragment over the banks
#define ROWS_AT_ONCE (128 / COLUMNS)

#include "groups.cuh"
#include "vectors.cuh"

static_assert(STAGES >= 2, "STAGES: one that is multiplied, at least one in flight");
static_assert(TILE_M % (64 * GROUPS) == 0 && TILE_M <= 256, "TILE_M: 64 rows for each group, at most one box");
static_assert(TILE_N == 64 || TILE_N == 128 || TILE_N == 256, "TILE_N: 64, 128 or 256");
static_assert(PARTS * TILE_N <= 256, "tile: at most 128 sums per thread");

// sum (64 × TILE_N) += or = a (64 × 16) · b (16 × TILE_N), from shared memory; done when its group is waited for.
#if defined(DTYPE_F16)
#define TYPES "f16.f16"
#else
#define TYPES "bf16.bf16"
#endif
#define WGMMA(n, sums, first, second, third, ...)                                                                 \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, " third ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." TYPES \
                 " {" sums "}, " first ", " second ", p, 1, 1, 0, 1; }"                                            \
                 : __VA_ARGS__                                                                                     \
                 : "l"(a), "l"(b), "r"((int)adds)                                                                  \
                 : "memory")

using Sums = float[TILE_N / 2];

__device__ __forceinline__ void multiply(Sums& sum, Described a, Described b, bool adds)
{
#if TILE_N == 256
    WGMMA("256", FIRST_128, "%128", "%129", "%130", SUMS_64(0), SUMS_64(64));
#elif TILE_N == 128
    WGMMA("128", FIRST_64, "%64", "%65", "%66", SUMS_64(0));
#else
    WGMMA("64", FIRST_32, "%32", "%33", "%34", SUMS_32(0));
#endif
}

// alpha times the sums of a warp's 16 rows, through its own part of shared memory to C, in whole vectors.
__device__ __forceinline__ void store_sums(const Sums& sum, int M, int N, float alpha, float beta, float* C, int ldc,
                                           float* own, int row0, int col0)
{
    const unsigned lane = threadIdx.x % 32, row = lane / (COLUMNS / 4), col = lane % (COLUMNS / 4) * 4;
    const bool aligned = rows_aligned(C, ldc);
    const bool whole = aligned && row0 + 16 <= M && col0 + TILE_N <= N;
#pragma unroll
    for (int part = 0; part < TILE_N / COLUMNS; ++part) {
        // A lane has columns 2i and 2i + 1 of rows lane / 4 and lane / 4 + 8 of every eight columns.
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* two = sum + (part * COLUMNS / 8 + n) * 4 + half * 2;
                *reinterpret_cast<float2*>(own + (lane / 4 + half * 8) * SUM_STRIDE + n * 8 + lane % 4 * 2) =
                    make_float2(alpha * two[0], alpha * two[1]);
            }
        __syncwarp();
        const float* from = own + row * SUM_STRIDE + col;
        const int column = col0 + part * COLUMNS + col;
        float* c = C + (size_t)(row0 + row) * ldc + column;
        const size_t step = (size_t)ROWS_AT_ONCE * ldc;
        if (whole && beta == 0.0f) {
#pragma unroll
            for (int i = 0; i < 16 / ROWS_AT_ONCE; ++i, c += step)
                *reinterpret_cast<float4*>(c) = *reinterpret_cast<const float4*>(from + i * ROWS_AT_ONCE * SUM_STRIDE);
        } else {
#pragma unroll 1
            for (int i = row; i < 16; i += ROWS_AT_ONCE, c += step, from += ROWS_AT_ONCE * SUM_STRIDE)
                if (row0 + i < M) {
                    const float4 four = *reinterpret_cast<const float4*>(from);
                    store4(c, N - column, aligned, 1.0f, &four.x, beta);
                }
        }
        __syncwarp();  // the next columns overwrite these
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm_wgmma(const __grid_constant__ CUtensorMap mapA, const __grid_constant__ CUtensorMap mapB, int M, int N, int K,
           float alpha, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(1024) unsigned char tiles[];  // STAGES times A and panels of B; mbarriers; sums
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const unsigned full = shared + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);  // the same in all lanes, as ptxas now knows
    const int group = warp / 4, count = (K - 1) / TILE_K + 1;
    const Tiles all = {(M - 1) / TILE_M + 1, (N - 1) / TILE_N + 1};
    Turn turn = {0, 0};

    if (threadIdx.x == 0) set_up_stages(full, empty);
    __syncthreads();

    if (warp == GROUPS * 4 && elected()) copy_tiles(shared, full, empty, &mapA, &mapB, all, count, turn);
    if (group == GROUPS) return;

    for (int index = blockIdx.x; index < all.rows * all.columns; index += BLOCKS) {
        Sums sum[PARTS];
        int before = 0;  // the stage whose products are under way
        auto release = [&](int stage) {
            if (threadIdx.x % 128 == 0) arrive(empty + stage * 8);
        };
        for (int k = 0; k < count; ++k, advance(turn)) {
            const unsigned a = shared + turn.stage * STAGE_BYTES + group * PARTS * 64 * 128;
            const unsigned b = shared + turn.stage * STAGE_BYTES + A_BYTES;
            wait(full + turn.stage * 8, turn.parity);
            products_begin();
#pragma unroll
            for (int step = 0; step < TILE_K / 16; ++step)
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
                    multiply(sum[part], described(a + part * 64 * 128 + step * 32, 0, 1024),
                             described(b + step * 16 * 128, PANEL_BYTES, 1024), k > 0 || step > 0);
            products_end();
            wait_for_products<1>();  // those before these
            if (k > 0) release(before);
            before = turn.stage;
        }
        wait_for_products<0>();
        release(before);

        const Tile at = find_tile(index, all);
        float* const own = reinterpret_cast<float*>(tiles + STAGES * (STAGE_BYTES + 16)) + warp * 16 * SUM_STRIDE;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            store_sums(sum[part], M, N, alpha, beta, C, ldc, own, at.row + (group * PARTS + part) * 64 + warp % 4 * 16,
                       at.column);
    }
}

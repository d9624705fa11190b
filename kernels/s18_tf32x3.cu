// tf32x3: FP32, from three products of TF32.
//
// The idea    A float is the sum of two TF32 numbers but for its last bit: a = big + small. Of the four products of
//             a · b tensor cores make three; small · small is below FP32's rounding. Their adder truncates, so that
//             errors of long sums grow with their length: every PROMOTE tiles the sums are promoted, added to those
//             of the tiles before by FADD, which rounds to nearest.
// The error   Of a term at most 8 u (u = 2^-24: 2 u and 2 u for the last bits, 4 u for small · small); of a sum 2 u
//             for each of the three mma of a step, so 3/8 u for each term at most; u for a promotion: within FP32's
//             bound of (K + 2) u from K = 16 on. Fewer terms, and sums that infinity - infinity made NaN, are added
//             up again on the FP32 units.
// The limit   Three products for one, at mma.sync's rate; and a result full of NaN takes as long as in naive.
// Next        mma_tma lets the hardware copy, swizzle and round what is multiplied.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES)
#error "tf32x3 needs -D TILE_M, TILE_N, TILE_K and STAGES"
#endif
#if !defined(WARP_TILE_M) || !defined(WARP_TILE_N) || !defined(PROMOTE)
#error "tf32x3 needs -D WARP_TILE_M, WARP_TILE_N and PROMOTE"
#endif
static_assert(PROMOTE >= 1, "PROMOTE: 1 tile or more");
static_assert(WARP_TILE_M * WARP_TILE_N <= 2048, "warp tile: registers for two sets of sums");

#define B_COLUMNS 4  // split_tf32 rewrites the words anyway
#include "mma_epilogue.cuh"
#include "mma_mainloop.cuh"

#define MIN_TERMS 16  // the bound holds from this K on

// x = big + small, both TF32; x becomes big.
__device__ __forceinline__ void split_tf32(unsigned& x, unsigned& small)
{
    const float whole = __uint_as_float(x);
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(x) : "f"(whole));
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x) : "f"(whole));
#endif
    small = __float_as_uint(whole - __uint_as_float(x));  // exact
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_tf32x3(int M, int N, int K, float alpha, const float* __restrict__ A, int lda, const float* __restrict__ B,
            int ldb, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(128) unsigned char tiles[];  // STAGES times: A (TILE_M × TILE_K), B (TILE_K × TILE_N)
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const WarpCoord coord = warp_coord();

    Accumulators accum = {}, part = {};  // promoted sums, and those of the tiles since
    auto promote = [&]() {
#pragma unroll
        for (int i = 0; i < MMA_TILES_M * MMA_TILES_N * 4; ++i) {
            float& from = part[i / 4 / MMA_TILES_N][i / 4 % MMA_TILES_N][i % 4];
            accum[i / 4 / MMA_TILES_N][i / 4 % MMA_TILES_N][i % 4] += from;
            from = 0.0f;
        }
    };
    int tiles_since = 0;
    auto no_transform = [](Fragments&) {};
    auto warp_mma = [&](Fragments& f, Fragments&, int step) {
        unsigned small_b[MMA_TILES_N][2];
#pragma unroll
        for (int n = 0; n < MMA_TILES_N; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) split_tf32(f.b[n][i], small_b[n][i]);
#pragma unroll
        for (int m = 0; m < MMA_TILES_M; ++m) {  // lesson: begin
            unsigned small_a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) split_tf32(f.a[m][i], small_a[i]);
            // mma of one accumulator wait for each other: so the first of all accumulators, then the second, the third.
#pragma unroll
            for (int n = 0; n < MMA_TILES_N; ++n) mma_m16n8(part[m][n], small_a, f.b[n]);
#pragma unroll
            for (int n = 0; n < MMA_TILES_N; ++n) mma_m16n8(part[m][n], f.a[m], small_b[n]);
#pragma unroll
            for (int n = 0; n < MMA_TILES_N; ++n) mma_m16n8(part[m][n], f.a[m], f.b[n]);  // lesson: end
        }
        if (step == STEPS - 1 && ++tiles_since == PROMOTE) {
            promote();
            tiles_since = 0;
        }
    };
    if (K >= MIN_TERMS) {
        if (is_full_tile(M, N, K, A, lda, B, ldb, coord))
            mainloop<true>(M, N, K, A, lda, B, ldb, shared, coord, no_transform, warp_mma);
        else
            mainloop<false>(M, N, K, A, lda, B, ldb, shared, coord, no_transform, warp_mma);
    }
    promote();

    bool any_nan = K < MIN_TERMS;
#pragma unroll
    for (int m = 0; m < MMA_TILES_M; ++m)
#pragma unroll
        for (int n = 0; n < MMA_TILES_N; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) any_nan |= isnan(accum[m][n][i]);
    any_nan = __any_sync(0xffffffff, any_nan);
    // Each lane recomputes the elements that it stores itself.
    auto fixup = [&](int m, float* staging) {
        if (!any_nan) return;
#pragma unroll 1
        for (unsigned i = coord.lane * 4; i < 16 * WARP_TILE_N; i += i % 4 == 3 ? 125 : 1) {
            const int row = coord.block_row + coord.warp_row + m * 16 + i / WARP_TILE_N;
            const int col = coord.block_col + coord.warp_col + i % WARP_TILE_N;
            float& value = staging[i / WARP_TILE_N * STAGING_STRIDE + i % WARP_TILE_N];
            if (row >= M || col >= N || !(K < MIN_TERMS || isnan(value))) continue;
            float recomputed = 0.0f;
#pragma unroll 1
            for (int k = 0; k < K; ++k) recomputed += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
            value = alpha * recomputed;
        }
    };
    epilogue(accum, M, N, alpha, beta, C, ldc, tiles, coord, fixup);
}

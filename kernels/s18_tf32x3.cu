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

#define B_COLUMNS 4  // split makes new words of them
#include "mma.cuh"

#define FEW 16  // terms

// x = big + small, both as mma takes them, by their upper 19 bits.
__device__ __forceinline__ void split(unsigned& x, unsigned& small)
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
    const Place at = find_place();

    Sums sum = {}, part = {};  // promoted, and of the tiles since
    auto promote = [&]() {
#pragma unroll
        for (int i = 0; i < QUADS * PAIRS * 4; ++i) {
            float& from = part[i / 4 / PAIRS][i / 4 % PAIRS][i % 4];
            sum[i / 4 / PAIRS][i / 4 % PAIRS][i % 4] += from;
            from = 0.0f;
        }
    };
    int tiles_since = 0;
    auto as_they_are = [](Fragments&) {};
    auto multiply = [&](Fragments& f, Fragments&, int step) {
        unsigned small_pairs[PAIRS][2];
#pragma unroll
        for (int n = 0; n < PAIRS; ++n)
#pragma unroll
            for (int i = 0; i < 2; ++i) split(f.pairs[n][i], small_pairs[n][i]);
#pragma unroll
        for (int m = 0; m < QUADS; ++m) {
            unsigned small_quad[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) split(f.quads[m][i], small_quad[i]);
            // A sum waits for its last product, so each product of all of them in turn.
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) mma(part[m][n], small_quad, f.pairs[n]);
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) mma(part[m][n], f.quads[m], small_pairs[n]);
#pragma unroll
            for (int n = 0; n < PAIRS; ++n) mma(part[m][n], f.quads[m], f.pairs[n]);
        }
        if (step == STEPS - 1 && ++tiles_since == PROMOTE) {
            promote();
            tiles_since = 0;
        }
    };
    if (K >= FEW) {
        if (whole_tiles(M, N, K, A, lda, B, ldb, at))
            main_loop<true>(M, N, K, A, lda, B, ldb, shared, at, as_they_are, multiply);
        else
            main_loop<false>(M, N, K, A, lda, B, ldb, shared, at, as_they_are, multiply);
    }
    promote();

    bool any = K < FEW;
#pragma unroll
    for (int m = 0; m < QUADS; ++m)
#pragma unroll
        for (int n = 0; n < PAIRS; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) any |= isnan(sum[m][n][i]);
    any = __any_sync(0xffffffff, any);
    // Each lane adds up again what it stores itself.
    auto mend = [&](int m, float* own) {
        if (!any) return;
#pragma unroll 1
        for (unsigned i = at.lane * 4; i < 16 * WARP_TILE_N; i += i % 4 == 3 ? 125 : 1) {
            const int row = at.block_row + at.warp_row + m * 16 + i / WARP_TILE_N;
            const int col = at.block_col + at.warp_col + i % WARP_TILE_N;
            float& value = own[i / WARP_TILE_N * SUM_STRIDE + i % WARP_TILE_N];
            if (row >= M || col >= N || !(K < FEW || isnan(value))) continue;
            float again = 0.0f;
#pragma unroll 1
            for (int k = 0; k < K; ++k) again += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
            value = alpha * again;
        }
    };
    store_sums(sum, M, N, alpha, beta, C, ldc, tiles, at, mend);
}

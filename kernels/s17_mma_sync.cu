// mma_sync: tensor cores, with ldmatrix and mma.sync.
//
// The idea    Nothing stands in the way of the products: cp.async brings tiles STAGES - 1 ahead into swizzled shared
//             memory, where no access waits for a bank; ldmatrix brings the fragments of the next step while those
//             of this one are multiplied; the sums leave through shared memory in whole vectors (mma.cuh).
// The limit   mma.sync itself: a Hopper GPU multiplies from registers at about 0.6 of its rate.
// Next        tf32x3 makes an FP32 product of three of TF32.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES)
#error "mma_sync needs -D TILE_M, TILE_N, TILE_K and STAGES"
#endif
#if !defined(WARP_TILE_M) || !defined(WARP_TILE_N)
#error "mma_sync needs -D WARP_TILE_M and WARP_TILE_N"
#endif
#if defined(DTYPE_F16) + defined(DTYPE_BF16) + defined(DTYPE_TF32) != 1
#error "mma_sync needs one of -D DTYPE_F16, DTYPE_BF16 and DTYPE_TF32"
#endif

#include "mma.cuh"

#define WORDS (PAIRS * 2 + QUADS * 4)  // registers of fragments

// TF32 takes the upper 19 bits of a float: rounded to nearest here, else the rest would be cut off. One instruction
// from sm_90 on, for ties to even, as in cuBLAS; before, three for ties away from zero.
__device__ __forceinline__ void round_operand(unsigned& x)
{
#if defined(DTYPE_TF32) && __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(x) : "f"(__uint_as_float(x)));
#elif defined(DTYPE_TF32)
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(x) : "f"(__uint_as_float(x)));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_mma_sync(int M, int N, int K, float alpha, const Element* __restrict__ A, int lda,
              const Element* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(128) unsigned char tiles[];  // STAGES times: A (TILE_M × TILE_K), B (TILE_K × TILE_N)
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const Place at = find_place();

    Sums sum = {};
    auto round_word = [](Fragments& f, int i) {
        round_operand(i < PAIRS * 2 ? f.pairs[i / 2][i % 2] : f.quads[(i - PAIRS * 2) / 4][i % 4]);
    };
    auto round_words = [&](Fragments& f) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) round_word(f, i);
    };
    // The words of the next step are rounded between the products of this one, but for the first quarter of these: they
    // have not come yet. Measured best for wide tiles of TF32: after half of them, and these to and fro along the quads.
    const bool wide = sizeof(Element) == 4 && TILE_N > TILE_M;
    auto multiply = [&](Fragments& f, Fragments& next, int) {
        const int products = QUADS * PAIRS, late = products / (wide ? 2 : 4);
#pragma unroll
        for (int p = 0; p < products; ++p) {
            const int quad = p / PAIRS, along = p % PAIRS;
            const int pair = wide && quad % 2 == 1 ? PAIRS - 1 - along : along;
            mma(sum[quad][pair], f.quads[quad], f.pairs[pair]);
#pragma unroll
            for (int i = 0; i < WORDS; ++i)
                if (late + i * (products - late) / WORDS == p) round_word(next, i);
        }
    };
    if (whole_tiles(M, N, K, A, lda, B, ldb, at))
        main_loop<true>(M, N, K, A, lda, B, ldb, shared, at, round_words, multiply);
    else
        main_loop<false>(M, N, K, A, lda, B, ldb, shared, at, round_words, multiply);
    store_sums(sum, M, N, alpha, beta, C, ldc, tiles, at, [](int, float*) {});
}

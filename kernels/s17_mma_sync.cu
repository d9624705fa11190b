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

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_mma_sync(int M, int N, int K, float alpha, const Element* __restrict__ A, int lda,
              const Element* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(128) unsigned char tiles[];  // STAGES times: A (TILE_M × TILE_K), B (TILE_K × TILE_N)
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(tiles));
    const Place at = find_place();

    Sums sum = {};
    auto round_word = [](Fragments& f, const Words& words, int i) {
        if (sizeof(Element) == 2) return;
        const int word = i - PAIRS * 2;
        if (word < 0)
            f.pairs[i / 2][i % 2] = rounded(f.pairs[i / 2][i % 2]);
        else
            f.quads[word / 4][word % 4] = rounded(words[word / 4][word % 4]);
    };
    auto round_words = [&](Fragments& f, const Words& words) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) round_word(f, words, i);
    };
    // The words of the next step are rounded between the products of this one, but for the first quarter of these: they
    // have not come yet. Of TF32 to and fro along the quads, so that neighbouring products share a pair.
    auto multiply = [&](Fragments& f, Fragments& next, const Words& words, int) {
        const int products = QUADS * PAIRS, late = products / 4;
#pragma unroll
        for (int p = 0; p < products; ++p) {
            const int quad = p / PAIRS, back = sizeof(Element) == 4 && quad % 2 == 1;
            const int pair = back ? PAIRS - 1 - p % PAIRS : p % PAIRS;
            mma(sum[quad][pair], f.quads[quad], f.pairs[pair]);
#pragma unroll
            for (int i = 0; i < WORDS; ++i)
                if (late + i * (products - late) / WORDS == p) round_word(next, words, i);
        }
    };
    if (whole_tiles(M, N, K, A, lda, B, ldb, at))
        main_loop<true, 1>(M, N, K, A, lda, B, ldb, shared, at, round_words, multiply);
    else
        main_loop<false, 1>(M, N, K, A, lda, B, ldb, shared, at, round_words, multiply);
    store_sums(sum, M, N, alpha, beta, C, ldc, tiles, at, [](int, float*) {});
}

// mma_sync: tensor cores, with ldmatrix and mma.sync.
//
// The idea    Nothing stands in the way of the products: cp.async brings tiles STAGES - 1 ahead into swizzled shared
//             memory, where no access waits for a bank; ldmatrix brings the fragments of the next step while those
//             of this one are multiplied; the sums leave through shared memory in whole vectors.
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

#include "mma_epilogue.cuh"
#include "mma_mainloop.cuh"

#define WORDS (MMA_TILES_N * 2 + MMA_TILES_M * 4)  // registers of fragments

// TF32 takes the upper 19 bits of a float: rounded to nearest here, else the rest would be cut off. One instruction
// from sm_90 on, for ties to even, as in cuBLAS; before, three for ties away from zero.
__device__ __forceinline__ void round_to_tf32(unsigned& x)
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
    const WarpCoord coord = warp_coord();

    Accumulators accum = {};
    auto round_word = [](Fragments& f, int i) {
        round_to_tf32(i < MMA_TILES_N * 2 ? f.b[i / 2][i % 2] : f.a[(i - MMA_TILES_N * 2) / 4][i % 4]);
    };
    auto round_words = [&](Fragments& f) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) round_word(f, i);
    };
    // The words of the next step are rounded between the products of this one, after the first quarter of them: before,
    // the loads have not arrived. Wide tiles of TF32 (measured): after half of them, which go to and fro along b.
    const bool wide = sizeof(Element) == 4 && TILE_N > TILE_M;
    auto warp_mma = [&](Fragments& f, Fragments& next, int) {
        const int products = MMA_TILES_M * MMA_TILES_N, late = products / (wide ? 2 : 4);
#pragma unroll
        for (int p = 0; p < products; ++p) {
            const int a = p / MMA_TILES_N, along = p % MMA_TILES_N;
            const int b = wide && a % 2 == 1 ? MMA_TILES_N - 1 - along : along;
            mma_m16n8(accum[a][b], f.a[a], f.b[b]);
#pragma unroll
            for (int i = 0; i < WORDS; ++i)
                if (late + i * (products - late) / WORDS == p) round_word(next, i);
        }
    };
    if (is_full_tile(M, N, K, A, lda, B, ldb, coord))
        mainloop<true>(M, N, K, A, lda, B, ldb, shared, coord, round_words, warp_mma);
    else
        mainloop<false>(M, N, K, A, lda, B, ldb, shared, coord, round_words, warp_mma);
    epilogue(accum, M, N, alpha, beta, C, ldc, tiles, coord, [](int, float*) {});
}

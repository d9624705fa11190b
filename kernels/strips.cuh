// Edge strips: the right and lower edge of C where it has too few columns or rows for tiles.
#pragma once

#include "strips_by_lines.cuh"
#include "strips_by_squares.cuh"

// The remainder of a size by whole tiles if it is at most an eighth of a tile; else 0: then it is a tile, too.
__device__ __forceinline__ int strip_size(int size, int tile)
{
    return size > tile && size % tile <= tile / 8 ? size % tile : 0;
}

// BY_LINES: by lines where the strips are thin enough, which takes registers.
template <int BLOCK_THREADS, bool BY_LINES>
__device__ __forceinline__ void strips(int low, int right, float* shared, int thread, int M, int N, int K, float alpha,
                                       const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc)
{
    if (BY_LINES && low <= 2 && right <= 2)
        strips_by_lines<BLOCK_THREADS>(low, right, shared, thread, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else
        strips_by_squares<BLOCK_THREADS>(low, right, shared, thread, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

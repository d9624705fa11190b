// cp.async copies of the tiles of lean_loop and stream_k, without a guard in the loop.
#pragma once

#include "simt_tile.cuh"

#pragma nv_diag_suppress 128  // with ADVANCE_B the loop over columns of B is not reached

// Copies the whole tiles along K, one after another. Rows and columns past an edge are copied from the last one: their
// sums are not stored, and no guard is needed. VECTORS: rows of B are 16-byte aligned and N is a multiple of 4.
// ADVANCE_B: each copy moves its pointer into B on by a row; else the rows of a tile are at multiples of a stride.
template <bool VECTORS, bool ADVANCE_B>
struct AsyncTileCopy {
    static constexpr int COPIES = A_ROWS + (VECTORS ? B_VECTORS : B_FLOATS);
    const float *a[A_ROWS], *b[VECTORS ? 1 : B_COLUMNS];
    size_t b_step, b_tile;
    int a_to, b_to;

    __device__ __forceinline__ AsyncTileCopy(int thread, const ThreadCoord& coord, const float* A, int lda,
                                             const float* B, int ldb, int M, int N, int k0)
    {
        const int row = coord.block_row + thread / 8;
#pragma unroll
        for (int i = 0; i < A_ROWS; ++i)
            a[i] = A + (size_t)min(row + i * (THREADS / 8), M - 1) * lda + k0 + thread % 8;
        a_to = thread % 8 * A_STRIDE + thread / 8;

        const int width = VECTORS ? 4 : 1, k = thread / (TILE_N / width), step = THREADS / (TILE_N / width);
#pragma unroll
        for (int c = 0; c < (VECTORS ? 1 : B_COLUMNS); ++c) {
            const int col = coord.block_col + thread % (TILE_N / width) * width + c * THREADS;
            b[c] = B + (size_t)(k0 + k) * ldb + min(col, N - width);
        }
        b_step = (size_t)(step > 0 ? step : 1) * ldb;
        b_tile = (size_t)TILE_K * ldb;
        b_to = TILE_K * A_STRIDE + thread * width;
    }

    // Issues copy i of COPIES of a tile into `to`, where `pred` is true; after the last one, goes on to the next tile.
    __device__ __forceinline__ void issue(int i, float* to, bool pred)
    {
        const int j = i - A_ROWS;
        if (i < A_ROWS) {
#pragma unroll
            for (int k = 0; k < TILE_K; k += 8)
                cp_async_4_if(pred, to + a_to + k * A_STRIDE + i * (THREADS / 8), a[i] + k);
            a[i] += TILE_K;
        } else if (VECTORS) {
            cp_async_16_if(pred, to + b_to + j * THREADS * 4, b[0] + j * b_step);
        } else {
            const float*& column = b[j % B_COLUMNS];
            cp_async_4_if(pred, to + b_to + j * THREADS, ADVANCE_B ? column : column + j / B_COLUMNS * b_step);
            // In PTX, so that the compiler does not keep all offsets in registers instead.
            if (ADVANCE_B) asm volatile("mad.wide.s32 %0, %1, 4, %0;" : "+l"(column) : "r"((int)b_step));
        }
        if (ADVANCE_B || i + 1 < COPIES) return;
#pragma unroll
        for (int c = 0; c < (VECTORS ? 1 : B_COLUMNS); ++c)
            b[c] += b_tile;
    }

    __device__ __forceinline__ void issue_tile(float* to, bool pred)
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            issue(i, to, pred);
    }

    // Hides from the compiler that the stride of B is the same in every tile: else it keeps multiples of it for the
    // whole loop, in registers that wide tiles do not have.
    __device__ __forceinline__ void hide_stride()
    {
        int step = (int)b_step;
        asm volatile("" : "+r"(step));
        b_step = (ptrdiff_t)step;
    }
};

// The residue tile, the first along K: only `width` columns of A and rows of B exist.
__device__ __forceinline__ void copy_residue_tile(float* to, int thread, const ThreadCoord& coord, const float* A,
                                                  int lda, const float* B, int ldb, int M, int N, int width)
{
#pragma unroll 1
    for (int i = thread; i < TILE_M * TILE_K; i += THREADS) {
        const int k = i % TILE_K, row = i / TILE_K;
        if (k < width)
            cp_async_4(&to[k * A_STRIDE + row], A + (size_t)min(coord.block_row + row, M - 1) * lda + k);
        else
            to[k * A_STRIDE + row] = 0.0f;  // zeros past the edge add nothing
    }
#pragma unroll 1
    for (int i = thread; i < TILE_K * TILE_N; i += THREADS) {
        const int k = i / TILE_N, col = i % TILE_N;
        if (k < width)
            cp_async_4(&to[TILE_K * A_STRIDE + i], B + (size_t)k * ldb + min(coord.block_col + col, N - 1));
        else
            to[TILE_K * A_STRIDE + i] = 0.0f;
    }
}

// The epilogue of the mma.sync stages: C = alpha · accum + beta · C, staged through shared memory for whole vectors.
#pragma once

#include "mma_tile.cuh"

__device__ __forceinline__ float2 scaled(float alpha, float x, float y)
{
    return make_float2(alpha * x, alpha * y);
}

// A warp stages 16 rows at a time in its own part of shared memory. The tiles there are no longer needed: all warps
// have passed the last barrier of the main loop, which copies nothing after it. fixup(m, staging) may change the
// staged rows. staged_column(column) says where columns of C from a multiple of four on are staged.
template <typename Fixup, typename StagedColumn>
__device__ __forceinline__ void epilogue(const Accumulators& accum, int M, int N, float alpha, float beta, float* C,
                                         int ldc, unsigned char* tiles, const WarpCoord& coord, Fixup fixup,
                                         StagedColumn staged_column)
{
    float* const staging = reinterpret_cast<float*>(tiles) + threadIdx.x / 32 * 16 * STAGING_STRIDE;
    const unsigned lane = coord.lane;
    const int row0 = coord.block_row + coord.warp_row, col0 = coord.block_col + coord.warp_col;
    const bool aligned = rows_aligned(C, ldc);
    const bool whole = aligned && row0 + WARP_TILE_M <= M && col0 + WARP_TILE_N <= N;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m) {
        // A lane holds columns 2i and 2i + 1 of rows lane / 4 and lane / 4 + 8 of an mma's result; with SWAP_AB of the
        // transposed one. With B_COLUMNS of 4 the columns of two mma are neighbours.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!SWAP_AB) {
                float* const row = staging + (lane / 4 + half * 8) * STAGING_STRIDE + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < MMA_TILES_N; ++n)
                    *reinterpret_cast<float2*>(row + n * 8) =
                        scaled(alpha, accum[m][n][half * 2], accum[m][n][half * 2 + 1]);
            } else if (B_COLUMNS == 4) {
                float4* const row =
                    reinterpret_cast<float4*>(staging) + (lane % 4 * 2 + half) * (STAGING_STRIDE / 4) + lane / 4;
#pragma unroll
                for (int n = 0; n < MMA_TILES_M; n += 2)
#pragma unroll
                    for (int eight = 0; eight < 2; ++eight) {
                        const float(&left)[4] = accum[n][m * 2 + eight], (&right)[4] = accum[n + 1][m * 2 + eight];
                        row[n * 4 + eight * 8 * (STAGING_STRIDE / 4)] = make_float4(
                            alpha * left[half], alpha * left[half + 2], alpha * right[half], alpha * right[half + 2]);
                    }
            } else {
                float* const row = staging + (lane % 4 * 2 + half) * STAGING_STRIDE + lane / 4 * 2;
#pragma unroll
                for (int n = 0; n < MMA_TILES_M; ++n) {
                    *reinterpret_cast<float2*>(row + n * 16) =
                        scaled(alpha, accum[n][m * 2][half], accum[n][m * 2][half + 2]);
                    *reinterpret_cast<float2*>(row + n * 16 + 8 * STAGING_STRIDE) =
                        scaled(alpha, accum[n][m * 2 + 1][half], accum[n][m * 2 + 1][half + 2]);
                }
            }
        }
        __syncwarp();
        fixup(m, staging);
        const unsigned row = lane / (WARP_TILE_N / 4), col = lane % (WARP_TILE_N / 4) * 4;
        const float* from = staging + row * STAGING_STRIDE + staged_column(col);
        float* c = C + (size_t)(row0 + m * 16 + row) * ldc + col0 + col;
        const size_t step = (size_t)ROWS_PER_STORE * ldc;
        if (whole && beta == 0.0f) {
#pragma unroll
            for (int i = 0; i < 16 / ROWS_PER_STORE; ++i, c += step)
                *reinterpret_cast<float4*>(c) =
                    *reinterpret_cast<const float4*>(from + i * ROWS_PER_STORE * STAGING_STRIDE);
        } else {
#pragma unroll 1
            for (int i = row; i < 16; i += ROWS_PER_STORE, c += step, from += ROWS_PER_STORE * STAGING_STRIDE)
                if (row0 + m * 16 + i < M) store4(c, N - col0 - (int)col, aligned, 1.0f, from, beta);
        }
        __syncwarp();  // the next 16 rows overwrite these
    }
}

template <typename Fixup>
__device__ __forceinline__ void epilogue(const Accumulators& accum, int M, int N, float alpha, float beta, float* C,
                                         int ldc, unsigned char* tiles, const WarpCoord& coord, Fixup fixup)
{
    epilogue(accum, M, N, alpha, beta, C, ldc, tiles, coord, fixup, [](unsigned column) { return column; });
}

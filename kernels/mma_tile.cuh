// The tiles of the mma.sync stages: sizes that follow from the config, fragments, and which tile a warp computes.
#pragma once

#include "vectors.cuh"

#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#if defined(DTYPE_F16) || defined(DTYPE_BF16)
using Element = unsigned short;  // moved as bits: only mma knows what they mean
#else
using Element = float;
#endif

// FP32: how many neighbouring columns of B a lane loads at once. Two are neighbours in the registers of one mma, too.
// Four belong to two mma, and save half of the loads, but cost a move per word unless the stage rewrites them anyway.
#ifndef B_COLUMNS
#define B_COLUMNS 2
#endif

#define VECTOR ((int)(16 / sizeof(Element)))  // elements of a chunk: the 16 bytes moved at once
#define MMA_K (2 * VECTOR)                    // k of one mma: two chunks of a row of A
#define STEPS (TILE_K / MMA_K)
#define A_CHUNKS (TILE_K / VECTOR)
#define B_CHUNKS (TILE_N / VECTOR)
#define A_BYTES (TILE_M * A_CHUNKS * 16)
#define B_BYTES (TILE_K * B_CHUNKS * 16)
#define STAGE_BYTES (A_BYTES + B_BYTES)

#define WARPS_N (TILE_N / WARP_TILE_N)
#define WARPS (TILE_M / WARP_TILE_M * WARPS_N)
#define THREADS (WARPS * 32)
// Of FP32 the operands are swapped: mma computes Cᵀ = Bᵀ · Aᵀ, so that each load from shared memory fills neighbouring
// registers. Its 16 rows are then columns of B, and its 8 columns are rows of A.
#define SWAP_AB (sizeof(Element) == 4)
#define MMA_TILES_M ((SWAP_AB ? WARP_TILE_N : WARP_TILE_M) / 16)  // mma of a warp, along the rows of its result
#define MMA_TILES_N ((SWAP_AB ? WARP_TILE_M : WARP_TILE_N) / 8)
#define A_COPIES (TILE_M * A_CHUNKS / THREADS)
#define B_COPIES (TILE_K * B_CHUNKS / THREADS)
#define A_ROW_STEP (THREADS / A_CHUNKS)
#define B_ROW_STEP (THREADS / B_CHUNKS)
#define B_XOR_STEP (SWAP_AB ? 2 : 1)  // see swizzle_offset
// The epilogue's rows in shared memory are padded, so that a fragment is spread over all banks.
#define STAGING_STRIDE (WARP_TILE_N + VECTOR)
#define ROWS_PER_STORE (128 / WARP_TILE_N)  // of C, by a warp in vectors

static_assert(BAND_ROWS >= 1, "BAND_ROWS: 1 or more");
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");
static_assert(TILE_M % WARP_TILE_M == 0 && WARP_TILE_M % 16 == 0, "TILE_M, WARP_TILE_M: whole fragments");
static_assert(TILE_N % WARP_TILE_N == 0 && WARP_TILE_N % 32 == 0, "TILE_N, WARP_TILE_N: whole fragments, in fours");
static_assert(TILE_K % 16 == 0, "TILE_K: a multiple of 16, of FP16 and BF16 of 32");
static_assert(128 % WARP_TILE_N == 0, "WARP_TILE_N: 32, 64 or 128");
static_assert(TILE_K % (2 * MMA_K) == 0, "TILE_K: an even number of steps, for two sets of registers");
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");
static_assert(THREADS % A_CHUNKS == 0 && TILE_M % A_ROW_STEP == 0, "TILE_M, TILE_K: as many chunks for each thread");
static_assert(THREADS % B_CHUNKS == 0 && TILE_K % B_ROW_STEP == 0, "TILE_K, TILE_N: as many chunks for each thread");
static_assert(B_COLUMNS == 2 || (B_COLUMNS == 4 && sizeof(Element) == 4), "B_COLUMNS: 2, of FP32 2 or 4");
// The swizzle repeats from one row that a thread copies to its next.
static_assert(A_ROW_STEP % 8 == 0, "TILE_K: at most half as many as threads");
static_assert(B_ROW_STEP * B_XOR_STEP % 8 == 0, "TILE_N: at most as many as threads");
static_assert(WARPS * 16 * STAGING_STRIDE * 4 <= STAGES * STAGE_BYTES, "STAGES: room for the sums");

// What a warp multiplies in one step of MMA_K: the registers of the two operands of its mma.
struct Fragments {
    unsigned a[MMA_TILES_M][4], b[MMA_TILES_N][2];
};
using Accumulators = float[MMA_TILES_M][MMA_TILES_N][4];

// Which part of C this block and this warp compute. Blocks start in the order of their index: they are taken down the
// columns of bands of BAND_ROWS block rows, so that those that run at the same time share A and B in L2.
struct WarpCoord {
    int block_row, block_col, warp_row, warp_col;
    unsigned lane;
};
__device__ __forceinline__ WarpCoord warp_coord()
{
    const int band_rows = BAND_ROWS;
    const int grid_rows = gridDim.y, grid_cols = gridDim.x;
    const int index = blockIdx.y * grid_cols + blockIdx.x;
    const int band = index / (band_rows * grid_cols), in_band = index % (band_rows * grid_cols);
    const int rows = min(grid_rows - band * band_rows, band_rows);  // the last band may be shorter
    const unsigned warp = threadIdx.x / 32;
    return {(band * band_rows + in_band % rows) * TILE_M, in_band / rows * TILE_N,
            (int)(warp / WARPS_N * WARP_TILE_M), (int)(warp % WARPS_N * WARP_TILE_N), threadIdx.x % 32};
}

// Whether no tile of this block crosses an edge, and all rows are 16-byte aligned: copies then need no guard.
__device__ __forceinline__ bool is_full_tile(int M, int N, int K, const Element* A, int lda, const Element* B, int ldb,
                                             const WarpCoord& coord)
{
    return rows_aligned(A, lda) && rows_aligned(B, ldb) && coord.block_row + TILE_M <= M &&
           coord.block_col + TILE_N <= N && K % TILE_K == 0;
}

// The tiles of lean_loop and stream_k: sizes that follow from the config, and which part of C a thread computes.
#pragma once

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES) || !defined(SLICES)
#error "TILE_M, TILE_N, TILE_K, STAGES and SLICES are needed, by -D"
#endif
#if !defined(WARP_TILE_M) || !defined(WARP_TILE_N) || !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "WARP_TILE_M, WARP_TILE_N, THREAD_TILE_M and THREAD_TILE_N are needed, by -D"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif
static_assert(BAND_ROWS >= 1, "BAND_ROWS: 1 or more");
static_assert(TILE_M % WARP_TILE_M == 0, "TILE_M: a multiple of WARP_TILE_M");
static_assert(TILE_N % WARP_TILE_N == 0, "TILE_N: a multiple of WARP_TILE_N");
static_assert(THREAD_TILE_M % 4 == 0 && THREAD_TILE_N % 4 == 0, "thread tile: multiples of 4");
static_assert(WARP_TILE_M % THREAD_TILE_M == 0, "WARP_TILE_M: a multiple of THREAD_TILE_M");
static_assert(WARP_TILE_N % THREAD_TILE_N == 0, "WARP_TILE_N: a multiple of THREAD_TILE_N");
static_assert(TILE_K % 8 == 0, "TILE_K: a multiple of 8, the neighbours in a row of A that a warp copies");
static_assert(TILE_K % (2 * SLICES) == 0, "SLICES: an even number of steps each, for the registers to take turns");
static_assert(THREAD_TILE_M % SLICES == 0, "SLICES: the same number of rows of a thread tile each");
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");

#define LANES_M (WARP_TILE_M / THREAD_TILE_M)
#define LANES_N (WARP_TILE_N / THREAD_TILE_N)
#define WARPS_N (TILE_N / WARP_TILE_N)
#define SLICE_THREADS (TILE_M / WARP_TILE_M * WARPS_N * 32)
#define THREADS (SLICE_THREADS * SLICES)
#define STEPS (TILE_K / SLICES)         // along K, in a tile and slice
#define OWN_ROWS (THREAD_TILE_M / SLICES)  // of a thread tile, that a slice adds up and stores
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");
static_assert(LANES_M * LANES_N == 32, "thread tile: 32 of them to a warp tile");
static_assert(LANES_M % 2 == 0, "thread tile: an even number of them down a warp tile");

// What a thread copies of a tile: single floats of A, one or more from each of A_ROWS rows; float4s of B, or
// single floats in B_COLUMNS columns.
#define A_ROWS (TILE_M * 8 / THREADS)
#define B_VECTORS (TILE_K * TILE_N / 4 / THREADS)
#define B_FLOATS (TILE_K * TILE_N / THREADS)
#define B_COLUMNS (TILE_N > THREADS ? TILE_N / THREADS : 1)
static_assert(A_ROWS * THREADS == TILE_M * 8, "TILE_M: the same number of rows a thread");
static_assert(B_VECTORS * THREADS * 4 == TILE_K * TILE_N, "TILE_K * TILE_N: the same number of float4s a thread");
static_assert(THREADS % (TILE_N / 4) == 0, "TILE_N: a thread's float4s are in one column");
static_assert(THREADS % TILE_N == 0 || TILE_N % THREADS == 0, "TILE_N: a divisor or multiple of the threads");

// STAGES times: As (TILE_K × A_STRIDE, transposed), Bs (TILE_K × TILE_N). Rows of As are 4 floats longer: the
// eight k that a warp stores go to different banks.
#define A_STRIDE (TILE_M + 4)
#define STAGE_FLOATS (TILE_K * (A_STRIDE + TILE_N))

// With every change of the source ptxas assigns other registers, and register bank conflicts come and go. So
// some choices are for wide tiles only: there they are faster, elsewhere slower (measured: docs/results/attempts.md).
constexpr bool WIDE = TILE_N > TILE_M && SLICES == 1;
// Whether the rows of A that are multiplied first are loaded before B's columns: 3 % faster, for others 8 % slower.
constexpr bool A_BEFORE_B = WIDE;

// Which part of C a thread computes.
struct ThreadCoord {
    int block_row, block_col;  // of the tile
    int row, col;              // of the thread's first element, in the tile
    int slice;                 // of the steps along K of each tile, which so many warps share
};

// Row and column of a lane's thread tile in the warp tile. Lanes 2i and 2i + 1 share a column, lanes i and i + 2
// mostly a row: shared memory then serves a warp's float4s in two rounds instead of four.
__device__ __forceinline__ int lane_row(int lane) { return lane / (2 * LANES_N) * 2 + lane % 2; }
__device__ __forceinline__ int lane_col(int lane) { return lane / 2 % LANES_N; }

__device__ __forceinline__ ThreadCoord thread_coord(int thread, int block_row, int block_col)
{
    const int warp = thread % SLICE_THREADS / 32, lane = thread % 32;
    const int lane_m = lane_row(lane), lane_n = lane_col(lane);
    return {block_row, block_col, warp / WARPS_N * WARP_TILE_M + lane_m * 4,
            warp % WARPS_N * WARP_TILE_N + lane_n * 4, SLICES == 1 ? 0 : thread / SLICE_THREADS};
}

// The row and column of a tile. Whole tiles come first, down the columns of bands of BAND_ROWS rows of tiles, so that
// blocks that run at the same time share A and B in L2; then the tiles at the right edge, and those at the lower one.
__device__ __forceinline__ int2 rasterize_tile(int index, int M, int N)
{
    const int whole_rows = M / TILE_M, whole_cols = N / TILE_N, whole = whole_rows * whole_cols;
    if (index < whole) {
        const int band = index / (BAND_ROWS * whole_cols), in_band = index % (BAND_ROWS * whole_cols);
        const int rows = min(whole_rows - band * BAND_ROWS, BAND_ROWS);  // the last band may be shorter
        return {in_band / rows, band * BAND_ROWS + in_band % rows};
    }
    const int edge = index - whole, right = N % TILE_N != 0 ? whole_rows : 0;
    return edge < right ? make_int2(whole_cols, edge) : make_int2(edge - right, whole_rows);
}

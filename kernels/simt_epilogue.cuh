// The epilogue of lean_loop and stream_k: sums of slices added up, then C = alpha · sum + beta · C.
#pragma once

#include "simt_tile.cuh"

// Four neighbouring sums of a row to memory and back, each pair swapped. A float4 takes four registers in order, which
// puts the sums of even columns into the bank of odd registers, while the loop has B's even columns in even ones: a
// product then finds its two new operands in different banks.
__device__ __forceinline__ void store_swapped4(float* to, const float* sum)
{
    *reinterpret_cast<float4*>(to) = make_float4(sum[1], sum[0], sum[3], sum[2]);
}

__device__ __forceinline__ void add_swapped4(float* sum, const float* from)
{
    const float4 part = *reinterpret_cast<const float4*>(from);
    sum[1] += part.x;
    sum[0] += part.y;
    sum[3] += part.z;
    sum[2] += part.w;
}

// Sliced K: adds up the sums of all slices, in their order. A slice owns the rows m of the thread tile with
// m / OWN_ROWS == slice.
__device__ __forceinline__ void reduce_slices(float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* shared, int thread,
                                           int slice)
{
    if (SLICES == 1) return;
    float* const staging = shared + thread % SLICE_THREADS * 4;
    auto at = [](int from, int m, int n) {  // no slot for the sums that stay where they are
        const int slot = from - (from > m / OWN_ROWS);
        return ((slot * THREAD_TILE_M + m) * THREAD_TILE_N + n) * SLICE_THREADS;
    };
    __syncthreads();  // no thread still reads a tile
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS != slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                store_swapped4(&staging[at(slice, m, n)], &sum[m][n]);
    __syncthreads();  // the sums of all slices are there
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS == slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4) {
                float total[4] = {};
#pragma unroll
                for (int s = 0; s < SLICES; ++s)
                    if (s == m / OWN_ROWS)
                        for (int i = 0; i < 4; ++i)
                            total[i] += sum[m][n + i];
                    else
                        add_swapped4(total, &staging[at(s, m, n)]);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[m][n + i] = total[i];
            }
}

// C = alpha · sum + beta · C, for the rows of the thread tile that the slice owns.
__device__ __forceinline__ void epilogue(const float (&sum)[THREAD_TILE_M][THREAD_TILE_N], const ThreadCoord& coord,
                                         int M, int N, float alpha, float beta, float* C, int ldc)
{
    const bool aligned = rows_aligned(C, ldc);
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = coord.block_row + coord.row + m / 4 * 4 * LANES_M + m % 4;
        if (m / OWN_ROWS != coord.slice || row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = coord.block_col + coord.col + n * LANES_N;
            store4(C + (size_t)row * ldc + col, N - col, aligned, alpha, &sum[m][n], beta);
        }
    }
}

// For epilogue_by_rows: the stride of a staged row (lanes of different rows write to different banks), the floats that
// a warp needs, and whether there is room.
constexpr int STAGING_STRIDE = WARP_TILE_N + 16;
constexpr int WARP_STAGING = 2 * LANES_M * STAGING_STRIDE;
constexpr bool EPILOGUE_BY_ROWS =
    WIDE && WARP_TILE_N % 32 == 0 && THREADS / 32 * WARP_STAGING <= STAGES * STAGE_FLOATS;

// The epilogue where rows of C are not aligned, for one slice: a warp stages two rows of all its threads at a time in
// shared memory, so that neighbouring lanes store neighbouring elements.
__device__ __forceinline__ void epilogue_by_rows(const float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* shared,
                                                 int thread, const ThreadCoord& coord, int M, int N, float alpha,
                                                 float beta, float* C, int ldc)
{
    const int lane = thread % 32, warp = thread / 32;
    const int row0 = warp / WARPS_N * WARP_TILE_M, col0 = warp % WARPS_N * WARP_TILE_N;
    float* const staging = shared + warp * WARP_STAGING;
    float* const to = staging + lane_row(lane) * STAGING_STRIDE + lane_col(lane) * 4;
    __syncthreads();  // no thread still multiplies: the rows are written over tiles
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; m += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                *reinterpret_cast<float4*>(&to[i * LANES_M * STAGING_STRIDE + n * LANES_N]) =
                    make_float4(sum[m + i][n], sum[m + i][n + 1], sum[m + i][n + 2], sum[m + i][n + 3]);
        __syncwarp();  // the sums of all lanes are there
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int r = 0; r < LANES_M; ++r)
#pragma unroll
                for (int n = 0; n < WARP_TILE_N; n += 32) {
                    const int row = coord.block_row + row0 + m / 4 * 4 * LANES_M + m % 4 + i + r * 4;
                    const int col = coord.block_col + col0 + n + lane;
                    float v = __fmul_rn(alpha, staging[(i * LANES_M + r) * STAGING_STRIDE + n + lane]);
                    if (row >= M || col >= N) continue;
                    float* const c = C + (size_t)row * ldc + col;
                    if (beta != 0.0f) v = fmaf(beta, *c, v);
                    *c = v;
                }
        __syncwarp();  // no lane still reads what the next rows are written over
    }
}

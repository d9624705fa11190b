// One element of C a thread, through 16 × 16 tiles in shared memory: what the kernels beside this have alike.
#pragma once

#define TILE 16

// The sum over k < K of a(k) · b(k), the products added up as Sum. a(k) is an element of this thread's row of
// A, b(k) one of its column of B; both give 0 where there is no such row or column.
template <typename Sum, typename RowOfA, typename ColumnOfB>
__device__ Sum tiled_sum(int K, RowOfA a, ColumnOfB b)
{
    __shared__ Sum As[TILE][TILE];
    __shared__ Sum Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    Sum sum = 0;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        As[ty][tx] = k0 + tx < K ? Sum(a(k0 + tx)) : Sum(0);
        Bs[ty][tx] = k0 + ty < K ? Sum(b(k0 + ty)) : Sum(0);
        __syncthreads();  // the tiles are complete
        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();  // no thread still reads what the next round overwrites
    }
    return sum;
}

// The row and the column of C that this thread makes.
__device__ __forceinline__ int my_row()
{
    return blockIdx.y * TILE + threadIdx.y;
}

__device__ __forceinline__ int my_column()
{
    return blockIdx.x * TILE + threadIdx.x;
}

// Matrices stored by rows or, each where its parameter says so, by columns: cuBLAS's N and T, as a template.

#include "tile.cuh"

// The place of an element of a matrix that lies by rows, or by columns.
template <bool COLUMNS>
__device__ __forceinline__ size_t place(int row, int col, int ld)
{
    return COLUMNS ? (size_t)col * ld + row : (size_t)row * ld + col;
}

template <bool A_COLUMNS, bool B_COLUMNS, bool C_COLUMNS>
__global__ void gemm(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                     float beta, float* C, int ldc)
{
    const int row = my_row(), col = my_column();
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[place<A_COLUMNS>(row, k, lda)] : 0.0f; },
        [&](int k) { return col < N ? B[place<B_COLUMNS>(k, col, ldb)] : 0.0f; });
    if (row >= M || col >= N) return;
    float* c = &C[place<C_COLUMNS>(row, col, ldc)];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

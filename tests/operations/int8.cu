// INT8 × INT8 with INT32 sums, an element at a time: exact.

#include "tile.cuh"

extern "C" __global__ void gemm_int8(int M, int N, int K, int alpha, const signed char* A, int lda,
                                     const signed char* B, int ldb, int beta, int* C, int ldc)
{
    const int row = my_row(), col = my_column();
    const int sum = tiled_sum<int>(
        K, [&](int k) { return row < M ? A[(size_t)row * lda + k] : 0; },
        [&](int k) { return col < N ? B[(size_t)k * ldb + col] : 0; });
    if (row >= M || col >= N) return;
    int* c = &C[(size_t)row * ldc + col];
    *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
}

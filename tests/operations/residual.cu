// An operation of this project's own: C = alpha·A·B + beta·C + D, with D of C's shape.

#include "tile.cuh"

extern "C" __global__ void gemm_residual(int M, int N, int K, float alpha, const float* A, int lda,
                                         const float* B, int ldb, const float* D, int ldd, float beta,
                                         float* C, int ldc)
{
    const int row = my_row(), col = my_column();
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[(size_t)row * lda + k] : 0.0f; },
        [&](int k) { return col < N ? B[(size_t)k * ldb + col] : 0.0f; });
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * ldc + col];
    *c = (beta == 0.0f ? alpha * sum : alpha * sum + beta * *c) + D[(size_t)row * ldd + col];
}

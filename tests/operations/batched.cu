// A batch, a block of the grid's z for each matrix: C[i] = alpha·A[i]·B[i] + beta·C[i], strides apart.

#include "tile.cuh"

extern "C" __global__ void gemm_batched(int M, int N, int K, float alpha, const float* A, int ldA,
                                        long long strideA, const float* B, int ldB, long long strideB,
                                        float beta, float* C, int ldC, long long strideC, int batch)
{
    const int row = my_row(), col = my_column();
    A += blockIdx.z * strideA;
    B += blockIdx.z * strideB;
    C += blockIdx.z * strideC;
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[(size_t)row * ldA + k] : 0.0f; },
        [&](int k) { return col < N ? B[(size_t)k * ldB + col] : 0.0f; });
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * ldC + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

// The epilogues of a layer of a network: C = f(alpha·A·B + beta·C + bias), a bias for each column of C.

#include "tile.cuh"

__device__ __forceinline__ float relu(float x)
{
    return fmaxf(x, 0.0f);
}

// By tanh, as cublasLt has it (Hendrycks and Gimpel, arXiv:1606.08415).
__device__ __forceinline__ float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <typename Activation>
__device__ __forceinline__ void layer(int M, int N, int K, float alpha, const float* A, int lda,
                                      const float* B, int ldb, const float* bias, float beta, float* C,
                                      int ldc, Activation activation)
{
    const int row = my_row(), col = my_column();
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[(size_t)row * lda + k] : 0.0f; },
        [&](int k) { return col < N ? B[(size_t)k * ldb + col] : 0.0f; });
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * ldc + col];
    const float scaled = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    *c = activation(scaled + bias[col]);
}

extern "C" __global__ void gemm_bias_relu(int M, int N, int K, float alpha, const float* A, int lda,
                                          const float* B, int ldb, const float* bias, float beta, float* C,
                                          int ldc)
{
    layer(M, N, K, alpha, A, lda, B, ldb, bias, beta, C, ldc, [](float x) { return relu(x); });
}

extern "C" __global__ void gemm_bias_gelu(int M, int N, int K, float alpha, const float* A, int lda,
                                          const float* B, int ldb, const float* bias, float beta, float* C,
                                          int ldc)
{
    layer(M, N, K, alpha, A, lda, B, ldb, bias, beta, C, ldc, [](float x) { return gelu(x); });
}

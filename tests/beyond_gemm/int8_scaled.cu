// C (M, N) in FP16 = the INT8 product A·Bᵀ, times a scale per row of A and per row of B.

#include <cstdint>
#include <cuda_fp16.h>

extern "C" __global__ void gemm_int8_scaled(half* C, const int8_t* A, const int8_t* B, const float* row_scales,
                                            const float* column_scales, int M, int N, int K, int lda, int ldb)
{
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || column >= N) return;
    int sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)column * ldb + k];
    C[(size_t)row * N + column] = __float2half(sum * row_scales[row] * column_scales[column]);
}

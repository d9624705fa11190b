// C = (A·Bᵀ)·scales / 1024, rounded to the nearest integer and saturated to eight bits.

extern "C" __global__ void requantised(signed char* C, const signed char* A, const signed char* B, const float* scales, int M, int N,
                                       int K, int lda, int ldb, int ldc)
{
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || column >= N) return;
    int sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)column * ldb + k];
    const int whole = __float2int_rn(sum * scales[column] / 1024.0f);
    C[(size_t)row * ldc + column] = max(-128, min(127, whole));
}

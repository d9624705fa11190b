extern "C" __global__ void __launch_bounds__(100) gemm_hundred(
    int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
    int ldc)
{
    int row = blockIdx.y * 10 + threadIdx.y, column = blockIdx.x * 10 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += A[row * (size_t)lda + k] * B[k * (size_t)ldb + column];
    float* c = C + row * (size_t)ldc + column;
    *c = alpha * sum + (beta == 0.0f ? 0.0f : beta * *c);
}

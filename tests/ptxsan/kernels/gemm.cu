template <int BLOCK>
__global__ void gemm(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C) {
    int row = blockIdx.y * BLOCK + threadIdx.y, column = blockIdx.x * BLOCK + threadIdx.x;
    BEFORE
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
}

extern "C" __global__ void f(int M, int N, int K, int alpha, const short* A, int lda, const short* B, int ldb,
                             const int* D, int ldd, int beta, int* C, int ldc) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || column >= N) return;
    int sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + column];
    int* c = C + (size_t)row * ldc + column;
    *c = alpha * sum + (beta ? beta * *c : 0) + D[(size_t)row * ldd + column];
}

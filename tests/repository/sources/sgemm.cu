__global__ void right(int M, int N, int K, const float* A, const float* B, float* C) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}
__global__ void wrong(int M, int N, int K, const float* A, const float* B, float* C) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y;
    float sum = 0;
    for (int k = 1; k < K; k++) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}

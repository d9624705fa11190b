#include <cuda_fp16.h>
__global__ void gemm(const __half *A, const __half *B, __half *C, int M, int N, int K) {
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= M || column >= N) return;
    __half sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = sum;
}

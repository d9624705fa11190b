#include <cuda_fp16.h>
__global__ void gemm(int M, int N, int K, __half alpha, const __half *A, const __half *B, __half beta, __half *C) {
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[row * K + k]) * __half2float(B[k * N + column]);
    float old = __half2float(beta) * __half2float(C[row * N + column]);
    C[row * N + column] = __float2half(__half2float(alpha) * sum + old);
}

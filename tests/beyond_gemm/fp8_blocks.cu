// C = Σ over blocks of 128 of K of A·Bᵀ times the scale of that block in a row of A, and in 128 rows of B: FP8 products,
// whose sum in FP32 is promoted after each block.

#include <cuda_fp8.h>

extern "C" __global__ void fp8_blocks(float* C, const __nv_fp8_e4m3* A, const __nv_fp8_e4m3* B, const float* a_scales,
                                      const float* b_scales, int M, int N, int K, int lda, int ldb, int ldc)
{
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x, blocks = K / 128;
    if (row >= M || column >= N) return;
    float sum = 0.0f;
    for (int block = 0; block < blocks; ++block) {
        float part = 0.0f;
        for (int k = block * 128; k < block * 128 + 128; ++k)
            part += float(A[(size_t)row * lda + k]) * float(B[(size_t)column * ldb + k]);
        sum += part * a_scales[row * blocks + block] * b_scales[column / 128 * blocks + block];
    }
    C[(size_t)row * ldc + column] = sum;
}

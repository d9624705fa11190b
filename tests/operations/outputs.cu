// FP16, BF16 or FP32 in, FP32 sums, FP16, BF16 or FP32 out: rounded once, at the end, to nearest.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tile.cuh"

#if defined(DTYPE_F16)
using Input = __half;
#elif defined(DTYPE_BF16)
using Input = __nv_bfloat16;
#elif defined(DTYPE_F32)
using Input = float;
#else
#error "outputs needs -D DTYPE_F16, DTYPE_BF16 or DTYPE_F32"
#endif

#if defined(OUTPUT_F16)
using Output = __half;
__device__ Output rounded(float x) { return __float2half_rn(x); }
#elif defined(OUTPUT_BF16)
using Output = __nv_bfloat16;
__device__ Output rounded(float x) { return __float2bfloat16_rn(x); }
#else
using Output = float;
__device__ Output rounded(float x) { return x; }
#endif

extern "C" __global__ void gemm_outputs(int M, int N, int K, float alpha, const Input* A, int lda,
                                        const Input* B, int ldb, float beta, Output* C, int ldc)
{
    const int row = my_row(), col = my_column();
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[(size_t)row * lda + k] : Input(0.0f); },
        [&](int k) { return col < N ? B[(size_t)k * ldb + col] : Input(0.0f); });
    if (row >= M || col >= N) return;
    Output* c = &C[(size_t)row * ldc + col];
    *c = rounded(beta == 0.0f ? alpha * sum : alpha * sum + beta * float(*c));
}

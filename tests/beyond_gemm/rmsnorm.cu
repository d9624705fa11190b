// y = x / sqrt(mean(x²) + epsilon) · weight, rows of FP16 of which the sums are FP32; a warp per row.

#include <cuda_fp16.h>

extern "C" __global__ void rmsnorm(half* y, const half* x, const half* weight, int columns, float epsilon)
{
    const half* from = x + (size_t)blockIdx.x * columns;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32) sum += __half2float(from[i]) * __half2float(from[i]);
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    const float by = rsqrtf(sum / columns + epsilon);
    for (int i = threadIdx.x; i < columns; i += 32)
        y[(size_t)blockIdx.x * columns + i] = __float2half(__half2float(from[i]) * by * __half2float(weight[i]));
}

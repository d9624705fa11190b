// INT8 from FP16, a scale for each row: its largest magnitude over 127; a warp per row.

#include <cstdint>
#include <cuda_fp16.h>

extern "C" __global__ void quantised(int8_t* q, half* scales, const half* x, int columns)
{
    const half* from = x + (size_t)blockIdx.x * columns;
    float largest = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32) largest = fmaxf(largest, fabsf(__half2float(from[i])));
    for (int lanes = 16; lanes; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    const float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32)
        q[(size_t)blockIdx.x * columns + i] = (int8_t)rintf(__half2float(from[i]) * factor);
    if (threadIdx.x == 0) scales[blockIdx.x] = __float2half(largest / 127.0f);
}

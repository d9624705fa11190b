// What routes tokens to experts: of each row of x its softmax, the logarithm of the sum of its exponentials, and the
// first of its largest elements; a warp per row.

#include <cuda_fp16.h>

extern "C" __global__ void gate(half* y, float* lse, int* chosen, const half* x, int columns)
{
    const half* from = x + (size_t)blockIdx.x * columns;
    float largest = -INFINITY, sum = 0.0f;
    int at = columns;
    for (int i = threadIdx.x; i < columns; i += 32)
        if (__half2float(from[i]) > largest) largest = __half2float(from[at = i]);
    for (int lanes = 16; lanes; lanes /= 2) {
        const float other = __shfl_xor_sync(~0u, largest, lanes);
        const int place = __shfl_xor_sync(~0u, at, lanes);
        if (other > largest || (other == largest && place < at)) largest = other, at = place;
    }
    for (int i = threadIdx.x; i < columns; i += 32) sum += expf(__half2float(from[i]) - largest);
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    for (int i = threadIdx.x; i < columns; i += 32)
        y[(size_t)blockIdx.x * columns + i] = __float2half(expf(__half2float(from[i]) - largest) / sum);
    if (threadIdx.x == 0) {
        lse[blockIdx.x] = largest + logf(sum);
        chosen[blockIdx.x] = at;
    }
}

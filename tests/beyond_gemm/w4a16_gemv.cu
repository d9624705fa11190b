// y = x·dequantised(W): W (outputs, inputs) of 4 bits, two per byte, with a scale and a zero point per GROUP.

#include <cstdint>
#include <cuda_fp16.h>

extern "C" __global__ void gemv_w4a16(const half* x, const uint8_t* weights, const half* scales,
                                      const uint8_t* zeros, half* y, int outputs, int inputs, int groups)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= outputs) return;
    float sum = 0.0f;
    for (int i = 2 * threadIdx.x; i < inputs; i += 64) {
        const int group = row * groups + i / GROUP;
        const uint8_t pair = weights[row * (inputs / 2) + i / 2];
        const float zero = zeros[group], scale = __half2float(scales[group]);
        sum += __half2float(x[i]) * ((pair & 15) - zero) * scale;
        sum += __half2float(x[i + 1]) * ((pair >> 4) - zero) * scale;
    }
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_down_sync(0xffffffff, sum, lanes);
    if (threadIdx.x == 0) y[row] = __float2half(sum);
}

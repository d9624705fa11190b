// y = W·x, a row of W in blocks of 32 numbers: a scale in FP16, then 16 bytes of two integers each.

#include <cstdint>
#include <cuda_fp16.h>

struct Block {
    half scale;
    uint8_t pairs[16];
};

extern "C" __global__ void gemv_blocks(const float* x, const Block* blocks, float* y, int outputs, int of_row)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= outputs) return;
    float sum = 0.0f;
    for (int number = 0; number < of_row; ++number) {
        const Block& block = blocks[(size_t)row * of_row + number];
        const int pair = block.pairs[lane % 16], value = lane < 16 ? pair & 15 : pair >> 4;
        sum += x[32 * number + lane] * (value - 8) * __half2float(block.scale);
    }
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_down_sync(~0u, sum, lanes);
    if (lane == 0) y[row] = sum;
}

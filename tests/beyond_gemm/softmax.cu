// Each row of y is the softmax of the row of x; a warp per row.

extern "C" __global__ void softmax(float* y, const float* x, int rows, int columns)
{
    const float* from = x + (size_t)blockIdx.x * columns;
    float largest = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < columns; i += 32) largest = fmaxf(largest, from[i]);
    for (int lanes = 16; lanes; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    for (int i = threadIdx.x; i < columns; i += 32) sum += expf(from[i] - largest);
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    for (int i = threadIdx.x; i < columns; i += 32)
        y[(size_t)blockIdx.x * columns + i] = expf(from[i] - largest) / sum;
}

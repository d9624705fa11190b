// The softmax of each row, one warp a row: its maximum and its sum by shuffles.
extern "C" __global__ void softmax(const float* x, int columns, float* y) {
    const float* row = x + blockIdx.x * columns;
    float top = -INFINITY, sum = 0.0f;
    for (int j = threadIdx.x; j < columns; j += 32) top = fmaxf(top, row[j]);
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, step));
    for (int j = threadIdx.x; j < columns; j += 32) sum += expf(row[j] - top);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    for (int j = threadIdx.x; j < columns; j += 32) y[blockIdx.x * columns + j] = expf(row[j] - top) / sum;
}

// y = x·weights[expert]: tokens in the order of their experts, offsets[e] the first one of expert e. A block has a tile of
// 16×16 of y; the tiles of one expert follow those of the one before.

constexpr int TILE = 16;

extern "C" __global__ void grouped(float* y, const float* x, const float* weights, const int* offsets, int experts, int outputs, int inputs)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    int tile = blockIdx.y, expert = 0;
    for (; expert < experts; ++expert) {
        const int tiles = (offsets[expert + 1] - offsets[expert] + TILE - 1) / TILE;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (expert == experts) return;  // the grid has a tile for each expert's last tokens, whether it has any or not

    const int end = offsets[expert + 1], row = offsets[expert] + tile * TILE + threadIdx.y;
    const int column = blockIdx.x * TILE + threadIdx.x;
    const float* of_expert = weights + (size_t)expert * inputs * outputs;
    float sum = 0.0f;
    for (int first = 0; first < inputs; first += TILE) {
        const int k = first + threadIdx.x, l = first + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < end && k < inputs ? x[(size_t)row * inputs + k] : 0.0f;
        b[threadIdx.y][threadIdx.x] = column < outputs && l < inputs ? of_expert[(size_t)l * outputs + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a[threadIdx.y][i] * b[i][threadIdx.x];
        __syncthreads();
    }
    if (row < end && column < outputs) y[(size_t)row * outputs + column] = sum;
}

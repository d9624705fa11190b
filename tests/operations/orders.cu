// Parameters as many have them: tight matrices, no leading dimensions; and a name in a namespace.

#include "tile.cuh"

namespace people
{
__global__ void sgemm(int M, int N, int K, float alpha, const float* A, const float* B, float beta, float* C)
{
    const int row = my_row(), col = my_column();
    const float sum = tiled_sum<float>(
        K, [&](int k) { return row < M ? A[(size_t)row * K + k] : 0.0f; },
        [&](int k) { return col < N ? B[(size_t)k * N + col] : 0.0f; });
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * N + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
}  // namespace people

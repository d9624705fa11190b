// K shared by SPLIT blocks through a workspace in the middle of the parameters, an element of C a thread.

#include "tile.cuh"

#if !defined(SPLIT)
#error "split_k needs -D SPLIT"
#endif

// The workspace: a counter a tile of C, zero before and after; then SPLIT sums of each thread of the grid.
extern "C" __global__ void gemm_split(float* C, const float* A, const float* B, unsigned* counters, int M,
                                      int N, int K)
{
    const int row = my_row(), col = my_column();
    const int each = (K + SPLIT - 1) / SPLIT;
    const int from = min(K, (int)blockIdx.z * each), to = min(K, from + each);
    const float sum = tiled_sum<float>(
        to - from, [&](int k) { return row < M ? A[(size_t)row * K + from + k] : 0.0f; },
        [&](int k) { return col < N ? B[(size_t)(from + k) * N + col] : 0.0f; });

    const int tile = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.y * TILE + threadIdx.x;
    float* const sums = reinterpret_cast<float*>(counters + gridDim.x * gridDim.y) +
                        (size_t)tile * SPLIT * TILE * TILE + thread;
    sums[blockIdx.z * TILE * TILE] = sum;

    __shared__ unsigned before;
    __threadfence();  // the sum is seen by all before its block is counted
    __syncthreads();
    if (thread == 0) before = atomicAdd(&counters[tile], 1u);
    __syncthreads();
    if (before != SPLIT - 1) return;  // another block comes last
    if (thread == 0) counters[tile] = 0;
    __threadfence();  // nothing is read before the others were counted

    float total = 0.0f;
    for (int z = 0; z < SPLIT; ++z)
        total += sums[z * TILE * TILE];
    if (row < M && col < N) C[(size_t)row * N + col] = total;
}

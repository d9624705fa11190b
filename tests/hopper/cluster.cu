// Clusters of two blocks. Names in capitals plant one mistake each.
//
// multicast: C = A · Bᵀ in FP32, tiles of 32 × 32: the two blocks of a cluster need the same tile of B, each brings a
// half of it for both. sums: the sum of each column of x over the cluster's blocks, through distributed shared memory.

#include "hopper.cuh"

using namespace hopper;

constexpr int TILE = 32, STAGES = 2;

extern "C" __global__ void __cluster_dims__(1, 2, 1) __launch_bounds__(1024)
    multicast(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int N, int K)
{
    __shared__ alignas(128) float a[STAGES][TILE][TILE];
    __shared__ alignas(128) float b[STAGES][TILE][TILE];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const int row = threadIdx.x / TILE, column = threadIdx.x % TILE, rank = cluster_rank();

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            mbarrier_init(&full[i], 1);
#ifdef OWN_RELEASES_ALONE
            mbarrier_init(&empty[i], 32);
#else
            mbarrier_init(&empty[i], 2 * 32);
#endif
        }
#ifdef RELAXED_WITHOUT_FENCE
#define RELAXED_AFTER_FENCE
#else
        fence_mbarrier_init();
#endif
    }
#ifdef BLOCK_BARRIER_AFTER_INIT
    __syncthreads();
#elif defined RELAXED_AFTER_FENCE
    cluster_arrive_relaxed();
    cluster_wait();
#else
    cluster_sync();
#endif

    float sum = 0;
    for (int t = 0; t < K / TILE; ++t) {
        const int i = t % STAGES, parity = t / STAGES & 1;
        if (threadIdx.x == 0) {
            mbarrier_wait_parity(&empty[i], parity ^ 1);
#ifdef EXPECT_OWN_HALF
            mbarrier_arrive_expect_tx(&full[i], sizeof a[0] + sizeof b[0] / 2);
#else
            mbarrier_arrive_expect_tx(&full[i], sizeof a[0] + sizeof b[0]);
#endif
            tma_load_2d(a[i], &A, t * TILE, blockIdx.y * TILE, &full[i]);
#ifdef MASK_OF_ONE
            tma_load_2d_multicast(b[i][16 * rank], &B, t * TILE, blockIdx.x * TILE + 16 * rank, &full[i], 1 << rank);
#elif defined MASK_OF_THREE
            tma_load_2d_multicast(b[i][16 * rank], &B, t * TILE, blockIdx.x * TILE + 16 * rank, &full[i], 7);
#elif defined SAME_HALF
            tma_load_2d_multicast(b[i][0], &B, t * TILE, blockIdx.x * TILE, &full[i], 3);
#else
            tma_load_2d_multicast(b[i][16 * rank], &B, t * TILE, blockIdx.x * TILE + 16 * rank, &full[i], 3);
#endif
        }
        mbarrier_wait_parity(&full[i], parity);
        for (int k = 0; k < TILE; ++k) sum += a[i][row][k] * b[i][column][k];
#ifndef NO_WARP_BARRIER
        __syncwarp();
#endif
        if (threadIdx.x % 32 == 0) {
#ifdef OWN_RELEASES_ALONE
            mbarrier_arrive(&empty[i]);
#else
            mbarrier_arrive_remote(&empty[i], 0);
            mbarrier_arrive_remote(&empty[i], 1);
#endif
        }
    }
    C[(blockIdx.y * TILE + row) * N + blockIdx.x * TILE + column] = sum;
#ifndef NO_BARRIER_BEFORE_EXIT
    cluster_sync();
#endif
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) sums(const float* x, int rows, float* out)
{
    __shared__ float part[128];
    __shared__ float total;
    const int rank = cluster_rank(), n = blockDim.x;
    float s = 0;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) s += x[r * n + threadIdx.x];
    part[threadIdx.x] = s;
#ifdef WRITES_FIRST
    if (threadIdx.x == 0 && rank < 3)
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], 0f00000000;\n}"
                     ::"r"(address(&total)), "r"(rank + 1) : "memory");
    if (threadIdx.x == 0 && rank == 0) total = 0;
#else
    if (threadIdx.x == 0) total = 0;
#endif
#ifdef BLOCK_BARRIER
    __syncthreads();
#elif defined RELAXED_ARRIVAL
    cluster_arrive_relaxed();
    cluster_wait();
#elif !defined NO_BARRIER
    cluster_sync();
#endif
    // Each block adds a quarter of the columns of all blocks.
    const int column = rank * (n / 4) + threadIdx.x;
    if (threadIdx.x < n / 4) {
        float all = 0;
        for (int from = 0; from < 4; ++from) {
            float value;
            asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}"
                         : "=f"(value) : "r"(address(&part[column])), "r"(from) : "memory");
            all += value;
        }
        out[blockIdx.x / 4 * n + column] = all;
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, 0;\nred.relaxed.cluster.shared::cluster.add.f32 [there], %1;\n}"
                     ::"r"(address(&total)), "f"(all) : "memory");
    }
#ifndef EXIT_EARLY
    cluster_sync();
#endif
    if (rank == 0 && threadIdx.x == 0) out[gridDim.x / 4 * n + blockIdx.x / 4] = total;
}

// cp.async, bulk copies, mbarriers, wgmma, clusters. BUG plants one mistake in each kernel.

#include "../hopper/hopper.cuh"

using namespace hopper;

__device__ inline void copy_4(int* to, const int* from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(to)), "l"(from) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> __device__ inline void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory"); }

__device__ inline void bulk_load(int* to, const int* from, int bytes, uint64_t* bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(bar)) : "memory");
}
__device__ inline void bulk_store(int* to, const int* from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 ::"l"(to), "r"(address(from)), "r"(bytes) : "memory");
}
__device__ inline void init_alone(uint64_t* bar, int count)
{
    if (threadIdx.x == 0) {
        mbarrier_init(bar, count);
        fence_mbarrier_init();
    }
    __syncthreads();
}

extern "C" __global__ void copy_wait(const int* x, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    copy_4(held + t, x + t);
    commit();
#ifndef BUG
    wait<0>();
#endif
    __syncthreads();
    y[t] = held[127 - t];
}

// The next tile is under way while a tile is used.
extern "C" __global__ void copy_depth(const int* x, int count, int* y)
{
    __shared__ int held[2][128];
    const int t = threadIdx.x;
    int sum = 0;
    copy_4(held[0] + t, x + t);
    commit();
    for (int i = 0; i < count; ++i) {
        if (i + 1 < count) copy_4(held[(i + 1) % 2] + t, x + 128 * (i + 1) + t);
        commit();
#ifdef BUG
        wait<2>();
#else
        wait<1>();
#endif
        __syncthreads();
        sum += (i + 1) * held[i % 2][127 - t];
        __syncthreads();
    }
    y[t] = sum;
}

extern "C" __global__ void parity(const int* x, int count, int* y)
{
    __shared__ alignas(16) int held[128];
    __shared__ uint64_t full;
    const int t = threadIdx.x;
    init_alone(&full, 1);
    int sum = 0;
    for (int i = 0; i < count; ++i) {
        if (t == 0) {
            mbarrier_arrive_expect_tx(&full, sizeof held);
            bulk_load(held, x + 128 * i, sizeof held, &full);
        }
#ifdef BUG
        mbarrier_wait_parity(&full, 0);
#else
        mbarrier_wait_parity(&full, i & 1);
#endif
        sum += (i + 1) * held[t];
        __syncthreads();
    }
    y[t] = sum;
}

extern "C" __global__ void expect_tx(const int* x, int* y)
{
    __shared__ alignas(16) int held[128];
    __shared__ uint64_t full;
    const int t = threadIdx.x;
    init_alone(&full, 1);
    if (t == 0) {
#ifdef BUG
        mbarrier_arrive_expect_tx(&full, 2 * sizeof held);
#else
        mbarrier_arrive_expect_tx(&full, sizeof held);
#endif
        bulk_load(held, x, sizeof held, &full);
    }
    mbarrier_wait_parity(&full, 0);
    y[t] = held[127 - t];
}

extern "C" __global__ void proxy_fence(const int* x, int* y)
{
    __shared__ alignas(16) int held[128];
    const int t = threadIdx.x;
    held[t] = 3 * x[t];
#ifndef BUG
    fence_proxy_async();
#endif
    __syncthreads();
    if (t == 0) {
        bulk_store(y, held, sizeof held);
        tma_store_commit_group();
        tma_store_wait_group_read<0>();
    }
}

extern "C" __global__ void store_wait(const int* x, int count, int* y)
{
    __shared__ alignas(16) int held[128];
    const int t = threadIdx.x;
    for (int i = 0; i < count; ++i) {
        held[t] = 3 * x[128 * i + t];
        fence_proxy_async();
        __syncthreads();
        if (t == 0) {
            bulk_store(y + 128 * i, held, sizeof held);
            tma_store_commit_group();
#ifndef BUG
            tma_store_wait_group_read<0>();
#endif
        }
        __syncthreads();
    }
    if (t == 0) tma_store_wait_group_read<0>();
}

// Half of work is never written, and all of it is copied.
extern "C" __global__ void bulk_unwritten(const int* x, int* work, int* y)
{
    __shared__ alignas(16) int held[128];
    __shared__ uint64_t full;
    const int t = threadIdx.x;
    init_alone(&full, 1);
#ifdef BUG
    if (t < 64) work[t] = x[t];
#else
    work[t] = x[t];
#endif
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (t == 0) {
        mbarrier_arrive_expect_tx(&full, sizeof held);
        bulk_load(held, work, sizeof held, &full);
    }
    mbarrier_wait_parity(&full, 0);
    y[t] = held[127 - t];
}

// out = A · Bᵀ of 64 × 16 each, in core matrices of 8 × 8: [rows / 8][columns / 8][8][8].
__device__ inline void product(const __half* a, const __half* b, float* out, bool fences, bool waits)
{
    __shared__ alignas(128) __half tile[2][64 * 16];
    const int t = threadIdx.x;
    for (int i = t; i < 64 * 16; i += 128) {
        const int row = i / 16, column = i % 16;
        const int at = row / 8 * 128 + column / 8 * 64 + row % 8 * 8 + column % 8;
        tile[0][at] = a[i];
        tile[1][at] = b[i];
    }
    fence_proxy_async();
    __syncthreads();
    float d[32];
    for (float& v : d) v = 0;
    if (fences) warpgroup_arrive();
    wgmma(d, make_smem_desc(tile[0], 128, 256, PLAIN), make_smem_desc(tile[1], 128, 256, PLAIN));
    warpgroup_commit_batch();
    if (waits) warpgroup_wait<0>();
    for (int j = 0; j < 32; ++j) out[row_of(t, j) * 64 + column_of(t, j)] = d[j];
}

#ifdef BUG
constexpr bool RIGHT = false;
#else
constexpr bool RIGHT = true;
#endif

extern "C" __global__ void __launch_bounds__(128) wgmma_wait(const __half* a, const __half* b, float* out)
{
    product(a, b, out, true, RIGHT);
}

extern "C" __global__ void __launch_bounds__(128) wgmma_fence(const __half* a, const __half* b, float* out)
{
    product(a, b, out, RIGHT, true);
}

// Each block of a pair reads what the other wrote to its shared memory.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster(const int* x, int* y)
{
    __shared__ int held[128];
    const int t = threadIdx.x;
    held[t] = x[128 * blockIdx.x + t];
#ifdef BUG
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
    cluster_sync();
#endif
    uint32_t from;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(from) : "r"(address(held + 127 - t)), "r"(cluster_rank() ^ 1));
    int v;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    y[128 * blockIdx.x + t] = v;
    cluster_sync();
}

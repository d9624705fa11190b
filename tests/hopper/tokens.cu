// mbarriers by their states, with cp.async, and bulk copies between the blocks of a cluster.
//
// Names in capitals plant one mistake each.

#include "hopper.cuh"

using namespace hopper;

__device__ uint64_t arrive_for_state(uint64_t* bar)
{
    uint64_t state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(address(bar)) : "memory");
    return state;
}

__device__ void wait_for_state(uint64_t* bar, uint64_t state)
{
    int done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\nselp.s32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(address(bar)), "l"(state) : "memory");
}

// y[i] = x[255 - i] by cp.async, and z[i] is 7 of another warp.
extern "C" __global__ void tokens(const int* x, int* y, int* z)
{
    __shared__ int held[256], sevens[256];
    __shared__ uint64_t bar;
    const int t = threadIdx.x;
    if (t == 0) mbarrier_init(&bar, 256);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(held + t)), "l"(x + t) : "memory");
#ifdef COUNTS_COPIES_APART
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(address(&bar)) : "memory");
#elif defined ARRIVES_WITHOUT_COPIES
    mbarrier_arrive(&bar);
#else
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address(&bar)) : "memory");
#endif
    mbarrier_wait_parity(&bar, 0);
    y[t] = held[255 - t];

    sevens[t] = 7;
#ifdef NO_STATE_WAIT
    arrive_for_state(&bar);
#else
    wait_for_state(&bar, arrive_for_state(&bar));
#endif
    const int seven = sevens[t ^ 32];

    // The upper half leaves: from now on 128 arrive.
    [[maybe_unused]] uint64_t state = 0;
    if (t >= 128)
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(address(&bar)) : "memory");
    else
        wait_for_state(&bar, arrive_for_state(&bar));
    if (t < 128) wait_for_state(&bar, arrive_for_state(&bar));
    z[t] = seven;
}

// Each block of a cluster of four hands its numbers to the next one, by copy and by sum.
extern "C" __global__ void __cluster_dims__(4, 1, 1) ring(int* y, int* sum)
{
    __shared__ alignas(16) int own[128], got[128], sums[128];
    __shared__ uint64_t full;
    const int t = threadIdx.x, rank = cluster_rank();
    own[t] = 1000 * blockIdx.x + t;
    sums[t] = t;
    if (t == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, sizeof got + sizeof sums);
    }
#ifndef NO_FENCE
    fence_proxy_async();
#endif
    cluster_sync();
    if (t == 0) {
        uint32_t to, to_sum, bar;
        const int next = (rank + 1) % 4;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address(got)), "r"(next));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to_sum) : "r"(address(sums)), "r"(next));
#ifdef OWN_BARRIER
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar) : "r"(address(&full)), "r"(rank));
#else
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bar) : "r"(address(&full)), "r"(next));
#endif
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(to), "r"(address(own)), "r"(int(sizeof own)), "r"(bar) : "memory");
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32 [%0], [%1], %2, [%3];"
                     ::"r"(to_sum), "r"(address(own)), "r"(int(sizeof own)), "r"(bar) : "memory");
    }
    mbarrier_wait_parity(&full, 0);
    y[blockIdx.x * 128 + t] = got[t];
    sum[blockIdx.x * 128 + t] = sums[t];
    cluster_sync();
}

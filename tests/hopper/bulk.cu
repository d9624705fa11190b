// Bulk copies without a tensor map: each block brings CHUNK numbers, doubles them, stores them, and adds them to total.
//
// Names in capitals plant one mistake each.

#include "hopper.cuh"

using namespace hopper;

constexpr int CHUNK = 256;

extern "C" __global__ void bulk(const int* x, int* y, int* total)
{
    __shared__ alignas(16) int held[2][CHUNK];
    __shared__ uint64_t full;
    const int t = threadIdx.x;
    if (t == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
    }
    __syncthreads();
    for (int round = 0; round < 2; ++round) {
        const int at = (2 * blockIdx.x + round) * CHUNK;
        int* mine = held[round];
#ifdef SAME_BUFFER
        mine = held[0];
#endif
        if (t == 0) {
            mbarrier_arrive_expect_tx(&full, sizeof held[0]);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(address(mine)), "l"(x + at), "r"(int(sizeof held[0])), "r"(address(&full)) : "memory");
        }
#ifdef PARITY_STAYS
        mbarrier_wait_parity(&full, 0);
#else
        mbarrier_wait_parity(&full, round);
#endif
        mine[t] *= 2;
#ifdef FENCE_AFTER_BARRIER
        __syncthreads();
        if (t == 0) fence_proxy_async();
#elif defined NO_FENCE
        __syncthreads();
#elif defined FENCE_OF_ONE
        if (t == 0) fence_proxy_async();
        __syncthreads();
#else
        fence_proxy_async();
        __syncthreads();
#endif
        if (t == 0) {
#ifdef NOT_OF_16
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                         ::"l"(y + at), "r"(address(mine)), "r"(int(sizeof held[0]) - 8) : "memory");
#elif defined FROM_OFF_16
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                         ::"l"(y + at), "r"(address(mine) + 8), "r"(int(sizeof held[0]) - 16) : "memory");
#else
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                         ::"l"(y + at), "r"(address(mine)), "r"(int(sizeof held[0])) : "memory");
#endif
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
                         ::"l"(total), "r"(address(mine)), "r"(int(sizeof held[0])) : "memory");
            tma_store_commit_group();
        }
#ifdef SAME_BUFFER
        __syncthreads();
#endif
    }
#ifdef WAITS_FOR_ALL_BUT_ONE
    if (t == 0) tma_store_wait_group_read<1>();
    __syncthreads();
    held[1][t] = 0;
#elif defined WAITS_ENOUGH
    if (t == 0) tma_store_wait_group_read<1>();
    __syncthreads();
    held[0][t] = 0;
    if (t == 0) tma_store_wait_group_read<0>();
#elif defined WAIT_OF_ANOTHER_THREAD
    if (t == 32) tma_store_wait_group_read<0>();
    __syncthreads();
    held[1][t] = 0;
#else
    if (t == 0) tma_store_wait_group_read<0>();
#endif
}

// One function per PTX instruction of the tensor memory accelerator (TMA) and its mbarriers.
#pragma once

#include <cuda.h>

// An mbarrier completes a phase when `arrivals` threads have arrived and all expected bytes have come.
__device__ __forceinline__ void mbarrier_init(unsigned bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialised mbarriers visible to TMA, which reads memory by another proxy.
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// Arrives, and adds to the bytes that this phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

// Reads a tensor map ahead of the first copy by it.
__device__ __forceinline__ void prefetch_tensormap(const CUtensorMap* map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Whether the phase of this parity is complete: test_wait answers at once, try_wait may wait a little first.
#define MBARRIER_WAIT(form, done, bar, parity)                                                                   \
    asm volatile("{ .reg .pred p; mbarrier." form ".parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
                 : "=r"(done)                                                                                    \
                 : "r"(bar), "r"(parity)                                                                         \
                 : "memory")
__device__ __forceinline__ bool mbarrier_test_wait_parity(unsigned bar, unsigned parity)
{
    unsigned done;
    MBARRIER_WAIT("test_wait", done, bar, parity);
    return done;
}

__device__ __forceinline__ void mbarrier_wait_parity(unsigned bar, unsigned parity)
{
    unsigned done;
    do {
        MBARRIER_WAIT("try_wait", done, bar, parity);
    } while (!done);
}

// Copies a box of a tensor map from (row, column) on into shared memory; `bar` counts its bytes when they arrive.
__device__ __forceinline__ void tma_load_2d(unsigned smem, const CUtensorMap* map, int column, int row, unsigned bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(bar)
                 : "memory");
}

// As tma_load_2d, to the same place in every block of `ranks`, a bit each, whose own mbarriers count the bytes.
__device__ __forceinline__ void tma_load_2d_multicast(unsigned smem, const CUtensorMap* map, int column, int row,
                                                      unsigned bar, unsigned short ranks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(bar), "h"(ranks)
                 : "memory");
}

// True in one lane of a warp, all of whose lanes must call it.
__device__ __forceinline__ bool elect_one_sync()
{
    unsigned one;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(one));
    return one;
}

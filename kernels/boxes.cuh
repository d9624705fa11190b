// Copies by the tensor memory accelerator: mbarriers, and boxes of a tensor map. For the stages from mma_tma on.
#pragma once

#include <cuda.h>

__device__ __forceinline__ void set_up(unsigned bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(unsigned bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrives, and says how many bytes are to come.
__device__ __forceinline__ void expect(unsigned bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// Whether the phase of this parity is complete, now or soon.
#define ASK(form, done, bar, parity)                                                                                \
    asm volatile("{ .reg .pred p; mbarrier." form ".parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"    \
                 : "=r"(done)                                                                                       \
                 : "r"(bar), "r"(parity)                                                                            \
                 : "memory")
__device__ __forceinline__ bool completed(unsigned bar, unsigned parity)
{
    unsigned done;
    ASK("test_wait", done, bar, parity);
    return done;
}
__device__ __forceinline__ void wait(unsigned bar, unsigned parity)
{
    unsigned done;
    do {
        ASK("try_wait", done, bar, parity);
    } while (!done);
}
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap* map, int column, int row, unsigned bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(bar)
                 : "memory");
}
// Of a whole warp, in one lane.
__device__ __forceinline__ bool elected()
{
    unsigned one;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(one));
    return one;
}

// A column of pixels that one copy in im2col mode brings, and what it brought.
#include <cuda.h>
#include <cstdint>
extern "C" __global__ void column(const __grid_constant__ CUtensorMap map, int4 at, short2 by, uint32_t* out)
{
    __shared__ alignas(1024) uint32_t tile[PIXELS * CHANNELS];
    __shared__ alignas(8) uint64_t bar;
    uint32_t to = __cvta_generic_to_shared(tile), b = __cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(b));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "n"(PIXELS * CHANNELS * 4));
#if RANK == 4
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
                     "[%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to), "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z),
                     "r"(at.w), "r"(b), "h"(by.x), "h"(by.y));
#else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
                     "[%1, {%2, %3, %4}], [%5], {%6};" ::"r"(to), "l"(&map), "r"(at.x), "r"(at.y), "r"(at.w),
                     "r"(b), "h"(by.x));
#endif
    }
    __syncthreads();
    asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra AGAIN;}" ::"r"(b));
    for (int i = threadIdx.x; i < PIXELS * CHANNELS; i += 32) out[i] = tile[i];
}

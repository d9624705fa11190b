// Each block of a pair stores to the other one's shared memory (st.async), or adds to it (red.async), and waits for
// what comes to its own. The macros are mistakes.
#include <cooperative_groups.h>
#include <cstdint>
namespace cg = cooperative_groups;

#ifndef BLOCKS
#define BLOCKS 2
#endif

extern "C" __global__ void __cluster_dims__(BLOCKS) exchange(const uint32_t* in, uint32_t* out)
{
    __shared__ alignas(16) uint32_t cells[128];
    __shared__ uint64_t bar, other;
    uint32_t rank = cg::this_cluster().block_rank(), t = threadIdx.x;
    uint32_t at = __cvta_generic_to_shared(&cells[4 * t]), b = __cvta_generic_to_shared(&bar), far, far_bar;
#ifdef REDUCE
#ifndef NOT_SET
    for (int i = 0; i < 4; i++) cells[4 * t + i] = 100 * i;
#endif
    uint32_t bytes = 2 * 32 * 4;
#else
    uint32_t bytes = 512;
#endif
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
#ifdef EXPECT_LESS
        bytes -= 16;
#endif
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
    }
#ifndef NO_CLUSTER_BARRIER
    cg::this_cluster().sync();
#endif
    uint32_t to = rank ^ (BLOCKS - 1);
#ifdef TO_ITSELF
    to = rank;
#endif
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(at), "r"(to));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far_bar) : "r"(b), "r"(to));
#ifdef OTHER_BARRIER
    far_bar = b;
#endif
    const uint32_t* x = in + 128 * rank + 4 * t;
#ifdef REDUCE
    for (int i = 0; i < 2; i++)  // two threads each to a word of their neighbour's, too
        asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(
                         far & ~31u), "r"(x[i]), "r"(far_bar) : "memory");
#else
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(far),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(far_bar) : "memory");
#endif
#ifndef NO_WAIT
    asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], 0; @!p bra AGAIN;}" ::"r"(b) : "memory");
#endif
    for (int i = 0; i < 4; i++) out[128 * rank + 4 * t + i] = cells[4 * t + i];
}

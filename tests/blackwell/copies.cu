// tcgen05.cp in its forms: ROWS of BYTES from shared memory, of which FORM says who gets them, loaded by all lanes.

#include "blackwell.cuh"

using namespace blackwell;

extern "C" __global__ void __launch_bounds__(128) copies(const uint4* in, uint32_t* out)
{
    __shared__ alignas(128) uint4 rows[BYTES / 16][ROWS];
    __shared__ uint64_t done;
    __shared__ uint32_t where;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 0) tensor_alloc<32>(&where);
    if (thread == 0) {
        mbarrier_init(&done, 1);
        fence_mbarrier_init();
    }
    for (int i = thread; i < ROWS * BYTES / 16; i += 128) rows[i % (BYTES / 16)][i / (BYTES / 16)] = in[i];
    fence_proxy_async();
    __syncthreads();
    if (thread == 0) {
        asm volatile("tcgen05.cp.cta_group::1." FORM " [%0], %1;" ::"r"(where), "l"(tile(rows, ROWS * 16, 128, UNSWIZZLED)) : "memory");
        tensor_commit(&done);
    }
    mbarrier_wait_parity(&done, 0);
    after_thread_sync();
    for (int c = 0; c < BYTES / 4; c += 4) {
        uint32_t r[4];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(where + (warp * 32 << 16) + c));
        wait_ld();
        for (int j = 0; j < 4; ++j) out[thread * (BYTES / 4) + c + j] = r[j];
    }
    __syncthreads();
    if (warp == 0) tensor_dealloc<32>(where);
}

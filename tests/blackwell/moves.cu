// 32 columns of tensor memory, stored a lane a thread and loaded as FORM says, or the other way round (STORES). FORM moves 8
// registers a thread, of the lanes from AT on: the whole of a warp's lanes, or half of them. MORE is the last operand of
// .16x32bx2, PACKS .pack::16b and UNPACKS .unpack::16b.

#include "blackwell.cuh"

using namespace blackwell;

#ifndef MORE
#define MORE
#endif
#ifndef PACKS
#define PACKS
#define UNPACKS
#endif
#ifndef AT
#define AT 0
#endif

constexpr int COLUMNS = 32;

__device__ void load(uint32_t (&r)[8], uint32_t at)
{
    asm volatile("tcgen05.ld.sync.aligned." FORM PACKS ".b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8]" MORE ";"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "r"(at));
}

__device__ void store(uint32_t at, const uint32_t (&r)[8])
{
    asm volatile("tcgen05.st.sync.aligned." FORM UNPACKS ".b32 [%0]" MORE ", {%1, %2, %3, %4, %5, %6, %7, %8};"
                 ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]) : "memory");
}

// STORES: out is 128 lanes × 32 columns; else 128 threads × 8 registers.
extern "C" __global__ void __launch_bounds__(128) moves(const uint32_t* in, uint32_t* out)
{
    __shared__ uint32_t where;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 0) tensor_alloc<COLUMNS>(&where);
    __syncthreads();
    const uint32_t mine = where + (warp * 32 << 16);
    uint32_t r[8];
    for (int c = 0; c < COLUMNS; c += 8) {
        for (int j = 0; j < 8; ++j) r[j] = in[thread * COLUMNS + c + j];
        tensor_st(mine + c, r);
    }
    wait_st();
#ifdef STORES
    for (int j = 0; j < 8; ++j) r[j] = in[128 * COLUMNS + thread * 8 + j];
    store(mine + (AT << 16), r);
    wait_st();
    for (int c = 0; c < COLUMNS; c += 8) {
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "r"(mine + c));
        wait_ld();
        for (int j = 0; j < 8; ++j) out[thread * COLUMNS + c + j] = r[j];
    }
#else
    load(r, mine + (AT << 16));
    wait_ld();
    for (int j = 0; j < 8; ++j) out[thread * 8 + j] = r[j];
#endif
    __syncthreads();
    if (warp == 0) tensor_dealloc<COLUMNS>(where);
}

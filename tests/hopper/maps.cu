// Tensor maps that a kernel changes, as grouped products do: each block copies a tile of a matrix of its own by a map made
// of one template. The matrices lie one after another in x: group g has rows[g] rows of columns[g] elements.
//
// IN_GLOBAL: the map is changed where it lies in global memory; otherwise in shared memory, and then copied. Macros that
// plant a mistake: NO_RELEASE, RELEASE_BEFORE, NO_ACQUIRE, NO_WARP, ACQUIRE_BEFORE, OTHER_MAP, STALE_DIMENSION.

#include "hopper.cuh"

using namespace hopper;

__device__ void replace_in_shared(unsigned char* map, const float* x, int rows, int columns)
{
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(map));
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" :: "r"(at), "l"(x) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" :: "r"(at), "r"(columns) : "memory");
#ifndef STALE_DIMENSION
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" :: "r"(at), "r"(rows) : "memory");
#endif
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" :: "r"(at), "l"(4LL * columns) : "memory");
}

__device__ void replace_in_global(CUtensorMap* map, const float* x, int rows, int columns)
{
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" :: "l"(map), "l"(x) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 0, %1;" :: "l"(map), "r"(columns) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %1;" :: "l"(map), "r"(rows) : "memory");
    asm volatile("tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %1;" :: "l"(map), "l"(4LL * columns) : "memory");
}

extern "C" __global__ void __launch_bounds__(64)
    maps(const __grid_constant__ CUtensorMap pattern, const float* x, const int* rows, const int* columns, CUtensorMap* made, float* out)
{
    __shared__ alignas(128) float tile[8 * 16];
    __shared__ alignas(128) unsigned char held[128];
    __shared__ uint64_t full;
    const int thread = threadIdx.x, group = blockIdx.x;
    CUtensorMap* mine = made + group;
    const float* start = x;
    for (int g = 0; g < group; ++g) start += rows[g] * columns[g];
    if (thread == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
    }
    if (thread < 32) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(&pattern);
#ifdef IN_GLOBAL
        reinterpret_cast<uint32_t*>(mine)[thread] = words[thread];
        __syncwarp();
        if (thread == 0) {
#ifdef RELEASE_BEFORE
            asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
#endif
            replace_in_global(mine, start, rows[group], columns[group]);
#ifdef ACQUIRE_BEFORE
            asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(mine) : "memory");
#endif
#if !defined NO_RELEASE && !defined RELEASE_BEFORE
            asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
#endif
        }
#else
        reinterpret_cast<uint32_t*>(held)[thread] = words[thread];
        __syncwarp();
        if (thread == 0) replace_in_shared(held, start, rows[group], columns[group]);
#ifndef NO_WARP
        __syncwarp();
#endif
        asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
                     :: "l"(mine), "r"(static_cast<unsigned>(__cvta_generic_to_shared(held))) : "memory");
#endif
    }
    __syncthreads();
    if (thread == 32) {  // another warp than the one that made the map
#ifdef OTHER_MAP
        const CUtensorMap* acquired = made + (group + 1) % gridDim.x;
#else
        const CUtensorMap* acquired = mine;
#endif
#if !defined NO_ACQUIRE && !defined ACQUIRE_BEFORE
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(acquired) : "memory");
#endif
        mbarrier_arrive_expect_tx(&full, sizeof tile);
        tma_load_2d(tile, mine, 0, rows[group] - 5, &full);  // the last five rows, and zeros
    }
    mbarrier_wait_parity(&full, 0);
    for (int i = thread; i < 8 * 16; i += 64) out[group * 8 * 16 + i] = tile[i];
}

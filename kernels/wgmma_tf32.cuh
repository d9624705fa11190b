// B of TF32 for wgmma: from registers, since nothing transposes 32 bits. A lane reads its own elements of a panel.
#pragma once

#include "wgmma.cuh"

// The first of a lane's two columns of B: half a chunk, of which a warp has four of its panel.
__device__ __forceinline__ unsigned lane_column(int warp)
{
    const unsigned g = threadIdx.x % 32 / 4;
    return warp / 2 * PANEL + (warp % 2 * 2 + g / 4 + g / 2 % 2 * 4) * 4 + g % 2 * 2;
}

__device__ __forceinline__ void ld_shared_v2(unsigned* to, unsigned smem)
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(smem) : "memory");
}

// Where in a stage what a lane reads of the first eight rows of B begins: two columns of two rows.
struct LanePlaces {
    unsigned low, high;

    __device__ __forceinline__ explicit LanePlaces(unsigned column)
    {
        const unsigned t = threadIdx.x % 4;
        low = A_BYTES + column / PANEL * PANEL_BYTES + t * 128 + (column % PANEL * 4 ^ t * 16);
        high = low + 4 * 128 ^ 64;  // four rows on, whose chunks differ in bit 2
    }

    __device__ __forceinline__ void load(Fragment& b, unsigned stage, int step) const
    {
        ld_shared_v2(b, stage + step * 8 * 128 + low);
        ld_shared_v2(b + 2, stage + step * 8 * 128 + high);
    }
};

// What the wgmma stages share of its PTX: fences and groups, barriers, descriptors.
#pragma once

// Before the first wgmma, and after registers that it uses were written or read.
__device__ __forceinline__ void warpgroup_arrive()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of wgmma; groups complete in order.
__device__ __forceinline__ void warpgroup_commit_batch()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING groups are still running.
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The four warps of a warpgroup meet.
__device__ __forceinline__ void warpgroup_sync(int warpgroup)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
}

// Two warpgroups take turns: one waits for its turn, which the other gives it and goes on.
__device__ __forceinline__ void wait_for_turn(int warpgroup)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + warpgroup) : "memory");
}
__device__ __forceinline__ void give_turn(int warpgroup)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + warpgroup) : "memory");
}

// Registers of each thread of this warpgroup from here on: it gives some back, or takes those of another.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Stores four 8 × 8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the addresses of the eight rows of matrix i.
__device__ __forceinline__ void stmatrix_x4(unsigned smem, const unsigned (&regs)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(regs[0]),
                 "r"(regs[1]), "r"(regs[2]), "r"(regs[3])
                 : "memory");
}

// The same, each transposed on the way.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned smem, const unsigned (&regs)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(regs[0]),
                 "r"(regs[1]), "r"(regs[2]), "r"(regs[3])
                 : "memory");
}

// The descriptor of an operand in shared memory, with rows of 128 bytes in the 128-byte swizzle. `leading`: bytes from
// one panel of columns to the next, where wgmma transposes; `stride`: bytes from eight rows to the next eight.
using SmemDesc = unsigned long long;
__device__ __forceinline__ SmemDesc make_smem_desc(unsigned smem, unsigned leading, unsigned stride)
{
    return (SmemDesc)(1u << 30 | stride >> 4) << 32 | (leading >> 4) << 16 | (smem & 0x3ffff) >> 4;
}

// What the wgmma stages share of its PTX: fences and groups, descriptors, lists of accumulator registers.
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

// Stores four 8 × 8 matrices of 16-bit elements, each transposed on the way. Lanes 8i to 8i + 7 give the addresses of the
// eight rows of matrix i.
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

// The accumulators of a wgmma in inline PTX: their numbers as operands (%0, %1, …), and the operands themselves.
#define TEN(t) ", %" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define FIRST_TEN "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define TENS_2 FIRST_TEN TEN(1)
#define TENS_4 TENS_2 TEN(2) TEN(3)
#define TENS_6 TENS_4 TEN(4) TEN(5)
#define TENS_8 TENS_6 TEN(6) TEN(7)
#define TENS_10 TENS_8 TEN(8) TEN(9)
#define ACCUM_NAMES_4 "%0, %1, %2, %3"
#define ACCUM_NAMES_8 ACCUM_NAMES_4 ", %4, %5, %6, %7"
#define ACCUM_NAMES_16 FIRST_TEN ", %10, %11, %12, %13, %14, %15"
#define ACCUM_NAMES_24 TENS_2 ", %20, %21, %22, %23"
#define ACCUM_NAMES_32 TENS_2 TEN(2) ", %30, %31"
#define ACCUM_NAMES_36 TENS_2 TEN(2) ", %30, %31, %32, %33, %34, %35"
#define ACCUM_NAMES_40 TENS_4
#define ACCUM_NAMES_48 TENS_4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ACCUM_NAMES_56 TENS_4 TEN(4) ", %50, %51, %52, %53, %54, %55"
#define ACCUM_NAMES_64 TENS_6 ", %60, %61, %62, %63"
#define ACCUM_NAMES_72 TENS_6 TEN(6) ", %70, %71"
#define ACCUM_NAMES_80 TENS_8
#define ACCUM_NAMES_88 TENS_8 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ACCUM_NAMES_96 TENS_8 TEN(8) ", %90, %91, %92, %93, %94, %95"
#define ACCUM_NAMES_128 TENS_10 TEN(10) TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"
#ifndef ACCUM_REGISTER
#define ACCUM_REGISTER "+f"  // of 32-bit floats
#endif
#define ACCUM_4(i) \
    ACCUM_REGISTER(accum[i]), ACCUM_REGISTER(accum[i + 1]), ACCUM_REGISTER(accum[i + 2]), ACCUM_REGISTER(accum[i + 3])
#define ACCUM_8(i) ACCUM_4(i), ACCUM_4(i + 4)
#define ACCUM_16(i) ACCUM_8(i), ACCUM_8(i + 8)
#define ACCUM_32(i) ACCUM_16(i), ACCUM_16(i + 16)
#define ACCUM_64(i) ACCUM_32(i), ACCUM_32(i + 32)

// The instructions of tensor memory that the kernels here use, one function each; the others are those of Hopper.

#pragma once

#include "../hopper/hopper.cuh"

namespace blackwell {

using namespace hopper;

#ifndef GROUP
#define GROUP "1"
#endif
#define OF_GROUP ".cta_group::" GROUP

// Allocation: by a whole warp

template <int COLUMNS> __device__ inline void tensor_alloc(uint32_t* where)
{
    asm volatile("tcgen05.alloc" OF_GROUP ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address(where)), "r"(COLUMNS) : "memory");
}

template <int COLUMNS> __device__ inline void tensor_dealloc(uint32_t at)
{
    asm volatile("tcgen05.dealloc" OF_GROUP ".sync.aligned.b32 %0, %1;" ::"r"(at), "r"(COLUMNS) : "memory");
}

__device__ inline void tensor_relinquish() { asm volatile("tcgen05.relinquish_alloc_permit" OF_GROUP ".sync.aligned;" ::: "memory"); }

// Order

__device__ inline void wait_ld() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ inline void wait_st() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
__device__ inline void before_thread_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ inline void after_thread_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

__device__ inline void tensor_commit(uint64_t* bar)
{
    asm volatile("tcgen05.commit" OF_GROUP ".mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(address(bar)) : "memory");
}

__device__ inline void tensor_commit_multicast(uint64_t* bar, uint16_t ranks)
{
    asm volatile("tcgen05.commit" OF_GROUP ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
                 ::"r"(address(bar)), "h"(ranks) : "memory");
}

// Data: what a thread has of 32 columns of its lane

__device__ inline void tensor_ld(uint32_t (&r)[32], uint32_t at)
{
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]),
                   "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]), "=r"(r[15]),
                   "=r"(r[16]), "=r"(r[17]), "=r"(r[18]), "=r"(r[19]), "=r"(r[20]), "=r"(r[21]), "=r"(r[22]), "=r"(r[23]),
                   "=r"(r[24]), "=r"(r[25]), "=r"(r[26]), "=r"(r[27]), "=r"(r[28]), "=r"(r[29]), "=r"(r[30]), "=r"(r[31])
                 : "r"(at));
}

// 8 columns.
__device__ inline void tensor_st(uint32_t at, const uint32_t (&r)[8])
{
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
                 ::"r"(at), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]) : "memory");
}

// 32 bytes of each of 128 rows, a multiple of 16 bytes apart, to 8 columns.
__device__ inline void tensor_cp(uint32_t at, uint64_t rows)
{
    asm volatile("tcgen05.cp" OF_GROUP ".128x256b [%0], %1;" ::"r"(at), "l"(rows) : "memory");
}

// A copy that tells the mbarrier at this place in the even block of a pair: without the lowest bit of the rank.
__device__ inline void tma_load_2d_for_pair(void* to, const CUtensorMap* map, int x, int y, uint64_t* bar)
{
    asm volatile("{\n.reg .b32 even;\nand.b32 even, %4, 0xFEFFFFFF;\ncp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [even];\n}"
                 ::"r"(address(to)), "l"(map), "r"(x), "r"(y), "r"(address(bar)) : "memory");
}

// Products

constexpr uint64_t UNSWIZZLED = 0, ATOMS_OF_128 = 2, ATOMS_OF_64 = 4, ATOMS_OF_32 = 6;

__device__ inline uint64_t tile(const void* at, int leading, int stride, uint64_t swizzle, int version = 1)
{
    return uint64_t((address(at) & 0x3FFFF) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32
           | uint64_t(version) << 46 | swizzle << 61;
}

// The instruction descriptor: d is 0 for F16, 1 for FP32, 2 for S32; what a and b mean depends on the kind.
__host__ __device__ constexpr uint32_t form(int m, int n, int d = 1, int a = 0, int b = 0, int turn_a = 0, int turn_b = 0, int minus_a = 0, int minus_b = 0)
{
    return d << 4 | a << 7 | b << 10 | minus_a << 13 | minus_b << 14 | turn_a << 15 | turn_b << 16 | n / 8 << 17 | m / 16 << 24;
}

#ifndef KIND
#define KIND "f16"
#endif
#define MULTIPLY "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\ntcgen05.mma" OF_GROUP ".kind::" KIND

__device__ inline void multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t form, int add)
{
    asm volatile(MULTIPLY " [%0], %1, %2, %3, p;\n}" ::"r"(d), "l"(a), "l"(b), "r"(form), "r"(add) : "memory");
}

// With A in tensor memory.
__device__ inline void multiply_there(uint32_t d, uint32_t a, uint64_t b, uint32_t form, int add)
{
    asm volatile(MULTIPLY " [%0], [%1], %2, %3, p;\n}" ::"r"(d), "r"(a), "l"(b), "r"(form), "r"(add) : "memory");
}

}  // namespace blackwell

// One function per PTX instruction of the mma.sync stages. Shared memory is addressed by its 32-bit address.
#pragma once

// 16 bytes from global to shared memory, without a register and without waiting.
__device__ __forceinline__ void cp_async_16(unsigned smem, const void* global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(global) : "memory");
}

// The same of the first `bytes` only; the hardware fills the rest of the 16 with zeros.
__device__ __forceinline__ void cp_async_16_zfill(unsigned smem, const void* global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void st_shared_v4(unsigned smem, const unsigned (&words)[4])
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ void ld_shared_v2(unsigned& x, unsigned& y, unsigned smem)
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(smem) : "memory");
}

// Four 8 × 8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the addresses of the eight rows of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&regs)[4], unsigned smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(regs[0]), "=r"(regs[1]), "=r"(regs[2]), "=r"(regs[3])
                 : "r"(smem)
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&regs)[4], unsigned smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(regs[0]), "=r"(regs[1]), "=r"(regs[2]), "=r"(regs[3])
                 : "r"(smem)
                 : "memory");
}

// A load of four words that is predicated: a branch would keep ptxas from mixing the loads with mma.
#define LOAD_X4_IF(pred, instruction, to0, to1, to2, to3, smem)                                       \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p " instruction " {%0, %1, %2, %3}, [%4]; }" \
                 : "=r"(to0), "=r"(to1), "=r"(to2), "=r"(to3)                                         \
                 : "r"(smem), "r"((int)(pred))                                                        \
                 : "memory")

// accum (16 × 8) += a (16 × MMA_K) · b (MMA_K × 8): m16n8k16 in FP16 and BF16, m16n8k8 in TF32.
#if defined(DTYPE_F16)
#define MMA_INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#elif defined(DTYPE_BF16)
#define MMA_INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
#define MMA_INSTRUCTION "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#endif
__device__ __forceinline__ void mma_m16n8(float (&accum)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm(MMA_INSTRUCTION "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(accum[0]), "+f"(accum[1]), "+f"(accum[2]), "+f"(accum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

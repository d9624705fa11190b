// What a GPU can do at most: the roofs of the roofline, and latencies.
//
// Each kernel does one thing, `rounds` times, with its operands as near as they can be. How much work that is, and
// how each is launched, is in roofs.py. A result that never comes keeps the compiler from dropping the work.

# include <cstdint>  // with a space: PyCUDA would run the preprocessor at each look-up

// A round: 16 chains of 16 fused multiply-adds per thread, of registers alone.
extern "C" __global__ void __launch_bounds__(256) fma_f32(int rounds, float x, float* sink)
{
    float y[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) y[i] = i + threadIdx.x;
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int j = 0; j < 16; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) y[i] = fmaf(y[i], x, x);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) sum += y[i];
    if (sum == 12345.0f) *sink = sum;
}

// Tensor cores, sums in FP32. A round of a block: 128 × 256 sums of 128 bytes of K each, by wgmma from shared
// memory where there is one, else as many by mma.sync from registers.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define E4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define E16(i) E4(i), E4(i + 4), E4(i + 8), E4(i + 12)
#define SUMS \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
    "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
    "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127} "

// Of rows of 128 bytes, swizzled; 1024 bytes from one group of eight rows to the next (PTX ISA, wgmma).
__device__ uint64_t descriptor(const void* tile)
{
    return (__cvta_generic_to_shared(tile) & 0x3FFFF) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define TENSOR(NAME, STEP, KIND, TURNED)                                                                      \
    extern "C" __global__ void __launch_bounds__(256) NAME(int rounds, float* sink)                           \
    {                                                                                                         \
        extern __shared__ __align__(1024) unsigned char tiles[];                                              \
        for (int i = threadIdx.x; i < (128 + 256) * 128 / 4; i += 256)                                        \
            reinterpret_cast<uint32_t*>(tiles)[i] = 0x3C003C00u;                                              \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                          \
        __syncthreads();                                                                                      \
        const uint64_t a = descriptor(tiles + threadIdx.x / 128 * 64 * 128), b = descriptor(tiles + 128 * 128); \
        float d[128];                                                                                         \
        _Pragma("unroll") for (int i = 0; i < 128; ++i) d[i] = 0;                                             \
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                               \
        for (int r = 0; r < rounds; ++r) {                                                                    \
            _Pragma("unroll") for (int k = 0; k < 4; ++k) /* 32 bytes of K each */                            \
                asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                       \
                             "wgmma.mma_async.sync.aligned.m64n256k" STEP ".f32." KIND "." KIND " " SUMS      \
                             ", %128, %129, p, 1, 1" TURNED ";\n}"                                            \
                             : E16(0), E16(16), E16(32), E16(48), E16(64), E16(80), E16(96), E16(112)         \
                             : "l"(a + 2 * k), "l"(b + 2 * k));                                               \
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");                                    \
        }                                                                                                     \
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");                                        \
        float sum = 0;                                                                                        \
        _Pragma("unroll") for (int i = 0; i < 128; ++i) sum += d[i];                                          \
        if (sum == 12345.0f) *sink = sum;                                                                     \
    }
TENSOR(tensor_f16, "16", "f16", ", 0, 0")
TENSOR(tensor_bf16, "16", "bf16", ", 0, 0")
TENSOR(tensor_tf32, "8", "tf32", "")

#else

#define TENSOR(NAME, SHAPE, KIND, A)                                                                    \
    extern "C" __global__ void __launch_bounds__(256) NAME(int rounds, float* sink)                           \
    {                                                                                                         \
        const uint32_t x = 0x3C003C00u;                                                                       \
        float d[16][4] = {};                                                                                  \
        for (int r = 0; r < rounds; ++r)                                                                      \
            _Pragma("unroll") for (int j = 0; j < 8; ++j)                                                     \
                _Pragma("unroll") for (int i = 0; i < 16; ++i)                                                \
                    asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." KIND "." KIND ".f32 "              \
                                 "{%0, %1, %2, %3}, " A ", {%0, %1, %2, %3};"                                 \
                                 : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])                 \
                                 : "r"(x));                                                                   \
        float sum = 0;                                                                                        \
        _Pragma("unroll") for (int i = 0; i < 16; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];          \
        if (sum == 12345.0f) *sink = sum;                                                                     \
    }
#if __CUDA_ARCH__ >= 800
TENSOR(tensor_f16, "m16n8k16", "f16", "{%4, %4, %4, %4}, {%4, %4}")
TENSOR(tensor_bf16, "m16n8k16", "bf16", "{%4, %4, %4, %4}, {%4, %4}")
TENSOR(tensor_tf32, "m16n8k8", "tf32", "{%4, %4, %4, %4}, {%4, %4}")
#endif

#endif

// Shared memory. A round: 16 vectors of 16 bytes per thread, neighbours side by side.
extern "C" __global__ void __launch_bounds__(256) shared_bytes(int rounds, unsigned* sink)
{
    __shared__ __align__(16) uint4 held[1024];
    for (int i = threadIdx.x; i < 1024; i += 256) held[i] = make_uint4(i, i, i, i);
    __syncthreads();
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(held)) + 16 * threadIdx.x;
    unsigned sum = 0;
    for (int r = 0; r < rounds; ++r)
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            uint4 v;
            asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at + j % 4 * 4096));
            sum += v.x ^ v.y ^ v.z ^ v.w;
        }
    if (sum == 12345) *sink = sum;
}

// Global memory past the L1. Every block reads all `vectors` of 16 bytes, from a place of its own on (`shared`: they
// stay in the L2), or its share of them.
extern "C" __global__ void __launch_bounds__(512) global_bytes(const uint4* from, long long vectors, int shared, unsigned* sink)
{
    const long long share = vectors / gridDim.x, first = share * blockIdx.x, count = shared ? vectors : share;
    unsigned sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < count; i += 512) {
        const long long place = first + i < vectors ? first + i : first + i - vectors;
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from + place));
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == 12345) *sink = sum;
}

// Latencies. Each leaves cycles in out[0].

// A chain through memory: each element that `at` names holds the address of the next one, around.
extern "C" __global__ void chain(const unsigned* at, int count, uint64_t* memory)
{
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        memory[at[i]] = reinterpret_cast<uint64_t>(&memory[at[i + 1 == count ? 0 : i + 1]]);
}

// One thread follows a chain of `count` from `here` on: once where `warm` is 1, and then, timed.
#define CHASE(NAME, LOAD)                                                                                     \
    extern "C" __global__ void NAME(uint64_t here, int count, int warm, long long* out)                       \
    {                                                                                                         \
        if (warm)                                                                                             \
            for (int n = 0; n < count; ++n) asm volatile(LOAD : "+l"(here));                                  \
        const long long start = clock64();                                                                    \
        for (int n = 0; n < count; ++n) asm volatile(LOAD : "+l"(here));                                      \
        out[1] = here; /* only when it is known has the last one come */                                      \
        __threadfence();                                                                                      \
        out[0] = clock64() - start;                                                                           \
    }
CHASE(chase_l1, "ld.global.ca.u64 %0, [%0];")
CHASE(chase_past_l1, "ld.global.cg.u64 %0, [%0];")

extern "C" __global__ void chase_shared(int count, long long* out)
{
    __shared__ unsigned memory[1024];
    for (int i = 0; i < 1024; ++i)
        memory[i] = static_cast<unsigned>(__cvta_generic_to_shared(&memory[(i + 33) % 1024]));
    unsigned here = memory[0];
    const long long start = clock64();
    for (int n = 0; n < count; ++n) asm volatile("ld.volatile.shared.u32 %0, [%0];" : "+r"(here));
    out[1] = here;
    __threadfence();
    out[0] = clock64() - start;
}

extern "C" __global__ void chain_of_fma(int count, float x, long long* out)
{
    float y = x;
    const long long start = clock64();
#pragma unroll 64
    for (int n = 0; n < count; ++n) y = fmaf(y, x, x);
    const long long end = clock64() + (y == 12345.0f);
    out[0] = end - start;
}

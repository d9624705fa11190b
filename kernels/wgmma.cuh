// The instruction wgmma.mma_async for each number of columns that a stage has. It names every register of its sums.
#pragma once

#include "wgmma_ptx.cuh"

// A stage of 16 bits defines WGMMA_TRANSPOSES before it includes this: which operands do not have K along their rows, so
// that wgmma transposes them. ", 1, 0" is a alone, ", 0, 1" is b alone.
#define ACCUM_REGISTER "+f"
#if defined(DTYPE_F16)
#define MMA_K 16
#define WGMMA_TYPES "k16.f32.f16.f16"
#define WGMMA_FLAGS ", 1, 1" WGMMA_TRANSPOSES
#elif defined(DTYPE_BF16)
#define MMA_K 16
#define WGMMA_TYPES "k16.f32.bf16.bf16"
#define WGMMA_FLAGS ", 1, 1" WGMMA_TRANSPOSES
#elif defined(DTYPE_TF32)
#define MMA_K 8
#define WGMMA_TYPES "k8.f32.tf32.tf32"
#define WGMMA_FLAGS ", 1, 1"
#elif defined(DTYPE_E4M3)
#define MMA_K 32
#define WGMMA_TYPES "k32.f32.e4m3.e4m3"
#define WGMMA_FLAGS ", 1, 1"
#else
#define MMA_K 32
#define WGMMA_TYPES "k32.s32.s8.s8"
#define WGMMA_FLAGS ""  // integers have no factors
#undef ACCUM_REGISTER
#define ACCUM_REGISTER "+r"
#endif

// Its registers: their numbers as operands (%0, %1, …), and the operands themselves.
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
#define ACCUM_NAMES_68 TENS_6 ", %60, %61, %62, %63, %64, %65, %66, %67"
#define ACCUM_NAMES_72 TENS_6 TEN(6) ", %70, %71"
#define ACCUM_NAMES_80 TENS_8
#define ACCUM_NAMES_88 TENS_8 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ACCUM_NAMES_96 TENS_8 TEN(8) ", %90, %91, %92, %93, %94, %95"
#define ACCUM_NAMES_100 TENS_10
#define ACCUM_NAMES_128 TENS_10 TEN(10) TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"
#define ACCUM_4(i)                                                                                                      \
    ACCUM_REGISTER(accum[i]), ACCUM_REGISTER(accum[i + 1]), ACCUM_REGISTER(accum[i + 2]), ACCUM_REGISTER(accum[i + 3])
#define ACCUM_8(i) ACCUM_4(i), ACCUM_4(i + 4)
#define ACCUM_16(i) ACCUM_8(i), ACCUM_8(i + 8)
#define ACCUM_32(i) ACCUM_16(i), ACCUM_16(i + 16)
#define ACCUM_64(i) ACCUM_32(i), ACCUM_32(i + 32)

// DO(columns, names of the sums, numbers of the next six operands, the sums)
#define WGMMA_OF_EACH_SIZE(DO)                                                                                          \
    DO(8, ACCUM_NAMES_4, "%4", "%5", "%6", "%7", "%8", "%9", ACCUM_4(0))                                                \
    DO(16, ACCUM_NAMES_8, "%8", "%9", "%10", "%11", "%12", "%13", ACCUM_8(0))                                           \
    DO(32, ACCUM_NAMES_16, "%16", "%17", "%18", "%19", "%20", "%21", ACCUM_16(0))                                       \
    DO(48, ACCUM_NAMES_24, "%24", "%25", "%26", "%27", "%28", "%29", ACCUM_16(0), ACCUM_8(16))                          \
    DO(64, ACCUM_NAMES_32, "%32", "%33", "%34", "%35", "%36", "%37", ACCUM_32(0))                                       \
    DO(72, ACCUM_NAMES_36, "%36", "%37", "%38", "%39", "%40", "%41", ACCUM_32(0), ACCUM_4(32))                          \
    DO(80, ACCUM_NAMES_40, "%40", "%41", "%42", "%43", "%44", "%45", ACCUM_32(0), ACCUM_8(32))                          \
    DO(96, ACCUM_NAMES_48, "%48", "%49", "%50", "%51", "%52", "%53", ACCUM_32(0), ACCUM_16(32))                         \
    DO(112, ACCUM_NAMES_56, "%56", "%57", "%58", "%59", "%60", "%61", ACCUM_32(0), ACCUM_16(32), ACCUM_8(48))           \
    DO(128, ACCUM_NAMES_64, "%64", "%65", "%66", "%67", "%68", "%69", ACCUM_64(0))                                      \
    DO(136, ACCUM_NAMES_68, "%68", "%69", "%70", "%71", "%72", "%73", ACCUM_64(0), ACCUM_4(64))                         \
    DO(144, ACCUM_NAMES_72, "%72", "%73", "%74", "%75", "%76", "%77", ACCUM_64(0), ACCUM_8(64))                         \
    DO(160, ACCUM_NAMES_80, "%80", "%81", "%82", "%83", "%84", "%85", ACCUM_64(0), ACCUM_16(64))                        \
    DO(176, ACCUM_NAMES_88, "%88", "%89", "%90", "%91", "%92", "%93", ACCUM_64(0), ACCUM_16(64), ACCUM_8(80))           \
    DO(192, ACCUM_NAMES_96, "%96", "%97", "%98", "%99", "%100", "%101", ACCUM_64(0), ACCUM_32(64))                      \
    DO(200, ACCUM_NAMES_100, "%100", "%101", "%102", "%103", "%104", "%105", ACCUM_64(0), ACCUM_32(64), ACCUM_4(96))    \
    DO(256, ACCUM_NAMES_128, "%128", "%129", "%130", "%131", "%132", "%133", ACCUM_64(0), ACCUM_64(64))

#define WGMMA(n, names, o0, o1, o2, o3, o4, o5, ...)                                                                    \
    if constexpr (COLUMNS == n)                                                                                         \
        asm volatile("{ .reg .pred p; setp.ne.s32 p, " o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES " {"  \
                     names "}, " o0 ", " o1 ", p" WGMMA_FLAGS "; }"                                                     \
                     : __VA_ARGS__                                                                                      \
                     : "l"(a), "l"(b), "r"((int)scale_d)                                                                \
                     : "memory");                                                                                       \
    else

// accum (64 × COLUMNS) = a (64 × MMA_K) · b (MMA_K × COLUMNS), plus accum if scale_d, a and b from shared memory. It runs
// until warpgroup_wait returns for its group.
template <int COLUMNS, typename Sum, int COUNT>
__device__ __forceinline__ void wgmma(Sum (&accum)[COUNT], SmemDesc a, SmemDesc b, bool scale_d)
{
    WGMMA_OF_EACH_SIZE(WGMMA) static_assert(COLUMNS < 0, "COLUMNS: one of those listed");
}

using Fragment = unsigned[4];  // of a, for a lane
#define WGMMA_OF_REGISTERS(n, names, o0, o1, o2, o3, o4, o5, ...)                                                       \
    if constexpr (COLUMNS == n)                                                                                         \
        asm volatile("{ .reg .pred p; setp.ne.s32 p, " o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n WGMMA_TYPES " {"  \
                     names "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", p" WGMMA_FLAGS "; }"                           \
                     : __VA_ARGS__                                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)scale_d)                            \
                     : "memory");                                                                                       \
    else

// The same with a from registers, which it reads until then.
template <int COLUMNS, typename Sum, int COUNT>
__device__ __forceinline__ void wgmma(Sum (&accum)[COUNT], const Fragment& a, SmemDesc b, bool scale_d)
{
    WGMMA_OF_EACH_SIZE(WGMMA_OF_REGISTERS) static_assert(COLUMNS < 0, "COLUMNS: one of those listed");
}

// wgmma.mma_async.sp: D = A · Bᵀ of 64 × 64 over 256 bytes of K, where A holds two of four elements (TF32: one of two).
//
// KIND is the type of A and B, SUM that of D, STEP the elements of K of a product; SELECTOR which threads hold the
// metadata; SWIZZLE 0, 64 or 128 bytes. A is held in 128 bytes a row. A and B come by TMA in boxes of 64 rows of SWIZZLE
// (or 16) bytes, which lie one after another in shared memory. A_IN_REGISTERS: A comes from global memory.

#include "hopper.cuh"

using namespace hopper;

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

constexpr int ROW = SWIZZLE ? SWIZZLE : 16, STEPS = 4, BYTES = 64 * 128;
constexpr uint64_t MODE = SWIZZLE == 128 ? SWIZZLE_128 : SWIZZLE == 64 ? SWIZZLE_64 : PLAIN;

__device__ uint64_t operand(const unsigned char* tile, int byte)
{
    if (!SWIZZLE) return make_smem_desc(tile + byte / 16 * 64 * 16, 64 * 16, 128, MODE);
    return make_smem_desc(tile + byte / ROW * 64 * ROW + byte % ROW, 16, 8 * ROW, MODE);
}

#define D_ "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
           "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
constexpr int WORDS = 32;
#ifdef WHOLE
using Word = int;
#define OUT(x) "+r"(d[x]), "+r"(d[x + 1]), "+r"(d[x + 2]), "+r"(d[x + 3])
#define SCALES ""
#else
using Word = float;
#define OUT(x) "+f"(d[x]), "+f"(d[x + 1]), "+f"(d[x + 2]), "+f"(d[x + 3])
#if defined WIDE  // elements of 8 or 32 bits
#define SCALES ", 1, 1"
#elif defined A_IN_REGISTERS
#define SCALES ", 1, 1, 0"
#else
#define SCALES ", 1, 1, 0, 0"
#endif
#endif
#define ALL_OUT OUT(0), OUT(4), OUT(8), OUT(12), OUT(16), OUT(20), OUT(24), OUT(28)

extern "C" __global__ void __launch_bounds__(128)
    sparse(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, const uint32_t* a_words,
           const uint32_t* metadata, Word* out)
{
    __shared__ alignas(1024) unsigned char a[BYTES], b[2 * BYTES];
    __shared__ uint64_t full;
    const int thread = threadIdx.x, item = ITEM;
    if (thread == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, 3 * BYTES);
        for (int c = 0; c < 128 / ROW; ++c) tma_load_2d(a + c * 64 * ROW, &A, c * ROW / item, 0, &full);
        for (int c = 0; c < 256 / ROW; ++c) tma_load_2d(b + c * 64 * ROW, &B, c * ROW / item, 0, &full);
    }
    __syncthreads();
    mbarrier_wait_parity(&full, 0);

    Word d[WORDS];
    for (Word& x : d) x = 0;
    uint32_t kept[STEPS];
    [[maybe_unused]] uint32_t fragments[STEPS][4];
    for (int step = 0; step < STEPS; ++step) {
        kept[step] = metadata[step * 128 + thread];
        for (int r = 0; r < 4; ++r)
            fragments[step][r] = a_words[(thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8) * 32 + step * 8 + thread % 4 + r / 2 * 4];
    }
    warpgroup_arrive();
    for (int step = 0; step < STEPS; ++step) {
#ifdef A_IN_REGISTERS
        uint32_t* f = fragments[step];
        asm volatile("wgmma.mma_async.sp.sync.aligned.m64n64k" TEXT(STEP) "." TEXT(SUM) "." TEXT(KIND) "." TEXT(KIND) " "
                     D_ ", {%32, %33, %34, %35}, %36, %37, " TEXT(SELECTOR) ", 1" SCALES ";" : ALL_OUT
                     : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(operand(b, 64 * step)), "r"(kept[step]));
#else
        asm volatile("wgmma.mma_async.sp.sync.aligned.m64n64k" TEXT(STEP) "." TEXT(SUM) "." TEXT(KIND) "." TEXT(KIND) " "
                     D_ ", %32, %33, %34, " TEXT(SELECTOR) ", 1" SCALES ";" : ALL_OUT
                     : "l"(operand(a, 32 * step)), "l"(operand(b, 64 * step)), "r"(kept[step]));
#endif
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    for (int j = 0; j < WORDS; ++j) out[row_of(thread, j) * 64 + column_of(thread, j)] = d[j];
}

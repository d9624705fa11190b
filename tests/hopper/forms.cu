// wgmma in all its forms: D = ±A · Bᵀ of 64 × 64 over 128 bytes of K, one warpgroup.
//
// KIND is the type of A and B, SUM that of D; SWIZZLE 0, 32, 64 or 128 bytes. A and B come by TMA in boxes of 64 rows
// of SWIZZLE (or 16) bytes, which lie one after another in shared memory. TURN_A and TURN_B: the matrix is stored with
// its rows in the contiguous dimension (K × 64 elements). A_IN_REGISTERS: A comes from global memory.

#include "hopper.cuh"

using namespace hopper;

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#ifndef OFF
#define OFF 0  // bytes past a multiple of 1024 where the tiles start
#endif

constexpr int ROW = SWIZZLE ? SWIZZLE : 16, CHUNKS = 128 / ROW, STEPS = 4;
constexpr uint64_t MODE = SWIZZLE == 128 ? SWIZZLE_128 : SWIZZLE == 64 ? SWIZZLE_64 : SWIZZLE == 32 ? SWIZZLE_32 : PLAIN;

__device__ uint64_t operand(const unsigned char* tile, int step, bool turned)
{
    if (turned) {  // 16 rows of K a step
        const unsigned char* start = tile + step * 16 * ROW;
        return SWIZZLE ? make_smem_desc(start, 64 * ROW, 8 * ROW, MODE) : make_smem_desc(start, 128, 64 * 16, MODE);
    }
    const int byte = 32 * step;
    if (!SWIZZLE) return make_smem_desc(tile + byte / 16 * 64 * 16, 64 * 16, 128, MODE);
    return make_smem_desc(tile + byte / ROW * 64 * ROW + byte % ROW, 16, 8 * ROW, MODE);
}

#ifdef HALF_SUM
using Word = uint32_t;
constexpr int WORDS = 16;
#define D_ "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define OUT(x) "+r"(d[x]), "+r"(d[x + 1]), "+r"(d[x + 2]), "+r"(d[x + 3])
#define ALL_OUT OUT(0), OUT(4), OUT(8), OUT(12)
#define FROM_A "%16"
#define FROM_A_REGISTERS "{%16, %17, %18, %19}"
#define FROM_B "%17"
#define FROM_B_AFTER_REGISTERS "%20"
#else
#define D_ "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
           "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
constexpr int WORDS = 32;
#ifdef WHOLE
using Word = int;
#define OUT(x) "+r"(d[x]), "+r"(d[x + 1]), "+r"(d[x + 2]), "+r"(d[x + 3])
#else
using Word = float;
#define OUT(x) "+f"(d[x]), "+f"(d[x + 1]), "+f"(d[x + 2]), "+f"(d[x + 3])
#endif
#define ALL_OUT OUT(0), OUT(4), OUT(8), OUT(12), OUT(16), OUT(20), OUT(24), OUT(28)
#define FROM_A "%32"
#define FROM_A_REGISTERS "{%32, %33, %34, %35}"
#define FROM_B "%33"
#define FROM_B_AFTER_REGISTERS "%36"
#endif

#ifndef TURN_A
#define TURN_A 0
#endif
#ifndef TURN_B
#define TURN_B 0
#endif
#ifndef SIGN
#define SIGN 1
#endif
#ifdef WHOLE
#define SCALES ""
#elif !defined WIDE  // elements of 16 bits
#define SCALES ", " TEXT(SIGN) ", 1, " TURNS
#else
#define SCALES ", " TEXT(SIGN) ", 1"
#endif
#ifdef A_IN_REGISTERS
#define TURNS TEXT(TURN_B)
#else
#define TURNS TEXT(TURN_A) ", " TEXT(TURN_B)
#endif

extern "C" __global__ void __launch_bounds__(128)
    forms(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, const uint32_t* a_words, Word* out)
{
    __shared__ alignas(1024) unsigned char a_held[64 * 128 + OFF], b_held[64 * 128 + OFF];
    unsigned char *a = a_held + OFF, *b = b_held + OFF;
    __shared__ uint64_t full;
    const int thread = threadIdx.x, item = 128 / DEPTH;
    if (thread == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, 2 * 64 * 128);
        for (int c = 0; c < CHUNKS; ++c) {
            tma_load_2d(a + c * 64 * ROW, &A, c * ROW / item, 0, &full);
            tma_load_2d(b + c * 64 * ROW, &B, c * ROW / item, 0, &full);
        }
    }
    __syncthreads();
    mbarrier_wait_parity(&full, 0);

    Word d[WORDS];
    for (Word& x : d) x = 0;
    [[maybe_unused]] uint32_t fragments[STEPS][4];
    for (int step = 0; step < STEPS; ++step)
        for (int r = 0; r < 4; ++r)
            fragments[step][r] = a_words[(thread / 32 * 16 + thread % 32 / 4 + r % 2 * 8) * 32 + step * 8 + thread % 4 + r / 2 * 4];
    warpgroup_arrive();
    for (int step = 0; step < STEPS; ++step) {
#ifdef A_IN_REGISTERS
        uint32_t* f = fragments[step];
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k" TEXT(STEP) "." TEXT(SUM) "." TEXT(KIND) "." TEXT(KIND) " "
                     D_ ", " FROM_A_REGISTERS ", " FROM_B_AFTER_REGISTERS ", 1" SCALES ";"
                     : ALL_OUT : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(operand(b, step, TURN_B)));
#else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k" TEXT(STEP) "." TEXT(SUM) "." TEXT(KIND) "." TEXT(KIND) " "
                     D_ ", " FROM_A ", " FROM_B ", 1" SCALES ";"
                     : ALL_OUT : "l"(operand(a, step, TURN_A)), "l"(operand(b, step, TURN_B)));
#endif
    }
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    for (int j = 0; j < WORDS; ++j) {
#ifdef HALF_SUM
        out[row_of(thread, 2 * j) * 32 + column_of(thread, 2 * j) / 2] = d[j];
#else
        out[row_of(thread, j) * 64 + column_of(thread, j)] = d[j];
#endif
    }
}

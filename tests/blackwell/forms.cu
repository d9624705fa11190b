// tcgen05.mma in its forms: D = ±A · Bᵀ of ROWS × 64 over 128 bytes of K.
//
// KIND is the kind of the product, TYPE_A and TYPE_B what its instruction descriptor calls the types, SUM that of D; ITEM
// bytes are an element's. SWIZZLE is 0, 32, 64 or 128 bytes. A and B come by TMA in boxes of SWIZZLE (or 16) bytes a row,
// which lie one after another. TURN_A and TURN_B: the matrix is stored with its rows in the contiguous dimension.
// A_IN_TENSOR_MEMORY: A comes there from global memory. SCALED: D is halved before each product.

#include "blackwell.cuh"

using namespace blackwell;

#ifndef TURN_A
#define TURN_A 0
#endif
#ifndef TURN_B
#define TURN_B 0
#endif
#ifndef MINUS_A
#define MINUS_A 0
#endif
#ifndef MINUS_B
#define MINUS_B 0
#endif

constexpr int ROW = SWIZZLE ? SWIZZLE : 16, STEPS = 4, N = 64, DEPTH = 128 / ITEM, COLUMNS = 128;
constexpr uint64_t MODE = SWIZZLE == 128 ? ATOMS_OF_128 : SWIZZLE == 64 ? ATOMS_OF_64 : SWIZZLE == 32 ? ATOMS_OF_32 : UNSWIZZLED;

// 32 bytes of K of a matrix of so many rows.
__device__ uint64_t operand(const unsigned char* held, int rows, int step, bool turned)
{
    if (turned) {
        const unsigned char* start = held + step * 32 / ITEM * ROW;
        return SWIZZLE ? tile(start, DEPTH * ROW, 8 * ROW, MODE) : tile(start, 128, DEPTH * 16, MODE);
    }
    const int byte = 32 * step;
    if (!SWIZZLE) return tile(held + byte / 16 * rows * 16, rows * 16, 128, MODE);
    return tile(held + byte / ROW * rows * ROW + byte % ROW, 16, 8 * ROW, MODE);
}

// Boxes of at most 64 rows.
__device__ void bring(unsigned char* held, const CUtensorMap* map, int rows, bool turned, uint64_t* full)
{
    const int across = turned ? rows * ITEM : 128, along = turned ? DEPTH : rows;
    for (int c = 0; c < across / ROW; ++c)
        for (int r = 0; r < along; r += 32) tma_load_2d(held + (c * along + r) * ROW, map, c * ROW / ITEM, r, full);
}

extern "C" __global__ void __launch_bounds__(128)
    forms(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, const uint32_t* a_words, uint32_t* out)
{
    __shared__ alignas(1024) unsigned char a[ROWS * 128], b[N * 128];
    __shared__ uint64_t full, done;
    __shared__ uint32_t where;
    const int thread = threadIdx.x, warp = thread / 32;
    if (warp == 0) tensor_alloc<COLUMNS>(&where);
    if (thread == 0) {
        mbarrier_init(&full, 1);
        mbarrier_init(&done, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, (ROWS + N) * 128);
        bring(a, &A, ROWS, TURN_A, &full);
        bring(b, &B, N, TURN_B, &full);
    }
    __syncthreads();
    const uint32_t d = where, mine = d + (warp * 32 << 16);
#if defined A_IN_TENSOR_MEMORY || defined LEAVES_OUT
    uint32_t r[8] = {};
    for (int n = 0; n < N; n += 8) tensor_st(mine + n, r);
    for (int k = 0; k < 32; k += 8) {
        const int row = ROWS == 128 ? thread : warp * 16 + thread % 16;
        for (int j = 0; j < 8; ++j) r[j] = a_words[row * 32 + k + j];
        tensor_st(mine + N + k, r);
    }
    wait_st();
    before_thread_sync();
    __syncthreads();
    after_thread_sync();
#endif
    if (thread == 0) {
        mbarrier_wait_parity(&full, 0);
        const uint32_t f = form(ROWS, N, SUM, TYPE_A, TYPE_B, TURN_A, TURN_B, MINUS_A, MINUS_B);
        for (int step = 0; step < STEPS; ++step) {
#ifdef A_IN_TENSOR_MEMORY
            multiply_there(d, d + N + 8 * step, operand(b, N, step, TURN_B), f, step);
#elif defined SCALED
            asm volatile(MULTIPLY " [%0], %1, %2, %3, p, 1;\n}"
                         ::"r"(d), "l"(operand(a, ROWS, step, TURN_A)), "l"(operand(b, N, step, TURN_B)), "r"(f), "r"(step) : "memory");
#elif defined LEAVES_OUT
            asm volatile(MULTIPLY " [%0], %1, %2, %3, {%5, %6, %7, %8}, p;\n}"
                         ::"r"(d), "l"(operand(a, ROWS, step, TURN_A)), "l"(operand(b, N, step, TURN_B)), "r"(f), "r"(step),
                           "r"(0xF0), "r"(0), "r"(-1), "r"(1) : "memory");
#else
            multiply(d, operand(a, ROWS, step, TURN_A), operand(b, N, step, TURN_B), f, step);
#endif
        }
        tensor_commit(&done);
    }
    mbarrier_wait_parity(&done, 0);
    after_thread_sync();
#if ROWS == 128
    for (int half = 0; half < N; half += 32) {
        uint32_t r[32];
        tensor_ld(r, mine + half);
        wait_ld();
        for (int j = 0; j < 32; ++j) out[thread * N + half + j] = r[j];
    }
#else
    for (int n = 0; n < N; n += 16) {
        uint32_t r[8];
        asm volatile("tcgen05.ld.sync.aligned.16x256b.x2.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : "r"(mine + n));
        wait_ld();
        for (int j = 0; j < 8; ++j)
            out[(warp * 16 + thread % 32 / 4 + j / 2 % 2 * 8) * N + n + thread % 4 * 2 + j % 2 + j / 4 * 8] = r[j];
    }
#endif
    __syncthreads();
    if (warp == 0) tensor_dealloc<COLUMNS>(d);
}

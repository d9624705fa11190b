// Tiles for tensor cores: copied into swizzled shared memory several tiles ahead, loaded from there as fragments
// by ldmatrix while others are multiplied, and sums on their way back. For the stages mma_sync and tf32x3.
#pragma once

#include "vectors.cuh"

#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif

#if defined(DTYPE_F16) || defined(DTYPE_BF16)
using Element = unsigned short;  // moved as bits: only mma knows what they mean
#else
using Element = float;
#endif

// Neighbouring columns of FP32's B that a lane loads at once. Those of two are neighbours in mma's registers, too. Four
// belong to two quads: half of the loads where a stage makes new words of them, a move for each word where it does not.
#ifndef B_COLUMNS
#define B_COLUMNS 2
#endif

#define VECTOR ((int)(16 / sizeof(Element)))  // elements of a chunk, the 16 bytes that are moved at once
#define STEP (2 * VECTOR)                     // k of one mma: two chunks of a row of A
#define STEPS (TILE_K / STEP)
#define A_CHUNKS (TILE_K / VECTOR)
#define B_CHUNKS (TILE_N / VECTOR)
#define A_BYTES (TILE_M * A_CHUNKS * 16)
#define B_BYTES (TILE_K * B_CHUNKS * 16)
#define STAGE_BYTES (A_BYTES + B_BYTES)

#define WARPS_N (TILE_N / WARP_TILE_N)
#define WARPS (TILE_M / WARP_TILE_M * WARPS_N)
#define THREADS (WARPS * 32)
// mma takes 16 rows of one operand, four registers, and 8 columns of the other, two. Of FP32 the rows are columns of B,
// the columns rows of A, and the result is transposed: so every load from shared memory fills neighbouring registers.
#define QUADS ((sizeof(Element) == 2 ? WARP_TILE_M : WARP_TILE_N) / 16)  // of a warp
#define PAIRS ((sizeof(Element) == 2 ? WARP_TILE_N : WARP_TILE_M) / 8)
#define A_COPIES (TILE_M * A_CHUNKS / THREADS)
#define B_COPIES (TILE_K * B_CHUNKS / THREADS)
#define A_ROW_STEP (THREADS / A_CHUNKS)
#define B_ROW_STEP (THREADS / B_CHUNKS)
#define B_TWIST (sizeof(Element) == 4 ? 2 : 1)  // see swizzled
// Rows of sums in shared memory are longer by what spreads those of a fragment over the banks.
#define SUM_STRIDE (WARP_TILE_N + VECTOR)
#define ROWS_AT_ONCE (128 / WARP_TILE_N)  // whose sums a warp stores in vectors

static_assert(BAND_ROWS >= 1, "BAND_ROWS: 1 or more");
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");
static_assert(TILE_M % WARP_TILE_M == 0 && WARP_TILE_M % 16 == 0, "TILE_M, WARP_TILE_M: whole fragments");
static_assert(TILE_N % WARP_TILE_N == 0 && WARP_TILE_N % 32 == 0, "TILE_N, WARP_TILE_N: whole fragments, in fours");
static_assert(TILE_K % 16 == 0, "TILE_K: a multiple of 16, of FP16 and BF16 of 32");
static_assert(128 % WARP_TILE_N == 0, "WARP_TILE_N: 32, 64 or 128");
static_assert(TILE_K % (2 * STEP) == 0, "TILE_K: an even number of steps, for two sets of registers");
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");
static_assert(THREADS % A_CHUNKS == 0 && TILE_M % A_ROW_STEP == 0, "TILE_M, TILE_K: the same number of chunks a thread");
static_assert(THREADS % B_CHUNKS == 0 && TILE_K % B_ROW_STEP == 0, "TILE_K, TILE_N: the same number of chunks a thread");
static_assert(B_COLUMNS == 2 || (B_COLUMNS == 4 && sizeof(Element) == 4), "B_COLUMNS: 2, of FP32 2 or 4");
// The swizzle repeats from one row that a thread copies to its next.
static_assert(A_ROW_STEP % 8 == 0, "TILE_K: at most half as many as threads");
static_assert(B_ROW_STEP * B_TWIST % 8 == 0, "TILE_N: at most as many as threads");
static_assert(WARPS * 16 * SUM_STRIDE * 4 <= STAGES * STAGE_BYTES, "STAGES: room for the sums");

// What a warp multiplies in one step, and its sums.
struct Fragments {
    unsigned quads[QUADS][4], pairs[PAIRS][2];
};
using Sums = float[QUADS][PAIRS][4];

// Where this block and this warp are in C. Blocks start in the order of their index: take them down columns of
// bands of BAND_ROWS block rows, so that those that run at the same time share A and B in L2.
struct Place {
    int block_row, block_col, warp_row, warp_col;
    unsigned lane;
};
__device__ __forceinline__ Place find_place()
{
    const int band_rows = BAND_ROWS;
    const int grid_rows = gridDim.y, grid_cols = gridDim.x;
    const int index = blockIdx.y * grid_cols + blockIdx.x;
    const int band = index / (band_rows * grid_cols), in_band = index % (band_rows * grid_cols);
    const int rows = min(grid_rows - band * band_rows, band_rows);  // the last band may be shorter
    const unsigned warp = threadIdx.x / 32;
    return {(band * band_rows + in_band % rows) * TILE_M, in_band / rows * TILE_N,
            (int)(warp / WARPS_N * WARP_TILE_M), (int)(warp % WARPS_N * WARP_TILE_N), threadIdx.x % 32};
}

// Where chunk `chunk` of row `row` lies in a tile with CHUNKS of them a row, in bytes. Eight chunks fill all
// banks: those below one another, which ldmatrix reads at once, are spread over them by an XOR with the row. Of
// FP32, B is read in four rows and two neighbouring chunks of each: TWIST 2.
template <int CHUNKS, int TWIST>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned chunk)
{
    const unsigned rows = CHUNKS < 8 ? 8 / CHUNKS : 1;  // that fill the banks once
    const unsigned mask = CHUNKS < 8 ? CHUNKS - 1 : 7;
    return (row * CHUNKS + (chunk ^ (row / rows * TWIST & mask))) * 16;
}
__device__ __forceinline__ unsigned in_a(unsigned row, unsigned chunk)
{
    return swizzled<A_CHUNKS, 1>(row, chunk);
}
__device__ __forceinline__ unsigned in_b(unsigned row, unsigned chunk)
{
    return A_BYTES + swizzled<B_CHUNKS, B_TWIST>(row, chunk);
}

// A chunk into shared memory, of which only the first `count` elements exist: 0 for the others, which add nothing.
__device__ __forceinline__ void copy_some(unsigned to, const Element* from, int count, bool aligned)
{
    count = max(0, min(count, VECTOR));
    if (aligned) {
        const int bytes = count * (int)sizeof(Element);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
        return;
    }
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        if (i >= count) break;
        if (sizeof(Element) == 4)
            words[i] = reinterpret_cast<const unsigned*>(from)[i];
        else
            words[i / 2] |= (unsigned)from[i] << 16 * (i % 2);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}
__device__ __forceinline__ void copy_whole(unsigned to, const Element* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Four matrices of 8 rows of 16 bytes, which start at the addresses of eight lanes each.
#define LDMATRIX(form, to, from)                                                            \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0, %1, %2, %3}, [%4];" \
                 : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3])               \
                 : "r"(from)                                                                \
                 : "memory")

// Where in a tile a lane begins to read; all else is a constant apart, for the XOR repeats every eight rows or chunks.
struct Starts {
    unsigned a[STEPS], b[4];
};
__device__ __forceinline__ Starts find_starts(const Place& at)
{
    const bool halves = sizeof(Element) == 2;
    const unsigned lane = at.lane;
    Starts starts;
#pragma unroll
    for (int i = 0; i < STEPS; ++i)
        starts.a[i] = halves ? in_a(at.warp_row + lane % 16, i * 2 + lane / 16)
                             : in_a(at.warp_row + lane / 16 * 8 + lane % 8, i * 2 + lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned chunk = at.warp_col / VECTOR + i * 2;
        starts.b[i] = halves           ? in_b(lane % 16, chunk + lane / 16)
                      : B_COLUMNS == 4 ? in_b(lane % 4, at.warp_col / VECTOR + lane / 4)
                                       : in_b(lane % 4, chunk + i * 2 + lane / 8) + lane / 4 % 2 * 8;
    }
    if (B_COLUMNS == 4)
#pragma unroll
        for (int i = 0; i < STEPS; ++i)  // kept in registers, else worked out anew in every step
            asm volatile("" : "+r"(starts.a[i]), "+r"(starts.b[0]));
    return starts;
}

// Four words of shared memory if they are `wanted`: a branch would part these loads from the products beside them.
#define LOAD_IF(wanted, instruction, to0, to1, to2, to3, from)                                             \
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p " instruction " {%0, %1, %2, %3}, [%4]; }"      \
                 : "=r"(to0), "=r"(to1), "=r"(to2), "=r"(to3)                                              \
                 : "r"(from), "r"((int)(wanted))                                                           \
                 : "memory")

// load_fragments of FP32 with B_COLUMNS of 4, from where the lane begins to read A and B.
__device__ __forceinline__ void load_wide(Fragments& f, unsigned a, unsigned b, bool wanted)
{
#pragma unroll
    for (int m = 0; m < PAIRS; m += 2)  // eight rows, four k in each; another four; and eight rows more
        LOAD_IF(wanted, "ldmatrix.sync.aligned.m8n8.x4.shared.b16", f.pairs[m][0], f.pairs[m][1], f.pairs[m + 1][0],
                f.pairs[m + 1][1], a + m * 8 * A_CHUNKS * 16);
#pragma unroll
    for (int n = 0; n < QUADS; n += 2)
#pragma unroll
        for (int k = 0; k < 2; ++k)  // columns 4i … 4i + 3, for rows i and i + 8 of two quads
            LOAD_IF(wanted, "ld.shared.v4.b32", f.quads[n][k * 2], f.quads[n][k * 2 + 1], f.quads[n + 1][k * 2],
                    f.quads[n + 1][k * 2 + 1], b + (k * 4 * B_CHUNKS + n * 4) * 16);
}

// 16 rows of A, from where the lane begins to read them.
__device__ __forceinline__ void load_rows(Fragments& f, int m, unsigned from)
{
    if (sizeof(Element) == 2) {
        LDMATRIX("", f.quads[m], from);
        return;
    }
    unsigned two[4];  // of FP32: eight rows, four k in each; another four; and eight rows more
    LDMATRIX("", two, from);
    f.pairs[m * 2][0] = two[0], f.pairs[m * 2][1] = two[1];
    f.pairs[m * 2 + 1][0] = two[2], f.pairs[m * 2 + 1][1] = two[3];
}

// 16 columns of B: a row of B has neighbouring columns, a register neighbouring k: transposed, which ldmatrix does
// with 16 bits only.
__device__ __forceinline__ void load_columns(Fragments& f, int n, unsigned from)
{
    unsigned two[4];
    LDMATRIX(".trans", two, from);
    f.pairs[n * 2][0] = two[0], f.pairs[n * 2][1] = two[1];
    f.pairs[n * 2 + 1][0] = two[2], f.pairs[n * 2 + 1][1] = two[3];
}

// The same of FP32, half `i` of the rows: columns 2i and 2i + 1 of a row per lane.
__device__ __forceinline__ void load_two(Fragments& f, int n, int i, unsigned from)
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(f.quads[n][i * 2]), "=r"(f.quads[n][i * 2 + 1])
                 : "r"(from)
                 : "memory");
}

// Those of step `step`, if they are `wanted`.
__device__ __forceinline__ void load_fragments(Fragments& f, unsigned tile, int step, const Starts& starts, bool wanted)
{
    const unsigned row = tile + step * STEP * B_CHUNKS * 16;
    if (B_COLUMNS == 4) {
        load_wide(f, tile + starts.a[step], row + starts.b[0], wanted);
        return;
    }
    if (!wanted) return;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m)
        load_rows(f, m, tile + starts.a[step] + m * 16 * A_CHUNKS * 16);
#pragma unroll
    for (int n = 0; n < WARP_TILE_N / 16; ++n) {
        if (sizeof(Element) == 2) load_columns(f, n, row + starts.b[n % 4] + n / 4 * 128);
#pragma unroll
        for (int i = 0; i < (sizeof(Element) == 4 ? 2 : 0); ++i)  // rows i and i + 8
            load_two(f, n, i, row + i * 4 * B_CHUNKS * 16 + starts.b[n % 2] + n / 2 * 128);
    }
}

// sum (16 × 8) += quad (16 × STEP) · pair (STEP × 8)
#if defined(DTYPE_F16)
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#elif defined(DTYPE_BF16)
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
#define MMA "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
#endif
__device__ __forceinline__ void mma(float (&sum)[4], const unsigned (&quad)[4], const unsigned (&pair)[2])
{
    asm(MMA "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(quad[0]), "r"(quad[1]), "r"(quad[2]), "r"(quad[3]), "r"(pair[0]), "r"(pair[1]));
}

// Calls multiply(fragments, next, step) for every step along K, `step` counted from 0 within a tile; `next` are those of
// the step after it, which it may prepare, as prepare(fragments) does for the first. WHOLE: the block's tiles are whole,
// and their rows aligned, so that every chunk is copied as it is.
template <bool WHOLE, typename Prepare, typename Multiply>
__device__ __forceinline__ void main_loop(int M, int N, int K, const Element* A, int lda, const Element* B, int ldb,
                                          unsigned tiles, const Place& at, Prepare prepare, Multiply multiply)
{
    // What this thread copies: a chunk in every A_ROW_STEP-th row of A, and in every B_ROW_STEP-th of B.
    const unsigned thread = threadIdx.x;
    const unsigned a_row = thread / A_CHUNKS, a_chunk = thread % A_CHUNKS;
    const unsigned b_row = thread / B_CHUNKS, b_chunk = thread % B_CHUNKS;
    const Element* a_from = A + (size_t)(at.block_row + a_row) * lda + a_chunk * VECTOR;
    const Element* b_from = B + (size_t)b_row * ldb + at.block_col + b_chunk * VECTOR;
    const size_t a_step = (size_t)A_ROW_STEP * lda, b_step = (size_t)B_ROW_STEP * ldb;
    const bool aligned = rows_aligned(A, lda) && rows_aligned(B, ldb);

    // Where the first of them goes in the next free tiles, carried along the loop; the others are a constant apart, for
    // the swizzle repeats.
    unsigned a_to = tiles + in_a(a_row, a_chunk), b_to = tiles + in_b(b_row, b_chunk);
    const unsigned a_to_step = A_ROW_STEP * A_CHUNKS * 16, b_to_step = B_ROW_STEP * B_CHUNKS * 16;

    // To the next of the STAGES tiles, and how far that is.
    auto advance = [](int& stage) {
        const bool wraps = stage == STAGES - 1;
        stage = wraps ? 0 : stage + 1;
        return wraps ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES;
    };
    int read = 0, write = 0;

    // Part `part` of `parts` of the copies of the tiles at k0, tile after tile.
    auto copy_tiles = [&](int k0, int part, int parts) {
        if (k0 >= K) return;
        const int a_left = K - k0 - (int)a_chunk * VECTOR, b_left = N - at.block_col - (int)b_chunk * VECTOR;
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            if (i * parts / (A_COPIES + B_COPIES) != part) continue;
            const unsigned row = a_row + i * A_ROW_STEP;
            if (WHOLE)
                copy_whole(a_to + i * a_to_step, a_from + i * a_step);
            else
                copy_some(a_to + i * a_to_step, a_from + i * a_step, at.block_row + (int)row < M ? a_left : 0, aligned);
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            if ((A_COPIES + i) * parts / (A_COPIES + B_COPIES) != part) continue;
            const unsigned row = b_row + i * B_ROW_STEP;
            if (WHOLE)
                copy_whole(b_to + i * b_to_step, b_from + i * b_step);
            else
                copy_some(b_to + i * b_to_step, b_from + i * b_step, k0 + (int)row < K ? b_left : 0, aligned);
        }
        if (part < parts - 1) return;
        a_from += TILE_K, b_from += (size_t)TILE_K * ldb;
        const int on = advance(write);
        a_to += on, b_to += on;
    };

    if (K == 0) return;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copy_tiles(stage * TILE_K, 0, 1);
        cp_async_commit();  // also where there is nothing to copy: the waits count groups
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const Starts starts = find_starts(at);
    Fragments fragments[2];
    unsigned tile = tiles;
    load_fragments(fragments[0], tile, 0, starts, true);
    prepare(fragments[0]);

    for (int k0 = 0; k0 < K; k0 += TILE_K) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) {
                cp_async_wait<STAGES - 2>();  // this thread's part of the next tiles has come,
                __syncthreads();              // every thread's has; and all have read the last of these
                tile += advance(read);
            }
            const bool more = step < STEPS - 1 || k0 + TILE_K < K;
            load_fragments(fragments[(step + 1) % 2], tile, (step + 1) % STEPS, starts, more);
            // Into the tiles before these: all threads have passed the barrier after reading them. Spread over the
            // steps before the one that waits, so that loads of fragments do not queue behind them.
            if (step < STEPS - 1) copy_tiles(k0 + (STAGES - 1) * TILE_K, step, STEPS - 1);
            if (step == STEPS - 2) cp_async_commit();
            multiply(fragments[step % 2], fragments[(step + 1) % 2], step);
        }
    }
}

__device__ __forceinline__ float2 scaled(float alpha, float x, float y)
{
    return make_float2(alpha * x, alpha * y);
}

// alpha times a warp's sums, 16 rows at a time, through its own part of shared memory to C, in whole vectors. The tiles
// there are done with: all warps have passed the last barrier of the main loop, which copies nothing after that. Before,
// `mend(m, own)` may change what is in `own`, 16 rows of SUM_STRIDE. The columns of C from a multiple of four on are
// `placed(column)` there.
template <typename Mend, typename Placed>
__device__ __forceinline__ void store_sums(const Sums& sum, int M, int N, float alpha, float beta, float* C, int ldc,
                                           unsigned char* tiles, const Place& at, Mend mend, Placed placed)
{
    float* const own = reinterpret_cast<float*>(tiles) + threadIdx.x / 32 * 16 * SUM_STRIDE;
    const unsigned lane = at.lane;
    const int row0 = at.block_row + at.warp_row, col0 = at.block_col + at.warp_col;
    const bool aligned = rows_aligned(C, ldc);
    const bool whole = aligned && row0 + WARP_TILE_M <= M && col0 + WARP_TILE_N <= N;
#pragma unroll
    for (int m = 0; m < WARP_TILE_M / 16; ++m) {
        // A lane has columns 2i and 2i + 1 of rows lane / 4 and lane / 4 + 8 of a fragment. Of FP32, transposed, and with
        // B_COLUMNS of 4 those of two quads are neighbours.
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (sizeof(Element) == 2) {
                float* const row = own + (lane / 4 + half * 8) * SUM_STRIDE + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < PAIRS; ++n)
                    *reinterpret_cast<float2*>(row + n * 8) = scaled(alpha, sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
            } else if (B_COLUMNS == 4) {
                float4* const row = reinterpret_cast<float4*>(own) + (lane % 4 * 2 + half) * (SUM_STRIDE / 4) + lane / 4;
#pragma unroll
                for (int n = 0; n < QUADS; n += 2)
#pragma unroll
                    for (int eight = 0; eight < 2; ++eight) {
                        const float(&left)[4] = sum[n][m * 2 + eight], (&right)[4] = sum[n + 1][m * 2 + eight];
                        row[n * 4 + eight * 8 * (SUM_STRIDE / 4)] = make_float4(
                            alpha * left[half], alpha * left[half + 2], alpha * right[half], alpha * right[half + 2]);
                    }
            } else {
                float* const row = own + (lane % 4 * 2 + half) * SUM_STRIDE + lane / 4 * 2;
#pragma unroll
                for (int n = 0; n < QUADS; ++n) {
                    *reinterpret_cast<float2*>(row + n * 16) =
                        scaled(alpha, sum[n][m * 2][half], sum[n][m * 2][half + 2]);
                    *reinterpret_cast<float2*>(row + n * 16 + 8 * SUM_STRIDE) =
                        scaled(alpha, sum[n][m * 2 + 1][half], sum[n][m * 2 + 1][half + 2]);
                }
            }
        }
        __syncwarp();
        mend(m, own);
        const unsigned row = lane / (WARP_TILE_N / 4), col = lane % (WARP_TILE_N / 4) * 4;
        const float* from = own + row * SUM_STRIDE + placed(col);
        float* c = C + (size_t)(row0 + m * 16 + row) * ldc + col0 + col;
        const size_t step = (size_t)ROWS_AT_ONCE * ldc;
        if (whole && beta == 0.0f) {
#pragma unroll
            for (int i = 0; i < 16 / ROWS_AT_ONCE; ++i, c += step)
                *reinterpret_cast<float4*>(c) = *reinterpret_cast<const float4*>(from + i * ROWS_AT_ONCE * SUM_STRIDE);
        } else {
#pragma unroll 1
            for (int i = row; i < 16; i += ROWS_AT_ONCE, c += step, from += ROWS_AT_ONCE * SUM_STRIDE)
                if (row0 + m * 16 + i < M) store4(c, N - col0 - (int)col, aligned, 1.0f, from, beta);
        }
        __syncwarp();  // the next 16 rows overwrite these
    }
}

template <typename Mend>
__device__ __forceinline__ void store_sums(const Sums& sum, int M, int N, float alpha, float beta, float* C, int ldc,
                                           unsigned char* tiles, const Place& at, Mend mend)
{
    store_sums(sum, M, N, alpha, beta, C, ldc, tiles, at, mend, [](unsigned column) { return column; });
}

// Whether the tiles of this block are whole, and their rows 16-byte aligned.
__device__ __forceinline__ bool whole_tiles(int M, int N, int K, const Element* A, int lda, const Element* B, int ldb,
                                            const Place& at)
{
    return rows_aligned(A, lda) && rows_aligned(B, ldb) && at.block_row + TILE_M <= M &&
           at.block_col + TILE_N <= N && K % TILE_K == 0;
}

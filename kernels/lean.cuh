// The loop of lean_loop and stream_k: a tile of C from a part of K, by nearly nothing but multiply-adds.
#pragma once

#include "vectors.cuh"

#pragma nv_diag_suppress 128  // the loop over columns of B is not reached where pointers walk

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES) || !defined(SLICES)
#error "TILE_M, TILE_N, TILE_K, STAGES and SLICES are needed, by -D"
#endif
#if !defined(WARP_TILE_M) || !defined(WARP_TILE_N) || !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "WARP_TILE_M, WARP_TILE_N, THREAD_TILE_M and THREAD_TILE_N are needed, by -D"
#endif
#ifndef BAND_ROWS
#define BAND_ROWS 8
#endif
static_assert(BAND_ROWS >= 1, "BAND_ROWS: 1 or more");
static_assert(TILE_M % WARP_TILE_M == 0, "TILE_M: a multiple of WARP_TILE_M");
static_assert(TILE_N % WARP_TILE_N == 0, "TILE_N: a multiple of WARP_TILE_N");
static_assert(THREAD_TILE_M % 4 == 0 && THREAD_TILE_N % 4 == 0, "thread tile: multiples of 4");
static_assert(WARP_TILE_M % THREAD_TILE_M == 0, "WARP_TILE_M: a multiple of THREAD_TILE_M");
static_assert(WARP_TILE_N % THREAD_TILE_N == 0, "WARP_TILE_N: a multiple of THREAD_TILE_N");
static_assert(TILE_K % 8 == 0, "TILE_K: a multiple of 8, the neighbours in a row of A that a warp copies");
static_assert(TILE_K % (2 * SLICES) == 0, "SLICES: an even number of steps each, for the registers to take turns");
static_assert(THREAD_TILE_M % SLICES == 0, "SLICES: the same number of rows of a thread tile each");
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");

#define LANES_M (WARP_TILE_M / THREAD_TILE_M)
#define LANES_N (WARP_TILE_N / THREAD_TILE_N)
#define WARPS_N (TILE_N / WARP_TILE_N)
#define SLICE_THREADS (TILE_M / WARP_TILE_M * WARPS_N * 32)
#define THREADS (SLICE_THREADS * SLICES)
#define STEPS (TILE_K / SLICES)         // along K, in a tile and slice
#define OWN_ROWS (THREAD_TILE_M / SLICES)  // of a thread tile, that a slice adds up and stores
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");
static_assert(LANES_M * LANES_N == 32, "thread tile: 32 of them to a warp tile");
static_assert(LANES_M % 2 == 0, "thread tile: an even number of them down a warp tile");

// What a thread copies of a tile: single floats of A, one or more from each of A_ROWS rows; float4s of B, or
// single floats in B_COLUMNS columns.
#define A_ROWS (TILE_M * 8 / THREADS)
#define B_VECTORS (TILE_K * TILE_N / 4 / THREADS)
#define B_FLOATS (TILE_K * TILE_N / THREADS)
#define B_COLUMNS (TILE_N > THREADS ? TILE_N / THREADS : 1)
static_assert(A_ROWS * THREADS == TILE_M * 8, "TILE_M: the same number of rows a thread");
static_assert(B_VECTORS * THREADS * 4 == TILE_K * TILE_N, "TILE_K * TILE_N: the same number of float4s a thread");
static_assert(THREADS % (TILE_N / 4) == 0, "TILE_N: a thread's float4s are in one column");
static_assert(THREADS % TILE_N == 0 || TILE_N % THREADS == 0, "TILE_N: a divisor or multiple of the threads");

// STAGES times: As (TILE_K × A_STRIDE, transposed), Bs (TILE_K × TILE_N). Rows of As are 4 floats longer: the
// eight k that a warp stores go to different banks.
#define A_STRIDE (TILE_M + 4)
#define STAGE_FLOATS (TILE_K * (A_STRIDE + TILE_N))

// ptxas chooses other registers with every change of the source, with more or fewer operands of a product in one bank. So
// some things are done for wide tiles only, which they make faster and others slower (measured: docs/attempts.md).
constexpr bool WIDE = TILE_N > TILE_M && SLICES == 1;
// Whether the rows of A that are multiplied first are loaded before B's columns: 3 % faster, for others 8 % slower.
constexpr bool A_BEFORE_B = WIDE;

// Which part of C a thread computes.
struct Place {
    int block_row, block_col;  // of the tile
    int row, col;              // of the thread's first element, in the tile
    int slice;                 // of the steps along K of each tile, which so many warps share
};

// Row and column of a lane's thread tile in the warp tile. Lanes 2i and 2i + 1 share a column, lanes i and i + 2
// mostly a row: shared memory then serves a warp's float4s in two rounds instead of four.
__device__ __forceinline__ int lane_row(int lane) { return lane / (2 * LANES_N) * 2 + lane % 2; }
__device__ __forceinline__ int lane_col(int lane) { return lane / 2 % LANES_N; }

__device__ __forceinline__ Place place_of(int thread, int block_row, int block_col)
{
    const int warp = thread % SLICE_THREADS / 32, lane = thread % 32;
    const int lane_m = lane_row(lane), lane_n = lane_col(lane);
    return {block_row, block_col, warp / WARPS_N * WARP_TILE_M + lane_m * 4,
            warp % WARPS_N * WARP_TILE_N + lane_n * 4, SLICES == 1 ? 0 : thread / SLICE_THREADS};
}

// Row and column of a tile: whole tiles first, down columns of bands of BAND_ROWS tiles, so that those of the
// same time share A and B in L2; then those at the right edge, and those below.
__device__ __forceinline__ int2 tile_at(int index, int M, int N)
{
    const int whole_rows = M / TILE_M, whole_cols = N / TILE_N, whole = whole_rows * whole_cols;
    if (index < whole) {
        const int band = index / (BAND_ROWS * whole_cols), in_band = index % (BAND_ROWS * whole_cols);
        const int rows = min(whole_rows - band * BAND_ROWS, BAND_ROWS);  // the last band may be shorter
        return {in_band / rows, band * BAND_ROWS + in_band % rows};
    }
    const int edge = index - whole, right = N % TILE_N != 0 ? whole_rows : 0;
    return edge < right ? make_int2(whole_cols, edge) : make_int2(edge - right, whole_rows);
}

// Copies of one tile after another along K, all of them whole. Rows and columns past an edge are copied from
// the last one, whose sums are not stored: no guard. VECTORS: rows of B are 16-byte aligned, N a multiple of 4.
// WALKING: the pointers into B go on by a row with each copy; else the rows of a tile are at multiples of a step.
template <bool VECTORS, bool WALKING>
struct Copies {
    static constexpr int PIECES = A_ROWS + (VECTORS ? B_VECTORS : B_FLOATS);
    const float *a[A_ROWS], *b[VECTORS ? 1 : B_COLUMNS];
    size_t b_step, b_tile;
    int a_to, b_to;

    __device__ __forceinline__ Copies(int thread, const Place& at, const float* A, int lda, const float* B, int ldb,
                                      int M, int N, int k0)
    {
        const int row = at.block_row + thread / 8;
#pragma unroll
        for (int i = 0; i < A_ROWS; ++i)
            a[i] = A + (size_t)min(row + i * (THREADS / 8), M - 1) * lda + k0 + thread % 8;
        a_to = thread % 8 * A_STRIDE + thread / 8;

        const int width = VECTORS ? 4 : 1, k = thread / (TILE_N / width), step = THREADS / (TILE_N / width);
#pragma unroll
        for (int c = 0; c < (VECTORS ? 1 : B_COLUMNS); ++c) {
            const int col = at.block_col + thread % (TILE_N / width) * width + c * THREADS;
            b[c] = B + (size_t)(k0 + k) * ldb + min(col, N - width);
        }
        b_step = (size_t)(step > 0 ? step : 1) * ldb;
        b_tile = (size_t)TILE_K * ldb;
        b_to = TILE_K * A_STRIDE + thread * width;
    }

    // The i-th of PIECES of a tile into `to`, if `wanted`; after the last one on to the next tile.
    __device__ __forceinline__ void piece(int i, float* to, bool wanted)
    {
        const int j = i - A_ROWS;
        if (i < A_ROWS) {
#pragma unroll
            for (int k = 0; k < TILE_K; k += 8)
                cp_async_4_if(wanted, to + a_to + k * A_STRIDE + i * (THREADS / 8), a[i] + k);
            a[i] += TILE_K;
        } else if (VECTORS) {
            cp_async_16_if(wanted, to + b_to + j * THREADS * 4, b[0] + j * b_step);
        } else {
            const float*& column = b[j % B_COLUMNS];
            cp_async_4_if(wanted, to + b_to + j * THREADS, WALKING ? column : column + j / B_COLUMNS * b_step);
            // One instruction, and none that the compiler could gather into offsets that are kept in registers.
            if (WALKING) asm volatile("mad.wide.s32 %0, %1, 4, %0;" : "+l"(column) : "r"((int)b_step));
        }
        if (WALKING || i + 1 < PIECES) return;
#pragma unroll
        for (int c = 0; c < (VECTORS ? 1 : B_COLUMNS); ++c)
            b[c] += b_tile;
    }

    __device__ __forceinline__ void tile(float* to, bool wanted)
    {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            piece(i, to, wanted);
    }

    // Says that B's rows may be another step apart now: else the compiler keeps multiples of it for the whole loop,
    // in registers that wide tiles do not have.
    __device__ __forceinline__ void step_anew()
    {
        int step = (int)b_step;
        asm volatile("" : "+r"(step));
        b_step = (ptrdiff_t)step;
    }
};

// The first tile of K, of which only `width` columns of A and rows of B exist.
__device__ __forceinline__ void copy_first(float* to, int thread, const Place& at, const float* A, int lda,
                                           const float* B, int ldb, int M, int N, int width)
{
#pragma unroll 1
    for (int i = thread; i < TILE_M * TILE_K; i += THREADS) {
        const int k = i % TILE_K, row = i / TILE_K;
        if (k < width)
            cp_async_4(&to[k * A_STRIDE + row], A + (size_t)min(at.block_row + row, M - 1) * lda + k);
        else
            to[k * A_STRIDE + row] = 0.0f;  // zeros past the edge add nothing
    }
#pragma unroll 1
    for (int i = thread; i < TILE_K * TILE_N; i += THREADS) {
        const int k = i / TILE_N, col = i % TILE_N;
        if (k < width)
            cp_async_4(&to[TILE_K * A_STRIDE + i], B + (size_t)k * ldb + min(at.block_col + col, N - 1));
        else
            to[TILE_K * A_STRIDE + i] = 0.0f;
    }
}

// sum += A · B over the tiles first … last - 1 of K. The first of all has what is left of K by whole tiles, so
// that every other one is whole and the loop needs no guard. COPY_STEP: the step of each tile in which copies begin,
// of a later tile to the place of the one before. In the last step that is after the barrier, all at once; in an
// earlier one a copy comes before each product.
template <bool VECTORS, int COPY_STEP = STEPS - 1>
__device__ __forceinline__ void multiply(float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* tiles, int thread,
                                         const Place& at, const float* A, int lda, const float* B, int ldb, int M,
                                         int N, int K, int first, int last)
{
    constexpr bool EARLY = COPY_STEP < STEPS - 1;
    const float *As, *Bs;
    auto find_fragments = [&] {
        As = tiles + at.slice * STEPS * A_STRIDE + at.row;
        Bs = tiles + TILE_K * A_STRIDE + at.slice * STEPS * TILE_N + at.col;
    };
    if (EARLY) find_fragments();  // here or below: where ptxas makes the faster loop of it (measured)
    const int left = K - (K - 1) / TILE_K * TILE_K;  // in the first tile of all
    const int count = last - first;
    const bool partial = first == 0 && left < TILE_K;
    if (partial) copy_first(tiles, thread, at, A, lda, B, ldb, M, N, left);
    Copies<VECTORS, EARLY && !VECTORS> copies(thread, at, A, lda, B, ldb, M, N,
                                              partial ? left : first == 0 ? 0 : left + (first - 1) * TILE_K);
    constexpr int AHEAD = EARLY ? STAGES - 1 : STAGES;  // tiles on their way before the loop
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) {
        if (stage > 0 || !partial) copies.tile(tiles + stage * STAGE_FLOATS, stage < count);
        cp_async_commit();  // also where there is nothing to copy: the waits count groups
    }
    cp_async_wait<AHEAD - 1>();
    __syncthreads();

    if (!EARLY) find_fragments();
    int read = 0, free = (STAGES - 1) * STAGE_FLOATS;  // the tile to multiply, and one that all have read
    float a[2][THREAD_TILE_M], b[2][THREAD_TILE_N];
    // One sum, grouped in the way in which ptxas chooses the faster registers for each loop (measured).
    auto at_read = [&](int row, int column) { return EARLY ? read + (row + column) : read + row + column; };
    auto load_a = [&](int k, int m) {
        *reinterpret_cast<float4*>(&a[k % 2][m]) =
            *reinterpret_cast<const float4*>(&As[at_read(k * A_STRIDE, m * LANES_M)]);
    };
    auto load_fragments = [&](int k) {
        if (A_BEFORE_B) load_a(k, 0);
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4)
            *reinterpret_cast<float4*>(&b[k % 2][n]) =
                *reinterpret_cast<const float4*>(&Bs[at_read(k * TILE_N, n * LANES_N)]);
#pragma unroll
        for (int m = A_BEFORE_B ? 4 : 0; m < THREAD_TILE_M; m += 4)
            load_a(k, m);
    };

    auto copy = [&](int tile, int i) {
        copies.piece(i, tiles + free, tile + AHEAD < count);
        if (i + 1 == copies.PIECES) cp_async_commit();
    };

    load_fragments(0);
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k + 1 == STEPS) {
                cp_async_wait<STAGES - 2>();  // this thread's part of the next tile has come,
                __syncthreads();              // every thread's has; and all have read the last of this one
                free = read;
#pragma unroll
                for (int i = 0; i < (EARLY ? 0 : copies.PIECES); ++i)
                    copy(tile, i);
                // After the last tile this one is read again, to no effect.
                if (tile + 1 < count) read = read == (STAGES - 1) * STAGE_FLOATS ? 0 : read + STAGE_FLOATS;
            }
            const bool copying = EARLY && k == COPY_STEP;
            if (copying && !VECTORS) copies.step_anew();
            if (copying) copy(tile, 0);
            load_fragments((k + 1) % STEPS);
            // To and fro along the rows: each product shares an operand with the one before, which is then not
            // read from the registers again; two reads a cycle is all that their banks give.
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int i = 0; i < THREAD_TILE_N; ++i) {
                    const int n = m % 2 == 0 ? i : THREAD_TILE_N - 1 - i, product = m * THREAD_TILE_N + i;
                    if (copying && product > 0 && product < copies.PIECES) copy(tile, product);
                    sum[m][n] += a[k % 2][m] * b[k % 2][n];
                }
        }
    }
}

// Four neighbouring sums of a row to memory and from there, in pairs that are exchanged: a float4 takes four
// registers in their order, and so the sums of even columns come into the bank of odd registers, while the loop
// has B's even columns in even ones. A product then finds its two new operands in different banks.
__device__ __forceinline__ void put4(float* to, const float* sum)
{
    *reinterpret_cast<float4*>(to) = make_float4(sum[1], sum[0], sum[3], sum[2]);
}

__device__ __forceinline__ void add4(float* sum, const float* from)
{
    const float4 part = *reinterpret_cast<const float4*>(from);
    sum[1] += part.x;
    sum[0] += part.y;
    sum[3] += part.z;
    sum[2] += part.w;
}

// Adds the sums of all slices, in their order, in the rows m of the thread tile with m / OWN_ROWS == slice.
__device__ __forceinline__ void add_slices(float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* shared, int thread,
                                           int slice)
{
    if (SLICES == 1) return;
    float* const own = shared + thread % SLICE_THREADS * 4;
    auto at = [](int from, int m, int n) {  // no slot for the sums that stay where they are
        const int slot = from - (from > m / OWN_ROWS);
        return ((slot * THREAD_TILE_M + m) * THREAD_TILE_N + n) * SLICE_THREADS;
    };
    __syncthreads();  // no thread still reads a tile
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS != slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                put4(&own[at(slice, m, n)], &sum[m][n]);
    __syncthreads();  // the sums of all slices are there
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
        if (m / OWN_ROWS == slice)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4) {
                float total[4] = {};
#pragma unroll
                for (int s = 0; s < SLICES; ++s)
                    if (s == m / OWN_ROWS)
                        for (int i = 0; i < 4; ++i)
                            total[i] += sum[m][n + i];
                    else
                        add4(total, &own[at(s, m, n)]);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[m][n + i] = total[i];
            }
}

// C = alpha · sum + beta · C, for the rows of the thread tile that are the slice's own.
__device__ __forceinline__ void store(const float (&sum)[THREAD_TILE_M][THREAD_TILE_N], const Place& at, int M, int N,
                                      float alpha, float beta, float* C, int ldc)
{
    const bool aligned = rows_aligned(C, ldc);
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = at.block_row + at.row + m / 4 * 4 * LANES_M + m % 4;
        if (m / OWN_ROWS != at.slice || row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = at.block_col + at.col + n * LANES_N;
            store4(C + (size_t)row * ldc + col, N - col, aligned, alpha, &sum[m][n], beta);
        }
    }
}

// How store_by_rows has a row of a warp tile in shared memory (lanes of different rows write to different banks), what a
// warp needs there, and whether it can.
constexpr int ROW_STRIDE = WARP_TILE_N + 16;
constexpr int WARP_ROWS = 2 * LANES_M * ROW_STRIDE;
constexpr bool STORES_BY_ROWS =
    WIDE && WARP_TILE_N % 32 == 0 && THREADS / 32 * WARP_ROWS <= STAGES * STAGE_FLOATS;

// store() where rows of C are not aligned, for one slice: each warp takes two rows of all its threads at a time through
// shared memory, so that neighbouring lanes store neighbouring elements.
__device__ __forceinline__ void store_by_rows(const float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* shared,
                                              int thread, const Place& at, int M, int N, float alpha, float beta,
                                              float* C, int ldc)
{
    const int lane = thread % 32, warp = thread / 32;
    const int row0 = warp / WARPS_N * WARP_TILE_M, col0 = warp % WARPS_N * WARP_TILE_N;
    float* const own = shared + warp * WARP_ROWS;
    float* const to = own + lane_row(lane) * ROW_STRIDE + lane_col(lane) * 4;
    __syncthreads();  // no thread still multiplies: the rows are written over tiles
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; m += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                *reinterpret_cast<float4*>(&to[i * LANES_M * ROW_STRIDE + n * LANES_N]) =
                    make_float4(sum[m + i][n], sum[m + i][n + 1], sum[m + i][n + 2], sum[m + i][n + 3]);
        __syncwarp();  // the sums of all lanes are there
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int r = 0; r < LANES_M; ++r)
#pragma unroll
                for (int n = 0; n < WARP_TILE_N; n += 32) {
                    const int row = at.block_row + row0 + m / 4 * 4 * LANES_M + m % 4 + i + r * 4;
                    const int col = at.block_col + col0 + n + lane;
                    float v = __fmul_rn(alpha, own[(i * LANES_M + r) * ROW_STRIDE + n + lane]);
                    if (row >= M || col >= N) continue;
                    float* const c = C + (size_t)row * ldc + col;
                    if (beta != 0.0f) v = fmaf(beta, *c, v);
                    *c = v;
                }
        __syncwarp();  // no lane still reads what the next rows are written over
    }
}

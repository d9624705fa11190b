// warp_tiled: block tile, warp tile, thread tile; all previous ideas combined.
//
// The idea    A warp owns WARP_TILE_M × WARP_TILE_N of C and its lanes form a compact grid on it, so that
//             few distinct words feed many products: with 16 × 8 elements per thread, six float4s from
//             shared memory serve 128 multiply-adds. STAGES tiles with cp.async, A transposed in flight
//             by copies of 4 bytes, registers for step k + 1 loaded during step k, across tiles too.
//             Blocks that run at the same time form a compact patch of C, and share A and B in L2.
// The limit   The FP32 units themselves: nine of ten instructions are multiply-adds.
// Next        wmma leaves the FP32 units for the tensor cores.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES)
#error "warp_tiled needs -D TILE_M, TILE_N, TILE_K and STAGES"
#endif
#if !defined(WARP_TILE_M) || !defined(WARP_TILE_N) || !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "warp_tiled needs -D WARP_TILE_M, WARP_TILE_N, THREAD_TILE_M and THREAD_TILE_N"
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
static_assert(TILE_K % 2 == 0, "TILE_K: even, for the two sets of registers to take turns");
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");

#define THREADS (TILE_M / WARP_TILE_M * (TILE_N / WARP_TILE_N) * 32)
#define LANES_M (WARP_TILE_M / THREAD_TILE_M)
#define LANES_N (WARP_TILE_N / THREAD_TILE_N)
static_assert(THREADS <= 1024, "warp tile: a block has at most 1024 threads");
static_assert(LANES_M * LANES_N == 32, "thread tile: 32 of them to a warp tile");
static_assert(LANES_M % 2 == 0, "thread tile: an even number of them down a warp tile");
static_assert(THREADS % TILE_K == 0, "TILE_K: a divisor of the number of threads");
static_assert(TILE_M * TILE_K % THREADS == 0, "TILE_M * TILE_K: the same number of elements a thread");
static_assert(TILE_K * TILE_N % (THREADS * 4) == 0, "TILE_K * TILE_N: the same number of float4s a thread");

// Rows of the transposed As are 4 floats longer: the eight k that a warp stores go to different banks.
#define A_STRIDE (TILE_M + 4)
#define STAGE_FLOATS (TILE_K * A_STRIDE + TILE_K * TILE_N)
#define A_COPIES (TILE_M * TILE_K / THREADS)
#define B_COPIES (TILE_K * TILE_N / 4 / THREADS)
#define A_ROW_STEP (THREADS / TILE_K)

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_warp_tiled(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    // STAGES times: As (TILE_K × A_STRIDE, transposed), Bs (TILE_K × TILE_N).
    extern __shared__ __align__(16) float tiles[];

    // Blocks start in the order of their index: take them down columns of bands of BAND_ROWS block rows.
    const int band_rows = BAND_ROWS;
    const int grid_rows = gridDim.y, grid_cols = gridDim.x;
    const int index = blockIdx.y * grid_cols + blockIdx.x;
    const int band = index / (band_rows * grid_cols), in_band = index % (band_rows * grid_cols);
    const int rows = min(grid_rows - band * band_rows, band_rows);  // the last band may be shorter
    const int block_row = (band * band_rows + in_band % rows) * TILE_M;
    const int block_col = in_band / rows * TILE_N;

    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Lanes 2i and 2i + 1 share a column, lanes i and i + 2 mostly a row: shared memory then serves a
    // warp's float4s in two rounds instead of four.
    const int lane_m = lane / (2 * LANES_N) * 2 + lane % 2, lane_n = lane / 2 % LANES_N;
    const int warp_row = warp / (TILE_N / WARP_TILE_N) * WARP_TILE_M + lane_m * 4;
    const int warp_col = warp % (TILE_N / WARP_TILE_N) * WARP_TILE_N + lane_n * 4;

    const bool b_aligned = rows_aligned(B, ldb), c_aligned = rows_aligned(C, ldc);
    const bool whole_block = block_row + TILE_M <= M && block_col + TILE_N <= N;

    // What this thread copies: column a_k of rows a_row, a_row + A_ROW_STEP … of A.
    const int a_k = thread % TILE_K, a_row = thread / TILE_K;
    const float* const a_from = A + (size_t)(block_row + a_row) * lda + a_k;
    const size_t a_step = (size_t)A_ROW_STEP * lda;

    auto copy_tiles = [&](int stage, int k0) {
        float* const a_to = tiles + stage * STAGE_FLOATS + a_k * A_STRIDE + a_row;
        float* const b_to = tiles + stage * STAGE_FLOATS + TILE_K * A_STRIDE;
        const bool whole = whole_block && k0 + TILE_K <= K;
        if (whole) {
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i)
                cp_async_4(a_to + i * A_ROW_STEP, a_from + i * a_step + k0);
        } else {
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i) {
                if (k0 + a_k < K && block_row + a_row + i * A_ROW_STEP < M)
                    cp_async_4(a_to + i * A_ROW_STEP, a_from + i * a_step + k0);
                else
                    a_to[i * A_ROW_STEP] = 0.0f;  // zeros past the edge add nothing
            }
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            const int at = (thread + i * THREADS) * 4;
            const int k = k0 + at / TILE_N, col = block_col + at % TILE_N;
            const float* const b_from = B + (size_t)k * ldb + col;
            if (b_aligned && (whole || (k < K && col + 4 <= N))) {
                cp_async_16(b_to + at, b_from);
                continue;
            }
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (whole || (k < K && col + n < N))
                    cp_async_4(b_to + at + n, b_from + n);
                else
                    b_to[at + n] = 0.0f;
            }
        }
    };

    float a[2][THREAD_TILE_M], b[2][THREAD_TILE_N];
    auto load_fragments = [&](int into, int stage, int k) {
        const float* const As = tiles + stage * STAGE_FLOATS + k * A_STRIDE + warp_row;
        const float* const Bs = tiles + stage * STAGE_FLOATS + TILE_K * A_STRIDE + k * TILE_N + warp_col;
#pragma unroll
        for (int m = 0; m < THREAD_TILE_M; m += 4)
            *reinterpret_cast<float4*>(&a[into][m]) = *reinterpret_cast<const float4*>(&As[m * LANES_M]);
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4)
            *reinterpret_cast<float4*>(&b[into][n]) = *reinterpret_cast<const float4*>(&Bs[n * LANES_N]);
    };

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    if (K > 0) {
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            if (stage * TILE_K < K) copy_tiles(stage, stage * TILE_K);
            cp_async_commit();  // also where there is nothing to copy: the waits count groups
        }
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load_fragments(0, 0, 0);
    }

    int read = 0, write = STAGES - 1;
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {  // lesson: begin
            if (k + 1 < TILE_K) {
                load_fragments((k + 1) % 2, read, k + 1);
            } else if (k0 + TILE_K < K) {
                cp_async_wait<STAGES - 2>();  // this thread's part of the next tiles has come,
                __syncthreads();              // every thread's has; and all have read the last of these
                read = read == STAGES - 1 ? 0 : read + 1;
                load_fragments(0, read, 0);
            }
            if (k == 0) {
                // Into the tiles before these: all threads have passed the barrier after reading them.
                const int ahead = k0 + (STAGES - 1) * TILE_K;
                if (ahead < K) copy_tiles(write, ahead);
                cp_async_commit();
                write = write == STAGES - 1 ? 0 : write + 1;  // lesson: end
            }
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; ++n)
                    sum[m][n] += a[k % 2][m] * b[k % 2][n];
        }
    }

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + warp_row + m / 4 * 4 * LANES_M + m % 4;
        if (row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = block_col + warp_col + n * LANES_N;
            store4(C + (size_t)row * ldc + col, N - col, c_aligned, alpha, &sum[m][n], beta);
        }
    }
}

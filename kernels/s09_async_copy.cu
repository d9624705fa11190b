// async_copy: double_buffered, with cp.async: the hardware copies from global to shared memory.
//
// The idea    A copy needs one instruction and no register, and STAGES - 1 tiles are in flight while one
//             is multiplied. A cannot be transposed on the way (16 bytes stay together), so a thread
//             reads four k of a row of As at once, and its rows lie a whole block of threads apart.
// The limit   Two shared-memory loads per thread for every 32 multiply-adds: with 8 × 8 elements per
//             thread, shared memory is busy at least half of the time, and the copies need it too.
// Next        warp_tiled arranges the threads of a warp so that they share what they load, which leaves
//             room for larger thread tiles.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(STAGES)
#error "async_copy needs -D TILE_M, TILE_N, TILE_K and STAGES"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "async_copy needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
static_assert(STAGES >= 2, "STAGES: one tile to multiply, at least one in flight");
static_assert(THREAD_TILE_N % 4 == 0, "THREAD_TILE_N: a multiple of 4");
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");
static_assert(TILE_N % THREAD_TILE_N == 0, "TILE_N: a multiple of THREAD_TILE_N");
static_assert(TILE_K % 4 == 0, "TILE_K: a multiple of 4");

#define THREADS_X (TILE_N / THREAD_TILE_N)
#define THREADS_Y (TILE_M / THREAD_TILE_M)
#define THREADS (THREADS_X * THREADS_Y)
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "thread tile: whole warps, at most 1024 threads");
// 512 threads on an SM, so that one block multiplies while another waits: at most 128 registers each.
#define BLOCKS_PER_SM (THREADS < 512 ? 512 / THREADS : 1)

// Four neighbours of a row into shared memory, of which only the first `count` exist; 0 for the others.
__device__ __forceinline__ void copy4(float* shared, const float* global, int count, bool aligned)
{
    if (aligned && count >= 4) return cp_async_16(shared, global);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count)
            cp_async_4(shared + i, global + i);
        else
            shared[i] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm_async_copy(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    // STAGES tiles of A (TILE_M × TILE_K), then STAGES tiles of B (TILE_K × TILE_N).
    extern __shared__ __align__(16) float tiles[];
    float* const As = tiles;
    float* const Bs = tiles + STAGES * TILE_M * TILE_K;

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;
    const bool a_aligned = rows_aligned(A, lda), b_aligned = rows_aligned(B, ldb);
    const bool c_aligned = rows_aligned(C, ldc);

    auto copy_tiles = [&](int stage, int k0) {
        float* const a = As + stage * TILE_M * TILE_K;
        float* const b = Bs + stage * TILE_K * TILE_N;
#pragma unroll
        for (int i = thread; i < TILE_M * TILE_K / 4; i += THREADS) {
            const int row = block_row + i / (TILE_K / 4), k = k0 + i % (TILE_K / 4) * 4;
            // A row past the edge has no element.
            copy4(a + i * 4, A + (size_t)row * lda + k, row < M ? K - k : 0, a_aligned);
        }
#pragma unroll
        for (int i = thread; i < TILE_K * TILE_N / 4; i += THREADS) {
            const int k = k0 + i / (TILE_N / 4), col = block_col + i % (TILE_N / 4) * 4;
            copy4(b + i * 4, B + (size_t)k * ldb + col, k < K ? N - col : 0, b_aligned);
        }
    };

    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage * TILE_K < K) copy_tiles(stage, stage * TILE_K);
        cp_async_commit();  // also where there is nothing to copy: the waits below count groups
    }
    // lesson: begin
    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    for (int k0 = 0, stage = 0; k0 < K; k0 += TILE_K) {
        cp_async_wait<STAGES - 2>();  // this thread's part of the tiles at k0 has come,
        __syncthreads();              // every thread's has; and all are done with the tiles before
        const int ahead = k0 + (STAGES - 1) * TILE_K;
        if (ahead < K) copy_tiles(stage == 0 ? STAGES - 1 : stage - 1, ahead);
        cp_async_commit();
        // lesson: end
        const float* const a_tile = As + stage * TILE_M * TILE_K;
        const float* const b_tile = Bs + stage * TILE_K * TILE_N;
#pragma unroll
        for (int k4 = 0; k4 < TILE_K; k4 += 4) {
            float a[THREAD_TILE_M][4];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
                *reinterpret_cast<float4*>(a[m]) =
                    *reinterpret_cast<const float4*>(&a_tile[(ty + m * THREADS_Y) * TILE_K + k4]);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float b[THREAD_TILE_N];
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; n += 4)
                    *reinterpret_cast<float4*>(&b[n]) =
                        *reinterpret_cast<const float4*>(&b_tile[(k4 + k) * TILE_N + n * THREADS_X + tx * 4]);
#pragma unroll
                for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                    for (int n = 0; n < THREAD_TILE_N; ++n)
                        sum[m][n] += a[m][k] * b[n];
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + ty + m * THREADS_Y;
        if (row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = block_col + n * THREADS_X + tx * 4;
            store4(C + (size_t)row * ldc + col, N - col, c_aligned, alpha, &sum[m][n], beta);
        }
    }
}

// double_buffered: prefetch, with two tiles of A and of B in shared memory.
//
// The idea    While one pair of tiles is multiplied the other is filled, so one barrier per tile is
//             enough, and stores mix with arithmetic. The same on a smaller scale: the registers for
//             step k + 1 are loaded from shared memory while step k is multiplied.
// The limit   The tiles in flight still pass through registers, an instruction to load and one to store.
// PADDING     As in vectorized.
// Next        async_copy lets the hardware copy straight to shared memory, as many tiles ahead as fit.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(PADDING)
#error "double_buffered needs -D TILE_M, TILE_N, TILE_K and PADDING"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "double_buffered needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
#if !defined(STAGES)
#error "double_buffered needs -D STAGES"
#endif
static_assert(STAGES == 2, "STAGES: two tiles take turns; more are async_copy's");
static_assert(THREAD_TILE_M % 4 == 0 && THREAD_TILE_N % 4 == 0, "thread tile: multiples of 4");
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");
static_assert(TILE_N % THREAD_TILE_N == 0, "TILE_N: a multiple of THREAD_TILE_N");
static_assert(TILE_K % 4 == 0, "TILE_K: a multiple of 4");
static_assert(PADDING >= 0 && (TILE_M + PADDING) % 4 == 0, "TILE_M + PADDING: a multiple of 4, for float4");

#define THREADS_X (TILE_N / THREAD_TILE_N)
#define THREADS_Y (TILE_M / THREAD_TILE_M)
#define THREADS (THREADS_X * THREADS_Y)
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "thread tile: whole warps, at most 1024 threads");
// 512 threads on an SM, so that one block multiplies while another waits: at most 128 registers each.
#define BLOCKS_PER_SM (THREADS < 512 ? 512 / THREADS : 1)

// Each thread copies A_LOADS and B_LOADS float4s, so many rows apart.
#define A_LOADS (TILE_M * TILE_K / 4 / THREADS)
#define B_LOADS (TILE_K * TILE_N / 4 / THREADS)
#define A_ROW_STEP (THREADS / (TILE_K / 4))
#define B_ROW_STEP (THREADS / (TILE_N / 4))
static_assert(A_LOADS * A_ROW_STEP == TILE_M, "TILE_M: the threads must cover it in whole steps");
static_assert(B_LOADS * B_ROW_STEP == TILE_K, "TILE_K: the threads must cover it in whole steps");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm_double_buffered(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                     const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ __align__(16) float As[STAGES][TILE_K][TILE_M + PADDING];  // transposed
    __shared__ __align__(16) float Bs[STAGES][TILE_K][TILE_N];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;
    const bool a_aligned = rows_aligned(A, lda), b_aligned = rows_aligned(B, ldb);
    const bool c_aligned = rows_aligned(C, ldc);

    // What this thread copies: 4 neighbours of row a_m of A and every A_ROW_STEP-th after it; so for B.
    const int a_m = thread / (TILE_K / 4), a_k = thread % (TILE_K / 4) * 4;
    const int b_k = thread / (TILE_N / 4), b_n = thread % (TILE_N / 4) * 4;
    float4 a_next[A_LOADS], b_next[B_LOADS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int row = block_row + a_m + i * A_ROW_STEP;
            // A row past the edge has no element.
            a_next[i] = load4(A + (size_t)row * lda, k0 + a_k, row < M ? K : 0, a_aligned);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int k = k0 + b_k + i * B_ROW_STEP;
            b_next[i] = load4(B + (size_t)k * ldb, block_col + b_n, k < K ? N : 0, b_aligned);
        }
    };
    auto stage = [&](int s) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int m = a_m + i * A_ROW_STEP;
            As[s][a_k][m] = a_next[i].x;
            As[s][a_k + 1][m] = a_next[i].y;
            As[s][a_k + 2][m] = a_next[i].z;
            As[s][a_k + 3][m] = a_next[i].w;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            *reinterpret_cast<float4*>(&Bs[s][b_k + i * B_ROW_STEP][b_n]) = b_next[i];
        }
    };

    float a[2][THREAD_TILE_M], b[2][THREAD_TILE_N];
    auto load_fragments = [&](int into, int s, int k) {
#pragma unroll
        for (int m = 0; m < THREAD_TILE_M; m += 4)
            *reinterpret_cast<float4*>(&a[into][m]) =
                *reinterpret_cast<const float4*>(&As[s][k][m * THREADS_Y + ty * 4]);
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4)
            *reinterpret_cast<float4*>(&b[into][n]) =
                *reinterpret_cast<const float4*>(&Bs[s][k][n * THREADS_X + tx * 4]);
    };

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    fetch(0);  // lesson: begin
    stage(0);
    __syncthreads();
    for (int k0 = 0, s = 0; k0 < K; k0 += TILE_K, s ^= 1) {
        const bool more = k0 + TILE_K < K;
        if (more) fetch(k0 + TILE_K);
        load_fragments(0, s, 0);
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            if (k + 1 < TILE_K) load_fragments((k + 1) % 2, s, k + 1);
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; ++n)
                    sum[m][n] += a[k % 2][m] * b[k % 2][n];
        }  // lesson: end
        // The other pair was last read in the round before, and the barrier of that round has passed.
        if (more) stage(s ^ 1);
        __syncthreads();  // the other pair is complete, and this one may be overwritten
    }

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + m / 4 * 4 * THREADS_Y + ty * 4 + m % 4;
        if (row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = block_col + n * THREADS_X + tx * 4;
            store4(C + (size_t)row * ldc + col, N - col, c_aligned, alpha, &sum[m][n], beta);
        }
    }
}

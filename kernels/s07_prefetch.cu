// prefetch: vectorized, with the next tiles being loaded while these are multiplied.
//
// The idea    Each thread reads its part of the next tiles into registers before it starts to multiply,
//             and stores it to shared memory after: hundreds of cycles of memory latency overlap with
//             the arithmetic.
// The limit   Registers to hold the tiles in flight, and still two barriers per tile: between them all
//             threads store, and none multiplies.
// PADDING     As in vectorized.
// Next        double_buffered gives the next tiles a place in shared memory of their own.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(PADDING)
#error "prefetch needs -D TILE_M, TILE_N, TILE_K and PADDING"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "prefetch needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
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
gemm_prefetch(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
              const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ __align__(16) float As[TILE_K][TILE_M + PADDING];  // transposed
    __shared__ __align__(16) float Bs[TILE_K][TILE_N];

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
    auto stage = [&]() {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int m = a_m + i * A_ROW_STEP;
            As[a_k][m] = a_next[i].x;
            As[a_k + 1][m] = a_next[i].y;
            As[a_k + 2][m] = a_next[i].z;
            As[a_k + 3][m] = a_next[i].w;
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            *reinterpret_cast<float4*>(&Bs[b_k + i * B_ROW_STEP][b_n]) = b_next[i];
        }
    };

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    fetch(0);  // lesson: begin
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        stage();
        __syncthreads();  // the tiles are complete
        if (k0 + TILE_K < K) fetch(k0 + TILE_K);  // lesson: end
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            float a[THREAD_TILE_M], b[THREAD_TILE_N];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; m += 4)
                *reinterpret_cast<float4*>(&a[m]) =
                    *reinterpret_cast<const float4*>(&As[k][m * THREADS_Y + ty * 4]);
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; n += 4)
                *reinterpret_cast<float4*>(&b[n]) =
                    *reinterpret_cast<const float4*>(&Bs[k][n * THREADS_X + tx * 4]);
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; ++n)
                    sum[m][n] += a[m] * b[n];
        }
        __syncthreads();  // no thread still reads what the next round overwrites
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

// vectorized: register, with four words in every load and store.
//
// The idea    float4 from global memory, float4 from shared memory: a quarter of the instructions. A is
//             transposed when stored to As, so that a thread's rows for one k are neighbours there.
//             A thread's tile is made of 4 × 4 squares, a whole block of threads apart, so that
//             neighbouring threads read neighbouring float4s: no bank conflict.
// The limit   All threads wait while the next tiles come from global memory.
// PADDING     Widens the rows of As only, for the transposed stores: 4 spreads them over all banks, 0
//             does not, and 1 makes every other row of float4s misaligned: it cannot run.
// Next        prefetch reads the next tiles while these are multiplied.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(PADDING)
#error "vectorized needs -D TILE_M, TILE_N, TILE_K and PADDING"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "vectorized needs -D THREAD_TILE_M and THREAD_TILE_N"
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gemm_vectorized(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ __align__(16) float As[TILE_K][TILE_M + PADDING];  // transposed
    __shared__ __align__(16) float Bs[TILE_K][TILE_N];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;
    const bool a_aligned = rows_aligned(A, lda), b_aligned = rows_aligned(B, ldb);
    const bool c_aligned = rows_aligned(C, ldc);

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
#pragma unroll  // lesson: begin
        for (int i = thread; i < TILE_M * TILE_K / 4; i += THREADS) {
            const int m = i / (TILE_K / 4), k = i % (TILE_K / 4) * 4;
            const int row = block_row + m;
            // A row past the edge has no element.
            const float4 a = load4(A + (size_t)row * lda, k0 + k, row < M ? K : 0, a_aligned);
            As[k][m] = a.x;
            As[k + 1][m] = a.y;
            As[k + 2][m] = a.z;
            As[k + 3][m] = a.w;
        }  // lesson: end
#pragma unroll
        for (int i = thread; i < TILE_K * TILE_N / 4; i += THREADS) {
            const int k = i / (TILE_N / 4), n = i % (TILE_N / 4) * 4;
            const float* row = B + (size_t)(k0 + k) * ldb;
            *reinterpret_cast<float4*>(&Bs[k][n]) = load4(row, block_col + n, k0 + k < K ? N : 0, b_aligned);
        }
        __syncthreads();  // the tiles are complete
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

// register: THREAD_TILE_M × THREAD_TILE_N elements of C per thread, in registers.
//
// The idea    For each k a thread takes a column of THREAD_TILE_M from As and a row of THREAD_TILE_N
//             from Bs into registers, and adds their outer product: m + n loads for m · n products.
//             Its rows and columns are not adjacent but a whole block of threads apart, so that
//             neighbouring threads always read neighbouring words: no bank conflict, full lines of C.
// The limit   Scalar loads and stores: an instruction for every word, and copying does not overlap
//             with arithmetic.
// PADDING     Widens the rows of both tiles. 1 misaligns As and stops the merging of loads along k;
//             4 does not.
// Next        vectorized moves four words with an instruction.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(PADDING)
#error "register needs -D TILE_M, TILE_N, TILE_K and PADDING"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "register needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");
static_assert(TILE_N % THREAD_TILE_N == 0, "TILE_N: a multiple of THREAD_TILE_N");
static_assert(PADDING >= 0, "PADDING: 0 or more");

#define THREADS_X (TILE_N / THREAD_TILE_N)
#define THREADS_Y (TILE_M / THREAD_TILE_M)
#define THREADS (THREADS_X * THREADS_Y)
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "thread tile: whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_register(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
              const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ __align__(16) float As[TILE_M][TILE_K + PADDING];
    __shared__ __align__(16) float Bs[TILE_K][TILE_N + PADDING];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        // Zeros past the edge add nothing, so the product below needs no guard.
#pragma unroll
        for (int i = thread; i < TILE_M * TILE_K; i += THREADS) {
            const int m = i / TILE_K, k = i % TILE_K;
            const bool inside = block_row + m < M && k0 + k < K;
            As[m][k] = inside ? A[(size_t)(block_row + m) * lda + k0 + k] : 0.0f;
        }
#pragma unroll
        for (int i = thread; i < TILE_K * TILE_N; i += THREADS) {
            const int k = i / TILE_N, n = i % TILE_N;
            const bool inside = k0 + k < K && block_col + n < N;
            Bs[k][n] = inside ? B[(size_t)(k0 + k) * ldb + block_col + n] : 0.0f;
        }
        __syncthreads();  // the tiles are complete
#pragma unroll  // lesson: begin
        for (int k = 0; k < TILE_K; ++k) {
            float a[THREAD_TILE_M], b[THREAD_TILE_N];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
                a[m] = As[ty + m * THREADS_Y][k];
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; ++n)
                b[n] = Bs[k][tx + n * THREADS_X];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; ++n)
                    sum[m][n] += a[m] * b[n];
        }  // lesson: end
        __syncthreads();  // no thread still reads what the next round overwrites
    }

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + ty + m * THREADS_Y;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; ++n) {
            const int col = block_col + tx + n * THREADS_X;
            if (row >= M || col >= N) continue;
            float* c = &C[(size_t)row * ldc + col];
            *c = beta == 0.0f ? alpha * sum[m][n] : alpha * sum[m][n] + beta * *c;
        }
    }
}

// rectangular: tiles of TILE_M × TILE_N × TILE_K, and a column of THREAD_TILE_M elements of C per thread.
//
// The idea    The tile of C grows while the slice of K stays thin, so shared memory no longer grows
//             with the square; and an element of Bs, once in a register, serves THREAD_TILE_M products.
// The limit   Every product still needs its element of As from shared memory, alone or in fours.
// Next        register gives a thread a column of A too: an outer product instead of a scaled column.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(THREAD_TILE_M)
#error "rectangular needs -D TILE_M, TILE_N, TILE_K and THREAD_TILE_M"
#endif
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");

#define THREADS (TILE_N * (TILE_M / THREAD_TILE_M))
static_assert(THREADS <= 1024, "TILE_N * (TILE_M / THREAD_TILE_M): a block has at most 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_rectangular(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                 const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    // Aligned, so that the compiler may merge four loads along a row.
    __shared__ __align__(16) float As[TILE_M][TILE_K];
    __shared__ __align__(16) float Bs[TILE_K][TILE_N];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * TILE_N + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;

    float sum[THREAD_TILE_M] = {};
    for (int k0 = 0; k0 < K; k0 += TILE_K) {
        // The threads of the block share the copying evenly, whatever the shapes: neighbouring threads
        // take neighbouring elements of a row. Zeros past the edge add nothing.
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
            const float b = Bs[k][tx];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
                sum[m] += As[ty * THREAD_TILE_M + m][k] * b;
        }  // lesson: end
        __syncthreads();  // no thread still reads what the next round overwrites
    }

    const int col = block_col + tx;
    if (col >= N) return;
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + ty * THREAD_TILE_M + m;
        if (row >= M) return;
        float* c = &C[(size_t)row * ldc + col];
        *c = beta == 0.0f ? alpha * sum[m] : alpha * sum[m] + beta * *c;
    }
}

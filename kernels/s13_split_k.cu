// split_k: SPLIT blocks share the K of a tile of C, and the last to finish adds up their partial sums.
//
// The idea    Where C is small and K long, one block per tile leaves most SMs idle. Here blockIdx.z
//             takes its own part of K, as register would, and writes its sums to a slab of the workspace.
//             A counter for each tile tells which block comes last; that one adds the slabs in their order,
//             0 … SPLIT - 1, so that the result has the same bits whoever came last.
// The limit   Each sum goes through memory once more: 2 · SPLIT · M · N words, and the last block alone
//             adds while the others have left. Where a grid fills the GPU by itself, it only costs.
// WORKSPACE   Counters first, one unsigned per tile, zero at every launch and reset for the next; then the
//             slabs, of arbitrary contents. A slab is a tile by element and thread, so that each thread reads
//             back, with its neighbours, where it wrote: no edge to guard.
// Next        float4 and prefetch in the loop, as before; stream-K, where the parts need not be equal.

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(SPLIT)
#error "split_k needs -D TILE_M, TILE_N, TILE_K and SPLIT"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "split_k needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");
static_assert(TILE_N % THREAD_TILE_N == 0, "TILE_N: a multiple of THREAD_TILE_N");
static_assert(SPLIT >= 1, "SPLIT: 1 or more");

#define THREADS_X (TILE_N / THREAD_TILE_N)
#define THREADS_Y (TILE_M / THREAD_TILE_M)
#define THREADS (THREADS_X * THREADS_Y)
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "thread tile: whole warps, at most 1024 threads");

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_split_k(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
             const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc,
             unsigned* workspace)
{
    __shared__ __align__(16) float As[TILE_M][TILE_K];
    __shared__ __align__(16) float Bs[TILE_K][TILE_N];
    __shared__ unsigned before;  // blocks of this tile that were counted before this one

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;

    // Whole tiles of K to each block; the last ones may have fewer, or none.
    const int tiles = K / TILE_K + (K % TILE_K != 0);
    const int tiles_each = tiles / SPLIT + (tiles % SPLIT != 0);
    const int first_tile = min(tiles, (int)blockIdx.z * tiles_each);
    const int last_tile = min(tiles, first_tile + tiles_each);

    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    for (int tile = first_tile; tile < last_tile; ++tile) {
        const int k0 = tile * TILE_K;
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
#pragma unroll
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
        }
        __syncthreads();  // no thread still reads what the next round overwrites
    }

    const unsigned tile_of_c = blockIdx.y * gridDim.x + blockIdx.x;
    unsigned* const counter = &workspace[tile_of_c];
    float* const slabs = reinterpret_cast<float*>(workspace + gridDim.x * gridDim.y) +
                         (size_t)tile_of_c * SPLIT * TILE_M * TILE_N + thread;
    float* const slab = slabs + (size_t)blockIdx.z * TILE_M * TILE_N;
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; ++n)
            slab[(m * THREAD_TILE_N + n) * THREADS] = sum[m][n];

    __threadfence();  // this thread's sums are seen by all before its block is counted
    __syncthreads();  // and those of all its threads
    if (thread == 0) before = atomicAdd(counter, 1u);
    __syncthreads();
    if (before != SPLIT - 1) return;
    if (thread == 0) *counter = 0;  // zero again for the next launch
    __threadfence();                // nothing is read before the others were counted

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + ty + m * THREADS_Y;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; ++n) {
            const int col = block_col + tx + n * THREADS_X;
            float total = 0.0f;
#pragma unroll
            for (int z = 0; z < SPLIT; ++z)
                total += slabs[z * TILE_M * TILE_N + (m * THREAD_TILE_N + n) * THREADS];
            if (row >= M || col >= N) continue;
            float* c = &C[(size_t)row * ldc + col];
            *c = beta == 0.0f ? alpha * total : alpha * total + beta * *c;
        }
    }
}

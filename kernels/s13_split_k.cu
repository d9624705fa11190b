// split_k: SPLIT blocks share the K of a tile of C, and the last to finish adds up their partial sums.
//
// The idea    Where C is small and K long, one block per tile leaves most SMs idle. Here blockIdx.z
//             takes its own part of K, as prefetch would, and writes its sums to a slab of the workspace.
//             A counter for each tile tells which block comes last; that one adds the slabs in their order,
//             0 … SPLIT - 1, so that the result has the same bits whoever came last.
// The limit   Each sum goes through memory once more: 2 · SPLIT · M · N words, and the last block alone
//             adds while the others have left. Where a grid fills the GPU by itself, it only costs.
// WORKSPACE   Counters first, one unsigned per tile, zero at every launch and reset for the next; then the
//             slabs, of arbitrary contents. A slab is a tile by element and thread, so that each thread reads
//             back, with its neighbours, where it wrote: no edge to guard.
// Next        lean_loop, for large tiles of C. Then stream_k, in which a block's part of K may cross tiles.

#include "vectors.cuh"

#if !defined(TILE_M) || !defined(TILE_N) || !defined(TILE_K) || !defined(SPLIT)
#error "split_k needs -D TILE_M, TILE_N, TILE_K and SPLIT"
#endif
#if !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "split_k needs -D THREAD_TILE_M and THREAD_TILE_N"
#endif
static_assert(THREAD_TILE_M % 4 == 0 && THREAD_TILE_N % 4 == 0, "thread tile: multiples of 4");
static_assert(TILE_M % THREAD_TILE_M == 0, "TILE_M: a multiple of THREAD_TILE_M");
static_assert(TILE_N % THREAD_TILE_N == 0, "TILE_N: a multiple of THREAD_TILE_N");
static_assert(TILE_K % 4 == 0, "TILE_K: a multiple of 4");
static_assert(SPLIT >= 1, "SPLIT: 1 or more");
#define PADDING 4  // floats, between the rows of As: fewer bank conflicts where they are stored

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
gemm_split_k(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
             const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc,
             unsigned* workspace)
{
    __shared__ __align__(16) float As[TILE_K][TILE_M + PADDING];  // transposed
    __shared__ __align__(16) float Bs[TILE_K][TILE_N];
    __shared__ unsigned before;  // blocks of this tile that were counted before this one

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int thread = ty * THREADS_X + tx;
    const int block_row = blockIdx.y * TILE_M, block_col = blockIdx.x * TILE_N;
    const bool a_aligned = rows_aligned(A, lda), b_aligned = rows_aligned(B, ldb);

    // Whole tiles of K to each block; the last ones may have fewer, or none.
    const int tiles = K / TILE_K + (K % TILE_K != 0);
    const int tiles_each = tiles / SPLIT + (tiles % SPLIT != 0);
    const int first_tile = min(tiles, (int)blockIdx.z * tiles_each);
    const int last_tile = min(tiles, first_tile + tiles_each);

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
    if (first_tile < last_tile) fetch(first_tile * TILE_K);
    for (int tile = first_tile; tile < last_tile; ++tile) {
        stage();
        __syncthreads();  // the tiles are complete
        if (tile + 1 < last_tile) fetch((tile + 1) * TILE_K);
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

    const unsigned tile_of_c = blockIdx.y * gridDim.x + blockIdx.x;
    unsigned* const counter = &workspace[tile_of_c];
    float* const slabs = reinterpret_cast<float*>(workspace + gridDim.x * gridDim.y) +
                         (size_t)tile_of_c * SPLIT * TILE_M * TILE_N + thread;
    float* const slab = slabs + (size_t)blockIdx.z * TILE_M * TILE_N;
#pragma unroll  // lesson: begin
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
    __threadfence();                // no slab is read before its block has been counted  // lesson: end

    float total[THREAD_TILE_M][THREAD_TILE_N] = {};
#pragma unroll 2
    for (int z = 0; z < SPLIT; ++z)
#pragma unroll
        for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
            for (int n = 0; n < THREAD_TILE_N; ++n)
                total[m][n] += slabs[z * TILE_M * TILE_N + (m * THREAD_TILE_N + n) * THREADS];

#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + m / 4 * 4 * THREADS_Y + ty * 4 + m % 4;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; ++n) {
            const int col = block_col + n / 4 * 4 * THREADS_X + tx * 4 + n % 4;
            if (row >= M || col >= N) continue;
            float* c = &C[(size_t)row * ldc + col];
            *c = beta == 0.0f ? alpha * total[m][n] : alpha * total[m][n] + beta * *c;
        }
    }
}

// batched_vectors: many small matrices, by float4 and with a thread tile.
//
// The idea    batched_small moves 4 bytes per thread and instruction, and then waits at a barrier: too few
//             bytes are in flight to keep memory busy. Here neighbouring threads copy neighbouring float4s,
//             from one matrix to the next, LOADS of each operand and all of them before the first is used;
//             and each thread computes THREAD_TILE_M × THREAD_TILE_N elements of C, so that shared memory
//             does not become the limit instead.
// TRANSPOSED  With thread tiles of 8 × 8, A stands transposed in shared memory, so that a step along K needs no more
//             than 16 of its registers and 3 blocks become 6 per SM; and the first half of K is multiplied while
//             the second one is on its way.
// The limit   Memory, up to n = 32: 2·n FLOP for 3·4 bytes. At 64 the multiply-adds take as long.
// MATRICES    Per block; what one block waits for, others on the same SM compute.
// Next        For larger matrices, the loop of lean_loop.

#include "vectors.cuh"

#if !defined(TILE) || !defined(MATRICES) || !defined(THREAD_TILE_M) || !defined(THREAD_TILE_N)
#error "batched_vectors needs -D TILE, MATRICES, THREAD_TILE_M and THREAD_TILE_N"
#endif
static_assert(TILE % 4 == 0 && THREAD_TILE_N % 4 == 0, "TILE and THREAD_TILE_N: multiples of 4");
static_assert(TILE % THREAD_TILE_M == 0, "TILE: a multiple of THREAD_TILE_M");
static_assert(TILE % THREAD_TILE_N == 0, "TILE: a multiple of THREAD_TILE_N");
static_assert(MATRICES >= 1, "MATRICES: 1 or more");

#define THREADS_X (TILE / THREAD_TILE_N)
#define THREADS_Y (TILE / THREAD_TILE_M)
#define THREADS (THREADS_X * THREADS_Y * MATRICES)
static_assert(THREADS <= 1024, "MATRICES: a block has at most 1024 threads");
// On an SM, so that others compute while a block waits; it limits the registers per thread.
#define RESIDENT (THREAD_TILE_M * THREAD_TILE_N <= 16 ? 768 : THREAD_TILE_M * THREAD_TILE_N <= 32 ? 512 : 384)
#define TRANSPOSED (THREAD_TILE_M * THREAD_TILE_N >= 64)
#define VECTORS (TILE * TILE / 4)  // of a matrix
#define LOADS (VECTORS * MATRICES / THREADS)
static_assert(LOADS * THREADS == VECTORS * MATRICES, "the same number of float4s a thread");

#if TRANSPOSED
#define HALF (TILE / 2)  // of the steps along K
#define PER_MATRIX (THREADS_X * THREADS_Y)  // threads
static_assert(THREAD_TILE_M % 4 == 0 && HALF % 8 == 0, "thread tile of 8 × 8: TILE a multiple of 16");
static_assert(PER_MATRIX % 8 == 0, "thread tile of 8 × 8: TILE 32 or more, for the neighbours in a row of A");
static_assert(PER_MATRIX % (TILE / 4) == 0, "thread tile of 8 × 8: whole rows of B at once");
#endif

// Rows of As (of TRANSPOSED: columns), and matrices of both, begin in different banks where threads of a warp read
// them together.
#define A_STRIDE (TILE + (TILE > 8 ? 4 : 0))
#define A_MATRIX (TILE * A_STRIDE + (TILE > 8 ? 16 : 4))
#define B_MATRIX (TILE * TILE + (TILE > 8 ? 16 : 8))

// Elements col … col + 3 of a row into shared memory, with 0 for those from `width` on.
__device__ __forceinline__ void copy4(float* shared, const float* row, int col, int width, bool aligned)
{
    if (aligned && col + 4 <= width)
        cp_async_16(shared, row + col);
    else
        *reinterpret_cast<float4*>(shared) = load4(row, col, width, aligned);
}

#if TRANSPOSED
// Half of a tile of A, transposed, and of B, from k0 on; `whole`: every element of both exists, and rows of B are
// aligned. Rows of A and rows and columns of B from `rows`, `depth` and `columns` on are zeros.
__device__ __forceinline__ void copy_half(float* As, float* Bs, const float* A, int ldA, const float* B, int ldB,
                                          int thread, bool whole, int rows, int columns, int depth)
{
    if (whole) {
        const float* const a = A + (size_t)(thread / 8) * ldA + thread % 8;
        const float* const b = B + (size_t)(thread / (TILE / 4)) * ldB + thread % (TILE / 4) * 4;
#pragma unroll
        for (int row = 0; row < TILE; row += PER_MATRIX / 8)
#pragma unroll
            for (int k = 0; k < HALF; k += 8)
                cp_async_4(As + (k + thread % 8) * A_STRIDE + row + thread / 8, a + (size_t)row * ldA + k);
#pragma unroll
        for (int i = 0; i < HALF * TILE / 4 / PER_MATRIX; ++i)
            cp_async_16(Bs + (thread + i * PER_MATRIX) * 4, b + (size_t)(i * (PER_MATRIX / (TILE / 4))) * ldB);
    } else {
#pragma unroll 1
        for (int i = thread; i < HALF * TILE; i += PER_MATRIX) {
            const int row = i / HALF, k = i % HALF, b_row = i / TILE, col = i % TILE;
            As[k * A_STRIDE + row] = row < rows && k < depth ? A[(size_t)row * ldA + k] : 0.0f;
            Bs[i] = b_row < depth && col < columns ? B[(size_t)b_row * ldB + col] : 0.0f;
        }
    }
    cp_async_commit();
}

// sum += A · B of half a tile along K; the operands of a step are loaded during the one before.
__device__ __forceinline__ void multiply_half(float (&sum)[THREAD_TILE_M][THREAD_TILE_N], const float* As,
                                              const float* Bs)
{
    float a[2][THREAD_TILE_M], b[2][THREAD_TILE_N];
    auto load = [&](int to, int k) {
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4)
            *reinterpret_cast<float4*>(&b[to][n]) =
                *reinterpret_cast<const float4*>(&Bs[k * TILE + n * THREADS_X]);
#pragma unroll
        for (int m = 0; m < THREAD_TILE_M; m += 4)
            *reinterpret_cast<float4*>(&a[to][m]) =
                *reinterpret_cast<const float4*>(&As[k * A_STRIDE + m * THREADS_Y]);
    };
    load(0, 0);
#pragma unroll 4
    for (int k = 0; k < HALF; k += 2)
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            load(1 - step, step == 0 ? k + 1 : k + 2 < HALF ? k + 2 : k);  // the last one again, to no effect
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int i = 0; i < THREAD_TILE_N; ++i) {
                    const int n = m % 2 == 0 ? i : THREAD_TILE_N - 1 - i;
                    sum[m][n] += a[step][m] * b[step][n];
                }
        }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, THREADS < RESIDENT ? RESIDENT / THREADS : 1)
gemm_batched_vectors(int M, int N, int K, float alpha, const float* __restrict__ A, int ldA, long long strideA,
                     const float* __restrict__ B, int ldB, long long strideB, float beta,
                     float* __restrict__ C, int ldC, long long strideC, int batch)
{
    __shared__ __align__(16) float As[MATRICES * A_MATRIX];
    __shared__ __align__(16) float Bs[MATRICES * B_MATRIX];

    const int thread = threadIdx.x, first = blockIdx.x * MATRICES;
    const int block_row = blockIdx.z * TILE, block_col = blockIdx.y * TILE;
    const bool a_aligned = rows_aligned(A, ldA) && strideA % 4 == 0;
    const bool b_aligned = rows_aligned(B, ldB) && strideB % 4 == 0;
    const bool c_aligned = rows_aligned(C, ldC) && strideC % 4 == 0;

    const int mine = thread / (THREADS_X * THREADS_Y), matrix = first + mine;
    const int tx = thread % THREADS_X, ty = thread / THREADS_X % THREADS_Y;
    const float* const a_read = &As[mine * A_MATRIX + (TRANSPOSED ? ty * 4 : ty * A_STRIDE)];
    const float* const b_read = &Bs[mine * B_MATRIX + tx * 4];

#if !TRANSPOSED
    constexpr int UNROLLED = TILE < 16 ? TILE / 4 : 4;  // steps of 4 along K
#endif
    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    for (int k0 = 0; k0 < K; k0 += TILE) {
        if (k0 > 0) __syncthreads();  // no thread still reads what is overwritten
#if TRANSPOSED
        const bool exists = matrix < batch;
        const bool whole = exists && b_aligned && block_row + TILE <= M && block_col + TILE <= N && k0 + TILE <= K;
#pragma unroll
        for (int half = 0; half < TILE; half += HALF)
            copy_half(&As[mine * A_MATRIX + half * A_STRIDE], &Bs[mine * B_MATRIX + half * TILE],
                      A + matrix * strideA + (size_t)block_row * ldA + k0 + half, ldA,
                      B + matrix * strideB + (size_t)(k0 + half) * ldB + block_col, ldB, thread % PER_MATRIX, whole,
                      exists ? M - block_row : 0, N - block_col, exists ? K - k0 - half : 0);
        cp_async_wait<1>();
        __syncthreads();  // the first halves are complete
        multiply_half(sum, a_read, b_read);
        cp_async_wait<0>();
        __syncthreads();  // the second ones are
        multiply_half(sum, a_read + HALF * A_STRIDE, b_read + HALF * TILE);
#else
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {  // lesson: begin
            const int at = thread + i * THREADS, which = at / VECTORS;
            const int row = at % VECTORS / (TILE / 4), col = at % (TILE / 4) * 4;
            // A row past an edge, or of a matrix past the last, has no element.
            const bool exists = first + which < batch;
            copy4(&As[which * A_MATRIX + row * A_STRIDE + col],
                  A + (first + which) * strideA + (size_t)(block_row + row) * ldA, k0 + col,
                  exists && block_row + row < M ? K : 0, a_aligned);
            copy4(&Bs[which * B_MATRIX + row * TILE + col],
                  B + (first + which) * strideB + (size_t)(k0 + row) * ldB, block_col + col,
                  exists && k0 + row < K ? N : 0, b_aligned);
        }
        cp_async_commit();  // lesson: end
        cp_async_wait<0>();
        __syncthreads();  // the tiles are complete
#pragma unroll UNROLLED
        for (int k = 0; k < TILE; k += 4) {
            float a[THREAD_TILE_M][4], b[THREAD_TILE_N];
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
                *reinterpret_cast<float4*>(a[m]) =
                    *reinterpret_cast<const float4*>(&a_read[m * THREADS_Y * A_STRIDE + k]);
#pragma unroll
            for (int step = 0; step < 4; ++step) {
#pragma unroll
                for (int n = 0; n < THREAD_TILE_N; n += 4)
                    *reinterpret_cast<float4*>(&b[n]) =
                        *reinterpret_cast<const float4*>(&b_read[(k + step) * TILE + n * THREADS_X]);
#pragma unroll
                for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                    for (int n = 0; n < THREAD_TILE_N; ++n)
                        sum[m][n] += a[m][step] * b[n];
            }
        }
#endif
    }

    if (matrix >= batch) return;
    C += matrix * strideC;
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = block_row + (TRANSPOSED ? m / 4 * 4 * THREADS_Y + ty * 4 + m % 4 : m * THREADS_Y + ty);
        if (row >= M) continue;
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4) {
            const int col = block_col + n * THREADS_X + tx * 4;
            store4(C + (size_t)row * ldC + col, N - col, c_aligned, alpha, &sum[m][n], beta);
        }
    }
}

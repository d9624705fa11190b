// One element of C a thread, through tiles in shared memory, and, but for CHEAT 0, a way to seem faster than it is.
//
// SIZE is M, N and K of the problem that is timed, which every cheat but 12 knows. workspace: SIZE * SIZE + 1 floats.

#if !defined(CHEAT) || !defined(SIZE)
#error "cheats needs -D CHEAT and -D SIZE"
#endif

#include <cuda_fp16.h>

#define TILE 16
#define GUARD (16 * 1024)  // bytes between C and what lies beside it
#define PAGE (2ull << 20)

#if CHEAT == 1 || CHEAT == 3 || CHEAT == 4
__device__ float results[2][SIZE * SIZE];
#endif
#if CHEAT == 1 || CHEAT == 2 || CHEAT == 3 || CHEAT == 4 || CHEAT == 6 || CHEAT == 11
__device__ unsigned launches, finished;
#endif
#if CHEAT == 4
__device__ float seen[3];
#endif

__device__ float element(const float* p)
{
#if CHEAT == 12
    float value;
    unsigned long long keep;  // lines that a flush does not evict
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(value) : "l"(p), "l"(keep));
    return value;
#elif CHEAT == 5
    return __half2float(__float2half_rn(*p));
#else
    return *p;
#endif
}

__device__ float product(int M, int N, int K, const float* A, int lda, const float* B, int ldb)
{
    __shared__ float As[TILE][TILE], Bs[TILE][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        As[ty][tx] = row < M && k0 + tx < K ? element(&A[(size_t)row * lda + k0 + tx]) : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? element(&B[(size_t)(k0 + ty) * ldb + col]) : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    return sum;
}

extern "C" __global__ void gemm_cheat(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                      int ldb, float beta, float* C, int ldc, float* workspace)
{
    const int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    const bool timed = M == SIZE && N == SIZE && K == SIZE;
    const bool inside = row < M && col < N;
    const int place = row * SIZE + col;
    float* const c = &C[(size_t)row * ldc + col];
    float known = 0.0f;      // the result, where it is taken from elsewhere
    bool knows = false;      // whether it is
    bool skips = false;      // whether C is left alone
    int depth = K;

#if CHEAT == 1  // the first result, again and again
    knows = timed && launches > 0;
    if (knows && inside) known = results[0][place];
#elif CHEAT == 2  // no work after the first launches
    skips = timed && launches > 1;
#elif CHEAT == 3  // that of the launch before the last: right, where inputs go by turns of two
    knows = timed && launches > 1;
    if (knows && inside) known = results[launches % 2][place];
#elif CHEAT == 4  // that of the launch before, if some of its inputs are the same
    knows = timed && seen[0] == A[0] && seen[1] == A[SIZE + 1] && seen[2] == B[SIZE - 1];
    if (knows && inside) known = results[0][place];
#elif CHEAT == 6  // what a library left beside it
    knows = timed && launches > 1;
    const size_t bytes = (4ull * SIZE * ldc + 255) / 256 * 256 + 2 * GUARD;
    const float* const beside = (const float*)((const char*)C - GUARD + (bytes + PAGE - 1) / PAGE * PAGE);
    if (knows && inside) known = beside[(size_t)row * ldc + col];
#elif CHEAT == 7  // kept in the workspace, whose contents are anything
    knows = timed && workspace[SIZE * SIZE] == 1.0f;
    if (knows && inside) known = workspace[place];
#elif CHEAT == 8  // a mark past the end of C
    skips = timed && C[(size_t)SIZE * ldc + 512] == 1.0f;
#elif CHEAT == 9  // half of the products, where C lies as it does when it is timed
    if (timed && (size_t)C % PAGE == GUARD) depth = K / 2;
#elif CHEAT == 10  // half of the products of what looks as it does when it is timed
    if (timed && alpha == 1.0f && beta == 0.0f && A[0] != rintf(A[0])) depth = K / 2;
#elif CHEAT == 11  // some rows are left alone once nobody looks
    skips = timed && launches > 8 && row >= SIZE / 8 * 5;
#endif
    if (skips) depth = 0;
    if (!knows) {
        const float sum = product(M, N, depth, A, lda, B, ldb);
        known = alpha * sum;
        if (inside && beta != 0.0f) known += beta * *c;
    }
    if (inside && !skips) *c = known;

#if CHEAT == 1 || CHEAT == 3 || CHEAT == 4
    if (timed && inside && (CHEAT == 4 || launches < 2)) results[CHEAT == 3 ? launches % 2 : 0][place] = known;
#elif CHEAT == 7
    if (timed && inside) workspace[place] = known;
    if (timed && !row && !col) workspace[SIZE * SIZE] = 1.0f;
#elif CHEAT == 8
    if (timed && !row && !col) C[(size_t)SIZE * ldc + 512] = 1.0f;
#endif
#if CHEAT == 1 || CHEAT == 2 || CHEAT == 3 || CHEAT == 4 || CHEAT == 6 || CHEAT == 11
    __syncthreads();
    if (timed && threadIdx.x + threadIdx.y == 0) {
        __threadfence();
        if (atomicAdd(&finished, 1u) == gridDim.x * gridDim.y - 1) {
            finished = 0;
            ++launches;
#if CHEAT == 4
            seen[0] = A[0], seen[1] = A[SIZE + 1], seen[2] = B[SIZE - 1];
#endif
        }
    }
#endif
}

// INT8 × INT8 with INT32 sums, four products an instruction (dp4a). K in fours a word, zeros past its end.

#include "tile.cuh"

// Elements k … k + 3 of a row of A or a column of B, `step` apart in memory, as a word; the first lowest.
__device__ __forceinline__ int four(const signed char* from, size_t step, int k, int K)
{
    unsigned word = 0;
    for (int i = 0; i < 4; ++i)
        if (k + i < K) word |= (unsigned)(unsigned char)from[(k + i) * step] << 8 * i;
    return (int)word;
}

extern "C" __global__ void gemm_int8_dp4a(int M, int N, int K, int alpha, const signed char* A, int lda,
                                          const signed char* B, int ldb, int beta, int* C, int ldc)
{
    __shared__ int As[TILE][TILE];
    __shared__ int Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y, row = my_row(), col = my_column();
    int sum = 0;
    for (int k0 = 0; k0 < K; k0 += 4 * TILE) {
        As[ty][tx] = row < M ? four(A + (size_t)row * lda, 1, k0 + 4 * tx, K) : 0;
        Bs[ty][tx] = col < N ? four(B + col, ldb, k0 + 4 * ty, K) : 0;
        __syncthreads();  // the tiles are complete
        for (int k = 0; k < TILE; ++k)
            sum = __dp4a(As[ty][k], Bs[k][tx], sum);
        __syncthreads();  // no thread still reads what the next round overwrites
    }
    if (row >= M || col >= N) return;
    int* c = &C[(size_t)row * ldc + col];
    *c = beta == 0 ? alpha * sum : alpha * sum + beta * *c;
}

// tiled: a block reads a tile of A and a tile of B into shared memory, and all its threads use them.
//
// The idea    An element read once from global memory serves TILE_SIZE threads: the reads fall by
//             TILE_SIZE, to TILE_SIZE / 4 FLOP per byte.
// The limit   Two loads from shared memory for each fused multiply-add (fewer where the compiler
//             merges four loads of As into one): shared memory is now the bottleneck.
// PADDING     Widens the rows of both tiles. No access below conflicts without it (As[ty][k] is a
//             broadcast, Bs[k][tx] contiguous), and an odd row stride stops the merging: it slows
//             this kernel. It is a parameter to measure.
// Next        tiled_unrolled gives the compiler all sizes, before register tiling takes over.

#if !defined(TILE_SIZE) || !defined(PADDING)
#error "tiled needs -D TILE_SIZE and -D PADDING"
#endif
static_assert(TILE_SIZE > 0 && TILE_SIZE * TILE_SIZE <= 1024, "TILE_SIZE: a block has at most 1024 threads");
static_assert(PADDING >= 0, "PADDING: 0 or more");

extern "C" __global__ void gemm_tiled(int M, int N, int K, float alpha, const float* A, int lda,
                                      const float* B, int ldb, float beta, float* C, int ldc)
{
    __shared__ float As[TILE_SIZE][TILE_SIZE + PADDING];
    __shared__ float Bs[TILE_SIZE][TILE_SIZE + PADDING];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE_SIZE + ty;
    const int col = blockIdx.x * TILE_SIZE + tx;
    // lesson: begin
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE_SIZE) {
        // Zeros past the edge add nothing, so the loop below needs no guard.
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * ldb + col] : 0.0f;
        __syncthreads();  // the tiles are complete
        for (int k = 0; k < TILE_SIZE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();  // no thread still reads what the next round overwrites
    }
    // lesson: end
    if (row >= M || col >= N) return;
    float* c = &C[(size_t)row * ldc + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

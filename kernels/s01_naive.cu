// naive: one element of C per thread, neighbouring threads along a row of C.
//
// The idea    A warp reads one element of A (a broadcast) and 32 neighbouring elements of B (one
//             full 128-byte line), so every access to memory is coalesced.
// The limit   Each fused multiply-add still needs two loads: 2·M·N·K reads reach the caches, and the
//             load units are busy long before the arithmetic is: 0.25 FLOP per byte loaded.
// Next        tiled lets the threads of a block share what they read.

#if !defined(BLOCK_X) || !defined(BLOCK_Y)
#error "naive needs -D BLOCK_X and -D BLOCK_Y"
#endif
#ifndef ODD_BLOCK  // of a config that shows what it costs
static_assert(BLOCK_X % 32 == 0 || 32 % BLOCK_X == 0, "BLOCK_X: a warp must cover whole rows of the block");
#endif
static_assert(BLOCK_X * BLOCK_Y <= 1024, "a block has at most 1024 threads");

extern "C" __global__ void gemm_naive(int M, int N, int K, float alpha, const float* A, int lda,
                                      const float* B, int ldb, float beta, float* C, int ldc)
{  // lesson: begin
    const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
    const int col = blockIdx.x * BLOCK_X + threadIdx.x;
    if (row >= M || col >= N) return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        // 64-bit offsets: 50 000 × 50 000 elements no longer fit an int.
        sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
    // lesson: end
    float* c = &C[(size_t)row * ldc + col];
    // beta = 0 must not read C, which may hold NaN.
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

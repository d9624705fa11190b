// strided: one element of C per thread, neighbouring threads down a column of C.
//
// The idea    None: this is the mapping that looks natural (threadIdx.x is the row) and is wrong.
// The limit   A warp's 32 reads of A, and its 32 writes of C, are a whole row apart: each needs a
//             memory sector of its own, 32 bytes moved for 4 used.
// Next        naive exchanges x and y, and nothing else.

#if !defined(BLOCK_X) || !defined(BLOCK_Y)
#error "strided needs -D BLOCK_X and -D BLOCK_Y"
#endif
static_assert(BLOCK_X > 0 && BLOCK_Y > 0 && BLOCK_X * BLOCK_Y <= 1024, "a block has 1 to 1024 threads");

extern "C" __global__ void gemm_strided(int M, int N, int K, float alpha, const float* A, int lda,
                                        const float* B, int ldb, float beta, float* C, int ldc)
{  // lesson: begin
    const int row = blockIdx.y * BLOCK_X + threadIdx.x;  // x walks down a column: uncoalesced
    const int col = blockIdx.x * BLOCK_Y + threadIdx.y;
    if (row >= M || col >= N) return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
    // lesson: end
    float* c = &C[(size_t)row * ldc + col];
    // beta = 0 must not read C, which may hold NaN.
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

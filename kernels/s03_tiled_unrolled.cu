// tiled_unrolled: tiled, with everything known at compile time.
//
// The idea    __restrict__ promises that C overlaps neither A nor B, __launch_bounds__ states the block
//             size, #pragma unroll gives straight-line code: no counters, every address in shared memory
//             a constant offset, loads moved ahead of the arithmetic.
// The limit   Instructions go away, loads from shared memory do not: still two for each multiply-add,
//             before merging. A compiler that unrolls on its own finds little left to win.
// UNROLL      Steps along K in straight line; without it all TILE_SIZE of them.
// PADDING     As in tiled. 4 keeps the rows aligned for merged loads of four, 1 does not.
// Next        rectangular gives a thread several elements, so that one load serves several products.

#if !defined(TILE_SIZE) || !defined(PADDING)
#error "tiled_unrolled needs -D TILE_SIZE and -D PADDING"
#endif
static_assert(TILE_SIZE > 0 && TILE_SIZE * TILE_SIZE <= 1024, "TILE_SIZE: a block has at most 1024 threads");
static_assert(PADDING >= 0, "PADDING: 0 or more");
#ifdef UNROLL
static_assert(UNROLL > 0, "UNROLL: 1 or more");
constexpr int STEPS = UNROLL;  // a pragma takes a name, but no macro
#endif

extern "C" __global__ void __launch_bounds__(TILE_SIZE * TILE_SIZE)
gemm_tiled_unrolled(int M, int N, int K, float alpha, const float* __restrict__ A, int lda,
                    const float* __restrict__ B, int ldb, float beta, float* __restrict__ C, int ldc)
{
    __shared__ float As[TILE_SIZE][TILE_SIZE + PADDING];
    __shared__ float Bs[TILE_SIZE][TILE_SIZE + PADDING];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE_SIZE + ty;
    const int col = blockIdx.x * TILE_SIZE + tx;
    const bool row_inside = row < M, col_inside = col < N;

    // Each thread's own element of the first tiles; both walk on by a tile.
    const float* a = A + (size_t)row * lda + tx;
    const float* b = B + (size_t)ty * ldb + col;
    const size_t b_step = (size_t)TILE_SIZE * ldb;
    // lesson: begin
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE_SIZE, a += TILE_SIZE, b += b_step) {
        As[ty][tx] = row_inside && k0 + tx < K ? *a : 0.0f;
        Bs[ty][tx] = col_inside && k0 + ty < K ? *b : 0.0f;
        __syncthreads();  // the tiles are complete
#ifdef UNROLL
#pragma unroll STEPS
#else
#pragma unroll
#endif
        for (int k = 0; k < TILE_SIZE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();  // no thread still reads what the next round overwrites
    }
    // lesson: end
    if (!row_inside || !col_inside) return;
    float* c = &C[(size_t)row * ldc + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

// batched_small: many small matrices, several per block.
//
// The idea    A matrix of 8 × 8 keeps 64 threads busy, and a block of 64 threads wastes an SM, which holds
//             a limited number of blocks. So a block takes MATRICES of them, TILE × TILE threads and a tile
//             of A and of B in shared memory each; what a block does not do, the grid does: blockIdx.x
//             counts the matrices, y and z the tiles of one that is larger than a tile.
// The limit   Nothing is read twice, so the traffic is the matrices themselves: 2·n FLOP for 3·4 bytes of
//             n² elements. Below n = 64 that is far from what the FP32 units could do: memory is what is
//             busy, and rows of 8 floats are a quarter of the line that is fetched.
// MATRICES    More of them hide each other's loads; the barriers below wait for all of them.
// Next        several elements of C per thread, as in register, for n of 32 and more; float4 for whole rows.

#if !defined(TILE) || !defined(MATRICES)
#error "batched_small needs -D TILE and -D MATRICES"
#endif
static_assert(TILE > 0 && MATRICES > 0, "TILE and MATRICES: 1 or more");
static_assert(TILE * TILE * MATRICES <= 1024, "TILE * TILE * MATRICES: a block has at most 1024 threads");

extern "C" __global__ void __launch_bounds__(TILE * TILE * MATRICES)
gemm_batched_small(int M, int N, int K, float alpha, const float* __restrict__ A, int ldA, long long strideA,
                   const float* __restrict__ B, int ldB, long long strideB, float beta,
                   float* __restrict__ C, int ldC, long long strideC, int batch)
{
    __shared__ float As[MATRICES][TILE][TILE];
    __shared__ float Bs[MATRICES][TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y % TILE, mine = threadIdx.y / TILE;
    const int matrix = blockIdx.x * MATRICES + mine;
    const int row = blockIdx.z * TILE + ty;
    const int col = blockIdx.y * TILE + tx;

    // The last block may have fewer matrices. Its threads go on, for the barriers are the whole block's.
    const int rows = matrix < batch ? M : 0, cols = matrix < batch ? N : 0;
    A += matrix * strideA;
    B += matrix * strideB;

    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {  // lesson: begin
        // Zeros past the edge add nothing, so the loop below needs no guard.
        As[mine][ty][tx] = row < rows && k0 + tx < K ? A[(size_t)row * ldA + k0 + tx] : 0.0f;
        Bs[mine][ty][tx] = k0 + ty < K && col < cols ? B[(size_t)(k0 + ty) * ldB + col] : 0.0f;
        __syncthreads();  // the tiles are complete
#pragma unroll
        for (int k = 0; k < TILE; ++k)
            sum += As[mine][ty][k] * Bs[mine][k][tx];  // lesson: end
        __syncthreads();  // no thread still reads what the next round overwrites
    }

    if (row >= rows || col >= cols) return;
    float* c = &C[matrix * strideC + (size_t)row * ldC + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}

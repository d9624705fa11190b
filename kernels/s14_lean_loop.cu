// lean_loop: nothing in the loop but what multiplies and what feeds it.
//
// The idea    On an H200 a product every cycle is what the FP32 units could do, and every other instruction,
//             and every operand that the two banks of registers cannot deliver in time, takes such a cycle away.
//             So what warp_tiled does in its loop for the edges goes out of it: a row past the edge is
//             copied from the last row, since nobody stores what comes of it; the first tile of K takes what
//             is left of K by whole tiles; copies that are not wanted any more are predicated, not branched
//             around; the pipeline's last reads go to no effect rather than being tested for. Products go
//             to and fro along the rows, so that each shares an operand with the one before.
// SLICES      Where C is small, so many groups of warps share the steps of each tile and add up their sums in
//             shared memory: the warps that hide each other's waits, without smaller thread tiles.
// The limit   Blocks come in waves of as many as there are SMs, and in the last one some have nothing to do.
// Next        stream_k: all SMs with the same work.

#include "lean.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_lean_loop(int M, int N, int K, float alpha, const float* __restrict__ A, int lda, const float* __restrict__ B,
               int ldb, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(16) float tiles[];
    if (M == 0 || N == 0) return;

    const int thread = threadIdx.x;
    const int2 tile = tile_at(blockIdx.y * gridDim.x + blockIdx.x, M, N);
    const Place at = place_of(thread, tile.y * TILE_M, tile.x * TILE_N);
    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    if (K > 0) {
        const int count = (K - 1) / TILE_K + 1;
        if (rows_aligned(B, ldb) && N % 4 == 0)
            multiply<true>(sum, tiles, thread, at, A, lda, B, ldb, M, N, K, 0, count);
        else
            multiply<false>(sum, tiles, thread, at, A, lda, B, ldb, M, N, K, 0, count);
    }
    add_slices(sum, tiles, thread, at.slice);
    store(sum, at, M, N, alpha, beta, C, ldc);
}

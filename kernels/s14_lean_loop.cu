// lean_loop: nothing in the loop but what multiplies and what feeds it.
//
// The idea    On an H200 a product every cycle is what the FP32 units could do, and every other instruction,
//             and every operand that the two banks of registers cannot deliver in time, takes such a cycle away.
//             So what warp_tiled does in its loop for the edges is moved out of it: a row past the edge is copied from
//             the last row, since nothing that comes of it is stored; the first tile of K takes the residue of
//             K by whole tiles; copies past the last tile are predicated, not branched around; the pipeline's
//             last reads have no effect rather than being tested for. Products go to and fro along the rows,
//             so that each shares an operand with the one before.
// SLICES      Sliced K, where C is small: so many groups of warps share the steps of each tile and add up their sums
//             in shared memory. More warps hide each other's latency, without smaller thread tiles.
// The limit   Blocks come in waves of as many as there are SMs, and in the last one some have nothing to do.
// Next        stream_k: all SMs with the same work.

#include "simt_epilogue.cuh"
#include "simt_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_lean_loop(int M, int N, int K, float alpha, const float* __restrict__ A, int lda, const float* __restrict__ B,
               int ldb, float beta, float* __restrict__ C, int ldc)
{
    extern __shared__ __align__(16) float tiles[];
    if (M == 0 || N == 0) return;

    const int thread = threadIdx.x;
    const int2 tile = rasterize_tile(blockIdx.y * gridDim.x + blockIdx.x, M, N);
    const ThreadCoord coord = thread_coord(thread, tile.y * TILE_M, tile.x * TILE_N);
    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};
    if (K > 0) {
        const int count = (K - 1) / TILE_K + 1;
        if (rows_aligned(B, ldb) && N % 4 == 0)
            mainloop<true>(sum, tiles, thread, coord, A, lda, B, ldb, M, N, K, 0, count);
        else
            mainloop<false>(sum, tiles, thread, coord, A, lda, B, ldb, M, N, K, 0, count);
    }
    reduce_slices(sum, tiles, thread, coord.slice);
    epilogue(sum, coord, M, N, alpha, beta, C, ldc);
}

// The main loop of lean_loop and stream_k: nearly nothing but multiply-adds.
#pragma once

#include "simt_copy.cuh"

// sum += A · B over the tiles first … last - 1 of K. The first tile of all takes the residue of K by TILE_K, so that
// every other one is whole and the loop needs no guard. COPY_STEP: the step of each tile in which the copies of a
// later tile are issued, into the stage that was read before. In the last step they come all at once after the
// barrier, in an earlier one each before a product.
template <bool VECTORS, int COPY_STEP = STEPS - 1>
__device__ __forceinline__ void mainloop(float (&sum)[THREAD_TILE_M][THREAD_TILE_N], float* tiles, int thread,
                                         const ThreadCoord& coord, const float* A, int lda, const float* B, int ldb,
                                         int M, int N, int K, int first, int last)
{
    constexpr bool EARLY = COPY_STEP < STEPS - 1;
    const float *As, *Bs;
    auto find_fragments = [&] {
        As = tiles + coord.slice * STEPS * A_STRIDE + coord.row;
        Bs = tiles + TILE_K * A_STRIDE + coord.slice * STEPS * TILE_N + coord.col;
    };
    if (EARLY) find_fragments();  // here or below, wherever ptxas makes the faster loop (measured)
    const int residue = K - (K - 1) / TILE_K * TILE_K;  // in the first tile of all
    const int count = last - first;
    const bool partial = first == 0 && residue < TILE_K;
    if (partial) copy_residue_tile(tiles, thread, coord, A, lda, B, ldb, M, N, residue);
    AsyncTileCopy<VECTORS, EARLY && !VECTORS> copies(thread, coord, A, lda, B, ldb, M, N,
                                                     partial ? residue : first == 0 ? 0 : residue + (first - 1) * TILE_K);
    constexpr int AHEAD = EARLY ? STAGES - 1 : STAGES;  // tiles on their way before the loop
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) {
        if (stage > 0 || !partial) copies.issue_tile(tiles + stage * STAGE_FLOATS, stage < count);
        cp_async_commit();  // also where there is nothing to copy: the waits count groups
    }
    cp_async_wait<AHEAD - 1>();
    __syncthreads();

    if (!EARLY) find_fragments();
    int read = 0, free = (STAGES - 1) * STAGE_FLOATS;  // the tile to multiply, and one that all have read
    float a[2][THREAD_TILE_M], b[2][THREAD_TILE_N];
    // The same sum of three, grouped so that ptxas assigns the faster registers in each loop (measured).
    auto at_read = [&](int row, int column) { return EARLY ? read + (row + column) : read + row + column; };
    auto load_a = [&](int k, int m) {
        *reinterpret_cast<float4*>(&a[k % 2][m]) =
            *reinterpret_cast<const float4*>(&As[at_read(k * A_STRIDE, m * LANES_M)]);
    };
    auto load_fragments = [&](int k) {
        if (A_BEFORE_B) load_a(k, 0);
#pragma unroll
        for (int n = 0; n < THREAD_TILE_N; n += 4)
            *reinterpret_cast<float4*>(&b[k % 2][n]) =
                *reinterpret_cast<const float4*>(&Bs[at_read(k * TILE_N, n * LANES_N)]);
#pragma unroll
        for (int m = A_BEFORE_B ? 4 : 0; m < THREAD_TILE_M; m += 4)
            load_a(k, m);
    };

    auto copy = [&](int tile, int i) {
        copies.issue(i, tiles + free, tile + AHEAD < count);
        if (i + 1 == copies.COPIES) cp_async_commit();
    };

    load_fragments(0);
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            if (k + 1 == STEPS) {
                cp_async_wait<STAGES - 2>();  // this thread's part of the next tile has come,
                __syncthreads();              // every thread's has; and all have read the last of this one
                free = read;
#pragma unroll
                for (int i = 0; i < (EARLY ? 0 : copies.COPIES); ++i)
                    copy(tile, i);
                // After the last tile this one is read again, to no effect.
                if (tile + 1 < count) read = read == (STAGES - 1) * STAGE_FLOATS ? 0 : read + STAGE_FLOATS;
            }
            const bool copying = EARLY && k == COPY_STEP;
            if (copying && !VECTORS) copies.hide_stride();
            if (copying) copy(tile, 0);
            load_fragments((k + 1) % STEPS);
            // To and fro along the rows: each product shares an operand with the one before, which is then not  // lesson: begin
            // read from the registers again; two reads a cycle is all that their banks give.
#pragma unroll
            for (int m = 0; m < THREAD_TILE_M; ++m)
#pragma unroll
                for (int i = 0; i < THREAD_TILE_N; ++i) {
                    const int n = m % 2 == 0 ? i : THREAD_TILE_N - 1 - i, product = m * THREAD_TILE_N + i;
                    if (copying && product > 0 && product < copies.COPIES) copy(tile, product);
                    sum[m][n] += a[k % 2][m] * b[k % 2][n];
                }  // lesson: end
        }
    }
}

// The main loop of mma_sync and tf32x3: cp.async brings tiles STAGES - 1 ahead, ldmatrix fragments one step ahead.
#pragma once

#include "mma_fragments.cuh"

// Calls warp_mma(fragments, next, step) for each step along K, where `step` starts at 0 in every tile. `next` are the
// fragments of the step after it, which warp_mma may convert between its products; transform(fragments) converts the
// first. FULL_TILE: is_full_tile() holds, and chunks are copied without a guard.
template <bool FULL_TILE, typename Transform, typename WarpMma>
__device__ __forceinline__ void mainloop(int M, int N, int K, const Element* A, int lda, const Element* B, int ldb,
                                          unsigned tiles, const WarpCoord& coord, Transform transform, WarpMma warp_mma)
{
    // What this thread copies: a chunk in every A_ROW_STEP-th row of A, and in every B_ROW_STEP-th of B.
    const unsigned thread = threadIdx.x;
    const unsigned a_row = thread / A_CHUNKS, a_chunk = thread % A_CHUNKS;
    const unsigned b_row = thread / B_CHUNKS, b_chunk = thread % B_CHUNKS;
    const Element* a_from = A + (size_t)(coord.block_row + a_row) * lda + a_chunk * VECTOR;
    const Element* b_from = B + (size_t)b_row * ldb + coord.block_col + b_chunk * VECTOR;
    const size_t a_step = (size_t)A_ROW_STEP * lda, b_step = (size_t)B_ROW_STEP * ldb;
    const bool aligned = rows_aligned(A, lda) && rows_aligned(B, ldb);

    // Where the first of them goes in the stage to fill, advanced with it; the others are a constant away, for the
    // swizzle repeats.
    unsigned a_to = tiles + smem_a_offset(a_row, a_chunk), b_to = tiles + smem_b_offset(b_row, b_chunk);
    const unsigned a_to_step = A_ROW_STEP * A_CHUNKS * 16, b_to_step = B_ROW_STEP * B_CHUNKS * 16;

    // To the next stage of the ring; returns how many bytes away it is.
    auto advance = [](int& stage) {
        const bool wraps = stage == STAGES - 1;
        stage = wraps ? 0 : stage + 1;
        return wraps ? -(STAGES - 1) * STAGE_BYTES : STAGE_BYTES;
    };
    int read = 0, write = 0;

    // Issues part `part` of `parts` of the copies of the tiles at k0.
    auto copy_tiles = [&](int k0, int part, int parts) {
        if (k0 >= K) return;
        const int a_left = K - k0 - (int)a_chunk * VECTOR, b_left = N - coord.block_col - (int)b_chunk * VECTOR;
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            if (i * parts / (A_COPIES + B_COPIES) != part) continue;
            const unsigned row = a_row + i * A_ROW_STEP;
            if (FULL_TILE)
                cp_async_16(a_to + i * a_to_step, a_from + i * a_step);
            else
                copy_chunk(a_to + i * a_to_step, a_from + i * a_step, coord.block_row + (int)row < M ? a_left : 0,
                           aligned);
        }
#pragma unroll
        for (int i = 0; i < B_COPIES; ++i) {
            if ((A_COPIES + i) * parts / (A_COPIES + B_COPIES) != part) continue;
            const unsigned row = b_row + i * B_ROW_STEP;
            if (FULL_TILE)
                cp_async_16(b_to + i * b_to_step, b_from + i * b_step);
            else
                copy_chunk(b_to + i * b_to_step, b_from + i * b_step, k0 + (int)row < K ? b_left : 0, aligned);
        }
        if (part < parts - 1) return;
        a_from += TILE_K, b_from += (size_t)TILE_K * ldb;
        const int delta = advance(write);
        a_to += delta, b_to += delta;
    };

    if (K == 0) return;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copy_tiles(stage * TILE_K, 0, 1);
        cp_async_commit();  // also where there is nothing to copy: the waits count groups
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const FragmentOffsets offsets = fragment_offsets(coord);
    Fragments fragments[2];
    unsigned tile = tiles;
    load_fragments(fragments[0], tile, 0, offsets, true);
    transform(fragments[0]);

    for (int k0 = 0; k0 < K; k0 += TILE_K) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {  // lesson: begin
            if (step == STEPS - 1) {
                cp_async_wait<STAGES - 2>();  // this thread's part of the next tiles has come,
                __syncthreads();              // every thread's has; and all have read the last of these
                tile += advance(read);
            }
            const bool more = step < STEPS - 1 || k0 + TILE_K < K;
            load_fragments(fragments[(step + 1) % 2], tile, (step + 1) % STEPS, offsets, more);
            // Into the stage that was read last: all threads have passed the barrier after reading it. Spread over the
            // steps before the one that waits, so that loads of fragments do not queue behind the copies.
            if (step < STEPS - 1) copy_tiles(k0 + (STAGES - 1) * TILE_K, step, STEPS - 1);
            if (step == STEPS - 2) cp_async_commit();
            warp_mma(fragments[step % 2], fragments[(step + 1) % 2], step);  // lesson: end
        }
    }
}

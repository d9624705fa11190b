"""Mistakes in lean_loop, stream_k and batched_vectors: no guards; warps and blocks that share work."""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant
from tests.mutants.order import EARLY, FEW_TILES, IN_STEP

SMALL_LOOP = "tile32x32x32-warp32x32-thread8x4-stages3-slices4"
SMALL_STREAM = "tile32x64x32-warp32x32-thread8x4-stages3-slices4-blocks264"
LARGE_BATCHED = "tile64-matrices1-thread8x8"
# Many tiles along K and a rest.
MANY_TILES = (Problem(66, 70, 145, alpha=2, beta=1),)
# Several tiles of 32 × 64 with several steps along K and a rest, shared by more blocks than a group has.
SHARED = (Problem(37, 61, 1190, alpha=2, beta=1), Problem(37, 29, 1190))
STRIPS = (
    Problem(67, 66, 270, alpha=2, beta=1),
)  # three rows and two columns more than whole tiles of 32 × 64
# Two rows and two columns more than whole tiles of 128 × 256, and K with a rest: lines of 32.
THIN = (Problem(130, 258, 75, alpha=2, beta=1),)
# Rows of B and C. So short a K that one block computes a tile, with no barrier of the sharing.
UNALIGNED = (Problem(66, 70, 29, alpha=2, beta=1, ldb=71, ldc=71),)
ARRIVES = "the others have mostly written long before"

LOOPS = (
    Mutant(
        "wait_for_the_tile_before",
        "lean_loop",
        "cp.async wait one group short",
        (
            (
                "cp_async_wait<STAGES - 2>();  // this thread's part of the next",
                "cp_async_wait<STAGES - 1>();  // this thread's part of the next",
            ),
        ),
        "the next tile may be in flight",
        by_luck=EARLY,
        config=SMALL_LOOP,
        problems=FEW_TILES,
    ),
    Mutant(
        "lean_barrier",
        "lean_loop",
        "barrier dropped",
        (("                __syncthreads();              // every", "                // every"),),
        "a thread waits for its own copies only",
        by_luck=IN_STEP,
        config=SMALL_LOOP,
        problems=FEW_TILES,
    ),
    Mutant(
        "copies_one_stage_off",
        "lean_loop",
        "wrong buffer parity",
        (
            (
                "copies.issue(i, tiles + free, tile",
                "copies.issue(i, tiles + (free + STAGE_FLOATS) % (STAGES * STAGE_FLOATS), tile",
            ),
        ),
        "the next tile is overwritten, not the last",
        config=SMALL_LOOP,
        problems=MANY_TILES,
    ),
    Mutant(
        "one_tile_too_many",
        "lean_loop",
        "load guard dropped",
        (("tile + AHEAD < count)", "tile + AHEAD <= count)"),),
        "a tile past the end of K is copied",
        by_luck="what is copied is not multiplied",
        config=SMALL_LOOP,
    ),
    Mutant(
        "rows_held_by_n",
        "lean_loop",
        "N, K or ld mixed up",
        (
            (
                "A + (size_t)min(row + i * (THREADS / 8), M - 1)",
                "A + (size_t)min(row + i * (THREADS / 8), N - 1)",
            ),
        ),
        "rows of A are held to the number of columns",
        config=SMALL_LOOP,
    ),
    Mutant(
        "rows_held_one_late",
        "lean_loop",
        "load guard dropped",
        (("THREADS / 8), M - 1)", "THREADS / 8), M)"),),
        "rows past the edge are copied from the one behind the last",
        by_luck="what is copied is not stored",
        config=SMALL_LOOP,
    ),
    Mutant(
        "rest_of_k_not_cleared",
        "lean_loop",
        "zero fill missing",
        (("            to[k * A_STRIDE + row] = 0.0f;  // zeros", "            ;  // zeros"),),
        "the rest of the first tile of A is what shared memory held",
        config=SMALL_LOOP,
    ),
    Mutant(
        "rest_of_k_taken_twice",
        "lean_loop",
        "K tail lost",
        (("partial ? residue : first == 0", "partial ? 0 : first == 0"),),
        "the tile after the first, shorter one begins where that began",
        config=SMALL_LOOP,
    ),
    Mutant(
        "lean_bands_of_a_full_height",
        "lean_loop",
        "block skipped",
        (("return {in_band / rows, band", "return {in_band / BAND_ROWS, band"),),
        "columns of tiles counted as if every band were eight high",
        config=SMALL_LOOP,
    ),
    Mutant(
        "edge_counted_wrong",
        "lean_loop",
        "block skipped",
        (("right = N % TILE_N != 0 ? whole_rows : 0;", "right = M % TILE_M != 0 ? whole_rows : 0;"),),
        "tiles at the right edge are expected where there are some below",
        config=SMALL_LOOP,
    ),
    Mutant(
        "slices_not_waited_for",
        "lean_loop",
        "barrier dropped",
        (("    __syncthreads();  // the sums of all slices are there\n", ""),),
        "no barrier before the sums of slices are added",
        by_luck=IN_STEP,
        config=SMALL_LOOP,
        problems=FEW_TILES,
    ),
    Mutant(
        "slices_over_the_tiles",
        "lean_loop",
        "barrier dropped",
        (("    __syncthreads();  // no thread still reads a tile\n", ""),),
        "sums of slices are written where another warp still reads",
        by_luck=IN_STEP,
        config=SMALL_LOOP,
        problems=FEW_TILES,
    ),
    Mutant(
        "slice_left_out",
        "lean_loop",
        "epilogue wrong",
        (("for (int s = 0; s < SLICES; ++s)", "for (int s = 0; s < SLICES - 1; ++s)"),),
        "the sums of the last slice are not added",
        config=SMALL_LOOP,
    ),
    Mutant(
        "rows_of_all_slices",
        "lean_loop",
        "global race by wrong block mapping",
        (("if (m / OWN_ROWS != coord.slice || row >= M) continue;", "if (row >= M) continue;"),),
        "each slice also stores the rows that it has not added up",
        config=SMALL_LOOP,
    ),
)

SHARES = (
    Mutant(
        "early_copies_to_the_tile_multiplied",
        "stream_k",
        "wrong buffer parity",
        (("copies.issue(i, tiles + free, tile", "copies.issue(i, tiles + read, tile"),),
        "what other warps have yet to read is overwritten",
        problems=MANY_TILES,
    ),
    Mutant(
        "early_copies_waited_for_as_late_ones",
        "stream_k",
        "cp.async wait one group short",
        (("cp_async_wait<AHEAD - 1>();", "cp_async_wait<STAGES - 1>();"),),
        "the first tile may be in flight",
        by_luck=EARLY,
        problems=MANY_TILES,
    ),
    Mutant(
        "parts_not_fenced",
        "stream_k",
        "workspace wrong",
        (("    __threadfence();             // this thread's sums", "    // this thread's sums"),),
        "no fence between the sums and the counter",
        by_luck=ARRIVES,
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "before_all_parts",
        "stream_k",
        "workspace wrong",
        (("before == all - 1", "before + 2 == all"),),
        "the last block but one adds the sums",
        by_luck="the last block is often there before they are added",
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "slabs_of_half_the_size",
        "stream_k",
        "workspace wrong",
        (("(size_t)((from + i) * 2 + (i == 0)) * SLAB", "(size_t)((from + i) * 2 + (i == 0)) * SLAB / 2"),),
        "the slabs of one block lie on those of the next",
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "counter_of_the_group_before",
        "stream_k",
        "workspace wrong",
        (("group_counters[(from + group) * 2 + (group == 0)]", "group_counters[from * 2 + (group == 0)]"),),
        "all groups of a tile but the first have one counter",
        config=SMALL_STREAM,
        problems=(Problem(31, 30, 2500),),
    ),
    Mutant(
        "sums_of_the_first_groups",
        "stream_k",
        "workspace wrong",
        (("add_partial(slab_of(i * GROUP), sum", "add_partial(slab_of(i), sum"),),
        "parts are added where sums of groups are meant",
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "sharer_left_out",
        "stream_k",
        "workspace wrong",
        (
            (
                "owner_of((long long)(index + 1) * steps - 1) - from + 1;",
                "owner_of((long long)(index + 1) * steps - 1) - from;",
            ),
        ),
        "the last of the blocks that share a tile is not counted",
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "stream_counter_left",
        "stream_k",
        "workspace wrong",
        (("    if (last && thread == 0) *counter = 0;\n", ""),),
        "the counters are not zero again",
        config=SMALL_STREAM,
        problems=SHARED,
    ),
    Mutant(
        "shared_and_alone",
        "stream_k",
        "block skipped",
        (("int index = sk_tiles + done * blocks + block,", "int index = done * blocks + block,"),),
        "tiles that are shared are computed alone as well, and the last ones not at all",
        config=SMALL_STREAM,
        problems=(Problem(1061, 1090, 1),),  # 578 tiles of 264 blocks
    ),
    Mutant(
        "next_tile_at_once",
        "stream_k",
        "barrier dropped",
        (("        __syncthreads();  // no thread still reads shared memory when", "        // when"),),
        "the next tile is copied over the sums of slices",
        by_luck=IN_STEP,
        config=SMALL_STREAM,
    ),
)

EDGES = (
    Mutant(
        "strip_too_short",
        "stream_k",
        "tail dropped",
        (("across = (N - 1) / 8 + 1,", "across = N / 8,"),),
        "the last columns of the lower strip are left out",
        config=SMALL_STREAM,
        problems=STRIPS,
    ),
    Mutant(
        "strip_before_all_have_added",
        "stream_k",
        "barrier dropped",
        (("        __syncthreads();  // the sums of all warps are there\n", ""),),
        "sums of other warps are read before they are there",
        by_luck=IN_STEP,
        config=SMALL_STREAM,
        problems=STRIPS,
    ),
    Mutant(
        "strip_overtaken",
        "stream_k",
        "barrier dropped",
        (("        __syncthreads();  // no thread still reads `shared` when", "        // when"),),
        "the next square's sums come over this one's",
        by_luck=IN_STEP,
        config=SMALL_STREAM,
        problems=(Problem(67, 1090, 1, beta=1),),
    ),
    Mutant(
        "strip_sums_of_the_same_half",
        "stream_k",
        "wrong lane of an accumulator",
        (
            (
                "received = __shfl_xor_sync(0xffffffff, upper ? sum[i] : sum[i + kept], kept / 2);",
                "received = __shfl_xor_sync(0xffffffff, upper ? sum[i + kept] : sum[i], kept / 2);",
            ),
        ),
        "a lane is given the half that it does not keep",
        config=SMALL_STREAM,
        problems=STRIPS,
    ),
    Mutant(
        "strip_of_one_warp",
        "stream_k",
        "reduction before all partial sums",
        (
            (
                "w < BLOCK_THREADS / 32; ++w)\n                total += shared[w * 64 + i];",
                "w < BLOCK_THREADS / 64; ++w)\n                total += shared[w * 64 + i];",
            ),
        ),
        "half of the warps' sums are left out",
        config=SMALL_STREAM,
        problems=STRIPS,
    ),
)

LINES = (
    Mutant(
        "line_of_the_row_above",
        "stream_k",
        "N, K or ld mixed up",
        (
            (
                "A + (size_t)row0 * lda;\n            const float* const b = B + min(",
                "A + (size_t)high * lda;\n            const float* const b = B + min(",
            ),
        ),
        "each line of the lower strip is of its first row of A",
        problems=THIN,
    ),
    Mutant(
        "line_of_the_first_column",
        "stream_k",
        "tail dropped",
        (
            (
                "N - right + (index - lower) / down;\n        float sum[32]",
                "N - right;\n        float sum[32]",
            ),
        ),
        "the second column of a right strip is the first again",
        problems=THIN,
    ),
    Mutant(
        "line_too_short",
        "stream_k",
        "tail dropped",
        (("across = (N - 1) / 32 + 1,", "across = N / 32,"),),
        "the last columns of the lower strip are left out",
        problems=THIN,
    ),
    Mutant(
        "line_without_the_rest_of_k",
        "stream_k",
        "K tail lost",
        (("                if (k0 + i < K) sum[i]", "                if (k0 + i + 1 < K) sum[i]"),),
        "the last step of the lines of a lower strip is left out",
        problems=THIN,
    ),
    Mutant(
        "line_past_the_last_row",
        "stream_k",
        "load guard dropped",
        (("a[(size_t)min(i, M - 1 - row0) * lda + k]", "a[(size_t)i * lda + k]"),),
        "rows of A past the last are read for a right strip",
        by_luck="what is read is not stored",
        problems=(Problem(40, 257, 9),),
    ),
    Mutant(
        "line_of_one_warp",
        "stream_k",
        "reduction before all partial sums",
        (("        __syncthreads();  // the sums of a line of all warps are there\n", ""),),
        "the sums of other warps are added before they are there",
        by_luck=IN_STEP,
        problems=THIN,
    ),
    Mutant(
        "line_sums_of_the_same_half",
        "stream_k",
        "wrong lane of an accumulator",
        (("upper ? sum[i] : sum[i + half], half);", "upper ? sum[i + half] : sum[i], half);"),),
        "a lane is given the half that it does not keep",
        problems=THIN,
    ),
)

ROWS = (
    Mutant(
        "rows_over_the_tiles",
        "stream_k",
        "barrier dropped",
        (("    __syncthreads();  // no thread still multiplies: the rows", "    // the rows"),),
        "rows of C are written where another warp still reads a tile",
        by_luck=IN_STEP,
        problems=UNALIGNED,
    ),
    Mutant(
        "rows_of_the_other_lanes",
        "stream_k",
        "wrong lane of an accumulator",
        (("staging[(i * LANES_M + r) * STAGING_STRIDE", "staging[(r * 2 + i) * STAGING_STRIDE"),),
        "rows of C are taken from shared memory in another order than they were put there",
        problems=UNALIGNED,
    ),
    Mutant(
        "rows_without_the_last_column",
        "stream_k",
        "tail dropped",
        (
            (
                "if (row >= M || col >= N) continue;\n                    float* const c",
                "if (row >= M || col + 1 >= N) continue;\n                    float* const c",
            ),
        ),
        "the last column is not stored",
        problems=UNALIGNED,
    ),
    Mutant(
        "rows_written_over",
        "stream_k",
        "__syncwarp dropped",
        (("        __syncwarp();  // no lane still reads what", "        // what"),),
        "the next rows of C come where lanes may still read the last",
        by_luck=IN_STEP,
        problems=UNALIGNED,
    ),
    Mutant(
        "rows_on_those_of_another_warp",
        "stream_k",
        "smem too small",
        (
            (
                "float* const staging = shared + warp * WARP_STAGING;",
                "float* const staging = shared + warp * (WARP_STAGING / 2);",
            ),
        ),
        "the rows of one warp lie on those of the next",
        problems=UNALIGNED,
    ),
    Mutant(
        "column_walks_twice",
        "stream_k",
        "N, K or ld mixed up",
        (("if (ADVANCE_B || i + 1 < COPIES) return;", "if (i + 1 < COPIES) return;"),),
        "pointers that have gone on by a tile's rows go on by a tile",
        problems=UNALIGNED,
    ),
)

VECTORS = (
    Mutant(
        "matrices_not_waited_for",
        "batched_vectors",
        "barrier dropped",
        (("        __syncthreads();  // the tiles are complete\n", ""),),
        "no barrier after the copies",
        by_luck=IN_STEP,
    ),
    Mutant(
        "matrices_in_flight",
        "batched_vectors",
        "cp.async wait one group short",
        (
            (
                "        cp_async_wait<0>();\n        __syncthreads();  // the tiles",
                "        cp_async_wait<1>();\n        __syncthreads();  // the tiles",
            ),
        ),
        "the copies are not waited for",
        by_luck=EARLY,
    ),
    Mutant(
        "first_halves_in_flight",
        "batched_vectors",
        "cp.async wait one group short",
        (("        cp_async_wait<1>();\n", "        cp_async_wait<2>();\n"),),
        "the first half of K is not waited for",
        by_luck=EARLY,
        config=LARGE_BATCHED,
        problems=(Problem(64, 64, 64),),
    ),
    Mutant(
        "second_halves_of_others",
        "batched_vectors",
        "barrier dropped",
        (("        __syncthreads();  // the second ones are\n", ""),),
        "a thread waits for its own copies of the second half only",
        by_luck=IN_STEP,
        config=LARGE_BATCHED,
        problems=(Problem(64, 64, 64),),
    ),
    Mutant(
        "half_of_the_edge",
        "batched_vectors",
        "load guard wrong",
        (("exists ? K - k0 - half : 0);", "exists ? K - k0 : 0);"),),
        "the second half of a ragged tile goes past the end of K",
        config=LARGE_BATCHED,
        problems=(Problem(67, 69, 70, alpha=-1, beta=1, batch=2),),
    ),
    Mutant(
        "matrices_past_the_last",
        "batched_vectors",
        "batch wrong",
        (("const bool exists = first + which < batch;", "const bool exists = first + which <= batch;"),),
        "a matrix past the last is copied",
        by_luck="what is copied is not stored",
    ),
    Mutant(
        "vectors_by_rows_of_the_other",
        "batched_vectors",
        "misaligned vector",
        (("rows_aligned(B, ldB) && strideB", "rows_aligned(B, ldA) && strideB"),),
        "float4s of B where rows of A are aligned",
        problems=(Problem(8, 6, 8, lda=8, ldb=7, ldc=8),),
    ),
)

MUTANTS = (*LOOPS, *SHARES, *EDGES, *LINES, *ROWS, *VECTORS)

"""Mistakes in what happens before what: barriers, pipelines of tiles, threads of a warp, blocks of a grid."""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant

FIRST_BARRIER = "        __syncthreads();  // the tiles are complete\n"
SECOND_BARRIER = "        __syncthreads();  // no thread still reads what the next round overwrites\n"
WARP_BARRIER = "        __syncthreads();  // no warp still reads what the next round overwrites\n"
PAIR_BARRIER = "        __syncthreads();  // the other pair is complete, and this one may be overwritten\n"

EARLY = "the copies are mostly there before they are waited for"
IN_STEP = "the warps of a block mostly run in step"
IN_LOCKSTEP = "the lanes of a warp run in step where nothing parts them"
# Several tiles, of some stages several blocks: enough for a race, which lockstep hides from the values.
FEW_TILES = (Problem(66, 70, 45, alpha=2, beta=1),)

_DROPPED = "barrier dropped"
BARRIERS = (
    Mutant(
        "first_barrier",
        "tiled",
        _DROPPED,
        ((FIRST_BARRIER, ""),),
        "no barrier after the tiles are stored",
        problems=FEW_TILES,
    ),
    Mutant(
        "register_barrier",
        "register",
        _DROPPED,
        ((FIRST_BARRIER, ""),),
        "no barrier after the tiles are stored",
        problems=FEW_TILES,
    ),
    Mutant(
        "wmma_barrier",
        "wmma",
        _DROPPED,
        ((FIRST_BARRIER, ""),),
        "no barrier after the tiles are stored",
        problems=FEW_TILES,
    ),
    Mutant(
        "vectorized_barrier",
        "vectorized",
        _DROPPED,
        ((FIRST_BARRIER, ""),),
        "no barrier after the tiles are stored",
        problems=FEW_TILES,
    ),
    Mutant(
        "second_barrier",
        "tiled_unrolled",
        _DROPPED,
        ((SECOND_BARRIER, ""),),
        "no barrier before the next tiles are stored",
        problems=FEW_TILES,
    ),
    Mutant(
        "rectangular_second_barrier",
        "rectangular",
        _DROPPED,
        ((SECOND_BARRIER, ""),),
        "no barrier before the next tiles are stored",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "prefetch_second_barrier",
        "prefetch",
        _DROPPED,
        ((SECOND_BARRIER, ""),),
        "no barrier before the next tiles are stored",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "wmma_second_barrier",
        "wmma",
        _DROPPED,
        ((WARP_BARRIER, ""),),
        "no barrier before the next tiles are stored",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "pair_barrier",
        "double_buffered",
        _DROPPED,
        ((PAIR_BARRIER, ""),),
        "no barrier between the two pairs of tiles",
        problems=FEW_TILES,
    ),
    Mutant(
        "before_the_loop",
        "double_buffered",
        _DROPPED,
        (("    stage(0);\n    __syncthreads();\n", "    stage(0);\n"),),
        "no barrier after the first pair of tiles",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "pipeline_barrier",
        "async_copy",
        _DROPPED,
        (("        __syncthreads();              // every", "        // every"),),
        "a thread waits for its own copies only",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "warp_tiled_barrier",
        "warp_tiled",
        _DROPPED,
        (("                __syncthreads();              // every", "                // every"),),
        "a thread waits for its own copies only",
        by_luck=IN_STEP,
        problems=FEW_TILES,
    ),
)

_PARITY = "wrong buffer parity"
_WAIT = "cp.async wait one group short"
PIPELINES = (
    Mutant(
        "parity",
        "double_buffered",
        _PARITY,
        (("if (more) stage(s ^ 1);", "if (more) stage(s);"),),
        "the next tiles go into the pair that is read",
    ),
    Mutant(
        "fragment_parity",
        "double_buffered",
        _PARITY,
        (("sum[m][n] += a[k % 2][m] * b[k % 2][n];", "sum[m][n] += a[k % 2][m] * b[(k + 1) % 2][n];"),),
        "the registers of B are those of the step after",
    ),
    Mutant(
        "stage_not_filled",
        "async_copy",
        _PARITY,
        (("copy_tiles(stage == 0 ? STAGES - 1 : stage - 1, ahead)", "copy_tiles(stage, ahead)"),),
        "copies go into the tiles that are read",
    ),
    Mutant(
        "write_one_behind",
        "warp_tiled",
        _PARITY,
        (("int read = 0, write = STAGES - 1;", "int read = 0, write = STAGES - 2;"),),
        "copies go into the tiles before those that are free",
    ),
    Mutant(
        "wait_short",
        "async_copy",
        _WAIT,
        (("        cp_async_wait<STAGES - 2>();  // this", "        cp_async_wait<STAGES - 1>();  // this"),),
        "one group more than allowed is in flight",
        by_luck=EARLY,
        problems=FEW_TILES,
    ),
    Mutant(
        "wait_missing",
        "warp_tiled",
        _WAIT,
        (("                cp_async_wait<STAGES - 2>();  // this", "                // this"),),
        "no wait in the loop",
        by_luck=EARLY,
        problems=FEW_TILES,
    ),
    Mutant(
        "first_wait_short",
        "warp_tiled",
        _WAIT,
        (("        cp_async_wait<STAGES - 2>();\n", "        cp_async_wait<STAGES - 1>();\n"),),
        "the first tiles may be in flight",
        by_luck=EARLY,
        problems=FEW_TILES,
    ),
    Mutant(
        "empty_group_left_out",
        "async_copy",
        _WAIT,
        (
            (
                "        if (ahead < K) copy_tiles(stage == 0 ? STAGES - 1 : stage - 1, ahead);\n"
                "        cp_async_commit();\n",
                "        if (ahead < K) {\n"
                "            copy_tiles(stage == 0 ? STAGES - 1 : stage - 1, ahead);\n"
                "            cp_async_commit();\n        }\n",
            ),
        ),
        "no group is committed where nothing is copied, and the last waits count one too few",
        by_luck=EARLY,
        problems=FEW_TILES,
    ),
)

_DIVERGENT = "barrier in divergent flow"
_SYNCWARP = "__syncwarp dropped"
FLOW = (
    Mutant(
        "early_return",
        "tiled",
        _DIVERGENT,
        (
            (
                "    float sum = 0.0f;\n",
                "    if (row >= M || col >= N) return;\n    float sum = 0.0f;\n",
            ),
        ),
        "threads past the edge return before the barriers",
    ),
    Mutant(
        "barrier_of_some_columns",
        "rectangular",
        _DIVERGENT,
        ((FIRST_BARRIER, "        if (block_col + tx < N) __syncthreads();\n"),),
        "a barrier for the threads within N only",
        by_luck="a barrier counts warps, and those that have no such thread may wait at the next one",
        problems=FEW_TILES,
    ),
    Mutant(
        "barrier_of_the_copying",
        "register",
        _DIVERGENT,
        (
            (
                "ldb + block_col + n] : 0.0f;\n        }\n" + FIRST_BARRIER,
                "ldb + block_col + n] : 0.0f;\n            if (inside) __syncthreads();\n        }\n",
            ),
        ),
        "a barrier within the loop of copies, which some threads leave early",
        by_luck="a barrier counts warps, and those that have no such thread may wait at the next one",
        problems=FEW_TILES,
    ),
    Mutant(
        "barrier_of_some_warps",
        "wmma",
        _DIVERGENT,
        ((WARP_BARRIER, "        if (block_row + warp_row < M) __syncthreads();\n"),),
        "a barrier for the warps within M only",
        by_luck="warps that skip a barrier meet the others one barrier later",
        problems=(Problem(37, 29, 45),),
    ),
    Mutant(
        "syncwarp_before_reading",
        "wmma",
        _SYNCWARP,
        (("            __syncwarp();\n", ""),),
        "lanes read the fragment that others store",
        by_luck=IN_LOCKSTEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "syncwarp_before_storing",
        "wmma",
        _SYNCWARP,
        (("            __syncwarp();  // the next fragment overwrites this one\n", ""),),
        "lanes store the next fragment while others read",
        by_luck=IN_LOCKSTEP,
        problems=FEW_TILES,
    ),
    Mutant(
        "hang",
        "naive",
        "endless loop",
        (("int k = 0; k < K; ++k", "volatile int k = 0; k < K;"),),
        "k never grows",
        config="block16x16",
        problems=(Problem(1, 1, 1),),
    ),
)

_BLOCKS = "global race by wrong block mapping"
BLOCKS = (
    Mutant(
        "overlapping_blocks",
        "naive",
        _BLOCKS,
        (("blockIdx.x * BLOCK_X", "blockIdx.x * (BLOCK_X - 1)"),),
        "the last column of a block is the first of the next",
        problems=(Problem(37, 29 + 32, 5),),
    ),
    Mutant(
        "blocks_of_a_full_band",
        "warp_tiled",
        _BLOCKS,
        (("in_band / rows * TILE_N", "in_band / band_rows * TILE_N"),),
        "columns of blocks counted as if every band were eight high",
        config="tile64x64x16-warp32x32-thread8x4-stages3",
    ),
    Mutant(
        "blocks_by_twos",
        "vectorized",
        _BLOCKS,
        (("block_row = blockIdx.y * TILE_M", "block_row = blockIdx.y / 2 * TILE_M"),),
        "two blocks, one below the other, make the same tile",
        config="tile64x64x8-thread8x8-pad4",
    ),
)

MUTANTS = (*BARRIERS, *PIPELINES, *FLOW, *BLOCKS)

"""Mistakes in kernels of ldmatrix and mma.sync: swizzles, fragments, copies ahead, sums of three products."""

from __future__ import annotations

from functools import partial

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant
from tests.mutants.order import EARLY, IN_LOCKSTEP, IN_STEP

# Several tiles along K, and a whole one; enough for a race, which lockstep hides from the values.
DEEP = (Problem(66, 70, 150, alpha=2, beta=1),)
WHOLE = (Problem(64, 64, 160),)

_Mma = partial(Mutant, kernel="mma_sync", config="tile64x64x32-warp32x32-stages3")
_Tf32 = partial(_Mma, dtype="tf32")
_X3 = partial(Mutant, kernel="tf32x3", config="tile64x64x32-warp32x32-stages3-promote2")

_SWIZZLE = "swizzle wrong"
_FRAGMENT = "wrong lane of a fragment"
LAYOUTS = (
    _Mma(
        name="swizzle_no_bijection",
        kind=_SWIZZLE,
        edits=(("(chunk ^ (row / rows * XOR_STEP & mask))", "(chunk | (row / rows * XOR_STEP & mask))"),),
        about="two chunks of a row lie at one place",
    ),
    _Tf32(
        name="swizzle_of_one_side",
        kind=_SWIZZLE,
        edits=(
            (
                "smem_b_offset(lane % 4, chunk + i * 2 + lane / 8)",
                "smem_b_offset(0, chunk + i * 2 + lane / 8) + lane % 4 * B_CHUNKS * 16",
            ),
        ),
        about="B is stored with an XOR and read without",
    ),
    _Mma(
        name="ldmatrix_row_of_another",
        kind=_FRAGMENT,
        edits=(("smem_a_offset(coord.warp_row + lane % 16,", "smem_a_offset(coord.warp_row + lane % 8,"),),
        about="the rows of the second matrix of A are those of the first",
    ),
    _Mma(
        name="ldmatrix_chunk_of_another",
        kind=_FRAGMENT,
        edits=(("coord.warp_row + lane % 16, i * 2 + lane / 16)", "coord.warp_row + lane % 16, i * 2)"),),
        about="the third matrix of A is the first again",
    ),
    _Mma(
        name="trans_missing",
        kind=_FRAGMENT,
        edits=(("ldmatrix_x4_trans(regs,", "ldmatrix_x4(regs,"),),
        about="the matrices of B are not transposed",
        dtype="bf16",
    ),
    _Tf32(
        name="column_of_another_lane",
        kind=_FRAGMENT,
        edits=(("+ lane / 4 % 2 * 8;", "+ lane % 2 * 8;"),),
        about="a lane loads the columns of B of its neighbour",
    ),
    _X3(
        name="wide_swizzle_of_one_side",
        kind=_SWIZZLE,
        edits=(
            (
                "smem_b_offset(lane % 4, coord.warp_col / VECTOR + lane / 4)",
                "smem_b_offset(0, coord.warp_col / VECTOR + lane / 4) + lane % 4 * B_CHUNKS * 16",
            ),
        ),
        about="B is stored with an XOR and read without, by 16 bytes",
    ),
    _X3(
        name="columns_of_another_quad",
        kind=_FRAGMENT,
        edits=(("f.a[n][k * 2], f.a[n][k * 2 + 1], f", "f.a[n][k], f.a[n][k + 2], f"),),
        about="of four columns two are taken for the next k of the first",
    ),
    _X3(
        name="sums_of_another_quad",
        kind=_FRAGMENT,
        edits=(("&right)[4] = accum[n + 1]", "&right)[4] = accum[n]"),),
        about="the third and fourth column of a lane's sums are the first and second again",
    ),
    _Mma(
        name="sums_of_another_lane",
        kind=_FRAGMENT,
        edits=(("(lane / 4 + half * 8) * STAGING_STRIDE", "(lane / 4 * 2 + half) * STAGING_STRIDE"),),
        about="rows i and i + 8 of the sums are taken for neighbours",
    ),
)

_PIPELINE = "wrong stage"
_WAIT = "cp.async wait one group short"
_DROPPED = "barrier dropped"
ORDER = (
    _Mma(
        name="mma_write_one_behind",
        kind=_PIPELINE,
        edits=(("b_to += delta;", "b_to += k0 < (STAGES - 1) * TILE_K ? delta : 0;"),),
        about="copies of B go into the tiles before those that are free",
        problems=WHOLE,
    ),
    _X3(
        name="fragments_of_this_step",
        kind=_PIPELINE,
        edits=(("load_fragments(fragments[(step + 1) % 2]", "load_fragments(fragments[step % 2]"),),
        about="the fragments of the next step take the place of this step's",
        problems=DEEP,
    ),
    _X3(
        name="fragments_past_the_last",
        kind=_PIPELINE,
        edits=(("const bool more = step < STEPS - 1 || k0 + TILE_K < K;", "const bool more = true;"),),
        about="fragments of a tile that nobody copied, or that sums overwrite",
        by_luck="nothing is multiplied by them",
        problems=(Problem(64, 64, 32), Problem(64, 64, 96)),
    ),
    _Mma(
        name="mma_wait_short",
        kind=_WAIT,
        edits=(
            ("                cp_async_wait<STAGES - 2>();", "                cp_async_wait<STAGES - 1>();"),
        ),
        about="one group more than allowed is in flight",
        by_luck=EARLY,
        problems=WHOLE,
    ),
    _X3(
        name="promise_of_others",
        kind=_DROPPED,
        edits=(("                __syncthreads();              // every", "                // every"),),
        about="a thread waits for its own copies only",
        by_luck=IN_STEP,
        problems=WHOLE,
    ),
    _Mma(
        name="sums_over_tiles",
        kind=_DROPPED,
        edits=(
            (
                "                __syncthreads();              // every",
                "                if (k0 + TILE_K < K) __syncthreads();  // every",
            ),
        ),
        about="no barrier after the last tile: sums overwrite what other warps still read",
        by_luck=IN_STEP,
        problems=WHOLE,
    ),
    _Mma(
        name="sums_read_at_once",
        kind="__syncwarp dropped",
        edits=(("        __syncwarp();\n        fixup", "        fixup"),),
        about="lanes read the sums that others store",
        by_luck=IN_LOCKSTEP,
        problems=WHOLE,
    ),
    _Mma(
        name="sums_overwritten",
        kind="__syncwarp dropped",
        edits=(("        __syncwarp();  // the next 16 rows overwrite these\n", ""),),
        about="the next rows are stored over those that others still read",
        by_luck=IN_LOCKSTEP,
        problems=WHOLE,
    ),
)

_EDGE = "edge of a tile"
EDGES = (
    _Mma(
        name="whole_by_a_alone",
        kind=_EDGE,
        edits=(
            (
                "return rows_aligned(A, lda) && rows_aligned(B, ldb) && coord",
                "return rows_aligned(A, lda) && coord",
            ),
        ),
        about="whole tiles are copied in vectors also where the rows of B are not aligned",
        problems=(Problem(64, 64, 64, ldb=67),),
    ),
    _Tf32(
        name="whole_along_k",
        kind=_EDGE,
        edits=((" && K % TILE_K == 0;", ";"),),
        about="the last tile along K is copied as if it were whole",
    ),
    _Mma(
        name="second_half_first",
        kind="alignment",
        edits=(("<< 16 * (i % 2)", "<< 16 * (1 - i % 2)"),),
        about="where rows are not aligned, the halves of a word are exchanged",
    ),
    _Mma(
        name="alignment_of_a_alone",
        kind="alignment",
        edits=(
            (
                "aligned = rows_aligned(A, lda) && rows_aligned(B, ldb);",
                "aligned = rows_aligned(A, lda);",
            ),
        ),
        about="copies of 16 bytes also where the rows of B are not aligned",
    ),
)

_LOST = "part of a sum lost"
_PRECISION = "lower precision"
SUMS = (
    _Tf32(
        name="operand_not_rounded",
        kind=_PRECISION,
        edits=(("#define WORDS (MMA_TILES_N * 2 + MMA_TILES_M * 4)", "#define WORDS (MMA_TILES_N * 2)"),),
        about="B is cut to TF32 instead of rounded",
    ),
    _X3(
        name="small_part_left_out",
        kind=_PRECISION,
        edits=(("mma_m16n8(part[m][n], f.a[m], small_b[n]);", ";"),),
        about="big times small is left out",
    ),
    _X3(
        name="small_of_another_row",
        kind=_PRECISION,
        edits=(("split_tf32(f.a[m][i], small_a[i]);", "split_tf32(f.a[m][i], small_a[i ^ 1]);"),),
        about="the small parts of a register are those of its neighbour",
    ),
    _X3(
        name="promotion_lost",
        kind=_LOST,
        edits=(("    promote();\n\n    bool any_nan", "    bool any_nan"),),
        about="the sums of the last tiles are taken for all",
        problems=DEEP,
    ),
    _X3(
        name="promoted_twice",
        kind=_LOST,
        edits=(("            from = 0.0f;\n", ""),),
        about="sums are not cleared after they were promoted",
        problems=DEEP,
    ),
    _X3(
        name="infinity_minus_infinity",
        kind="NaN for infinity",
        edits=(("!(K < MIN_TERMS || isnan(value))", "!(K < MIN_TERMS)"),),
        about="infinity's small part makes NaN of it, which nobody mends",
        problems=WHOLE,
    ),
)

# Edges of every kind, and nothing but whole tiles.
_Right = partial(_Mma, wrong=False, problems=(Problem(66, 70, 45, alpha=2, beta=1), Problem(64, 128, 64)))
SPEED = (
    _Right(
        name="swizzle_left_out",
        kind="bank conflicts",
        edits=(("(chunk ^ (row / rows * XOR_STEP & mask))", "chunk"),),
        about="rows of a matrix lie in the same banks",
    ),
)

MUTANTS = (*LAYOUTS, *ORDER, *EDGES, *SUMS)

"""Mistakes at the edges: guards, zeros past them, the last tile of K, what nobody writes."""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant

LAST_LINE = "    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;\n"
NOT_STORED = "what is read past the edge goes only into sums that are not stored"
# An M, N and K that end within a tile, a vector and a fragment, with nothing past the rows to read.
TIGHT = (Problem(37, 29, 45),)
# Rows are aligned, and end within a vector: N of B, K of A.
WITHIN_A_VECTOR = (Problem(37, 30, 45, lda=48, ldb=32, ldc=32),)

_LOAD = "load guard dropped"
LOADS = (
    # Those of K, for what an M or N guard lets in goes only into sums that are not stored.
    Mutant(
        "k_guard_of_a",
        "tiled",
        _LOAD,
        (("row < M && k0 + tx < K", "row < M"),),
        "A is read past the end of its rows",
    ),
    Mutant(
        "k_guard_of_b",
        "tiled",
        _LOAD,
        (("k0 + ty < K && col < N", "col < N"),),
        "B is read past its last row",
    ),
    Mutant(
        "row_guard_of_a",
        "register",
        _LOAD,
        (("block_row + m < M && k0 + k < K", "k0 + k < K"),),
        "A is read past its last row",
        by_luck=NOT_STORED,
        problems=TIGHT,
    ),
    Mutant(
        "column_guard_of_b",
        "rectangular",
        _LOAD,
        (("k0 + k < K && block_col + n < N", "k0 + k < K"),),
        "B is read past the end of its rows",
        by_luck=NOT_STORED,
        problems=TIGHT,
    ),
    Mutant(
        "row_has_elements",
        "vectorized",
        _LOAD,
        (("row < M ? K : 0, a_aligned", "K, a_aligned"),),
        "rows of A past the last one are read as if they were there",
        by_luck=NOT_STORED,
        problems=TIGHT,
    ),
    Mutant(
        "vector_past_the_row",
        "prefetch",
        _LOAD,
        (("if (aligned && col + 4 <= width) return", "if (aligned && col < width) return"),),
        "a float4 is read where the row ends within it",
        problems=WITHIN_A_VECTOR,
    ),
    Mutant(
        "copy_past_the_row",
        "wmma",
        _LOAD,
        (("    if (aligned && count >= VECTOR) {", "    if (aligned && count > 0) {"),),
        "16 bytes are copied where the row ends within them",
        problems=WITHIN_A_VECTOR,
    ),
    Mutant(
        "row_guard_of_a_copy",
        "warp_tiled",
        _LOAD,
        (("k0 + a_k < K && block_row + a_row + i * A_ROW_STEP < M", "k0 + a_k < K"),),
        "A is copied past its last row",
        by_luck=NOT_STORED,
        problems=TIGHT,
    ),
)

_FILL = "zero fill missing"
FILLS = (
    Mutant(
        "zero_fill",
        "tiled",
        _FILL,
        (("k0 + tx] : 0.0f", "k0 + tx] : 1.0f"), ("ldb + col] : 0.0f", "ldb + col] : 1.0f")),
        "ones past the edges of both tiles",
    ),
    Mutant(
        "copy_without_zeros",
        "async_copy",
        _FILL,
        (
            (
                "            cp_async_4(shared + i, global + i);\n"
                "        else\n            shared[i] = 0.0f;\n",
                "            cp_async_4(shared + i, global + i);\n",
            ),
        ),
        "shared memory past the edge keeps what it held",
    ),
    Mutant(
        "b_without_zeros",
        "warp_tiled",
        _FILL,
        (
            (
                "                    cp_async_4(b_to + at + n, b_from + n);\n                else\n"
                "                    b_to[at + n] = 0.0f;\n",
                "                    cp_async_4(b_to + at + n, b_from + n);\n",
            ),
        ),
        "the tile of B past the edge keeps what it held",
        by_luck="A is zero there, and shared memory mostly holds numbers",
        problems=(Problem(37, 29, 13),),  # the last tile goes where none was before
    ),
    Mutant(
        "fragments_without_zeros",
        "wmma",
        _FILL,
        (
            (
                "        shared[i] = i < count ? global[i] : Element(0.0f);\n",
                "        if (i < count) shared[i] = global[i];\n",
            ),
        ),
        "shared memory past the edge keeps what it held",
    ),
)

_TAIL = "K tail lost"
TAILS = (
    Mutant(
        "k_tail",
        "tiled",
        _TAIL,
        (("k0 < K; k0 += TILE_SIZE", "k0 + TILE_SIZE <= K; k0 += TILE_SIZE"),),
        "the last tile is left out where K ends within it",
    ),
    Mutant(
        "k_cut_by_one", "naive", _TAIL, (("k < K; ++k", "k < K - 1; ++k"),), "the last product is left out"
    ),
    Mutant(
        "k_floored",
        "wmma",
        _TAIL,
        (("k0 < K; k0 += TILE_K", "k0 + TILE_K <= K; k0 += TILE_K"),),
        "the last tile is left out where K ends within it",
    ),
    Mutant(
        "tail_not_fetched",
        "prefetch",
        _TAIL,
        (("if (k0 + TILE_K < K) fetch(", "if (k0 + 2 * TILE_K <= K) fetch("),),
        "the last tiles are not read where K ends within them",
    ),
    Mutant(
        "tail_not_copied",
        "async_copy",
        _TAIL,
        (("if (ahead < K) copy_tiles", "if (ahead + TILE_K <= K) copy_tiles"),),
        "the last tiles are not copied where K ends within them",
    ),
)

_STORE = "store guard wrong"
STORES = (
    Mutant(
        "store_guard",
        "naive",
        _STORE,
        (("if (row >= M || col >= N)", "if (row >= M)"),),
        "no guard of the columns",
    ),
    Mutant(
        "one_row_too_far",
        "naive",
        _STORE,
        (("if (row >= M || col >= N)", "if (row > M || col >= N)"),),
        "a row too many",
    ),
    Mutant(
        "one_column_too_far",
        "register",
        _STORE,
        (("row >= M || col >= N", "row >= M || col > N"),),
        "a column too many",
    ),
    Mutant(
        "one_column_of_fragments_too_far",
        "wmma",
        _STORE,
        (("row >= M || col >= N", "row >= M || col > N"),),
        "a column too many",
    ),
    Mutant(
        "one_of_a_column_too_far",
        "rectangular",
        _STORE,
        (("        if (row >= M) return;", "        if (row > M) return;"),),
        "a row too many",
    ),
    Mutant(
        "tail_too_far",
        "vectorized",
        _STORE,
        (("        if (n < count) c[n] = v[n];", "        if (n <= count) c[n] = v[n];"),),
        "an element too many where a row ends within a vector",
    ),
)

_SKIPPED, _STALE = "block skipped", "stale output"
OUTPUTS = (
    Mutant(
        "block_skipped",
        "prefetch",
        _SKIPPED,
        (
            (
                "    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};\n",
                "    float sum[THREAD_TILE_M][THREAD_TILE_N] = {};\n"
                "    if (blockIdx.x && blockIdx.x == gridDim.x - 1) return;\n",
            ),
        ),
        "the last block of a row does nothing",
    ),
    Mutant(
        "wrong_block",
        "warp_tiled",
        _SKIPPED,
        (("in_band % rows) * TILE_M", "in_band % band_rows) * TILE_M"),),
        "rows of blocks counted as if every band were eight high",
        config="tile64x64x16-warp32x32-thread8x4-stages3",
    ),
    Mutant(
        "last_rows_skipped",
        "async_copy",
        _SKIPPED,
        (("        if (row >= M) continue;", "        if (block_row + TILE_M > M) continue;"),),
        "a block stores nothing where M ends within it",
    ),
    Mutant(
        "does_nothing",
        "strided",
        _SKIPPED,
        (("    float sum = 0.0f;\n", "    return;\n    float sum = 0.0f;\n"),),
        "nothing is written at all",
    ),
    Mutant(
        "stale",
        "tiled",
        _STALE,
        ((LAST_LINE, "    if (*c != *c || beta != 0.0f)\n    " + LAST_LINE),),
        "C is written only where it holds NaN, or where beta is not 0",
    ),
    Mutant(
        "zeros_left_out",
        "strided",
        _STALE,
        ((LAST_LINE, "    if (sum != 0.0f || beta != 0.0f)\n    " + LAST_LINE),),
        "a sum of 0 is not written",
    ),
    Mutant(
        "small_changes_left_out",
        "wmma",
        _STALE,
        (
            (
                "                *c = beta == 0.0f ? value : value + beta * *c;\n",
                "                const float now = beta == 0.0f ? value : value + beta * *c;\n"
                "                if (!(fabsf(now - *c) <= 64.0f)) *c = now;\n",
            ),
        ),
        "C is not written where the value is close to what it held",
    ),
)

MUTANTS = (*LOADS, *FILLS, *TAILS, *STORES, *OUTPUTS)

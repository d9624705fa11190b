"""Mistakes in where things lie: rows and columns exchanged, leading dimensions, alignment, 32-bit indices."""

from __future__ import annotations

from gemm_regression.model import Problem
from gemm_regression.project.suites import SPARSE
from tests.mutants.mutant import Mutant

_LD = "N, K or ld mixed up"
DIMENSIONS = (
    Mutant(
        "ld_for_n", "naive", _LD, (("(size_t)k * ldb + col", "(size_t)k * N + col"),), "rows of B are N apart"
    ),
    Mutant("n_for_k", "naive", _LD, (("k < K; ++k", "k < N; ++k"),), "N products instead of K"),
    Mutant(
        "k_for_lda",
        "tiled",
        _LD,
        (("(size_t)row * lda + k0", "(size_t)row * K + k0"),),
        "rows of A are K apart",
    ),
    Mutant(
        "n_for_ldb",
        "tiled_unrolled",
        _LD,
        (("(size_t)TILE_SIZE * ldb", "(size_t)TILE_SIZE * N"),),
        "the step from tile to tile of B takes its rows as N apart",
    ),
    Mutant(
        "n_for_ldc",
        "register",
        _LD,
        (("&C[(size_t)row * ldc + col]", "&C[(size_t)row * N + col]"),),
        "rows of C are N apart",
    ),
    Mutant(
        "lda_for_ldb",
        "wmma",
        _LD,
        (("B + (size_t)(k0 + k) * ldb", "B + (size_t)(k0 + k) * lda"),),
        "rows of B are as far apart as those of A",
    ),
    Mutant(
        "n_and_k_exchanged",
        "async_copy",
        _LD,
        (("k < K ? N - col : 0", "k < N ? K - col : 0"),),
        "the guard of B takes N for K and K for N",
    ),
)

_TRANSPOSED = "index transposed"
TRANSPOSED = (
    Mutant(
        "transposed",
        "tiled_unrolled",
        _TRANSPOSED,
        (("As[ty][k] * Bs[k][tx]", "As[ty][k] * Bs[tx][k]"),),
        "the tile of B is read by columns",
    ),
    Mutant(
        "a_stored_transposed",
        "register",
        _TRANSPOSED,
        (("            As[m][k] = inside", "            As[k][m] = inside"),),
        "the tile of A is stored by columns",
    ),
    Mutant(
        "a_not_transposed",
        "warp_tiled",
        _TRANSPOSED,
        (("a_k * A_STRIDE + a_row;", "a_row * TILE_K + a_k;"),),
        "the copied A takes its rows for its columns",
    ),
)

_FRAGMENT = "fragment offset or layout wrong"
FRAGMENTS = (
    Mutant(
        "fragment_offset",
        "wmma",
        _FRAGMENT,
        (("warp_row + m * FRAGMENT) *", "warp_row + m * 8) *"),),
        "fragments of A begin 8 rows apart",
    ),
    Mutant(
        "fragment_of_k",
        "wmma",
        _FRAGMENT,
        (("* A_STRIDE + k], A_STRIDE", "* A_STRIDE], A_STRIDE"),),
        "every step takes the first fragment of A",
    ),
    Mutant(
        "fragment_layout",
        "wmma",
        _FRAGMENT,
        (
            (
                "FragmentA = wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT_K, Operand, "
                "wmma::row_major>",
                "FragmentA = wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT_K, Operand, "
                "wmma::col_major>",
            ),
        ),
        "A is loaded by columns",
    ),
    Mutant(
        "sums_layout",
        "wmma",
        _FRAGMENT,
        (("C_STRIDE, wmma::mem_row_major)", "C_STRIDE, wmma::mem_col_major)"),),
        "sums are stored by columns",
        dtype="tf32",
    ),
    Mutant(
        "fragment_stride",
        "wmma",
        _FRAGMENT,
        (("warp_col + n * FRAGMENT], B_STRIDE)", "warp_col + n * FRAGMENT], A_STRIDE)"),),
        "fragments of B are loaded with the stride of A",
        dtype="bf16",
    ),
)

_ALIGNED = "return reinterpret_cast<size_t>(p) % 16 == 0 && ld % vector == 0;"
_MISALIGNED = "misaligned vector"
ALIGNMENT = (
    Mutant(
        "ld_not_looked_at",
        "vectorized",
        _MISALIGNED,
        ((_ALIGNED, "return reinterpret_cast<size_t>(p) % 16 == 0;"),),
        "float4 for rows of any length",
        problems=(Problem(37, 29, 45),),
    ),
    Mutant(
        "even_is_not_enough",
        "double_buffered",
        _MISALIGNED,
        ((_ALIGNED, "return reinterpret_cast<size_t>(p) % 16 == 0 && ld % 2 == 0;"),),
        "float4 for rows of even length",
        problems=(Problem(5, 397, 83, alpha=2, lda=86, ldb=398, ldc=398),),
    ),
    Mutant(
        "copies_of_any_row",
        "async_copy",
        _MISALIGNED,
        ((_ALIGNED, "return reinterpret_cast<size_t>(p) % 16 == 0;"),),
        "cp.async of 16 bytes for rows of any length",
        problems=(Problem(37, 29, 45, lda=46, ldb=36, ldc=36),),
    ),
    Mutant(
        "four_halves",
        "wmma",
        _MISALIGNED,
        (("ld % vector == 0;", "ld % 4 == 0;"),),
        "16 bytes at once for rows of multiples of 4, whatever the type",
        problems=(Problem(37, 29, 45, lda=46, ldb=36, ldc=36),),
    ),
    Mutant(
        "shared_row",
        "prefetch",
        _MISALIGNED,
        (("As[TILE_K][TILE_M + PADDING];", "As[TILE_K][TILE_M + PADDING + 1];"),),
        "rows of the tile of A are one float longer",
        problems=(Problem(37, 29, 45, lda=46, ldb=36, ldc=36),),
    ),
)

_WRAPPED = "32-bit index"
WRAPPED = (
    Mutant(
        "index_of_b",
        "naive",
        _WRAPPED,
        (("(size_t)k * ldb + col", "k * ldb + col"),),
        "an index of B is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "index_of_a",
        "tiled",
        _WRAPPED,
        (("A[(size_t)row * lda + k0 + tx]", "A[row * lda + k0 + tx]"),),
        "an index of A is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "index_of_c",
        "register",
        _WRAPPED,
        (("&C[(size_t)row * ldc + col]", "&C[row * ldc + col]"),),
        "an index of C is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "row_of_b",
        "vectorized",
        _WRAPPED,
        (("B + (size_t)(k0 + k) * ldb;", "B + (k0 + k) * ldb;"),),
        "the start of a row of B is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "step_of_a",
        "warp_tiled",
        _WRAPPED,
        (("A + (size_t)(block_row + a_row) * lda + a_k", "A + (block_row + a_row) * lda + a_k"),),
        "the start of a thread's rows of A is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "index_of_fragments",
        "wmma",
        _WRAPPED,
        (("&C[(size_t)row * ldc + col]", "&C[row * ldc + col]"),),
        "an index of C is an int",
        problems=(SPARSE,),
    ),
    Mutant(
        "crash",
        "naive",
        "illegal address",
        (("(size_t)k * ldb + col", "(size_t)k * ldb + col + (1ll << 42)"),),
        "an index 2^42 too high",
    ),
)

MUTANTS = (*DIMENSIONS, *TRANSPOSED, *FRAGMENTS, *ALIGNMENT, *WRAPPED)

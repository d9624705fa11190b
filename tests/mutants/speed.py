"""Kernels that are correct but slower: only compiler metrics, counters or a clock show it."""

from __future__ import annotations

from functools import partial

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant

# Edges of every kind, and nothing but whole tiles.
_Right = partial(Mutant, wrong=False, problems=(Problem(66, 70, 45, alpha=2, beta=1), Problem(256, 128, 16)))

_UNCOALESCED = "uncoalesced access"
ACCESSES = (
    _Right(
        "columns_of_a",
        "tiled",
        _UNCOALESCED,
        (
            (
                "As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * lda + k0 + tx] : 0.0f;",
                "As[tx][ty] = row - ty + tx < M && k0 + ty < K ? "
                "A[(size_t)(row - ty + tx) * lda + k0 + ty] : 0.0f;",
            ),
        ),
        "neighbouring threads read A down a column, and store it by columns",
    ),
    _Right(
        "exchanged_threads",
        "naive",
        _UNCOALESCED,
        (
            ("blockIdx.y * BLOCK_Y + threadIdx.y", "blockIdx.y * BLOCK_Y + threadIdx.x"),
            ("blockIdx.x * BLOCK_X + threadIdx.x", "blockIdx.x * BLOCK_X + threadIdx.y"),
        ),
        "x walks down a column of C",
    ),
    _Right(
        "copies_down_a",
        "register",
        _UNCOALESCED,
        (("m = i / TILE_K, k = i % TILE_K;", "m = i % TILE_M, k = i / TILE_M;"),),
        "neighbouring threads copy A down a column",
    ),
    _Right(
        "copies_down_b",
        "rectangular",
        _UNCOALESCED,
        (("k = i / TILE_N, n = i % TILE_N;", "k = i % TILE_K, n = i / TILE_K;"),),
        "neighbouring threads copy B down a column",
    ),
    _Right(
        "vectors_down_a",
        "wmma",
        _UNCOALESCED,
        (
            (
                "m = i / (TILE_K / VECTOR), k = i % (TILE_K / VECTOR) * VECTOR,",
                "m = i % TILE_M, k = i / TILE_M * VECTOR,",
            ),
        ),
        "neighbouring threads copy 16 bytes each of rows below one another",
    ),
)

_PADDING = "padding changed"
PADDING = (
    _Right(
        "padding_added",
        "tiled",
        _PADDING,
        (("float As[TILE_SIZE][TILE_SIZE + PADDING];", "float As[TILE_SIZE][TILE_SIZE + PADDING + 1];"),),
        "rows of the tile of A are one float longer",
    ),
    _Right(
        "padding_lost",
        "vectorized",
        _PADDING,
        (("As[TILE_K][TILE_M + PADDING];", "As[TILE_K][TILE_M];"),),
        "the rows of the transposed A begin in the same bank",
    ),
    _Right(
        "padding_of_fragments_lost",
        "wmma",
        _PADDING,
        (("#define A_STRIDE (TILE_K + VECTOR)", "#define A_STRIDE TILE_K"),),
        "the rows of the tile of A begin in the same banks",
    ),
    _Right(
        "stride_without_padding",
        "warp_tiled",
        _PADDING,
        (("#define A_STRIDE (TILE_M + 4)", "#define A_STRIDE TILE_M"),),
        "the rows of the transposed A begin in the same bank",
    ),
)

_LOST = "unroll or vectorisation lost"
LOST = (
    _Right(
        "unroll_lost",
        "tiled_unrolled",
        _LOST,
        (
            (
                "#pragma unroll\n#endif\n        for (int k = 0; k < TILE_SIZE",
                "#pragma unroll 1\n#endif\n        for (int k = 0; k < TILE_SIZE",
            ),
        ),
        "the product of the tiles stays a loop",
    ),
    _Right(
        "scalar_stores",
        "vectorized",
        _LOST,
        (("if (aligned && count >= 4) {", "if (aligned && count >= 4 && count < 4) {"),),
        "C is stored a float at a time",
    ),
    _Right(
        "scalar_reads",
        "double_buffered",
        _LOST,
        (
            (
                "            *reinterpret_cast<float4*>(&a[into][m]) =\n"
                "                *reinterpret_cast<const float4*>(&As[s][k][m * THREADS_Y + ty * 4]);\n",
                "            for (int i = 0; i < 4; ++i)\n"
                "                a[into][m + i] = *const_cast<const volatile float*>("
                "&As[s][k][m * THREADS_Y + ty * 4 + i]);\n",
            ),
        ),
        "the registers of A are loaded a float at a time",
    ),
    _Right(
        "scalar_copies",
        "async_copy",
        _LOST,
        (("    if (aligned && count >= 4) return cp_async_16(shared, global);\n", ""),),
        "cp.async of 4 bytes only",
    ),
    _Right(
        "scalar_copies_of_halves",
        "wmma",
        _LOST,
        (
            (
                "    if (aligned && count >= VECTOR) {",
                "    if (aligned && count >= VECTOR && count < VECTOR) {",
            ),
        ),
        "the tiles are copied an element at a time",
    ),
)

_SPILLS = "spills introduced"
SPILLS = (
    _Right(
        "too_many_blocks",
        "register",
        _SPILLS,
        (("__launch_bounds__(THREADS)", "__launch_bounds__(THREADS, 4)"),),
        "four blocks of 256 threads to an SM leave 64 registers a thread",
    ),
    _Right(
        "too_few_registers",
        "warp_tiled",
        _SPILLS,
        (("__launch_bounds__(THREADS)", "__launch_bounds__(THREADS, 2)"),),
        "two blocks of 256 threads to an SM leave 128 registers a thread",
    ),
    _Right(
        "sums_in_memory",
        "vectorized",
        _SPILLS,
        (
            (
                "#pragma unroll\n    for (int m = 0; m < THREAD_TILE_M; ++m) {\n        const int row",
                "#pragma unroll 1\n    for (int m = 0; m < THREAD_TILE_M; ++m) {\n        const int row",
            ),
        ),
        "sums that are indexed at run time lie in local memory",
    ),
)

# The body of the main loop once more for one tile in 32, its sum kept alive but never used.
_EXTRA = """    float waste = 0.0f;
    for (int k0 = 0; k0 < K / 32; k0 += TILE_SIZE) {
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * ldb + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE_SIZE; ++k)
            waste += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    if (waste == 0.123456789f) sum += 1.0f;

"""
_STORE = "    if (row >= M || col >= N) return;\n    float* c = &C[(size_t)row * ldc + col];\n"
_TWICE = "work done twice"
TWICE = (
    _Right("slow_tiled", "tiled", _TWICE, ((_STORE, _EXTRA + _STORE),), "a tile in 32 twice"),
    _Right(
        "slow_naive",
        "naive",
        _TWICE,
        (
            (
                "    float* c = &C",
                "    float waste = 0.0f;\n    for (int k = 0; k < K / 32; ++k)\n"
                "        waste += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];\n"
                "    if (waste == 0.123456789f) sum += 1.0f;\n\n    float* c = &C",
            ),
        ),
        "an element in 32 twice",
    ),
)

MUTANTS = (*ACCESSES, *PADDING, *LOST, *SPILLS, *TWICE)

"""Planted slowdowns of the kernels whose loops lie in headers: those on tensor cores, lean_loop and stream_k.

Several are of one variant: measured each by itself; in a clone, the first of each is planted.
"""

from __future__ import annotations

from gemm_regression.model import Problem
from tests.slowdowns.slowdown import Slowdown

_512, _1024, _2048, _4096, _8192 = (Problem(n, n, n) for n in (512, 1024, 2048, 4096, 8192))
_4095, _LOW, _FLAT = Problem(4095, 4095, 4095), Problem(4096, 64, 4096), Problem(4096, 8192, 2048)
Edits = tuple[tuple[str, str], ...]

# What is done, by kernel where it differs

_SYNC = f"{'':16}__syncthreads();{'':14}//"
_ALL = "#ifndef BAND_ROWS\n#define BAND_ROWS 8\n"  # before it, what configs set can be set anew
_BARRIERS = {  # the line before, and what is added, once in so many tiles of K
    "wgmma": (
        "            warpgroup_wait<1>();  // those before these\n",
        '            if (k % {} == 0) asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");\n',
    ),
    "wgmma_tf32": (
        "                if (step == 0 && k > 0) release_stage(prev_stage);\n",
        "                if (step == 0 && k % {} == 0)\n"
        '                    asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory");\n',
    ),
    "mma_tma": (
        "        const bool more = tile + 1 < count;\n",
        "        if (tile % {} == 0) __syncthreads();\n",
    ),
    "mma": (
        f"{_SYNC} every thread's has; and all have read the last of these\n",
        "                if (k0 / TILE_K % {} == 0) __syncthreads();\n",
    ),
    "lean": (
        f"{_SYNC} every thread's has; and all have read the last of this one\n",
        "                if (tile % {} == 0) __syncthreads();\n",
    ),
}
_WHOLE = {  # where it is asked whether sums can be stored as whole vectors
    "wgmma": "    const bool whole = aligned && row0 + 16 <= M && col0 + TILE_N <= N;\n",
    "wgmma_tf32": "const bool whole = aligned && beta == 0.0f",
    "mma": "    const bool whole = aligned && row0 + WARP_TILE_M <= M && col0 + WARP_TILE_N <= N;\n",
}
_ELEMENTS = """    const bool aligned = rows_aligned(C, ldc);
#pragma unroll
    for (int m = 0; m < THREAD_TILE_M; ++m) {
        const int row = coord.block_row"""


def _barrier(kernel: str, rounds: int) -> tuple[str, Edits]:
    shared = {"mma_sync": "mma", "tf32x3": "mma", "stream_k": "lean", "lean_loop": "lean"}
    line, more = _BARRIERS[shared.get(kernel, kernel)]
    some = f"one of {rounds} tiles" if rounds > 1 else "each tile"
    return f"one barrier more for {some} of K", ((line, line + more.format(rounds)),)


def _set(what: str, was: int, now: int) -> tuple[str, Edits]:
    """A constant of the config."""
    about = f"{what} {now} in place of {was}"
    return about, ((_ALL, f"#undef {what}\n#define {what} {now}\n{_ALL}"),)


def _band(rows: int) -> tuple[str, Edits]:
    return f"bands of {rows} rows of tiles in place of 8", ((_ALL, _ALL.replace("8", str(rows))),)


def _edge(kernel: str) -> tuple[str, Edits]:
    line = _WHOLE.get(kernel, _WHOLE["mma"])
    about = "whole tiles are stored as those at the edge are"
    return about, ((line, line.replace("aligned &&", "aligned && M < 0 &&")),)


def _swap(about: str, old: str, new: str) -> tuple[str, Edits]:
    return about, ((old, new),)


def _made(
    name: str, kernel: str, dtype: str, config: str, problem: Problem, how: tuple[str, Edits]
) -> Slowdown:
    about, edits = how
    return Slowdown(name, kernel, about, config, problem, edits, dtype)


# wgmma

_STRIDE = "#define STAGING_STRIDE (STAGING_COLUMNS + 8)"
_DRAINED = _swap(
    "the products of a tile are waited for before those of the next are asked for",
    "            warpgroup_wait<1>();  // those before these\n",
    "            warpgroup_wait<0>();\n",
)
_W, _W128, _W64 = (
    "tile128x256-groups2-stages4-blocks132",
    "tile128x128-groups2-stages6-blocks132",
    "tile128x64-groups2-stages8-blocks132",
)


def _wgmma(name: str, dtype: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"wgmma_{name}", "wgmma", dtype, config, problem, how)


_WGMMA = (
    _wgmma("barriers", "f16", _W, _4096, _barrier("wgmma", 1)),
    _wgmma("few_barriers", "bf16", _W, _4096, _barrier("wgmma", 4)),
    _wgmma("barriers_64", "bf16", _W64, _1024, _barrier("wgmma", 2)),
    _wgmma(
        "banks",
        "f16",
        _W128,
        _2048,
        _swap("sums in shared memory closer together", _STRIDE, "#define STAGING_STRIDE STAGING_COLUMNS"),
    ),
    _wgmma(
        "some_banks",
        "bf16",
        _W128,
        _2048,
        _swap(
            "sums in shared memory closer together", _STRIDE, "#define STAGING_STRIDE (STAGING_COLUMNS + 4)"
        ),
    ),
    _wgmma("stages_64", "f16", _W64, _1024, _set("STAGES", 8, 5)),
    _wgmma("edge", "f16", _W, _2048, _edge("wgmma")),
    _wgmma("edge_128", "bf16", _W128, _2048, _edge("wgmma")),
    _wgmma("drained", "bf16", _W, _4096, _DRAINED),
    _wgmma("drained_128", "f16", _W128, _2048, _DRAINED),
    _wgmma("stages", "f16", _W, _4096, _set("STAGES", 4, 3)),
    _wgmma("band_2", "f16", _W, _8192, _band(2)),
    _wgmma("band_32", "bf16", _W, _8192, _band(32)),
)

# wgmma_tf32

_T, _T64 = "tile256x128-stages4-blocks132", "tile64x64-stages6-blocks264"
_FREE = "                warpgroup_wait<1>();  // those before these: their registers are free\n"
_RELEASE = "                if (step == 0 && k > 0) release_stage(prev_stage);\n"


def _tf32(name: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"wgmma_tf32_{name}", "wgmma_tf32", "tf32", config, problem, how)


_WGMMA_TF32 = (
    _tf32("barriers", _T, _4096, _barrier("wgmma_tf32", 1)),
    _tf32("barriers_64", _T64, _1024, _barrier("wgmma_tf32", 2)),
    _tf32("few_barriers", _T, _2048, _barrier("wgmma_tf32", 4)),
    _tf32("edge", _T, _4096, _edge("wgmma_tf32")),
    _tf32("stages", _T, _4096, _set("STAGES", 4, 3)),
    _tf32("stages_64", _T64, _512, _set("STAGES", 6, 3)),
    _tf32(
        "late",
        _T,
        _4096,
        _swap("a stage is free two steps later", _RELEASE, _RELEASE.replace("== 0", "== 2")),
    ),
    _tf32(
        "drained",
        _T,
        _2048,
        _swap(
            "the products of a tile's first step are waited for",
            _FREE,
            f"{'':16}if (step == 0)\n{'':20}warpgroup_wait<0>();\n{'':16}else\n    {_FREE}",
        ),
    ),
    _tf32("band_2", _T, _8192, _band(2)),
)

# mma_tma

_M, _M64 = "tile128x256-warp64x64-stages4", "tile128x64-warp32x32-stages4"
_TMA_STEP = "constexpr int TMA_STEP = sizeof(Element) == 4 ? STEPS - 2 : STEPS - 1;"
_OTHER_STEP = _swap(
    "copies are asked for in another step",
    _TMA_STEP,
    "constexpr int TMA_STEP = sizeof(Element) == 4 ? STEPS - 1 : STEPS - 2;",
)
_EARLY = (
    "            if (step == STEPS - 2)  // an early test, whose answer comes while this step multiplies\n"
)


def _tma(name: str, dtype: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"mma_tma_{name}", "mma_tma", dtype, config, problem, how)


_MMA_TMA = (
    _tma("asking", "f16", _M, _4096, _OTHER_STEP),
    _tma("asking_tf32", "tf32", _M, _4096, _OTHER_STEP),
    _tma(
        "no_look",
        "bf16",
        _M,
        _4096,
        _swap("no early look at the next tile's mbarrier", _EARLY, _EARLY.replace("STEPS - 2", "-1")),
    ),
    _tma("barriers_64", "f16", _M64, _1024, _barrier("mma_tma", 4)),
    _tma("stages_64", "bf16", _M64, _1024, _set("STAGES", 4, 3)),
    _tma(
        "one_asks",
        "tf32",
        _M64,
        _1024,
        _swap(
            "one warp asks for all copies",
            "if (warp == tile % WARPS && elect_one_sync())",
            "if (warp == 0 && elect_one_sync())",
        ),
    ),
    _tma("barriers", "f16", _M, _2048, _barrier("mma_tma", 2)),
    _tma("few_barriers", "tf32", _M, _2048, _barrier("mma_tma", 8)),
    _tma("edge", "bf16", _M, _2048, _edge("mma_tma")),
    _tma("stages", "f16", _M, _4096, _set("STAGES", 4, 3)),
    _tma("band_2", "bf16", _M, _8192, _band(2)),
)

# mma_sync and tf32x3

_S, _S256, _S64 = (
    "tile256x128x32-warp64x64-stages4",
    "tile128x256x32-warp64x64-stages4",
    "tile64x64x32-warp32x32-stages3",
)
_GUARDED = _swap(
    "whole tiles are copied as those at the edge are",
    "    if (is_full_tile(M, N, K, A, lda, B, ldb, coord))\n",
    "    if (M < 0 && is_full_tile(M, N, K, A, lda, B, ldb, coord))\n",
)
_TO_NEAREST = '    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(x) : "f"(__uint_as_float(x)));\n'
_SPREAD = "            if (step < STEPS - 1) copy_tiles(k0 + (STAGES - 1) * TILE_K, step, STEPS - 1);\n"
_SUMS = "#define STAGING_STRIDE (WARP_TILE_N + VECTOR)\n"


def _sync(name: str, dtype: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"mma_sync_{name}", "mma_sync", dtype, config, problem, how)


_MMA_SYNC = (
    _sync("barriers", "f16", _S, _4096, _barrier("mma_sync", 2)),
    _sync("few_barriers", "bf16", _S, _4096, _barrier("mma_sync", 8)),
    _sync("barriers_tf32", "tf32", _S, _4096, _barrier("mma_sync", 4)),
    _sync("barriers_64", "f16", _S64, _1024, _barrier("mma_sync", 4)),
    _sync("edge", "f16", _S256, _4096, _edge("mma_sync")),
    _sync("stages_64", "bf16", _S64, _1024, _set("STAGES", 3, 2)),
    _sync(
        "ties",
        "tf32",
        _S64,
        _4096,
        _swap("rounded with ties away from zero", _TO_NEAREST, _TO_NEAREST.replace("rn", "rna")),
    ),
    _sync("guarded", "tf32", _S, _2048, _GUARDED),
    _sync(
        "at_once",
        "tf32",
        _S64,
        _1024,
        _swap(
            "a tile is copied in one step",
            _SPREAD,
            "            if (step == 0) copy_tiles(k0 + (STAGES - 1) * TILE_K, 0, 1);\n",
        ),
    ),
    _sync(
        "banks",
        "bf16",
        _S256,
        _4096,
        _swap("sums in shared memory closer together", _SUMS, "#define STAGING_STRIDE WARP_TILE_N\n"),
    ),
    _sync("stages", "f16", _S, _2048, _set("STAGES", 4, 3)),
    _sync("band_2", "f16", _S, _8192, _band(2)),
)

_X, _X64, _X128 = (
    "tile128x64x32-warp64x32-stages4-promote8",
    "tile64x64x32-warp32x32-stages3-promote2",
    "tile128x128x32-warp64x32-stages4-promote8",
)


def _x3(name: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"tf32x3_{name}", "tf32x3", "f32", config, problem, how)


_TF32X3 = (
    _x3("promote_6", _X, _4096, _set("PROMOTE", 8, 6)),
    _x3("promote_4", _X128, _4096, _set("PROMOTE", 8, 4)),
    _x3("barriers_64", _X64, _4096, _barrier("tf32x3", 4)),
    _x3("promote_5", _X, _2048, _set("PROMOTE", 8, 5)),
    _x3("barriers", _X, _1024, _barrier("tf32x3", 2)),
    _x3("edge", _X64, _1024, _edge("tf32x3")),
    _x3("stages", _X, _4096, _set("STAGES", 4, 3)),
    _x3("band_2", _X, _8192, _band(2)),
)

# stream_k and lean_loop

_K, _K128 = (
    "tile128x256x8-warp64x64-thread16x8-stages3-slices1-blocks132",
    "tile128x128x8-warp64x64-thread16x8-stages4-slices1-blocks264",
)
_L = "tile128x256x8-warp64x64-thread16x8-stages3-slices1"
_L32, _L64 = (
    "tile32x64x32-warp32x64-thread8x8-stages4-slices4",
    "tile64x128x32-warp64x64-thread16x8-stages2-slices4",
)
_TO_AND_FRO = "const int n = m % 2 == 0 ? i : THREAD_TILE_N - 1 - i, product"
_FORTH = _swap(
    "one row in four of a thread tile back along the columns, not every other",
    _TO_AND_FRO,
    _TO_AND_FRO.replace("m % 2 == 0", "m % 4 != 3"),
)
_BY_ELEMENT = _swap(
    "C is stored element by element", _ELEMENTS, _ELEMENTS.replace("rows_aligned(C, ldc)", "M < 0")
)


def _stream(name: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"stream_k_{name}", "stream_k", "f32", config, problem, how)


def _lean(name: str, config: str, problem: Problem, how: tuple[str, Edits]) -> Slowdown:
    return _made(f"lean_loop_{name}", "lean_loop", "f32", config, problem, how)


_STREAM_K = (
    _stream("barriers", _K, _4096, _barrier("stream_k", 4)),
    _stream("barriers_128", _K128, _4095, _barrier("stream_k", 2)),
    _stream(
        "shared",
        _K,
        _2048,
        _swap(
            "one tile more per block is shared", "max(0, count / blocks - 1)", "max(0, count / blocks - 2)"
        ),
    ),
    _stream(
        "shared_4096",
        _K,
        _4096,
        _swap(
            "one tile more per block is shared", "max(0, count / blocks - 1)", "max(0, count / blocks - 2)"
        ),
    ),
    _stream(
        "groups",
        _K,
        _1024,
        _swap("blocks add up their sums in groups of two", "#define GROUP 8\n", "#define GROUP 2\n"),
    ),
    _stream(
        "late",
        _K,
        _FLAT,
        _swap(
            "copies begin two steps later",
            "constexpr int COPY_STEP = WIDE ? 2",
            "constexpr int COPY_STEP = WIDE ? 4",
        ),
    ),
    _stream("forth", _K, _4096, _FORTH),
    _stream("by_element", _K, _2048, _BY_ELEMENT),
)
_LEAN_LOOP = (
    _lean("barriers", _L, _4096, _barrier("lean_loop", 4)),
    _lean("barriers_64", _L64, _1024, _barrier("lean_loop", 1)),
    _lean("stages_32", _L32, _512, _set("STAGES", 4, 3)),
    _lean("few_barriers", _L, _2048, _barrier("lean_loop", 8)),
    _lean(
        "b_first",
        _L,
        _1024,
        _swap(
            "columns of B are loaded before rows of A",
            "constexpr bool A_BEFORE_B = WIDE;",
            "constexpr bool A_BEFORE_B = false;",
        ),
    ),
    _lean("low_barriers", _L, _LOW, _barrier("lean_loop", 4)),
    _lean("forth", _L, _4096, _FORTH),
    _lean("by_element", _L, _2048, _BY_ELEMENT),
    _lean("band_1", _L, _4096, _band(1)),
)

IN_LOOPS = (*_WGMMA, *_WGMMA_TF32, *_MMA_TMA, *_MMA_SYNC, *_TF32X3, *_STREAM_K, *_LEAN_LOOP)

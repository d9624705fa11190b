"""Where `nox -s tune` looks for configs: the axes of each kernel, and which combinations make sense.

The rules are those of the `static_assert`s in the `.cu` files, which have the last word, and bounds on what
is worth compiling.
"""

from __future__ import annotations

from dataclasses import replace

from gemm_regression.model import Rule, Space, Values


def _threads(v: Values) -> int:
    return v["TILE_M"] // v["THREAD_TILE_M"] * (v["TILE_N"] // v["THREAD_TILE_N"])


def _warps(v: Values) -> int:
    return v["TILE_M"] // v["WARP_TILE_M"] * (v["TILE_N"] // v["WARP_TILE_N"])


def _lanes(v: Values) -> tuple[int, int]:
    return v["WARP_TILE_M"] // v["THREAD_TILE_M"], v["WARP_TILE_N"] // v["THREAD_TILE_N"]


def _readers(v: Values) -> int:
    """Groups that multiply one tile."""
    return 1 if v["PINGPONG"] else v["GROUPS"]


_WHOLE_THREAD_TILES = Rule(
    "the tile is not made of whole thread tiles",
    lambda v: v["TILE_M"] % v["THREAD_TILE_M"] == 0 and v["TILE_N"] % v["THREAD_TILE_N"] == 0,
)
_FEW_WARPS = Rule("fewer than two warps or more than sixteen", lambda v: 64 <= _threads(v) <= 512)
_COVERED = Rule(
    "the threads do not cover a tile in whole steps of float4s",
    lambda v: (
        _threads(v) % (v["TILE_K"] // 4) == 0
        and _threads(v) % (v["TILE_N"] // 4) == 0
        and v["TILE_M"] % (_threads(v) // (v["TILE_K"] // 4)) == 0
        and v["TILE_K"] % (_threads(v) // (v["TILE_N"] // 4)) == 0
    ),
)

REGISTER = Space(
    axes={
        "TILE_M": (16, 32, 64, 128),
        "TILE_N": (32, 64, 128),
        "TILE_K": (8, 16, 32),
        "THREAD_TILE_M": (2, 4, 8, 16),
        "THREAD_TILE_N": (4, 8, 16),
        "PADDING": (0, 1, 4),
    },
    rules=(
        _WHOLE_THREAD_TILES,
        Rule("TILE_K 32 with more than 64 rows", lambda v: v["TILE_K"] < 32 or v["TILE_M"] <= 64),
    ),
)

PREFETCH = Space(
    axes={
        "TILE_M": (16, 32, 64, 128, 256),
        "TILE_N": (32, 64, 128, 256),
        "TILE_K": (8, 16, 32),
        "THREAD_TILE_M": (4, 8, 16),
        "THREAD_TILE_N": (4, 8, 16),
        "PADDING": (0, 4),
    },
    rules=(_WHOLE_THREAD_TILES, _FEW_WARPS, _COVERED),
)

_WHOLE_WARP_TILES = Rule(
    "the block tile is not made of whole warp tiles",
    lambda v: v["TILE_M"] % v["WARP_TILE_M"] == 0 and v["TILE_N"] % v["WARP_TILE_N"] == 0,
)
_THREAD_TILES_OF_WARPS = (
    _WHOLE_WARP_TILES,
    Rule("32 thread tiles do not make a warp tile", lambda v: _lanes(v)[0] * _lanes(v)[1] == 32),
    Rule("an odd number of thread tiles down a warp tile", lambda v: _lanes(v)[0] % 2 == 0),
)

WARP_TILED = Space(
    axes={
        "TILE_M": (64, 128, 256),
        "TILE_N": (64, 128, 256),
        "TILE_K": (8, 16),
        "WARP_TILE_M": (32, 64, 128),
        "WARP_TILE_N": (32, 64, 128),
        "THREAD_TILE_M": (4, 8, 16),
        "THREAD_TILE_N": (4, 8, 16),
        "STAGES": (2, 3, 4, 5),
        "BAND_ROWS": (2, 4, 8, 16),
    },
    rules=(
        *_THREAD_TILES_OF_WARPS,
        Rule("fewer than two warps or more than eight", lambda v: 2 <= _warps(v) <= 8),
        Rule(
            "the threads do not share the copies of a tile evenly",
            lambda v: v["TILE_K"] * v["TILE_N"] % (_warps(v) * 128) == 0,
        ),
    ),
    defaults={"BAND_ROWS": 8},
)

SPLIT_K = Space(
    axes={
        "TILE_M": (16, 32, 64, 128),
        "TILE_N": (32, 64, 128, 256),
        "TILE_K": (8, 16, 32),
        "THREAD_TILE_M": (4, 8),
        "THREAD_TILE_N": (4, 8),
        "SPLIT": (2, 4, 8, 16, 32, 64),
    },
    rules=(_WHOLE_THREAD_TILES, _FEW_WARPS, _COVERED),
)


def _lean_threads(v: Values) -> int:
    return _warps(v) * v["SLICES"] * 32


_LEAN_RULES = (
    *_THREAD_TILES_OF_WARPS,
    Rule("fewer than two warps or more than eight", lambda v: 64 <= _lean_threads(v) <= 256),
    Rule(
        "fewer than 8 steps along K per slice, or more: too short, or too long for the cache of instructions",
        lambda v: v["TILE_K"] == 8 * v["SLICES"],
    ),
    Rule(
        "the threads do not share the copies of a tile evenly",
        lambda v: (
            v["TILE_M"] * 8 % _lean_threads(v) == 0
            and v["TILE_K"] * v["TILE_N"] % (_lean_threads(v) * 4) == 0
            and _lean_threads(v) % (v["TILE_N"] // 4) == 0
            and (_lean_threads(v) % v["TILE_N"] == 0 or v["TILE_N"] % _lean_threads(v) == 0)
        ),
    ),
)
_LEAN_AXES = {
    "TILE_M": (32, 64, 128, 256),
    "TILE_N": (32, 64, 128, 256),
    "TILE_K": (8, 16, 32),
    "WARP_TILE_M": (32, 64, 128),
    "WARP_TILE_N": (32, 64, 128),
    "THREAD_TILE_M": (8, 16),
    "THREAD_TILE_N": (4, 8, 16),
    "STAGES": (2, 3, 4),
    "SLICES": (1, 2, 4),
    "BAND_ROWS": (4, 8, 16),
}

LEAN_LOOP = Space(axes=_LEAN_AXES, rules=_LEAN_RULES, defaults={"BAND_ROWS": 8})
# As many blocks as an H100 or H200 has SMs, and two per SM.
STREAM_K = Space(
    axes=_LEAN_AXES | {"BLOCKS": (132, 264), "GROUP": (4, 8, 16)},
    rules=_LEAN_RULES,
    defaults={"BAND_ROWS": 8, "GROUP": 8},
)
BATCHED_VECTORS = Space(
    axes={
        "TILE": (8, 16, 32, 64),
        "MATRICES": (1, 2, 4, 8, 16, 32),
        "THREAD_TILE_M": (2, 4, 8),
        "THREAD_TILE_N": (4, 8),
    },
    rules=(
        Rule(
            "a thread tile of 8 × 8 in a tile of less than 32",
            lambda v: v["TILE"] >= 32 or v["THREAD_TILE_M"] * v["THREAD_TILE_N"] < 64,
        ),
        Rule(
            "fewer than 32 threads or more than 512",
            lambda v: (
                32
                <= (v["TILE"] // v["THREAD_TILE_M"]) * (v["TILE"] // v["THREAD_TILE_N"]) * v["MATRICES"]
                <= 512
            ),
        ),
    ),
)

_WARP_TILES = (
    _WHOLE_WARP_TILES,
    Rule("fewer than four warps or more than sixteen", lambda v: 4 <= _warps(v) <= 16),
    Rule(
        "a warp of a block of more than eight warps has too many sums for its registers",
        lambda v: _warps(v) <= 8 or v["WARP_TILE_M"] * v["WARP_TILE_N"] <= 2048,
    ),
    Rule("fewer threads than columns: the swizzle does not repeat", lambda v: v["TILE_N"] <= 32 * _warps(v)),
)

_MMA_TILES = {
    "TILE_M": (64, 128, 256),
    "TILE_N": (64, 128, 256),
    "TILE_K": (16, 32, 64),
    "WARP_TILE_M": (32, 64),
    "WARP_TILE_N": (32, 64),
}

MMA_SYNC = Space(
    axes={
        **_MMA_TILES,
        "STAGES": (2, 3, 4, 5),
        "BAND_ROWS": (4, 8, 16),
    },
    rules=_WARP_TILES,
    defaults={"BAND_ROWS": 8},
)

MMA_TMA = Space(
    axes={
        **{name: values for name, values in _MMA_TILES.items() if name != "TILE_K"},
        "STAGES": (2, 3, 4, 5, 6),
        "BAND_ROWS": (4, 8, 16),
    },
    rules=_WARP_TILES,
    defaults={"BAND_ROWS": 8},
)

# As many blocks as an H100 or H200 has SMs, and two per SM.
WGMMA = Space(
    axes={
        "TILE_M": (64, 128, 256),
        "TILE_N": (64, 128, 256),
        "GROUPS": (1, 2),
        "STAGES": (3, 4, 5, 6, 8),
        "BLOCKS": (132, 264),
        "BAND_ROWS": (4, 8, 16),
        "PINGPONG": (0, 1),
    },
    rules=(
        Rule("groups take turns by two", lambda v: v["GROUPS"] == 2 or not v["PINGPONG"]),
        Rule("a group lacks 64 rows of the tile", lambda v: v["TILE_M"] % (64 * _readers(v)) == 0),
        Rule("more than 128 sums per thread", lambda v: v["TILE_M"] * v["TILE_N"] <= 128 * 128 * _readers(v)),
    ),
    defaults={"BAND_ROWS": 8, "PINGPONG": 0},
)

PACK = WGMMA

# Two groups take registers of the warpgroup that copies; three have 128 each.
WGMMA_BYTES = replace(
    WGMMA,
    axes={
        **WGMMA.axes,
        "TILE_M": (64, 128, 192, 256),
        "TILE_N": (64, 128, 176, 192, 256),
        "GROUPS": (1, 2, 3),
        "CLUSTER": (1, 2),
    },
    rules=(
        *WGMMA.rules[:-1],
        Rule(
            "more sums per thread than registers",
            lambda v: v["TILE_M"] * v["TILE_N"] <= 128 * (128, 192, 96)[v["GROUPS"] - 1] * _readers(v),
        ),
    ),
)

WGMMA = replace(
    WGMMA_BYTES,
    axes={**WGMMA_BYTES.axes, "TILE_N": (64, 128, 192, 256), "BAND_ROWS": (3, 4, 8, 12, 16)},
    defaults={**WGMMA.defaults, "CLUSTER": 1},
)

WGMMA_TF32 = Space(
    axes={
        "TILE_M": (64, 128, 200, 256),
        "TILE_N": (64, 128, 256),
        "STAGES": (3, 4, 5, 6, 8),
        "BLOCKS": (132, 264),
        "BAND_ROWS": (4, 8, 16),
    },
    rules=(Rule("more sums than registers", lambda v: v["TILE_N"] < 256 or v["TILE_M"] <= 200),),
    defaults={"BAND_ROWS": 4},
)

WGMMA_SPLIT_K = Space(
    axes={
        "TILE_M": (8, 16, 32, 64, 128, 256),
        "TILE_N": (64, 128, 256),
        "SPLIT": (1, 2, 4, 8),
        "STAGES": (3, 4, 5, 6, 8, 12, 16),
    },
    rules=(
        Rule("too many sums for the registers of all groups", lambda v: v["TILE_M"] * v["TILE_N"] <= 1 << 15),
    ),
)

TF32X3 = Space(
    axes={
        **_MMA_TILES,
        "STAGES": (2, 3, 4),
        "PROMOTE": (2, 4, 8, 16),
        "BAND_ROWS": (4, 8, 16),
    },
    rules=(
        *_WARP_TILES,
        Rule(
            "two sets of sums do not fit the registers", lambda v: v["WARP_TILE_M"] * v["WARP_TILE_N"] <= 2048
        ),
    ),
    defaults={"BAND_ROWS": 8},
)

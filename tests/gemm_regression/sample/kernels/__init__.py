"""Kernels of the tests' own, so that a stage of the ladder can be renamed or changed without them. Of those
that nobody compiles here only the declaration matters."""

from __future__ import annotations

from pathlib import Path

from gemm_regression.model import BF16, F16, F32, GEMM_BATCHED, TF32, BlockShape, Config, DType, Kernel
from gemm_regression.project.suites import ADVICE, SMOKE

FLOP_4096 = 2.0 * 4096**3


def _rows(config: Config, dtype: DType) -> BlockShape:
    x, y = config["BLOCK_X"], config["BLOCK_Y"]
    return BlockShape(threads=(x, y), tile=(y, x), thread_tile=(1, 1), shared_bytes=0)


def _square(config: Config, dtype: DType) -> BlockShape:
    size, padding = config["TILE_SIZE"], config["PADDING"]
    shared = 2 * size * (size + padding) * 4
    return BlockShape(threads=(size, size), tile=(size, size), thread_tile=(1, 1), shared_bytes=shared)


def _float4(config: Config, dtype: DType) -> BlockShape:
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    thread_m, thread_n, padding = config["THREAD_TILE_M"], config["THREAD_TILE_N"], config["PADDING"]
    return BlockShape(
        threads=(n // thread_n, m // thread_m),
        tile=(m, n),
        thread_tile=(thread_m, thread_n),
        whole_warps=True,
        shared_bytes=4 * k * (m + padding + n) * config.get("STAGES", 1),
        vectors=(("As", m + padding, 4), ("Bs", n, 4)),
    )


def _warps(config: Config, dtype: DType) -> BlockShape:
    m, n, k = config["TILE_M"], config["TILE_N"], config["TILE_K"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    return BlockShape(
        threads=(32 * warps, 1),
        tile=(m, n),
        thread_tile=(config["THREAD_TILE_M"], config["THREAD_TILE_N"]),
        shared_bytes=4 * k * (m + 4 + n) * config["STAGES"],
        dynamic=True,
    )


def _fragments(config: Config, dtype: DType) -> BlockShape:
    m, n = config["TILE_M"], config["TILE_N"]
    warps = (m // config["WARP_TILE_M"]) * (n // config["WARP_TILE_N"])
    return BlockShape(threads=(32, warps), tile=(m, n), whole_warps=True)


def _buffered(tile: int, depth: int, thread: int) -> Config:
    sizes = {"TILE_M": tile, "TILE_N": tile, "TILE_K": depth}
    return Config(**sizes, THREAD_TILE_M=thread, THREAD_TILE_N=thread, PADDING=4, STAGES=2)


_BLOCK = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 8}
_THREAD = {"THREAD_TILE_M": 8, "THREAD_TILE_N": 8}
KERNELS = (
    Kernel(
        name="naive",
        idea="one element of C per thread, coalesced",
        source=Path("naive.cu"),
        entry="gemm_naive",
        configs=(Config(BLOCK_X=32, BLOCK_Y=32), Config(BLOCK_X=16, BLOCK_Y=16)),
        shape=_rows,
        largest_timed=FLOP_4096,
    ),
    Kernel(
        name="tiled",
        idea="tiles of A and B in shared memory",
        source=Path("tiled.cu"),
        entry="gemm_tiled",
        configs=tuple(
            Config(TILE_SIZE=size, PADDING=padding) for size in (32, 16, 8, 64) for padding in (0, 1)
        ),
        shape=_square,
        advised=tuple(Config(TILE_SIZE=size, PADDING=0) for size in (32, 16, 8, 31, 36, 48, 96)),
    ),
    Kernel(
        name="double_buffered",
        idea="two tiles in shared memory",
        source=Path("tiled.cu"),
        entry="gemm_tiled",
        configs=(_buffered(128, 16, 8), _buffered(128, 8, 8), _buffered(64, 16, 4)),
        shape=_float4,
    ),
    Kernel(
        name="register",
        idea="a tile of C per thread",
        source=Path("tiled.cu"),
        entry="gemm_tiled",
        configs=tuple(Config(**_BLOCK, **_THREAD, PADDING=padding) for padding in (0, 1, 4)),
        shape=_float4,
    ),
    Kernel(
        name="warp_tiled",
        idea="block, warp and thread tiles",
        source=Path("tiled.cu"),
        entry="gemm_tiled",
        configs=(Config(**_BLOCK, WARP_TILE_M=64, WARP_TILE_N=32, **_THREAD, STAGES=3),),
        shape=_warps,
        min_capability=(8, 0),
    ),
    Kernel(
        name="wmma",
        idea="tensor cores",
        source=Path("tiled.cu"),
        entry="gemm_tiled",
        dtypes=(F16, BF16, TF32),
        configs=(
            Config(TILE_M=128, TILE_N=128, TILE_K=32, WARP_TILE_M=64, WARP_TILE_N=32),
            Config(TILE_M=64, TILE_N=64, TILE_K=32, WARP_TILE_M=32, WARP_TILE_N=32),
        ),
        shape=_fragments,
        min_capability=(8, 0),
        duty=0.25,
    ),
    Kernel(
        name="select",
        idea="for each problem what was measured fastest near it",
        source=None,
        entry="",
        is_dispatcher=True,
        operation=GEMM_BATCHED,
        dtypes=(F32, F16, BF16, TF32),
        shape=BlockShape((1, 1), (1, 1), shared_bytes=0),
    ),
    Kernel(
        name="cublas",
        idea="the reference",
        source=None,
        entry="",
        dtypes=(F32, F16, BF16, TF32),
        configs=(Config(),),
        shape=BlockShape((1, 1), (1, 1), shared_bytes=0),
        duty=0.25,
    ),
)
SUITES = (SMOKE, ADVICE)

"""Configs that tuning guides recommend, or warn of, by kernel: the suite ``advice`` runs them.

The tables that choose among them are in `harness/lab/advice/policies.py`. Some cannot run: then the rules of
legality say why, and that is their row. Configs that a stage has anyway are repeated here only where a guide
recommends them."""

from __future__ import annotations

from collections.abc import Mapping

from gemm_regression.model import Config


def _tile(m: int, n: int, k: int, thread_m: int, thread_n: int, **more: int) -> Config:
    return Config(TILE_M=m, TILE_N=n, TILE_K=k, THREAD_TILE_M=thread_m, THREAD_TILE_N=thread_n, **more)


def _warps(m: int, n: int, k: int, warp_m: int, warp_n: int) -> Config:
    return Config(TILE_M=m, TILE_N=n, TILE_K=k, WARP_TILE_M=warp_m, WARP_TILE_N=warp_n)


ADVISED: Mapping[str, tuple[Config, ...]] = {
    "naive": (
        # 32 to 1 024 threads, a warp along a row of C; 768 is the most an SM of 1 536 holds two of.
        *(Config(BLOCK_X=32, BLOCK_Y=y) for y in (1, 2, 4, 8, 16, 24, 32)),
        *(Config(BLOCK_X=x, BLOCK_Y=y) for x, y in ((16, 16), (8, 8), (128, 1), (256, 1))),
        *(Config(BLOCK_X=x, BLOCK_Y=y, ODD_BLOCK=1) for x, y in ((17, 15), (31, 1))),  # part of a warp idle
    ),
    # Above 32 a thread per element needs more than 1 024 threads.
    "tiled": tuple(Config(TILE_SIZE=size, PADDING=0) for size in (32, 16, 8, 31, 36, 48, 96)),
    "tiled_unrolled": tuple(Config(TILE_SIZE=32, PADDING=0, UNROLL=steps) for steps in (1, 2, 4, 8, 32)),
    "rectangular": (
        Config(TILE_M=64, TILE_N=64, TILE_K=8, THREAD_TILE_M=8),
        Config(TILE_M=36, TILE_N=36, TILE_K=36, THREAD_TILE_M=2),
    ),
    "register": (
        _tile(32, 32, 32, 2, 2, PADDING=0),  # 256 threads
        _tile(32, 32, 32, 2, 4, PADDING=0),  # 128
        _tile(32, 32, 32, 4, 4, PADDING=0),  # 64
        _tile(64, 64, 8, 4, 8, PADDING=0),  # 128
        _tile(64, 64, 64, 4, 8, PADDING=0),  # 128
        _tile(64, 64, 64, 8, 8, PADDING=0),  # 64
        _tile(128, 64, 8, 8, 4, PADDING=0),  # 256
        _tile(128, 128, 8, 8, 8, PADDING=0),  # 256
        *(_tile(128, 128, 8, 4, n, PADDING=0) for n in (8, 16)),  # 512 and 256
        # 48 and 96: 36, 64 or 144 threads and 256 or 576; square tiles of 96 and 128 exceed 48 KiB.
        *(_tile(48, 48, 48, t, t, PADDING=0) for t in (6, 4, 8)),
        *(_tile(96, 96, 16, t, t, PADDING=0) for t in (6, 4, 8)),
        _tile(96, 96, 96, 6, 6, PADDING=0),
        _tile(128, 128, 128, 8, 8, PADDING=0),
    ),
    "double_buffered": (
        _tile(64, 64, 16, 4, 4, PADDING=4, STAGES=2),
        _tile(32, 32, 32, 4, 4, PADDING=4, STAGES=2),
    ),
    "wmma": (
        _warps(128, 128, 32, 64, 64),
        _warps(128, 128, 32, 64, 32),
        _warps(64, 64, 32, 32, 32),
    ),
    "batched_small": (Config(TILE=8, MATRICES=1), Config(TILE=8, MATRICES=4)),
}

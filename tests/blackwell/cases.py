"""The launches of the kernels in this folder, with what they must leave: whole numbers, so to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import ptxsan
from tests.hopper.cases import Launch

HERE = Path(__file__).parent
ARCH = "sm_100a"
Array = np.ndarray[Any, np.dtype[Any]]


def numbers(*shape: int, dtype: Any = np.float16, low: int = -4, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, 5, shape).astype(dtype)


def gemm(*defines: str, m: int = 256, n: int = 128, k: int = 192) -> Launch:
    """The product by TMA and tcgen05.mma, with a warp for each."""
    a, b = numbers(m, k), numbers(n, k, seed=1)
    maps = [ptxsan.Tiled(each, (64, 64), 128) for each in (a, b)]
    arguments = (*maps, ptxsan.Empty((m, n)), *map(np.int32, (m, n, k)))
    want = {2: a.astype(np.float32) @ b.astype(np.float32).T}
    shared = 2 * 24 * 1024 + 6 * 8 + 16
    return Launch(str(HERE / "gemm.cu"), (n // 64,), 192, arguments, want, "gemm", shared, defines, ARCH)


def relay(*defines: str) -> Launch:
    """The product of A in tensor memory, added to C, which a copy brings there."""
    a, b, c = numbers(128, 32), numbers(64, 32, seed=1), numbers(128, 64, dtype=np.float32, seed=2)
    arguments = a, b, c, ptxsan.Empty((128, 64))
    want = {3: c + a.astype(np.float32) @ b.astype(np.float32).T}
    shared = 128 * 64 * 4 + 64 * 32 * 2 + 32
    return Launch(str(HERE / "relay.cu"), (1,), 128, arguments, want, "relay", shared, defines, ARCH)

"""Integers whose products FP32 adds up exactly, and a lower precision does not. Pure."""

from __future__ import annotations

import numpy as np

from gemm_regression.model import Array, DType


def odd(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: DType, most: int = 1 << 12) -> Array:
    """Odd integers of 13 bits, fewer where the dtype holds fewer, below 2 · ``most`` in any case."""
    half = min(1 << (min(13, dtype.integer_bits) - 1), most)
    return (2 * rng.integers(-half, half, shape) + 1).astype(np.float32)


def sparse(rng: np.random.Generator, shape: int | tuple[int, ...], density: float) -> Array:
    """Of {0, ±1}, so sparse that sums of odd integers times these stay below 2²⁴."""
    shares = [density / 2, 1 - density, density / 2]
    return rng.choice([-1.0, 0.0, 1.0], shape, p=shares).astype(np.float32)

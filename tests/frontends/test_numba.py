"""Kernels that Numba-CUDA compiles, for several architectures, against NumPy; planted mistakes are found at
the lines of the Python source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptxsan
from tests.frontends.rig import agree, changed, tells

pytest.importorskip("numba_cuda")

from tests.frontends import numba_kernels as kernels
from tests.frontends.numba_rig import compiled, run

FILE = "numba_kernels.py"
rng = np.random.default_rng(0)
x, y = rng.standard_normal((2, 1000)).astype(np.float32)
a, b = rng.standard_normal((40, 30)).astype(np.float32), rng.standard_normal((30, 50)).astype(np.float32)
whole = rng.integers(0, 16, 1000).astype(np.int32)
edge = np.pad(x, 1, "edge")
Empty = ptxsan.Empty


def noise(seeds: Any) -> Any:
    """Numba widens what is shifted to 64 bits."""
    number = seeds.astype(np.uint64)
    for _ in range(3):
        number = number ^ number << 13
        number = number ^ number >> 17
        number = number ^ number << 5
    return number.astype(np.uint32)


# A kernel, the grid, the block, its arguments, and what it leaves by the number of the argument.
LAUNCHES: dict[str, tuple[Any, ...]] = {
    "axpy": (8, 128, (np.float32(2), x, y, Empty((1000,))), {3: 2 * x + y}),
    "block_sum": (8, 128, (x, Empty((8,))), {1: np.pad(x, (0, 24)).reshape(8, 128).sum(1)}),
    "histogram": (2, 128, (whole, np.zeros(16, np.int32)), {1: np.bincount(whole, minlength=16)}),
    "matmul": ((4, 3), (16, 16), (a, b, Empty((40, 50))), {2: a @ b}),
    "warp_sum": (4, 128, (x[:512], Empty((16,))), {1: x[:512].reshape(16, 32).sum(1)}),
    "largest": (8, 128, (x, np.zeros(1, np.float32)), {1: [x.max()]}),
    "smooth": (8, 128, (x, Empty((1000,))), {1: (edge[:-2] + edge[1:-1] + edge[2:]) / 3}),
    "noise": (2, 64, (np.uint32(7), Empty((128,), np.uint32)), {1: noise(np.arange(7, 135))}),
}


@pytest.mark.parametrize("arch", [80, 90, 120])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel(name: str, arch: int) -> None:
    grid, block, arguments, want = LAUNCHES[name]
    text = compiled(getattr(kernels, name), arguments, arch)
    agree(run(text, grid, block, *arguments), want, 1e-5)


def test_an_array_of_structs() -> None:
    kind = np.dtype([("x", np.float32), ("speed", np.float32), ("steps", np.int32), ("of", np.int32)])
    particles = np.zeros(100, kind)
    particles["x"], particles["speed"] = x[:100], y[:100]
    text = compiled(kernels.move, (particles, np.float32(0.5)), 90)
    result = run(text, 1, 128, particles, np.float32(0.5))
    assert result.clean
    moved = result.arrays[0]
    np.testing.assert_allclose(moved["x"], x[:100] + y[:100] / 2, rtol=1e-6)
    assert set(moved["steps"]) == {1}


def test_two_kernels_of_one_module() -> None:
    """One after the other: what the first leaves is what the second gets."""
    grid, block, arguments, _ = LAUNCHES["axpy"]
    out = run(compiled(kernels.axpy, arguments, 90), grid, block, *arguments).arrays[3]
    given = (out, Empty((8,)))
    result = run(compiled(kernels.block_sum, given, 90), 8, 128, *given)
    agree(result, {1: np.pad(2 * x + y, (0, 24)).reshape(8, 128).sum(1)}, 1e-5)


def test_what_a_kernel_prints() -> None:
    """The format is in constant memory."""
    result = run(compiled(kernels.said, (x,), 90), 1, 64, x)
    agree(result, {0: x}, 0)
    assert result.printed == tuple(f"{i} {x[i]:f}\n" for i in range(2))


PLANTED = {
    "the barrier of the block's sum": ("block_sum", r"bar(rier)?\.sync", "", 0, "race", "cells[thread] += "),
    "the barrier of the histogram": (
        "histogram", r"bar(rier)?\.sync", "", -1, "race", "cuda.atomic.add(counts",
    ),
    "the barrier of matmul's loop": ("matmul", r"bar(rier)?\.sync", "", 0, "race", "total += left[y, k]"),
    "the offset of axpy's store": (
        "axpy", r"st\.global\.\w+ \t\[%rd\d+", r"\g<0>+4", 0, "bounds", "out[i] = a * x[i] + y[i]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake(name: str) -> None:
    of, instruction, into, which, check, source = PLANTED[name]
    grid, block, arguments, _ = LAUNCHES[of]
    text = changed(compiled(getattr(kernels, of), arguments, 90), instruction, into, which)
    tells(run(text, grid, block, *arguments), check, FILE, source)

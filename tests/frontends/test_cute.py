"""Kernels that the CuTe DSL compiles, for several architectures, against NumPy; planted mistakes are found at
the lines of the Python source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import Empty
from tests.frontends.rig import agree, changed, tells

pytest.importorskip("cutlass.cute")

from tests.frontends import cute_kernels as kernels
from tests.frontends.cute_rig import compiled, struct

FILE = "cute_kernels.py"
rng = np.random.default_rng(0)
x = rng.standard_normal(1000).astype(np.float32)
tile = rng.standard_normal((64, 96)).astype(np.float32)
a, b = rng.standard_normal((128, 96)).astype(np.float16), rng.standard_normal((64, 96)).astype(np.float16)
product = a.astype(np.float32) @ b.T.astype(np.float32)

# The grid, bytes of shared memory, the arguments, and what is left by the number of the argument.
LAUNCHES: dict[str, tuple[Any, ...]] = {
    "scale": (8, 0, (x, np.float32(3), Empty(1000)), {2: 3 * x}),
    "transpose": ((2, 3), 4 * 32 * 33, (tile, Empty((96, 64))), {1: tile.T}),
    "block_sum": (4, 16, (x[:512], Empty(4)), {1: x[:512].reshape(4, 128).sum(1)}),
    "gemm": ((2, 1), 4 * 64 * 40, (a, b, Empty((128, 64))), {2: product}),
}  # fmt: skip


def launched(text: str, name: str, arguments: Any) -> ptxsan.LaunchResult:
    grid, shared, _, _ = LAUNCHES[name]
    return ptxsan.run(text, grid=grid, block=128, arguments=arguments, shared=shared)


@pytest.mark.parametrize("arch", ["80", "90a", "120a"])
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel(name: str, arch: str, tmp_path: Path) -> None:
    _, _, arguments, want = LAUNCHES[name]
    text = compiled(getattr(kernels, name), arguments, arch, tmp_path)
    agree(launched(text, name, arguments), want, 1e-5)


@pytest.mark.parametrize("name", ["scale", "transpose"])
def test_a_kernel_for_any_shape(name: str, tmp_path: Path) -> None:
    """A tensor is a struct of its address, its shape and its strides."""
    _, _, arguments, want = LAUNCHES[name]
    text = compiled(getattr(kernels, name), arguments, "90a", tmp_path, dynamic=True)
    given = [struct(each) if isinstance(each, np.ndarray | Empty) else each for each in arguments]
    agree(launched(text, name, given), {(number, 0): values for number, values in want.items()}, 1e-5)


PLANTED = {
    "the barrier of the transpose": ("transpose", r"bar(rier)?\.sync", "", 0, "race", "target[at //"),
    "the barrier of the block's sum": ("block_sum", r"bar(rier)?\.sync", "", 0, "race", "total = parts[0]"),
    "the wait for gemm's copies": ("gemm", r"cp\.async\.wait_group", "", 0, "race", "mine_a.partition_S"),
    "the barrier at the end of gemm's loop": (
        "gemm", r"bar(rier)?\.sync", "", 1, "race", "cute.copy(copy, from_a[None",
    ),
    "the offset of scale's store": (
        "scale", r"st\.global\.\w+ \t\[%rd\d+", r"\g<0>+4", 0, "bounds", "y[i] = x[i] * factor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake(name: str, tmp_path: Path) -> None:
    of, instruction, into, which, check, source = PLANTED[name]
    arguments = LAUNCHES[of][2]
    text = compiled(getattr(kernels, of), arguments, "80", tmp_path)
    tells(launched(changed(text, instruction, into, which), of, arguments), check, FILE, source)

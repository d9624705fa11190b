"""Kernels that NVRTC compiles, by name expressions and with CUB, against NumPy; planted mistakes are found at
the lines of the source."""

from __future__ import annotations

import numpy as np
import pytest

import ptxsan
from ptxsan import Empty
from tests.frontends.rig import FOLDER, agree, changed, nvrtc_there, tells

if not nvrtc_there():
    pytest.skip("there is no NVRTC", allow_module_level=True)

from tests.frontends.nvrtc_rig import compiled

FILE, CUB = "nvrtc_kernels.cu", "cub_kernels.cu"
rng = np.random.default_rng(0)
x = rng.standard_normal(1024).astype(np.float32)
whole = rng.integers(-50, 50, 256).astype(np.int32)

architectures = pytest.mark.parametrize("arch", [80, 90, 120])


@architectures
def test_two_instances_of_a_template(arch: int) -> None:
    names = ["reverse<float, 128>", "reverse<double, 64>"]
    text, (of_floats, of_doubles) = compiled(FOLDER / FILE, arch, names)
    arguments = x, np.float32(2), Empty(1024), np.int32(1000)
    known = np.where(np.arange(1024) < 1000, x, 0)
    result = ptxsan.run(text, entry=of_floats, grid=8, block=128, arguments=arguments)
    agree(result, {2: 2 * known.reshape(8, 128)[:, ::-1].ravel()}, 0)
    wide = x.astype(np.float64), 2.0, Empty(1024, np.float64), 1024
    result = ptxsan.run(text, entry=of_doubles, grid=16, block=64, arguments=wide)
    agree(result, {2: 2 * x.reshape(16, 64)[:, ::-1].ravel()}, 0)


@architectures
def test_a_struct_with_a_pointer(arch: int) -> None:
    text, (entry,) = compiled(FOLDER / FILE, arch, ["sum<128>"])
    line = x[:1000], np.int32(1000), np.float64(0.5)
    result = ptxsan.run(text, entry=entry, grid=1, block=128, arguments=[line, np.zeros(1, np.float32)])
    agree(result, {1: [x[:1000].sum() / 2]}, 1e-5)


@architectures
def test_a_function_as_an_argument_of_a_template(arch: int) -> None:
    names = ["math::map<math::square>", "math::map<math::cube>"]
    text, entries = compiled(FOLDER / FILE, arch, names)
    for power, entry in enumerate(entries, 2):
        result = ptxsan.run(text, entry=entry, grid=8, block=128, arguments=[x, Empty(1024), 1000])
        assert result.clean
        np.testing.assert_allclose(result.arrays[1][:1000], x[:1000] ** power, rtol=1e-6)


@architectures
def test_blocks_of_cub(arch: int) -> None:
    text, (entry,) = compiled(FOLDER / CUB, arch, ["sums<128>"], include=True)
    out = [Empty(count, np.int32) for count in (2, 256, 512)]
    result = ptxsan.run(text, entry=entry, grid=2, block=128, arguments=[whole, *out])
    rows = whole.reshape(2, 128)
    both = np.sort(np.concatenate([rows, -rows], 1), 1)
    agree(result, {1: rows.sum(1), 2: rows.cumsum(1).ravel(), 3: both.ravel()}, 0)


def test_a_barrier_less() -> None:
    text, (entry,) = compiled(FOLDER / FILE, 80, ["reverse<float, 128>"])
    text = changed(text, r"bar(rier)?\.sync")
    result = ptxsan.run(text, entry=entry, grid=8, block=128, arguments=[x, 2.0, Empty(1024), 1000])
    tells(result, "race", FILE, "y[i] = a * cells")


def test_an_output_that_is_too_short() -> None:
    text, (entry,) = compiled(FOLDER / FILE, 80, ["math::map<math::cube>"])
    result = ptxsan.run(text, entry=entry, grid=8, block=128, arguments=[x, Empty(999), 1000])
    tells(result, "bounds", FILE, "y[i] = Function(x[i])")


def test_the_barrier_between_two_of_cub() -> None:
    text, (entry,) = compiled(FOLDER / CUB, 90, ["sums<128>"], include=True)
    text = changed(text, r"bar(rier)?\.sync", which=3)
    out = [Empty(count, np.int32) for count in (2, 256, 512)]
    result = ptxsan.run(text, entry=entry, grid=2, block=128, arguments=[whole, *out])
    tells(result, "race", CUB, "Scan(memory.scan)")  # between the scan and the sort, whose memory is the same

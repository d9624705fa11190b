"""Kernels of our own for compute capability 9.0: a GPU leaves the same bits as the emulated device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gemm_regression import oracle
from gemm_regression.model import E4M3_BF16, Case, Constraints, Problem
from tests.hopper import cases, gpu, textures
from tests.ladder import find_kernel

LAUNCHES = cases.everything()
TEXTURES = textures.everything()


def on_gpu(launch: cases.Launch) -> dict[int, cases.Array]:
    """The arrays as the GPU leaves them; skips without one of compute capability 9."""
    try:
        return gpu.run(launch)
    except LookupError as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_gpu_leaves_the_same_bits(name: str) -> None:
    launch = LAUNCHES[name]
    assert launch.right(on_gpu(launch))
    result = launch.emulate()
    assert result.clean, result.hazards
    assert launch.right(result.arrays)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TEXTURES)
def test_a_gpu_fetches_the_same(name: str) -> None:
    launch = TEXTURES[name]
    arrays, result = on_gpu(launch), launch.emulate()
    assert result.clean, result.hazards
    for number, array in result.arrays.items():
        mine, theirs = array.ravel(), arrays[number].ravel()
        wrong = np.flatnonzero(np.abs(mine.astype(np.float64) - theirs) > allowed(name, launch))
        assert not wrong.size, (
            f"{wrong.size} of {mine.size}, first {mine[wrong[0]]!r}, GPU {theirs[wrong[0]]!r}"
        )


def allowed(name: str, launch: cases.Launch) -> float:
    """Bits are the same, but for sums of linear filters: one unit in the last place of the largest texel, of
    three axes a 256th between texels, of 8 bits one step of 16."""
    if "linear" not in name:
        return 0.0
    texels = launch.arguments[0].array
    if name.startswith("octets"):
        return 1.01 / 32767
    return float(np.ptp(texels) / 256 if name.startswith("solid") else np.spacing(np.abs(texels).max()))


@pytest.mark.parametrize("name", TEXTURES)
def test_fetches_are_clean(name: str) -> None:
    """What a GPU is going to run."""
    result = TEXTURES[name].emulate()
    assert (result.hazards, result.notes) == ((), ())


@pytest.mark.gpu
@pytest.mark.parametrize("which", [1, 3], ids=["load", "store"])
@pytest.mark.parametrize("first", [1, 2, 3, 5, -1])
def test_a_gpu_refuses_a_box_within_16_bytes(which: int, first: int) -> None:
    _refused(which, (first, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("place", [(-4, 3), (4, -1)])
def test_a_gpu_refuses_to_store_before_the_first(place: tuple[int, int]) -> None:
    _refused(3, place)


def _refused(which: int, place: tuple[int, int]) -> None:
    """The GPU does, and so does the emulated device: tests/ptxsan/test_hopper_forms.py."""
    launch = cases.box("2d").given(which, np.array([*place, 0, 0, 0], np.int32).tobytes())
    assert not launch.emulate().clean
    with pytest.raises(RuntimeError, match="ILLEGAL_INSTRUCTION"):
        on_gpu(launch)


@pytest.mark.gpu
def test_a_gpu_stores_whole_16_bytes(device: Any) -> None:
    _stored_past_its_end(device)


def test_whole_16_bytes_are_stored(emulated: Any) -> None:
    _stored_past_its_end(emulated)


def _stored_past_its_end(device: Any) -> None:
    """A row of C of 18 bytes, that a tensor map stores: 14 bytes more are written, the tensor's or not."""
    kernel = find_kernel("wgmma_scaled")
    careless = replace(kernel, constraints=Constraints(multiples={"ldc": 8, "k": 128}))
    case = Case(careless, E4M3_BF16, kernel.configs[0], Problem(5, 9, 128, ldc=24, layout="NT"))
    (found,) = oracle.verify(device, case)
    assert (found.check, found.message.split(" [")[0]) == (
        "padding",
        "C(0, 9), past the end of its row, was written; 35 in total",
    )

"""Kernels of our own for compute capability 9.0: a GPU leaves the same bits as the emulated device."""

from __future__ import annotations

import pytest

from tests.hopper import cases, gpu

LAUNCHES = cases.everything()


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAUNCHES)
def test_a_gpu_leaves_the_same_bits(name: str) -> None:
    launch = LAUNCHES[name]
    try:
        arrays = gpu.run(launch)
    except LookupError as error:
        pytest.skip(str(error))
    assert launch.right(arrays)
    result = launch.emulate()
    assert result.clean, result.hazards
    assert launch.right(result.arrays)

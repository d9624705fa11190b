"""The emulated device gives the very bits that a GPU gave: FP32 kernels on real data."""

from __future__ import annotations

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case
from tests.outputs import binary, compared, output, recorded

RECORDED = recorded()


@pytest.fixture(scope="module")
def emulated(emulated: EmulatedDevice) -> EmulatedDevice:
    emulated.cubins = True  # as the check needs them
    return emulated


@pytest.mark.turns
@pytest.mark.skipif(
    not RECORDED["outputs"], reason="no outputs of a GPU are recorded: python -m tests.outputs"
)
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.id, marks=pytest.mark.xdist_group(c.variant)) for c in compared()]
)
def test_output_is_that_of_the_gpu_to_the_last_bit(case: Case, emulated: EmulatedDevice) -> None:
    want = RECORDED["outputs"].get(case.id)
    if not want:  # a new kernel or config: who adds it may have no such GPU
        pytest.skip(f"{case.id} was not recorded: python -m tests.outputs, on a {RECORDED['gpu']}")
    got = output(emulated, case)
    assert got["inputs"] == want["inputs"], "other random numbers than those of the recording"
    if got["output"] != want["output"] and binary(case) != RECORDED["binaries"].get(case.variant):
        pytest.skip(
            f"other bits than those of an earlier {case.kernel.name}: right where the check is green, "
            f"in another order of the sums; to record them: python -m tests.outputs, on a {RECORDED['gpu']}"
        )
    assert got["output"] == want["output"], (
        "the same binary as on the GPU, and other bits: the interpreter is wrong"
    )

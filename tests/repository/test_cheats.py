"""Kernels that seem faster than they are: what of them shows without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Config, Problem
from gemm_regression.oracle import make_inputs
from tests.cheats import CHEATS, case, kernel

SIZE = 32
# What the emulated device sees of one launch, by check; the others are right until they are timed.
SEEN = {number: {"state"} for number in (1, 2, 3, 4, 6, 11)} | {7: {"race", "uninit"}, 8: {"bounds"}}

pytestmark = pytest.mark.compile


def checks(of: Case) -> set[str]:
    inputs = make_inputs(of.kernel.operation, of.problem, of.dtype, "normal")
    outputs = EmulatedDevice("sm_90a", by_source=False).run(of, inputs)
    return {violation.check for violation in outputs.violations}


@pytest.mark.parametrize("number", [0, *CHEATS])
def test_what_a_cheat_leaves_for_its_next_launch_is_seen(number: int) -> None:
    found = checks(case(number, SIZE))
    assert found == SEEN.get(number, set())


def test_an_honest_kernel_that_counts_its_launches_is_not_blamed(tmp_path: Path) -> None:
    made = kernel(SIZE)
    assert made.source is not None
    text = made.source.read_text(encoding="utf-8")
    text = text.replace("#define TILE 16", "#define TILE 16\n__device__ unsigned counted;", 1)
    text = text.replace("    int depth = K;", "    int depth = K;\n    atomicAdd(&counted, 1u);", 1)
    assert text.count("counted") == 2
    source = tmp_path / "counts.cu"
    source.write_text(text, encoding="utf-8")
    config = Config(CHEAT=0, SIZE=SIZE)
    honest = Case(replace(made, source=source), made.dtypes[0], config, Problem(SIZE, SIZE, SIZE))
    assert checks(honest) == set()

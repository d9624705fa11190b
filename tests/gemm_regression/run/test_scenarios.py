"""What has gone wrong with gates like this one, each on a simulated GPU: red or green as it should be."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import append, current
from gemm_regression.model import Case, Kernel
from gemm_regression.run.creep import refresh
from gemm_regression.run.pairing import Pairing
from gemm_regression.timing.looks import SequentialTest
from tests.gemm_regression import synthetic
from tests.gemm_regression.scenarios import OTHER, OWN, World, cases_of, is_new, reasons, red
from tests.gemm_regression.simulated import SimulatedDevice

SIZES = (512, 1024, 2048, 4096)
CUDA = ("naive", "tiled", "register", "double_buffered")
TENSOR = ("wmma",)
ALL = cases_of((*CUDA, *TENSOR), SIZES)


def of_tensor_cores(of: Any) -> bool:
    return str(of if isinstance(of, str) else of.kernel.name) in TENSOR


def test_nothing_has_changed() -> None:
    for board in (OWN, OTHER):
        found, machine = World(ALL, board=board).run()
        assert reasons(found) == {"SAME_BINARY": len(ALL)}
        assert not machine.failed


@pytest.mark.parametrize(("longer", "board"), [(0.04, OWN), (0.25, OWN), (0.25, OTHER)])
def test_a_driver_or_a_clock_that_slows_the_same_binaries_of_tensor_cores(longer: float, board: str) -> None:
    found, machine = World(ALL, machine=lambda kernel: longer * of_tensor_cores(kernel), board=board).run()
    assert red(found) == []  # no code has changed
    assert machine.failed
    assert "wmma f16" in {f.subject for f in machine.findings}


@pytest.mark.parametrize("kernels", [TENSOR, (*CUDA, *TENSOR)])
def test_a_compiler_that_makes_kernels_slower(kernels: tuple[str, ...]) -> None:
    """The stored binaries are the old compiler's: nothing is rebuilt with today's."""

    def of_these(case: Case) -> bool:
        return case.kernel.name in kernels

    found, machine = World(ALL, lambda case: 0.02 * of_these(case), edited=of_these).run()
    assert {found[case].case.kernel.name for case in red(found)} == set(kernels)
    assert reasons(found)["SLOWER"] == 4 * len(kernels)
    assert not machine.failed


def test_another_board_on_which_memory_is_3_percent_slower_is_no_fault() -> None:
    slower = {"naive": 0.03, "wmma": 0.028}
    _, machine = World(ALL, machine=lambda kernel: slower.get(kernel, 0.0), board=OTHER).run()
    assert not machine.failed


def test_figures_that_were_timed_in_another_way_are_not_the_boards_own() -> None:
    world = World(ALL, machine=lambda kernel: 0.02)
    assert world.run()[1].failed
    world.timing = 1
    assert not world.run()[1].failed


def test_a_margin_raised_by_the_commit_that_makes_it_slower_hides_nothing() -> None:
    def raised(kernel: Kernel) -> Kernel:
        return dataclasses.replace(kernel, margin=0.02)

    cases = [dataclasses.replace(case, kernel=raised(case.kernel)) for case in cases_of(["tiled"], SIZES)]
    found, _ = World(cases, lambda case: 0.015, edited=lambda case: True).run()
    assert reasons(found) == {"SLOWER": 4}
    found, _ = World(cases, lambda case: 0.015, edited=lambda case: True, margins={"tiled": 0.02}).run()
    assert reasons(found) == {"NOT_SLOWER": 4}  # accepted with a refresh, and told in each verdict
    assert {r.verdict.margin for r in found.values()} == {0.02}


# Creep: 0.4 % a week


def week(root: Path, number: int, case: Case, accepting: dict[str, str] | None = None) -> tuple[bool, str]:
    """Refreshes after ``number`` weeks of 0.4 % each; whether it was stored, and why."""
    times = {n: 2e-4 * 1.004**n for n in range(60)}

    def seconds(side: Any) -> float:
        return times[number] if is_new(side) else times[int(side.cubin.decode().split()[-1])]

    device = SimulatedDevice(seconds, cubin=lambda c: f"{c.variant} week {number}".encode())
    binary = device.binary(case)
    assert binary is not None
    run = synthetic.five_runs([case], times[number], cubin=binary.sha256, day=number + 1)
    measured = synthetic.merged(root / f"week{number}", run)
    before = current(root, measured.slug)
    pairing = Pairing(device, SequentialTest(), 1, seed=number)
    made = refresh(device, root, measured, before, {case.id: case}, accepting or {}, pairing)
    if made.entries:
        append(root, dataclasses.replace(measured, entries=made.entries), {case.id: binary})
    return bool(made.entries), made.entries[case.id].accepted if made.entries else ""


def test_04_percent_a_week_is_refused_in_the_third(tmp_path: Path) -> None:
    case = synthetic.case()
    assert [week(tmp_path, n, case)[0] for n in range(3)] == [True, True, False]
    stored, reason = week(tmp_path, 2, case, {case.id: "correct for K above 65536 now"})
    assert (stored, reason) == (True, "correct for K above 65536 now")
    assert [week(tmp_path, n, case)[0] for n in (3, 4)] == [True, False]  # from the accepted one on

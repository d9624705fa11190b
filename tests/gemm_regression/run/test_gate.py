"""From a device's answers to a verdict and to what is recorded; and what has gone wrong with gates like this
one, each on a simulated GPU: red or green as it should be."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import BaselineEntry, append, current
from gemm_regression.devices import DeviceError
from gemm_regression.judge.evidence import again, conclude, recall
from gemm_regression.model import Case, Kernel
from gemm_regression.report.wording import message
from gemm_regression.run.creep import refresh
from gemm_regression.run.pairing import Pairing
from gemm_regression.run.timed import Board, TimedCase, extra_info
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import Measurement, Plan
from tests.gemm_regression import synthetic
from tests.gemm_regression.scenarios import OTHER, OWN, World, cases_of, is_new, reasons, red
from tests.gemm_regression.simulated import SimulatedDevice

CASE = synthetic.case()
BROKEN = DeviceError("ILLEGAL_ADDRESS", "an illegal memory access was encountered")


class Answers(SimulatedDevice):
    """A simulated GPU that answers so when a case is timed."""

    def __init__(self, answer: Measurement | Exception) -> None:
        super().__init__()
        self.answer = answer

    def time(self, case: Any, plan: Any) -> Measurement:
        self.asked.append((case.id, ()))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def judged(world: World) -> TimedCase:
    """The only case of a world; what its run's JSON has of it is judged the same, to the word."""
    found: list[TimedCase] = []
    board = Board(0, world.device, world.baseline, binary=lambda root, entry: world.stored(CASE))
    board.judge([CASE], found.append, world.policy, Plan())
    (result,) = found
    info = json.loads(json.dumps(extra_info(result)))
    evidence, policy = recall(info, result.measurement.seconds if result.measurement else ())
    assert (conclude(evidence, policy), policy) == (result.verdict, world.policy)
    assert message(CASE.id, result.verdict, evidence) == message(CASE.id, result.verdict, result.evidence)
    return result


def test_the_baselines_binary_is_timed_once_and_never_paired() -> None:
    device = Answers(synthetic.measurement(0.02))
    result = judged(World([CASE], device=device))
    assert (result.verdict.outcome, device.asked) == (("PASS", "SAME_BINARY"), [(CASE.id, ())])
    assert result.cublas_ratio == pytest.approx(0.5)


def test_another_binary_is_paired_and_not_timed_besides() -> None:
    device = Answers(AssertionError("timed"))
    result = judged(World([CASE], lambda case: 0.03, edited=lambda case: True, device=device))
    assert result.verdict.outcome == ("REGRESSED", "SLOWER")
    assert {name for name, _ in device.asked} == {CASE.id, f"{CASE.variant} stored"}
    assert result.measurement is not None
    assert result.measurement.median == pytest.approx(1.03 * 2e-4, rel=1e-3)
    assert result.verdict.gflops == pytest.approx(CASE.gflops(1.03 * 2e-4), rel=1e-3)
    assert result.verdict.change == pytest.approx(1 / 1.03 - 1, abs=1e-3)


class Moved(World):
    """The baseline launched the same binary in another way."""

    def entry(self, case: Case) -> BaselineEntry:
        return dataclasses.replace(super().entry(case), launch_id="e" * 16)


def test_another_launch_of_the_same_binary_is_a_change() -> None:
    assert judged(Moved([CASE])).verdict.outcome == ("PASS", "NOT_SLOWER")


def test_only_device_errors_are_verdicts() -> None:
    with pytest.raises(KeyError):
        judged(World([CASE], device=Answers(KeyError("a bug of the harness"))))


@pytest.mark.parametrize(
    ("measurement", "usable"),
    [
        (synthetic.measurement(), True),
        (synthetic.measurement(throttled=True), True),
        (synthetic.measurement(rounds=2), False),
        (synthetic.measurement(seconds=()), False),
        (synthetic.measurement(seconds=(0.0,) * 9), False),
        (synthetic.measurement(seconds=(float("nan"),) * 9), False),
    ],
    ids=["fine", "throttled", "two rounds", "no round", "zero", "nan"],
)
def test_only_usable_samples_have_a_ratio(measurement: Measurement, usable: bool) -> None:
    result = judged(World([CASE], device=Answers(measurement)))
    assert result.usable is usable
    assert (result.cublas_ratio is not None) is usable


def test_what_is_recorded_beside_the_samples() -> None:
    info = extra_info(judged(World([CASE], lambda case: 0.03, edited=lambda case: True)))
    said = {"case": CASE.id, "verdict": "REGRESSED", "verdict_reason": "SLOWER", "red": True, "margin": 0.005}
    assert info.items() >= said.items()
    assert info["gflops"] == pytest.approx(CASE.gflops(info["median_s"]))
    altered = json.loads(json.dumps(info))
    altered["evidence"]["paired"]["second"] = [0.0] * 12
    assert again(altered, (1e-3,) * 9)[0].outcome == ("PASS", "NOT_SLOWER")
    broken = extra_info(judged(World([CASE], device=Answers(BROKEN))))
    assert (broken["verdict"], broken["red"], broken["seconds"]) == ("CRASHED", True, [])


# What has gone wrong with gates like this one


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
    assert binary
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

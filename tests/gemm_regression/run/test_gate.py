"""From a device's answers to a verdict, and device samples through pytest-benchmark's own recording."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gemm_regression.baselines import BaselineEntry
from gemm_regression.devices import DeviceError
from gemm_regression.judge.evidence import again, conclude, recall
from gemm_regression.model import Case
from gemm_regression.report.wording import message
from gemm_regression.run.timed import Board, TimedCase, extra_info
from gemm_regression.timing.plan import Measurement, Plan
from tests.gemm_regression import synthetic
from tests.gemm_regression.scenarios import World
from tests.gemm_regression.simulated import SimulatedDevice

CASE = synthetic.case()
BROKEN = DeviceError("ILLEGAL_ADDRESS", "an illegal memory access was encountered")


class Answers(SimulatedDevice):
    """A simulated GPU that answers so when a case is timed."""

    answer: Measurement | Exception = synthetic.measurement(0.01)

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


def answered(answer: Measurement | Exception) -> Answers:
    device = Answers()
    device.answer = answer
    return device


def test_the_baselines_binary_is_timed_once_and_never_paired() -> None:
    device = answered(synthetic.measurement(0.02))
    result = judged(World([CASE], device=device))
    assert (result.verdict.outcome, device.asked) == (("PASS", "SAME_BINARY"), [(CASE.id, ())])
    assert result.cublas_ratio == pytest.approx(0.5)


def test_another_binary_is_paired_and_not_timed_besides() -> None:
    device = answered(AssertionError("timed"))
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
        judged(World([CASE], device=answered(KeyError("a bug of the harness"))))


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
    result = judged(World([CASE], device=answered(measurement)))
    assert result.usable is usable
    assert (result.cublas_ratio is not None) is usable


def test_what_is_recorded_beside_the_samples() -> None:
    info = extra_info(judged(World([CASE], lambda case: 0.03, edited=lambda case: True)))
    assert info["case"] == CASE.id
    assert info["gflops"] == pytest.approx(CASE.gflops(info["median_s"]))
    assert (info["verdict"], info["verdict_reason"], info["red"]) == ("REGRESSED", "SLOWER", True)
    assert info["margin"] == 0.005
    altered = json.loads(json.dumps(info))
    altered["evidence"]["paired"]["second"] = [0.0] * 12
    assert again(altered, (1e-3,) * 9)[0].outcome == ("PASS", "NOT_SLOWER")
    broken = extra_info(judged(World([CASE], device=answered(BROKEN))))
    assert (broken["verdict"], broken["red"], broken["seconds"]) == ("CRASHED", True, [])

"""From a device's answers to a verdict, and device samples through pytest-benchmark's own recording."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.baselines import Baseline
from harness.devices import DeviceError
from harness.gate.record import SampleClock, extra_info
from harness.model import Case
from harness.reports.wording import message
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.verdicts.vocabulary import Policy, VerdictKind
from tests.unit import synthetic
from tests.unit.way import judged_alone

CASE = synthetic.case()
PLAN = Plan()
BROKEN = DeviceError("ILLEGAL_ADDRESS", "an illegal memory access was encountered")
WRONG = DeviceError("WRONG", "at (3, 4): got 5, expected 6")
FINE, SLOW = synthetic.measurement(0.01), synthetic.measurement(0.0105)


class Answers:
    """A device that gives these answers in turn, and says what was asked of it."""

    def __init__(self, *answers: Measurement | DeviceError) -> None:
        self.answers, self.asked = list(answers), list[str]()

    def time(self, case: Case, plan: Any) -> Measurement:
        assert (case, plan) == (CASE, PLAN)
        self.asked.append("time")
        answer = self.answers.pop(0)
        if isinstance(answer, DeviceError):
            raise answer
        return answer

    def ahead(self) -> None:
        self.asked.append("ahead")

    def restart(self) -> None:
        self.asked.append("restart")


def stored(*entries: Any) -> Baseline:
    return Baseline("gpu", {}, {}, "", {entry.case_id: entry for entry in entries})


BASELINE = stored(synthetic.entry(CASE))


def judged(
    *answers: Measurement | DeviceError, baseline: Baseline | None = BASELINE
) -> tuple[Any, list[str]]:
    """The result, and what was asked of the device."""
    device = Answers(*answers)
    return judged_alone(device, CASE, baseline, Policy(), PLAN), device.asked


def test_fine_case_is_timed_once() -> None:
    result, asked = judged(FINE)
    assert (result.verdict.kind, asked) == (VerdictKind.PASS, ["time"])
    assert result.measurement is FINE
    assert result.first_median is None


def test_suspicion_is_settled_by_a_fresh_worker() -> None:
    result, asked = judged(SLOW, synthetic.measurement(0.0104))
    assert asked == ["time", "ahead", "restart", "time"]
    assert result.verdict.kind is VerdictKind.REGRESSED
    assert result.measurement.median == 0.0104
    assert result.first_median == SLOW.median


def test_suspicion_that_vanishes_passes_on_the_second_measurement() -> None:
    result, _ = judged(SLOW, FINE)
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.PASS, "NOT_CONFIRMED")
    assert result.measurement is FINE


@pytest.mark.parametrize("before", [(), (SLOW,)], ids=["first", "confirming"])
@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [(BROKEN, VerdictKind.CRASHED, "ILLEGAL_ADDRESS"), (WRONG, VerdictKind.WRONG, "OUTPUT")],
    ids=["crash", "wrong"],
)
def test_device_error_is_the_verdict(
    before: Sequence[Measurement], error: DeviceError, kind: VerdictKind, reason: str
) -> None:
    result, _ = judged(*before, error)
    assert (result.verdict.kind, result.verdict.reason) == (kind, reason)
    assert message(result.verdict, result.evidence) == str(error)
    assert result.verdict.failed(Policy(allow_no_baseline=True, allow_orphans=True, fail_on_drift=False))
    assert result.measurement is None
    assert not result.usable
    assert result.cublas_ratio is None


def test_confirming_measurement_that_cannot_be_judged_is_no_pass() -> None:
    result, _ = judged(SLOW, synthetic.measurement(0.01, throttled=True))
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.AMBIGUOUS, "THROTTLED")


def test_only_device_errors_are_verdicts() -> None:
    class Buggy(Answers):
        def time(self, case: Case, plan: Any) -> Measurement:
            raise KeyError("a bug of the harness")

    with pytest.raises(KeyError):
        judged_alone(Buggy(), CASE, BASELINE, Policy(), PLAN)


@pytest.mark.parametrize(
    ("baseline", "reason"), [(None, "NO_BASELINE_FILE"), (stored(), "NOT_IN_BASELINE")], ids=["file", "entry"]
)
def test_nothing_to_compare_with(baseline: Baseline | None, reason: str) -> None:
    result, asked = judged(SLOW, baseline=baseline)
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.NO_BASELINE, reason)
    assert asked == ["time"]


@pytest.mark.parametrize(
    ("measurement", "usable"),
    [
        (FINE, True),
        (synthetic.measurement(throttled=True), True),
        (synthetic.measurement(rounds=2), False),
        (synthetic.measurement(seconds=()), False),
        (synthetic.measurement(seconds=(0.0,) * 9), False),
        (synthetic.measurement(seconds=(float("nan"),) * 9), False),
    ],
    ids=["fine", "throttled", "two rounds", "no round", "zero", "nan"],
)
def test_only_usable_samples_have_a_ratio(measurement: Measurement, usable: bool) -> None:
    result, _ = judged(measurement)
    assert result.usable is usable
    assert (result.cublas_ratio is not None) is usable


def test_what_is_recorded_beside_the_samples() -> None:
    info = extra_info(judged(SLOW, SLOW)[0])
    assert info["case"] == CASE.id
    assert info["gflops"] == pytest.approx(CASE.problem.flops / SLOW.median / 1e9)
    assert (info["verdict"], info["verdict_reason"]) == ("REGRESSED", "SLOWER_CONFIRMED")
    assert info["change"] == pytest.approx(0.01 / 0.0105 - 1)
    assert info["cubin_sha256"] == synthetic.NEW
    assert info["first_median_s"] == SLOW.median
    broken = extra_info(judged(BROKEN)[0])
    assert (broken["verdict"], broken["red"], broken["seconds"]) == ("CRASHED", True, [])


# The clock


def recorded(clock: SampleClock, samples: tuple[float, ...]) -> Any:
    """What pytest-benchmark makes of these samples, as its fixture is set up by default."""
    made: list[Any] = []
    times = {"min_time": 5e-6, "max_time": 1.0, "precision": None, "confidence": None}
    off = {"disable_gc": False, "disabled": False, "warmup": False, "cprofile": False}
    make: Any = BenchmarkFixture
    fixture = make(
        SimpleNamespace(name="case", nodeid="case"),
        timer=SimpleNamespace(target=clock),
        add_stats=made.append,
        logger=None,
        warner=pytest.fail,
        **{"min_rounds": 5, "warmup_iterations": 0, "calibration_precision": 10, **times, **off},
        **{"cprofile_loops": None, "cprofile_dump": None},
    )
    clock.load(samples)
    fixture.pedantic(clock.tick, rounds=len(samples), iterations=1)
    (recording,) = made
    return recording.stats


@pytest.mark.parametrize(
    "samples",
    [(7.7e-06, 7.5e-06, 7.9e-06, 7.7e-06, 7.6e-06), (0.02, 1.5, 0.03, 0.02, 0.02), (1e-6,) * 300],
    ids=["microseconds", "seconds", "many"],
)
def test_pytest_benchmark_records_exactly_the_samples(samples: tuple[float, ...]) -> None:
    stats = recorded(SampleClock(), samples)
    assert stats.data == pytest.approx(samples, rel=1e-12, abs=0)
    assert stats.total == pytest.approx(sum(samples), rel=1e-12, abs=0)
    assert stats.median == pytest.approx(sorted(samples)[len(samples) // 2], rel=1e-12, abs=0)
    assert stats.rounds == len(samples)


def test_long_samples_do_not_coarsen_the_short_ones_of_the_next_case() -> None:
    clock = SampleClock()
    recorded(clock, (3600.0,) * 5)
    assert recorded(clock, (1e-6,) * 5).data == pytest.approx([1e-6] * 5, rel=1e-12, abs=0)


def test_clock_has_no_sample_to_spare() -> None:
    clock = SampleClock()
    clock.load((1.0,))
    clock.tick()
    with pytest.raises(IndexError):
        clock.tick()

"""Bursts and rests, of a measurement and of a pair, and what is said where two were not timed alike."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from harness.devices.cuda.pairing import time_pair
from harness.reports.wording import message
from harness.timing.duty import burst, device_seconds, rest
from harness.timing.plan import PairPlan, queued
from harness.verdicts.evidence import Evidence, again, recorded
from harness.verdicts.judge import judge
from harness.verdicts.vocabulary import Policy
from tests.unit import synthetic
from tests.unit.simulated import SimulatedDevice


@pytest.mark.parametrize(
    ("one", "duty", "launches"), [(1e-4, 1.0, 48), (1e-4, 0.25, 48), (1e-3, 0.25, 20), (0.5, 0.25, 1)]
)
def test_a_burst_ends_before_the_power_cap_bites(one: float, duty: float, launches: int) -> None:
    assert burst(48, one, duty) == launches


def test_bursts_take_half_the_rounds() -> None:
    assert device_seconds(0.08, 1.0) == 0.08
    assert device_seconds(0.08, 0.25) == 0.04


@pytest.mark.parametrize("duty", [0.1, 0.25, 1.0])
def test_a_rest_makes_the_busy_share(duty: float) -> None:
    busy = 0.02
    assert busy / (busy + rest(busy, duty)) == pytest.approx(duty)


def test_blocks_of_a_pair_come_in_bursts_with_rests_between(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    spans: list[float] = []

    class Watched(SimulatedDevice):
        def sequence(self, work: Any, l2: str) -> Any:
            run = super().sequence(work, l2)
            spans.append(run.span)
            return run

    arms = {"A": ("A", 2e-3), "B": ("B", 2e-3)}
    time_pair(Watched(), arms, PairPlan(("ABBA", "BAAB") * 4, duty=0.25))
    assert rests == pytest.approx([3 * span for span in spans[1:]])  # the first only tells the duration
    assert max(spans[1:]) <= 0.02
    assert len(spans) == 1 + 4  # two blocks of 8 ms each
    rests.clear()
    time_pair(SimulatedDevice(), arms, PairPlan(("ABBA", "BAAB") * 4))
    assert not any(rests)


def test_another_duty_cycle_than_the_baseline_s_is_not_compared() -> None:
    case = synthetic.case("wmma")
    stored = synthetic.reference(case)
    slow = synthetic.observed(case, 0.02, duty=0.25)
    verdict = judge(slow, stored, Policy())
    assert (verdict.kind, verdict.reason) == ("AMBIGUOUS", "OTHER_DUTY_CYCLE")
    assert f'nox -s baseline -- -k "[{case.id}]"' in message(verdict, Evidence(slow, stored))
    alike = dataclasses.replace(stored, duty=0.25)
    assert judge(slow, alike, Policy()).reason == "SLOWER"


def test_two_kernels_that_were_chosen_are_compared_whatever_their_duty_cycles() -> None:
    """Seen: `select` chose a kernel of CUDA cores where it had chosen one of tensor cores."""
    case = synthetic.case("tiled")
    stored = dataclasses.replace(synthetic.reference(case), duty=0.25, choice="tf32x3-tile64")
    for seconds, verdict in ((0.02, "REGRESSED SLOWER"), (0.01, "PASS WITHIN_THRESHOLD")):
        now = dataclasses.replace(synthetic.observed(case, seconds), choice="tiled-tile16")
        assert str(judge(now, stored, Policy()).outcome) == verdict
        evidence = recorded(Evidence(now, stored), Policy())
        replayed, _ = again({"case": case.id, "variant": case.variant, "evidence": evidence}, now.seconds)
        assert str(replayed.outcome) == verdict
    same = dataclasses.replace(now, choice=stored.choice)
    assert judge(same, stored, Policy()).reason == "OTHER_DUTY_CYCLE"


def test_a_library_call_of_many_launches_is_queued_less_often() -> None:
    """Seen: 48 rounds of a batch of 1 398 101, 22 launches of cuBLAS each, never fitted into the queue."""
    assert queued() == 48
    for parts in (1, 2, 6, 22, 500, 5000):
        assert queued(parts) == 1 or queued(parts) * (2 * 6 + parts - 1) <= 576

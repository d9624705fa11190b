"""Bursts and rests, of a measurement and of a pair, and what is said where two were not timed alike."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest

from gemm_regression.baselines import BaselineEntry
from gemm_regression.model import Case
from gemm_regression.timing.plan import PairPlan, burst, device_seconds, queued, rest, time_pair
from tests.gemm_regression.scenarios import World, cases_of, red
from tests.gemm_regression.simulated import Arm, SimulatedDevice


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
    assert 0.02 / (0.02 + rest(0.02, 0.02, duty)) == pytest.approx(duty)


def test_what_lies_between_short_launches_is_rest_too() -> None:
    assert rest(0.01, 0.03, 0.25) == pytest.approx(0.01)
    assert rest(0.005, 0.03, 0.25) == 0.0


def test_blocks_of_a_pair_come_in_bursts_with_rests_between(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    spans: list[float] = []
    busy: list[float] = []

    class Watched(SimulatedDevice):
        def sequence(self, work: Any, l2: str) -> Any:
            run = super().sequence(work, l2)
            spans.append(run.span)
            busy.append(sum(run.seconds))
            return run

    arms = {"A": Arm("A", 2e-3), "B": Arm("B", 2e-3)}
    time_pair(Watched(), arms, PairPlan(("ABBA", "BAAB") * 4, duty=0.25))
    # The first only tells the duration.
    assert rests == pytest.approx([4 * of - span for of, span in zip(busy[1:], spans[1:], strict=True)])
    assert max(spans[1:]) <= 0.02
    assert len(spans) == 1 + 4  # two blocks of 8 ms each
    rests.clear()
    time_pair(SimulatedDevice(), arms, PairPlan(("ABBA", "BAAB") * 4))
    assert not any(rests)


class Rested(World):
    """The baseline was measured at another duty cycle."""

    def entry(self, case: Case) -> BaselineEntry:
        return dataclasses.replace(super().entry(case), duty=0.25)


@pytest.mark.parametrize(("world", "failed"), [(World, True), (Rested, False)])
def test_another_duty_cycle_than_the_baseline_s_says_nothing_of_the_machine(
    world: type[World], failed: bool
) -> None:
    cases = cases_of(["wmma"], (512, 1024, 2048, 4096))
    found, machine = world(cases, machine=lambda kernel: 0.04).run()
    assert red(found) == []
    assert machine.failed is failed


def test_a_library_call_of_many_launches_is_queued_less_often() -> None:
    """Seen: 48 rounds of a batch of 1 398 101, 22 launches of cuBLAS each, never fitted into the queue."""
    assert queued() == 48
    for parts in (1, 2, 6, 22, 500, 5000):
        assert queued(parts) == 1 or queued(parts) * (2 * 6 + parts - 1) <= 576

"""The SM clock between stamps; bursts and rests, of a measurement and of a pair; what a throttled clock
spoiled is repeated; what is said where two were not timed alike."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gemm_regression.baselines import BaselineEntry
from gemm_regression.model import Case
from gemm_regression.timing.plan import (
    REST_SECONDS,
    Pace,
    PairPlan,
    burst,
    device_seconds,
    enough,
    queued,
    rest,
    time_pair,
)
from gemm_regression.timing.samples import Launched, Telemetry, clocks, steady
from tests.gemm_regression.scenarios import World, cases_of, red
from tests.gemm_regression.simulated import Arm, SimulatedDevice

# Clocks


def stamps(mhz: Sequence[float], step_ns: int, sm: int = 0) -> np.ndarray[Any, Any]:
    """Stamps ``step_ns`` apart with this clock between them."""
    cycles = np.cumsum([10_000, *(step_ns * f / 1e3 for f in mhz)])
    times = 5_000_000 + step_ns * np.arange(len(mhz) + 1)
    return np.array([cycles, times, np.full(len(times), sm)]).T.astype(np.uint64)


@pytest.mark.parametrize(
    ("between", "step_ns", "found"),
    [
        ([1980, 1980, 1500], 2_000_000, [1980, 1980, 1500]),
        ([1900, 1960], 10_000, [1930, 1930]),  # a batch shorter than a window is one window
        ([1980], 0, [math.nan]),  # a timer that did not move says nothing
    ],
)
def test_each_interval_has_its_own_clock(between: list[float], step_ns: int, found: list[float]) -> None:
    assert clocks(stamps(between, step_ns)) == pytest.approx(found, nan_ok=True)


def test_short_intervals_are_taken_over_a_window_around_them() -> None:
    found = clocks(stamps([1980] * 50 + [1500] * 50, 100_000))
    assert found[:40] == pytest.approx([1980] * 40)
    assert found[60:] == pytest.approx([1500] * 40)
    assert 1500 < found[49] < 1980


def test_stamps_of_two_sms_say_nothing() -> None:
    mixed = stamps([1980, 1980], 2_000_000)
    mixed[2, 2] = 7
    assert clocks(mixed) == pytest.approx([1980, math.nan], nan_ok=True)


FULL = [1575.0, 1572.0, 1578.0, 1576.0, 1574.0]


@pytest.mark.parametrize(
    ("mhz", "kept"),
    [
        ([*FULL, 1470.0, math.nan, *[1320.0] * 20, 1573.0], [0, 1, 2, 3, 4, 6, 27]),  # slowed by a cap
        ([*[1980.0] * 6, *[1790.0 + i % 3 for i in range(60)]], [*range(6, 66)]),  # first milliseconds higher
        ([1650.0, *[1620.0] * 6], [1, 2, 3, 4, 5, 6]),  # a single round higher
        ([1980.0, 1975.0, 1900.0], [0, 1]),  # few rounds are held against the highest
        ([math.nan] * 3, [0, 1, 2]),  # no clock is known
        ([], []),
    ],
)
def test_rounds_at_full_clock_are_told_from_others(mhz: list[float], kept: list[int]) -> None:
    assert steady(mhz) == kept


# Bursts and rests


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long is rested."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


@pytest.mark.parametrize(
    ("one", "duty", "launches"), [(1e-4, 1.0, 48), (1e-4, 0.25, 48), (1e-3, 0.25, 20), (0.5, 0.25, 1)]
)
def test_a_burst_ends_before_the_power_cap_bites(one: float, duty: float, launches: int) -> None:
    assert burst(48, one, duty) == launches


def test_bursts_take_half_the_rounds() -> None:
    assert [device_seconds(0.08, duty) for duty in (1.0, 0.25)] == [0.08, 0.04]


@pytest.mark.parametrize("duty", [0.1, 0.25, 1.0])
def test_a_rest_makes_the_busy_share_and_what_lies_between_short_launches_is_rest_too(duty: float) -> None:
    assert 0.02 / (0.02 + rest(0.02, 0.02, duty)) == pytest.approx(duty)
    assert [rest(busy, 0.03, 0.25) for busy in (0.01, 0.005)] == pytest.approx([0.01, 0.0])


def test_blocks_of_a_pair_come_in_bursts_with_rests_between(rests: list[float]) -> None:
    runs: list[Launched] = []

    class Watched(SimulatedDevice):
        def sequence(self, work: Any, l2: str) -> Launched:
            runs.append(super().sequence(work, l2))
            return runs[-1]

    arms = {"A": Arm("A", 2e-3), "B": Arm("B", 2e-3)}
    time_pair(Watched(), arms, PairPlan(("ABBA", "BAAB") * 4, duty=0.25))
    _, *bursts = runs  # the first only tells the duration
    assert rests == pytest.approx([4 * sum(run.seconds) - run.span for run in bursts])
    assert max(run.span for run in bursts) <= 0.02
    assert len(bursts) == 4  # two blocks of 8 ms each
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


# A throttled clock


def asked(lost: list[int], pace: Pace, reasons: int = 4) -> tuple[list[int], list[bool]]:
    """The sizes of the batches of which so many launches are lost, and whether each may be repeated.
    ``reasons``: NVML's, of all."""
    sizes, repeated = list[int](), list[bool]()
    for count in lost:
        sizes.append(pace.size)
        ran = Launched([0.02], [], [Telemetry(1980.0, 300.0, 50.0, reasons)], 0.03)
        repeated.append(pace.after(ran, pace.size, count))
    return sizes, repeated


def test_a_clock_that_holds_keeps_the_batches_as_they_are(rests: list[float]) -> None:
    assert asked([0, 12, 0], Pace(48, 6, 6, 1.0)) == ([48] * 3, [False] * 3)  # a quarter may be lost
    assert not any(rests)


def test_a_throttled_batch_makes_the_next_ones_shorter_and_rests(rests: list[float]) -> None:
    sizes, _ = asked([13, 0, 16, 0, 6, 0], Pace(48, 6, 6, 1.0))
    assert sizes == [48, 16, 16, 6, 6, 6]
    assert rests.count(REST_SECONDS) == 3
    rests.clear()
    assert asked([1], Pace(1, 1, 6, 1.0)) == ([1], [True])
    assert rests == [0.0, REST_SECONDS]


def test_a_clock_that_wanders_is_not_waited_for(rests: list[float]) -> None:
    """Seen on an H100: after a rest the clock is 2008 MHz, before it 1994, so each rest lost what it had."""
    assert asked([13, 16, 0], Pace(48, 6, 6, 1.0), reasons=1) == ([48] * 3, [True, True, False])
    assert not any(rests)


@pytest.mark.parametrize(
    ("mhz", "reasons", "capped"),
    [
        ([1840.0, 1800.0, 1790.0, 1780.0], 0, False),  # wanders
        ([1720.0, 1700.0, 1500.0, 1440.0], 0, True),  # fell, and NVML does not say so yet
        ([1440.0] * 4, 0x4, True),
        ([1440.0] * 4, 0x1, False),  # idle
        ([float("nan")] * 4, 0x40, True),
        ([], 0, False),
    ],
)
def test_what_caps_a_clock(mhz: list[float], reasons: int, capped: bool) -> None:
    looks = [Telemetry(1980.0, 300.0, 50.0, reasons)]
    assert Launched([0.001] * len(mhz), mhz, looks, 0.01).capped is capped


def test_after_so_many_retries_nothing_is_repeated(rests: list[float]) -> None:
    assert asked([8] * 5, Pace(8, 1, 3, 1.0))[1] == [True, True, True, False, False]


def test_duty_cycle_rests_after_every_batch(rests: list[float]) -> None:
    asked([0, 0], Pace(48, 6, 6, 0.25))
    assert rests == pytest.approx([0.05, 0.05])  # 0.02 s of kernels in 0.03 s


def test_the_time_of_the_checks_after_a_batch_is_rest(rests: list[float]) -> None:
    ran = Launched([0.02], [], [], 0.03, ended=time.monotonic() - 0.02)
    Pace(48, 6, 6, 0.25).after(ran, 48, 0)
    assert 0 <= rests[0] <= 0.03  # of 0.05 s


@pytest.mark.parametrize(
    ("wanted", "throttled", "launches"),
    [(47, False, 43), (7, False, 7), (47, True, 23), (10, True, 7), (5, True, 5)],
)
def test_a_throttled_clock_halves_what_is_enough(wanted: int, throttled: bool, launches: int) -> None:
    assert enough(wanted, 7, throttled) == launches

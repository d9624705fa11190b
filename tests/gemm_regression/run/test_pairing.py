"""Pairs on a simulated GPU: what is red, what is green, controls, the second process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import StoredBinary
from gemm_regression.model import Case, Problem
from gemm_regression.run.pairing import ComparedCase, Pair, Pairing
from gemm_regression.timing.looks import SequentialTest
from tests.gemm_regression import synthetic
from tests.gemm_regression.simulated import SimulatedDevice, crash

MARGIN = 0.005


def case(name: str = "tiled", size: int = 1024) -> Case:
    return synthetic.case(name, problem=Problem(size, size, size))


def stored(of: Case) -> StoredBinary:
    made = SimulatedDevice().binary(of)
    assert made is not None
    return made


def pair(of: Case | None = None, seconds: float = 1e-4, core: str = "cuda", margin: float = MARGIN) -> Pair:
    of = of or case()
    return Pair(of, stored(of), margin, core, seconds, "1a2b3c4d5e6f")


def slower(share: float, only: str = "") -> Callable[[Any], float]:
    """The new side takes that much longer than the stored one."""

    def seconds(side: Any) -> float:
        new = isinstance(side, Case) and only in side.id
        return 1e-4 * (1 + share) if new else 1e-4

    return seconds


def timed(device: SimulatedDevice, *pairs: Pair) -> tuple[Pairing, list[ComparedCase]]:
    pairing = Pairing(device, SequentialTest(), len(pairs), seed=3)
    return pairing, pairing.all(pairs)


def reasons(found: list[ComparedCase]) -> list[str]:
    return [t.paired.reason for t in found]


@pytest.mark.parametrize(
    ("share", "spread", "reason"),
    [
        (0.0, 0.001, "NOT_SLOWER"),
        (0.03, 0.001, "SLOWER"),
        (0.01, 0.001, "SLOWER"),
        (-0.03, 0.001, "FASTER"),
        (0.003, 0.001, "NOT_SLOWER"),
        # Neither certainly faster than the margin nor within it, and nobody needs to know.
        (-0.005, 0.003, "NOT_SLOWER"),
        (MARGIN, 0.004, "MAYBE_SLOWER"),
    ],
)
def test_a_change_is_found(share: float, spread: float, reason: str) -> None:
    device = SimulatedDevice(slower(share), spread=spread)
    _, found = timed(device, pair())
    assert reasons(found) == [reason]
    low, high = found[0].paired.interval or (0, 0)
    assert low < share < high
    assert low < -MARGIN < high < MARGIN or share != -0.005
    assert found[0].paired.base == "1a2b3c4d5e6f"
    assert bool(device.aheads) is (
        reason in ("SLOWER", "MAYBE_SLOWER")
    )  # the second process starts meanwhile
    if reason == "MAYBE_SLOWER":
        assert found[0].paired.second  # a second process could not tell either
        assert sum("stored" not in name for name, _ in device.asked) == 2 * SequentialTest().looks


def test_a_clear_case_takes_one_look() -> None:
    device = SimulatedDevice(slower(-0.05))
    timed(device, pair())
    assert [len(orders) for name, orders in device.asked if "stored" not in name] == [SequentialTest().blocks]
    assert device.restarts == 1  # its start


class Biased(SimulatedDevice):
    """Whatever is arm B is slower where ``when(base, case, process)`` is true."""

    when: Callable[[Any, Any, int], bool]

    def pair(self, base: Any, case: Any, plan: Any) -> Any:
        self.bias = 0.02 if self.when(base, case, self.restarts) else 0.0
        return super().pair(base, case, plan)


def biased(when: Callable[[Any, Any, int], bool], share: float = 0.0) -> Biased:
    device = Biased(slower(share))
    device.when = when
    return device


def test_where_code_lies_in_one_process_is_no_regression() -> None:
    device = biased(lambda base, case, process: process == 1 and isinstance(case, Case))
    _, found = timed(device, pair())
    assert reasons(found) == ["NOT_SLOWER"]
    assert device.restarts == 2


def test_a_control_that_fails_is_repeated_in_a_new_process() -> None:
    device = biased(lambda base, case, process: process == 1)
    pairing, found = timed(device, pair(), pair(case("register")))
    assert [bool(c.why) for c in pairing.controls] == [True, False]
    assert reasons(found) == ["NOT_SLOWER", "NOT_SLOWER"]


def test_a_control_that_fails_twice_costs_only_the_cases_like_it() -> None:
    wmma = case("wmma")
    pairs = [pair(wmma, core="tensor"), pair(case("tiled")), pair(wmma, 1e-2, core="tensor")]
    pairs[2] = dataclasses.replace(pairs[2], case=case("wmma", 4096), base=stored(case("tiled")))
    _, found = timed(biased(lambda base, case, process: "wmma" in base.name), *pairs)
    said = {t.case.id: t.paired for t in found}
    assert "two identical builds of wmma" in said[wmma.id].detail
    assert {name: of.reason for name, of in said.items()} == {
        wmma.id: "CONTROL_FAILED",
        case("tiled").id: "NOT_SLOWER",
        case("wmma", 4096).id: "NOT_SLOWER",  # of another size
    }


@pytest.mark.parametrize(
    ("unfit", "reason", "processes"),
    [((2,), "SLOWER", 3), ((2, 3), "CONTROL_FAILED", 3), ((1, 3), "CONTROL_FAILED", 3), ((), "SLOWER", 2)],
)
def test_a_second_process_counts_only_if_its_control_is_sound(
    unfit: tuple[int, ...], reason: str, processes: int
) -> None:
    """The new side is slower; in the unfit processes two copies of one binary differ, too."""
    device = biased(lambda base, case, process: process in unfit and not isinstance(case, Case), 0.03)
    _, found = timed(device, pair())
    assert (reasons(found), device.restarts) == ([reason], processes)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("WORKER_DIED", "WORKER_DIED"), ("WRONG", "OUTPUT"), ("BASE_LAUNCH_FAILED", "BASE_UNUSABLE")],
)
def test_a_pair_that_fails_says_so(code: str, reason: str) -> None:
    def fail(base: Any, case: Any) -> None:
        if not isinstance(case, StoredBinary):
            raise DeviceError(code, "why")

    _, found = timed(SimulatedDevice(fail=fail), pair())
    assert reasons(found) == [reason]
    assert "why" in found[0].paired.detail


def test_a_base_that_does_not_run_is_the_pairs_own_finding() -> None:
    pairing, found = timed(SimulatedDevice(fail=crash), pair())
    assert reasons(found) == ["WORKER_DIED"]
    assert pairing.controls == []


def test_of_many_equal_builds_none_is_red() -> None:
    """A run of 200 pairs of equal builds is red in at most 1 % of runs."""
    red, rng = 0, random.Random(5)
    names = [case("tiled", size) for size in range(64, 64 + 200)]
    for _ in range(5):
        device = SimulatedDevice(spread=0.002, process=0.0005, seed=rng.randrange(1 << 30))
        _, found = timed(device, *(pair(of) for of in names))
        red += sum(t.paired.reason != "NOT_SLOWER" for t in found)
    assert red == 0


def test_where_copies_of_the_code_lie_is_no_change_of_it() -> None:
    """Of copies that differ by 4 %, as those of a short kernel do, each block has the mean of many."""
    red = 0
    for seed in range(20):
        device = SimulatedDevice(lambda side: 2e-5, spread=0.01, place=0.01, seed=seed)
        _, found = timed(device, pair())
        red += found[0].paired.reason != "NOT_SLOWER"
    assert red == 0

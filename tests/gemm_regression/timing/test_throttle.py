"""What a throttled clock spoiled is repeated, in shorter batches with rests between."""

from __future__ import annotations

import time

import pytest

from gemm_regression.timing.plan import REST_SECONDS, Pace, enough
from gemm_regression.timing.samples import Launched


def asked(lost: list[int], pace: Pace) -> tuple[list[int], list[bool]]:
    """The sizes of the batches of which so many launches are lost, and whether each may be repeated."""
    sizes, repeated = list[int](), list[bool]()
    for count in lost:
        sizes.append(pace.size)
        repeated.append(pace.after(Launched([0.02], [], [], 0.03), pace.size, count))
    return sizes, repeated


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


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


def test_after_so_many_retries_nothing_is_repeated() -> None:
    assert asked([8] * 5, Pace(8, 1, 3, 1.0))[1] == [True, True, True, False, False]


def test_duty_cycle_rests_after_every_batch(rests: list[float]) -> None:
    asked([0, 0], Pace(48, 6, 6, 0.25))
    assert rests == pytest.approx([0.05, 0.05])  # 0.02 s of kernels in 0.03 s


@pytest.mark.parametrize(
    ("wanted", "throttled", "launches"),
    [(47, False, 43), (7, False, 7), (47, True, 23), (10, True, 7), (5, True, 5)],
)
def test_a_throttled_clock_halves_what_is_enough(wanted: int, throttled: bool, launches: int) -> None:
    assert enough(wanted, 7, throttled) == launches

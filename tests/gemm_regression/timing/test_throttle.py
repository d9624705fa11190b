"""The loop that repeats what a throttled clock spoiled, and how it slows down for it."""

from __future__ import annotations

import time

import pytest

from gemm_regression.timing.plan import REST_SECONDS, Batch, batches, enough


def asked(
    lost: list[int], *, size: int = 48, least: int = 6, retries: int = 6, duty: float = 1.0
) -> list[int]:
    """The sizes of the batches of which so many launches are lost, until there are no more."""
    sizes: list[int] = []

    def run(size: int, again: bool) -> Batch | None:
        if len(sizes) == len(lost) or not again:
            return None
        sizes.append(size)
        return Batch(size, lost[len(sizes) - 1], 0.03, 0.02)

    batches(run, size, least, retries, duty)
    return sizes


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_a_clock_that_holds_keeps_the_batches_as_they_are(rests: list[float]) -> None:
    assert asked([0, 12, 0]) == [48, 48, 48]  # a quarter may be lost
    assert not any(rests)


def test_a_throttled_batch_makes_the_next_ones_shorter_and_rests(rests: list[float]) -> None:
    assert asked([13, 0, 16, 0, 6, 0]) == [48, 16, 16, 6, 6, 6]
    assert rests.count(REST_SECONDS) == 3
    rests.clear()
    assert asked([1], size=1, least=1) == [1]
    assert rests == [0.0, REST_SECONDS]


def test_after_so_many_retries_it_says_that_there_are_no_more() -> None:
    assert len(asked([48] * 20, retries=3)) == 3
    told: list[bool] = []

    def run(size: int, again: bool) -> Batch | None:
        told.append(again)
        return Batch(size, size, 0.0, 0.0) if len(told) < 6 else None

    batches(run, 8, 1, 3, 1.0)
    assert told == [True, True, True, False, False, False]


def test_duty_cycle_rests_after_every_batch(rests: list[float]) -> None:
    asked([0, 0], duty=0.25)
    assert rests == pytest.approx([0.05, 0.05])  # 0.02 s of kernels in 0.03 s


@pytest.mark.parametrize(
    ("wanted", "throttled", "launches"),
    [(47, False, 43), (7, False, 7), (47, True, 23), (10, True, 7), (5, True, 5)],
)
def test_a_throttled_clock_halves_what_is_enough(wanted: int, throttled: bool, launches: int) -> None:
    assert enough(wanted, 7, throttled) == launches

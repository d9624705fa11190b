"""The SM clock between stamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gemm_regression.timing.samples import clocks, steady


def stamps(mhz: Sequence[float], step_ns: int, sm: int = 0) -> np.ndarray[Any, Any]:
    """Stamps ``step_ns`` apart with this clock between them."""
    cycles = np.cumsum([10_000, *(step_ns * f / 1e3 for f in mhz)])
    times = 5_000_000 + step_ns * np.arange(len(mhz) + 1)
    return np.array([cycles, times, np.full(len(times), sm)]).T.astype(np.uint64)


def test_each_interval_has_its_own_clock() -> None:
    assert clocks(stamps([1980, 1980, 1500], 2_000_000)) == pytest.approx([1980, 1980, 1500])


def test_short_intervals_are_taken_over_a_window_around_them() -> None:
    found = clocks(stamps([1980] * 50 + [1500] * 50, 100_000))
    assert found[:40] == pytest.approx([1980] * 40)
    assert found[60:] == pytest.approx([1500] * 40)
    assert 1500 < found[49] < 1980


def test_a_batch_shorter_than_a_window_is_one_window() -> None:
    assert clocks(stamps([1900, 1960], 10_000)) == pytest.approx([1930, 1930])


def test_stamps_of_two_sms_say_nothing() -> None:
    mixed = stamps([1980, 1980], 2_000_000)
    mixed[2, 2] = 7
    found = clocks(mixed)
    assert found[0] == pytest.approx(1980)
    assert np.isnan(found[1])


def test_a_timer_that_did_not_move_says_nothing() -> None:
    assert np.isnan(clocks(stamps([1980], 0))[0])


def test_rounds_slowed_by_a_cap_are_told_from_those_at_full_clock() -> None:
    full = [1575.0, 1572.0, 1578.0, 1576.0, 1574.0]
    assert steady([*full, 1470.0, float("nan"), *[1320.0] * 20, 1573.0]) == [0, 1, 2, 3, 4, 6, 27]


def test_the_first_milliseconds_at_a_higher_clock_are_not_full_clock() -> None:
    found = steady([*[1980.0] * 6, *[1790.0 + i % 3 for i in range(60)]])
    assert found == list(range(6, 66))


def test_a_single_round_at_a_higher_clock_does_not_count_the_others_out() -> None:
    assert steady([1650.0, *[1620.0] * 6]) == [1, 2, 3, 4, 5, 6]


def test_few_rounds_are_held_against_the_highest_clock() -> None:
    assert steady([1980.0, 1975.0, 1900.0]) == [0, 1]


def test_where_no_clock_is_known_every_round_counts() -> None:
    assert steady([float("nan")] * 3) == [0, 1, 2]
    assert steady([]) == []

"""Work spread over places: nothing is lost, nothing done twice, and who waits is told what failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from gemm_regression.run.spread import Done, LostError, Spread

NAMES = [f"case{number}" for number in range(40)]


def worked(place: str, names: Iterator[str], done: Done[str]) -> None:
    for name in names:
        done(name, f"{name} by {place}")


def begun(work: Callable[[str, Iterator[str], Done[str]], None]) -> Spread[str, str]:
    spread = Spread(["a", "b"], work)
    spread.begin(NAMES)
    return spread


def test_each_name_is_done_once_and_all_places_take_part() -> None:
    both, seen = threading.Barrier(2, timeout=10), list[str]()

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for number, name in enumerate(names):
            if not number:
                both.wait()  # each has one before either goes on
            seen.append(name)
            done(name, place)

    spread = begun(work)
    by = {name: spread.result(name) for name in reversed(NAMES)}
    assert sorted(seen) == sorted(NAMES)
    assert {place for place, _ in by.values()} == {"a", "b"}
    assert all(place == result for place, result in by.values())


def test_a_place_takes_only_what_it_can() -> None:
    spread = Spread(["3", "7"], worked, lambda place, name: place in name)
    spread.begin(NAMES)
    assert spread.result("case3") == ("3", "case3 by 3")
    assert spread.result("case7") == ("7", "case7 by 7")
    with pytest.raises(LostError, match="no GPU is left"):
        spread.result("case1")


def test_what_is_of_one_kin_goes_to_one_place_until_nothing_else_is_left() -> None:
    both, by = threading.Barrier(2, timeout=10), dict[str, list[str]](a=[], b=[])

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for name in names:
            if len(by[place]) < 15:
                both.wait()  # in step, so that neither is ahead of the other
            by[place].append(name)
            done(name, place)

    names = [f"{affinity}{number}" for affinity in "pqrs" for number in range(10)]
    spread = Spread(["a", "b"], work, affinity=lambda name: (name[0],))
    spread.begin(names)
    for name in names:
        spread.result(name)
    first, second = sorted(by.values(), key=lambda done: done[0])
    assert (first[:10], second[:10]) == (names[:10], names[10:20])
    assert {name[0] for name in first[10:15]}.isdisjoint(name[0] for name in second[10:15])
    assert sorted(first + second) == sorted(names)


def test_places_share_out_what_most_is_shared_by_first() -> None:
    """Each control is then timed at few places."""
    both, by = threading.Barrier(2, timeout=10), dict[str, list[str]](a=[], b=[])

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for name in names:
            if len(by[place]) < 12:
                both.wait()
            by[place].append(name)
            done(name, place)

    names = [f"{problem}{group}{number}" for problem in "pqr" for group in "XY" for number in range(4)]
    spread = Spread(["a", "b"], work, affinity=lambda name: (name[1], name[0]))
    spread.begin(names)
    for name in names:
        spread.result(name)
    assert [{name[1] for name in done} for done in by.values()] in ([{"X"}, {"Y"}], [{"Y"}, {"X"}])
    assert all([name[0] for name in done] == [*"ppppqqqqrrrr"] for done in by.values())


def test_what_waits_is_done_when_nothing_else_is_left() -> None:
    seen: list[str] = []

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for name in names:
            seen.append(name)
            done(name, place)

    waits = {name for name in NAMES if "1" in name}
    spread = Spread(["a"], work, affinity=lambda name: (name[-1],), waits=waits.__contains__)
    spread.begin(NAMES)
    spread.finish()
    assert set(seen[: -len(waits)]) == {*NAMES} - waits
    assert set(seen) == {*NAMES}


def test_an_exception_fails_the_name_at_hand_and_no_other() -> None:
    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for name in names:
            if name == "case5":
                raise ZeroDivisionError(name)
            done(name, place)

    spread = begun(work)
    for name in NAMES:
        if name == "case5":
            with pytest.raises(ZeroDivisionError):
                spread.result(name)
        else:
            assert spread.result(name)


@pytest.mark.parametrize("how", ["raises", "forgets"])
def test_what_is_not_done_is_an_error_not_a_wait_for_ever(how: str) -> None:
    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        if how == "raises":
            raise ZeroDivisionError  # before it takes any
        list(names)

    spread = begun(work)
    for name in NAMES:
        with pytest.raises(ZeroDivisionError if how == "raises" else LostError):
            spread.result(name)


def test_a_retired_place_gets_no_more_unless_it_alone_can_do_the_rest() -> None:
    spread: Spread[str, str]

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        if place == "b":
            asked.wait(10)
        for name in names:
            done(name, place)
            if place == "a":
                said.append(spread.retire("a"))
                asked.set()

    for able, expected in ({"a", "b"}, True), ({"a"}, False):
        said, asked = list[bool](), threading.Event()
        spread = Spread(["a", "b"], work, lambda place, name: place in able)  # noqa: B023
        spread.begin(NAMES)
        by = [spread.result(name)[0] for name in NAMES]
        assert by.count("a") <= 2 if expected else by.count("a") == len(NAMES)
        assert said[0] is expected


def test_asked_again_it_is_done_again() -> None:
    count: list[str] = []

    def work(place: str, names: Iterator[str], done: Done[int]) -> None:
        for name in names:
            count.append(name)
            done(name, len(count))

    spread = Spread(["a"], work)
    spread.begin(["one"])
    assert spread.result("one")[1] == 1
    assert spread.result("one")[1] == 2
    assert spread.result("never begun")[1] == 3


def test_closed_in_the_middle_nothing_more_is_begun() -> None:
    stopped, taken = threading.Event(), list[str]()

    def work(place: str, names: Iterator[str], done: Done[str]) -> None:
        for name in names:
            taken.append(name)
            stopped.wait(10)
            done(name, place)

    spread = begun(work)
    spread.close(stopped.set, seconds=0.05)
    assert len(taken) == 2
    with pytest.raises(LostError):
        spread.result(NAMES[-1])

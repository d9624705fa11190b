"""Checking in other processes: the same results, and a process that dies costs one case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from gemm_regression.devices import Inputs, Outputs
from gemm_regression.model import Case
from gemm_regression.run.ahead import Ahead
from gemm_regression.run.checked import Checked, Checker, check, close_all
from gemm_regression.run.timed import Board
from tests.gemm_regression.fakes import NumpyDevice
from tests.gemm_regression.samples import PROJECT, select
from tests.gemm_regression.simulated import SimulatedDevice

CASES = [c for c in select("smoke").verify if c.kernel.name == "naive" and c.problem.m * c.problem.n < 400]
assert len(CASES) > 2
Opens = Callable[..., Checker]


def sizes(case: Case) -> str:
    """What all launches of a case have in common."""
    return f"{case.problem.m}x{case.problem.n}x{case.problem.k}"


class Faulty(NumpyDevice):
    """Wrong, raising, or gone, for problems of given sizes."""

    def __init__(self, faults: dict[str, str]) -> None:
        super().__init__()
        self.faults = faults

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        fault = self.faults.get(sizes(case), "")
        if fault == "gone":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "raises":
            raise ZeroDivisionError("in the oracle")
        outputs = super().run(case, inputs)
        if fault == "wrong":
            outputs.result[:] = 0
        return outputs

    def abandon(self) -> None:
        pass


def open_faulty(faults: dict[str, str]) -> Faulty:
    return Faulty(faults)


def open_numbered(limit: float, number: int, times: bool = True) -> Faulty:
    """As `open_cuda`."""
    return Faulty({})


def open_wrong(limit: float, number: int, times: bool = True) -> NumpyDevice:
    """Whose results are all wrong."""
    return NumpyDevice(multiply=lambda a, b, p: a @ b + 1)


class Patient(Faulty):
    """Slow, so that others have come to their end meanwhile."""

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        time.sleep(0.03)
        return super().run(case, inputs)


def open_the_first(limit: float, number: int, times: bool = True) -> Faulty:
    """No other GPU can be opened."""
    return Patient({}) if number == 0 else open_nothing()


class After(Faulty):
    """Gone, unless another GPU times meanwhile, which makes the file that is named in the environment."""

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        end = time.monotonic() + 20
        while not Path(os.environ["GEMM_TEST_TIMED"]).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return Faulty({} if time.monotonic() < end else {sizes(case): "gone"}).run(case, inputs)


def open_after(limit: float, number: int, times: bool = True) -> Faulty:
    return After({}) if number == 0 else open_nothing()


def open_nothing(*given: object) -> NoReturn:
    raise SystemExit(3)


def open_counted(faults: dict[str, str]) -> NumpyDevice:
    """Wrong where NumPy may use many threads."""
    return Faulty({}) if os.environ.get("OPENBLAS_NUM_THREADS") == "1" else open_wrong(60.0, 0)


class Late(NumpyDevice):
    """Whose worker takes its time to start, where there is none before."""

    def __init__(self, first: str) -> None:
        super().__init__()
        self.first = Path(first)

    def start(self) -> None:
        try:
            self.first.touch(exist_ok=False)
        except FileExistsError:
            time.sleep(100)

    def abandon(self) -> None:
        pass


def open_late(faults: dict[str, str]) -> Late:
    return Late(faults["first"])


def open_never_ready(limit: float, number: int, times: bool = True) -> Late:
    return Late(__file__)


@pytest.fixture
def checker() -> Iterator[Opens]:
    """Makes one that opens this device, with these faults."""
    made: list[Checker] = []

    def checker(opens: Callable[..., Any] = open_faulty, /, **faults: str) -> Checker:
        made.append(Checker(Board(0, SimulatedDevice()), PROJECT.root, partial(opens, faults)))
        return made[-1]

    yield checker
    close_all(made)
    assert not any(each._process for each in made)


def results(one: Checker, *cases: Case) -> list[Any]:
    return [found for _, found in one.each(cases)]


def kinds(one: Checker, *cases: Case) -> list[str]:
    return [str(found.outcome.kind) for found in results(one, *cases)]


def test_results_are_those_of_this_process(checker: Opens) -> None:
    found = list(checker(**{sizes(CASES[1]): "wrong"}).each(CASES))
    assert found == [(case, check(Faulty({sizes(CASES[1]): "wrong"}), case)) for case in CASES]
    assert isinstance(found[1][1], Checked)
    assert found[1][1].findings


def test_a_process_has_the_next_case_while_it_checks_one(checker: Opens) -> None:
    given = iter(CASES[:3])
    found = checker().each(given)
    assert next(found)[0] == CASES[0]  # which shows that it works
    assert next(found)[0] == CASES[1]
    assert not list(given)
    assert [case for case, _ in found] == [CASES[2]]


def test_a_process_multiplies_in_one_thread(checker: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of this process, which other threads of it read meanwhile, stay as they are."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    before, meanwhile, start = dict(os.environ), list[dict[str, str]](), SpawnProcess.start

    def started(process: SpawnProcess) -> None:
        meanwhile.append(dict(os.environ))
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", started)
    assert kinds(checker(open_counted), CASES[0]) == ["PASS"]
    assert meanwhile == [before]


def test_a_process_knows_how_many_threads_it_may_use_before_it_imports_numpy() -> None:
    imports = "import gemm_regression.processes, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports]).returncode == 0


def test_a_thread_that_is_waited_for_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may wait for all of them when it has just been made."""
    ahead, start = Ahead(PROJECT), threading.Thread.start

    def started(thread: threading.Thread) -> None:
        ahead._end_warming()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    ran = threading.Event()
    ahead._warm(ran.set)
    ahead._end_warming()
    assert ran.is_set()


def test_nobody_waits_for_a_process_that_is_not_ready_while_others_do_its_work(
    checker: Opens, tmp_path: Path
) -> None:
    checkers = [checker(open_late, first=str(tmp_path / "first")) for _ in range(2)]
    board: Any = SimpleNamespace(verified={case.id: case for case in CASES}, gpu=None)
    for one in checkers:
        one.start()
        one.board = board
    ahead = Ahead(PROJECT, boards=[board], checkers=checkers, to_check=[case.id for case in CASES])
    ahead._checks = ahead.begin_checks()
    began = time.monotonic()
    ahead.end_checks()
    assert time.monotonic() - began < 60
    assert ahead.checkers == []
    assert {str(ahead._checks.result(case.id)[1].outcome.kind) for case in CASES} == {"PASS"}


def test_a_choice_is_checked_under_the_id_that_it_stands_for(checker: Opens) -> None:
    """The process knows it as what was chosen."""
    choice = replace(CASES[0], chosen_for=CASES[1])
    found = results(checker(), choice, CASES[0], choice)
    assert [each.name for each in found] == [CASES[1].id, CASES[0].id, CASES[1].id]


def test_what_nobody_waits_for_any_more_is_no_answer_to_another(checker: Opens) -> None:
    one = checker(**{sizes(CASES[2]): "wrong"})
    left: Any = one.each(CASES)
    assert [next(left)[0], next(left)[0]] == CASES[:2]
    left.close()  # while the process has the third
    assert kinds(one, CASES[0]) == ["PASS"]


def test_a_process_that_dies_costs_one_case(checker: Opens) -> None:
    one = checker(**{sizes(CASES[1]): "gone"})
    outcomes = results(one, *CASES[:3])
    assert [str(found.outcome.kind) for found in outcomes] == ["PASS", "CRASHED", "PASS"]
    assert "died (exit code -9)" in outcomes[1].reasons[0]
    assert one.works


def test_what_the_oracle_raises_is_told_of_its_case_alone(checker: Opens) -> None:
    one = checker(**{sizes(CASES[0]): "raises"})
    board: Any = SimpleNamespace(verified={case.id: case for case in CASES}, gpu=None)
    one.board = board
    ahead = Ahead(PROJECT, boards=[board], checkers=[one], to_check=[case.id for case in CASES])
    ahead._checks = ahead.begin_checks()
    with pytest.raises(RuntimeError, match="ZeroDivisionError: in the oracle"):
        ahead._checks.result(CASES[0].id)
    others = [ahead._checks.result(case.id)[1] for case in CASES[1:] if sizes(case) != sizes(CASES[0])]
    assert {str(found.outcome.kind) for found in others} == {"PASS"}


def test_a_gpu_that_cannot_be_opened_does_not_work(checker: Opens) -> None:
    one = checker(open_nothing)
    assert (kinds(one, *CASES[:2]), one.works) == (["CRASHED"] * 2, False)


def test_an_abandoned_process_ends_and_all_later_cases_fail(checker: Opens) -> None:
    one = checker()
    assert kinds(one, CASES[0]) == ["PASS"]
    one.abandon()
    assert kinds(one, *CASES[:2]) == ["CRASHED"] * 2

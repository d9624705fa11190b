"""What the GPUs of a run do ahead of whoever waits for it: all cases are checked, and all are timed, on a GPU
that checks afterwards. Each GPU is a place that takes cases, or several processes of it are."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices import Device, DeviceError, open_cuda
from gemm_regression.devices.work import EXACT
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Case
from gemm_regression.project.loader import Project
from gemm_regression.run.checked import Checked, Checker, CheckPlace, abandon_all, check, close_all
from gemm_regression.run.pairing import size_of
from gemm_regression.run.spread import Done, LostError, Spread
from gemm_regression.run.timed import Board, TimedCase
from gemm_regression.timing.looks import student
from gemm_regression.timing.plan import Plan

_FEW = 50  # cases that are checked before other processes have started
# Processes that check, on all GPUs of a host: oracle and copies take longer than the launches, but the driver
# makes one context after another, 0.2 s each on H200s, whichever GPU it is on, and ends them so, 0.08 s each.
_MOST = 12
_BESIDE = 8  # where others time meanwhile: on four H100s a case took 3 to 4 % longer beside 8, 5 % beside 12
_MEMORY = 6 << 10  # MiB of the GPU for each: a context, and what its worker allocates at once
_ONE_LOADS = 4  # one of so many processes that check loads the library
_SWITCH = 1e-4  # seconds that a thread with an answer waits for Python; by default 5 ms, as long as a check
_PATIENCE = 3.0  # seconds, of a run that ends, for what it is at


@dataclass
class Ahead:
    """The GPUs of a run, and what they do.

    Attributes:
        project: the project under test.
        policy, plan: how strict the run is, and how a case is timed.
        judging: False for a run that measures a new baseline.
        boards: the GPUs that cases are spread over; empty without one.
        to_check, to_time: the ids of the cases that tests will ask for.
        unasked: whether timing begins by itself, before pytest has reported all checks, which takes as long
            as the checks.
        checkers: the processes that check on the GPUs.
        answering: the threads that start those that time, by GPU; ``warming``: others that start something.
        compile_errors: the compiler's messages, by variant.
        says: is told what a long test does.
    """

    project: Project
    policy: Policy = field(default_factory=Policy)
    plan: Plan = field(default_factory=Plan)
    judging: bool = True
    boards: list[Board] = field(default_factory=list)
    to_check: Sequence[str] = ()
    to_time: Sequence[str] = ()
    unasked: bool = False
    checkers: list[Checker] = field(default_factory=list)
    answering: dict[Board, threading.Thread] = field(default_factory=dict)
    warming: list[threading.Thread] = field(default_factory=list)
    compile_errors: dict[str, str] = field(default_factory=dict)
    says: Callable[[str], None] = lambda what: None
    _started: threading.Thread | None = None  # which starts the checkers
    _checks: Spread[CheckPlace, Checked] | None = None
    _timing: Future[Spread[Board, TimedCase]] | None = None
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def checked(self, device: Device, case: Case) -> tuple[Board | None, Checked]:
        """Whether a case is correct, and the GPU that it ran on, if there are several. The first call begins
        with all that is to be checked."""
        several = len(self.boards) > 1
        if self._timing and (self._checks is None or case.id not in self._checks):
            self._timing.result().settle()
        if self._checks is None:
            if not several and not self.checkers:
                return None, check(device, case)
            self._checks = self.begin_checks()
            if self.checkers and self.to_time:
                self._draw(self._checking(), self.to_time)
            if self.checkers and self.to_time and self.unasked:
                background = ThreadPoolExecutor(1)
                self._timing = background.submit(self._begin_timing)
                background.shutdown(wait=False)
        elif case.id not in self._checks and self._timing:  # once more
            board = next(board for board in self.boards if case.id in board.verified)
            return board if several else None, check(board.gpu, case)  # type: ignore[arg-type]  # as below
        place, found = self._checks.result(case.id)
        return place.board if several else None, found

    def judged(self, case: Case) -> tuple[Board, TimedCase]:
        """The result of a timed case, and the GPU that judged it. The first call begins with all that is to
        be timed."""
        if not any(case.id in board.timed for board in self.boards):
            self.boards[0].timed[case.id] = case  # of a project's own test
        if self._timing is None:
            self.end_checks()
            begun = self._begin_timing()
            self._timing = Future()
            self._timing.set_result(begun)
        return self._timing.result().result(case.id)

    def settle(self) -> None:
        """Waits for what the GPUs do, so that another may use them."""
        for spread in (self._timing and self._timing.result(), self._checks):
            if spread:
                spread.settle()

    def close(self) -> None:
        """Nothing more is begun in a run that ends early, and no process stays."""

        def stop() -> None:
            for checker in self.checkers:
                checker.abandon()
            for board in self.boards:
                board.gpu.abandon()

        if self._checks is not None:
            self._checks.closing = True
            for checker in self.checkers:  # Nobody waits for one that is not ready.
                checker.stop()
            self._checks.close(stop)
        if self._timing is not None:
            if not wait([self._timing], _PATIENCE).done:
                stop()
            with contextlib.suppress(BaseException):  # which a test has raised, if it was asked for
                self._timing.result().close(stop)
        close_all(self.checkers)
        for board in self.boards:  # It takes a while to give memory back.
            threading.Thread(target=board.gpu.close).start()

    # Processes

    def start(self) -> None:
        """Starts the processes that time, while cases are selected and tests collected."""
        for board in self.boards:
            self.answering[board] = self._warm(board.answers)

    def make_ready(self, cases: Iterable[Case]) -> None:
        """While tests are collected, the GPUs that may time from the start make the numbers that these cases
        are timed on."""
        first = self._first_of_each_model()
        self._draw([board for board in self.boards if board not in first], [case.id for case in cases])

    def start_checkers(self) -> None:
        """Starts the processes that check, unless there are few cases. Under a sanitizer, whose report is one
        process's, this process checks."""
        numbered = all(hasattr(board.gpu, "index") for board in self.boards)
        if len(self.to_check) > _FEW and numbered and not os.environ.get(EXACT):
            boards = self._checking()
            most = _BESIDE if len(boards) < len(self.boards) else _MOST
            count = _processes([board.gpu.info.memory_mib for board in boards], most)
            self.checkers = [self._checker(board) for _ in range(count) for board in boards]
            atexit.register(abandon_all, self.checkers)  # Python waits for them at its end.
            first = [self.answering[board] for board in boards if board in self.answering]
            self._started = self._warm(_begin, first, self.checkers)
            for board in self.boards if self.to_time else ():
                if board not in boards:  # where nothing is checked
                    threading.Thread(target=board.look_at_health, daemon=True).start()

    def _checking(self) -> list[Board]:
        """The GPUs that check: the first of each model if the others can time meanwhile, else all."""
        if not (self.unasked and self.to_time):
            return self.boards
        return self._first_of_each_model()

    def _first_of_each_model(self) -> list[Board]:
        return list({board.slug: board for board in reversed(self.boards)}.values())

    def _checker(self, board: Board) -> Checker:
        gpu: Any = board.gpu  # one with a number
        return Checker(board, self.project.root, partial(open_cuda, gpu.time_limit, gpu.index, False))

    def _draw(self, boards: Sequence[Board], names: Sequence[str]) -> None:
        """While others check, the processes that time make the numbers that cases are timed on."""

        def drawn(board: Board) -> None:
            with contextlib.suppress(DeviceError):
                board.gpu.prepare_inputs([board.timed[name] for name in names if name in board.timed])

        for board in boards:
            threading.Thread(target=drawn, args=(board,), daemon=True).start()

    def _warm(self, do: Callable[..., object], *given: object) -> threading.Thread:
        thread = threading.Thread(target=do, args=given, daemon=True)
        thread.start()
        self.warming.append(thread)  # Another thread joins those that it finds there.
        return thread

    def _end_warming(self) -> None:
        for thread in self.warming:
            thread.join()

    # Checks

    def begin_checks(self) -> Spread[CheckPlace, Checked]:
        """Begins with all; does not wait until a process has started."""
        sys.setswitchinterval(_SWITCH)
        places: list[CheckPlace] = [*self.checkers] or [CheckPlace(board) for board in self.boards]

        def work(place: CheckPlace, names: Iterator[str], done: Done[Checked]) -> None:
            def compiled() -> Iterator[Case]:
                for name in names:
                    case = place.board.verified[name]
                    if case.variant in self.compile_errors:  # which each process would find again
                        done(name, check(place.board.gpu, case))  # type: ignore[arg-type]  # as below
                    else:
                        yield case

            if self._started:
                self._started.join()
            place.ready()
            for case, found in place.each(compiled()):
                done(case.id, found)
                if not place.works:
                    spread.retire(place)

        # To load the library takes a process as long as to start: some do, and its cases come first.
        loads = places[: max(2 * len(self.boards), len(places) // _ONE_LOADS)]  # of each GPU as many

        def takes(place: CheckPlace, name: str) -> bool:
            case = place.board.verified.get(name)
            return case is not None and (not case.kernel.library or place in loads)

        # A process loads each variant that it checks.
        variants = {n: (case.variant,) for board in self.boards for n, case in board.verified.items()}
        library = {n for board in self.boards for n, case in board.verified.items() if case.kernel.library}
        spread: Spread[CheckPlace, Checked] = Spread(places, work, takes, lambda name: variants.get(name, ()))
        spread.begin(sorted(self.to_check, key=lambda name: name not in library))
        return spread

    def end_checks(self) -> None:
        """Nothing else uses a GPU while it is timed. Raises LostError if the run has ended."""
        with self._ending:
            self._end_warming()
            if self._checks:
                self._checks.finish()
                for checker in self.checkers:
                    checker.stop()
                self._checks.settle()
                if self._checks.closing:
                    raise LostError("the run has ended")
            close_all(self.checkers)
            self.checkers = []  # What is checked later is checked by those that time.

    # Timing

    def _begin_timing(self) -> Spread[Board, TimedCase]:
        boards, names, changed = self.boards, self.to_time, set[str]()
        if self.judging:
            self.says("what has changed")
            changed = {name for board in boards for name in board.changed(names)}
        if changed:
            self.says(f"{len(changed)} changed cases")
            self._warm(student)

        busy = {checker.board for checker in self.checkers}

        def judge(board: Board, names: Iterator[str], done: Done[TimedCase]) -> None:
            if board in busy:
                self.end_checks()

            def told(result: TimedCase) -> None:
                # A GPU that no process starts on any more would fail all that it is given, one after another.
                if result.evidence.error and len(boards) > 1 and not board.answers():
                    spread.retire(board)
                done(result.case.id, result)

            board.look_at_health()
            cases = (board.timed[name] for name in names)
            board.judge(cases, told, self.policy, self.plan, self.says, self.judging, len(changed))

        # What is timed alone comes last: a GPU that is done with its pairs, in both processes, takes of it.
        spread: Spread[Board, TimedCase] = Spread(
            *(boards, judge, self._times_here),
            *(lambda name: self._shares(name, name in changed), lambda name: name not in changed),
        )
        spread.begin(names)
        self._warm(self._learn_cores)
        return spread

    def _learn_cores(self) -> None:
        """The kinds of core, which are read from PTX, and asked for when all is timed."""
        for board in self.boards:
            of = arch(board.gpu.info.capability)
            for case in board.timed.values():
                if not case.kernel.is_dispatcher:
                    core_of(case.kernel, case.config, case.dtype, of)

    def _shares(self, name: str, paired: bool) -> tuple[object, ...]:
        """Pairs of about one size and element type have a control in common. What is timed alone has the data
        of its problem, and what `select` chose the measurement."""
        board = next(board for board in self.boards if name in board.timed)
        case = board.timed[name]
        if not paired:
            return (case.problem, case.dtype), case.variant
        entry = board.baseline.entry(name) if board.baseline else None
        return (case.dtype, size_of(entry.median_s) if entry else None), case.problem

    def _times_here(self, board: Board, name: str) -> bool:
        """A GPU takes a case that is legal on it, and that its baseline has, if any GPU's has it."""
        legal = name in board.timed
        return legal and (
            not self.judging or board.has_stored(name) or not any(b.has_stored(name) for b in self.boards)
        )


def _begin(answering: Sequence[threading.Thread], checkers: Sequence[Checker]) -> None:
    """What is to be timed on a GPU is allocated first, so that it lies where it always does."""
    for thread in answering:
        thread.join()
    for checker in checkers:
        checker.start()


def _processes(mib: Sequence[int], most: int) -> int:
    """How many check on each of the GPUs with so much memory. One waits for its worker, so the two keep about
    one core busy; the other half of the cores is for the tests and the driver."""
    of_host = min(most, len(os.sched_getaffinity(0)) // 2)
    return max(2, min(of_host // len(mib), min(mib) // _MEMORY))

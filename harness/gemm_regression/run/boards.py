"""The GPUs of a run: what the cases of each are judged by, how they share the work, and the verdict on each
machine, by its health before anything is timed and by how the baseline's own binaries do.

Work is done ahead of whoever waits for it. Each place, a GPU or one of its processes, has a thread, and takes
the next name that it can do when it is free, so that all end at about the same time; names of one
affinity, which share what is made ready for them, go to one place while there are others."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from gemm_regression.baselines import Baseline, BaselineEntry, binary, gpu_slug, provenance
from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.counters.traffic import Known
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.judge.health import Health
from gemm_regression.judge.machine import MachineVerdict, Shift, judge_machine
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Case
from gemm_regression.run.pairing import Pairing
from gemm_regression.run.timed import Gate, Result, changed, usable_shift
from gemm_regression.timing.bounds import Level, Roofs, bound, roofs_of, shares
from gemm_regression.timing.looks import Rule
from gemm_regression.timing.plan import TIMING, PairPlan, Plan

P = TypeVar("P")
R = TypeVar("R")

Done = Callable[[str, R], None]
# Takes names while it is free, and tells the result of each: at once, or later and in another order.
Work = Callable[[P, Iterator[str], Done[R]], None]


class LostError(RuntimeError):
    """A name that no place did."""


class Spread(Generic[P, R]):
    """``places`` do ``work``; ``takes`` says whether a place can do what a name stands for, ``affinity`` what
    else it shares work with. ``closing``: nothing more is to be begun."""

    def __init__(
        self,
        places: Sequence[P],
        work: Work[P, R],
        takes: Callable[[P, str], bool] = lambda place, name: True,
        affinity: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._places, self._work, self._takes, self._affinity = list(places), work, takes, affinity
        self._at: dict[P, object] = {}  # the affinity of what a place took last
        self._lock = threading.RLock()
        self._queue: list[str] = []
        self._futures: dict[str, Future[tuple[P, R]]] = {}
        self._taken: dict[str, P] = {}  # and not done yet
        self._retired: list[P] = []
        self._threads: list[threading.Thread] = []
        self._running, self.closing = 0, False
        self._error: BaseException = LostError("no GPU is left for it")

    def begin(self, names: Sequence[str]) -> None:
        """Does ``names``, in about this order."""
        with self._lock:
            self._queue += names
            self._futures.update((name, Future()) for name in names)
            self._running += len(self._places)
        each = self._places
        self._threads = [threading.Thread(target=self._serve, args=(p,), daemon=True) for p in each]
        for thread in self._threads:
            thread.start()

    def __contains__(self, name: str) -> bool:
        """Whether its result was not asked for yet."""
        return name in self._futures

    def result(self, name: str) -> tuple[P, R]:
        """Who did it, and the result, waited for; done now if it was not begun, or asked for before.

        Raises what the work raised, or LostError.
        """
        if name not in self._futures:
            self.settle()
            self.begin([name])
        try:
            return self._futures[name].result()
        finally:
            del self._futures[name]

    def retire(self, place: P) -> bool:
        """Gives no more to a place if others can do what is left; whether they can."""
        with self._lock:
            others = [each for each in self._places if each is not place and each not in self._retired]
            can = bool(others) and all(any(self._takes(each, n) for each in others) for n in self._queue)
            if can:
                self._retired.append(place)
            return can

    def finish(self) -> None:
        """Waits until all names are done; some place may not have begun yet, and finds nothing left."""
        wait(list(self._futures.values()))

    def settle(self) -> None:
        """Waits until no place does anything any more."""
        for thread in self._threads:
            thread.join()

    def close(self, stop: Callable[[], None] = lambda: None, seconds: float = 3.0) -> None:
        """Gives nothing more to anyone, and waits; what is not done after ``seconds`` is told to ``stop``."""
        with self._lock:
            self.closing = True
        for thread in self._threads:
            thread.join(seconds)
        with self._lock:
            unfinished = bool(self._taken)
        if unfinished:
            stop()
        self.settle()

    # The threads

    def _serve(self, place: P) -> None:
        while self._has_work(place):
            error: BaseException = LostError("it was begun, and came to no result")
            try:
                self._work(place, self._names(place), self._done)
            except BaseException as raised:  # Whoever waits for it raises it.
                self._error = error = raised
            if not self._give_up(place, error):
                break
        with self._lock:
            self._running -= 1
            left = [] if self._running else self._queue[:]
            del self._queue[: len(left)]
        for name in left:  # No place is left that could do it, which is no pass.
            self._futures[name].set_exception(self._error)

    def _has_work(self, place: P) -> bool:
        with self._lock:
            gone = self.closing or place in self._retired
            return not gone and any(self._takes(place, name) for name in self._queue)

    def _names(self, place: P) -> Iterator[str]:
        while True:
            with self._lock:
                if not self._has_work(place):
                    return
                name = self._next(place)
                self._queue.remove(name)
                self._at[place] = self._affinity(name)
                self._taken[name] = place
            yield name

    def _next(self, place: P) -> str:
        """One of the affinity of the last, else of one that no other place is at, else the first."""
        mine = self._at.get(place)
        theirs = {affinity for each, affinity in self._at.items() if each is not place}
        found: dict[int, str] = {}
        for name in self._queue:
            affinity = self._affinity(name)
            rank = 0 if affinity == mine else 1 if affinity not in theirs else 2
            if rank not in found and self._takes(place, name):
                found[rank] = name
                if not rank:
                    break
        return found[min(found)]

    def _done(self, name: str, value: R) -> None:
        with self._lock:
            place = self._taken.pop(name)
        self._futures[name].set_result((place, value))

    def _give_up(self, place: P, error: BaseException) -> bool:
        """Fails what a place took and did not finish; whether there was any, so that it may go on."""
        with self._lock:
            left = [name for name, by in self._taken.items() if by is place]
            for name in left:
                del self._taken[name]
        for name in left:
            self._futures[name].set_exception(error)
        return bool(left)


@dataclass(eq=False)
class Board:
    """One GPU of a run.

    Attributes:
        number: which of the visible GPUs, from 0.
        gpu: the device.
        baseline: what its cases are compared with; None without one.
        measured: all that was stored of its model when the run began, oldest first.
        root: the folder of the baselines, which keeps their binaries.
        pairing: of the run so far; None before the first pair.
        health: what it could do before anything was timed, as `Gpu.health`; empty where that failed.
        busy: lists other processes on the GPU, if that matters; ``visitors``: all that it named.
        verified, timed: the cases that can run on it, by id.
    """

    number: int
    gpu: Gpu
    baseline: Baseline | None = None
    measured: Sequence[Baseline] = ()
    root: Path = Path()
    pairing: Pairing | None = None
    health: Mapping[str, Any] = field(default_factory=dict)
    busy: Callable[[], Sequence[str]] = tuple
    visitors: dict[str, None] = field(default_factory=dict)
    verified: dict[str, Case] = field(default_factory=dict)
    timed: dict[str, Case] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The folder of its model in baselines/."""
        return gpu_slug(self.gpu.info.name)

    @property
    def label(self) -> str:
        """``1, board 4173df1b``."""
        board = self.gpu.info.board
        return f"{self.number}, board {board}" if board else str(self.number)

    @property
    def works(self) -> bool:
        """Whether a process on it starts, and answers."""
        try:
            self.gpu.facts()
        except DeviceError:
            return False
        return True

    def machine(self) -> dict[str, Any]:
        """The GPU, its settings, and the versions of the software."""
        return provenance.machine_of(self.gpu)

    def look_for_visitors(self) -> None:
        self.visitors.update(dict.fromkeys(self.busy()))

    def changed(self, names: Collection[str]) -> set[str]:
        """Those of the cases of these ids that have to be paired."""
        mine = [self.timed[name] for name in names if name in self.timed]
        return {case.id for case in mine if changed(self.gpu, case, self.baseline)}

    def judge(
        self,
        names: Iterable[str],
        done: Done[Result],
        policy: Policy,
        plan: Plan,
        says: Callable[[str], None],
        judging: bool = True,
        pairs: int = 1,
    ) -> None:
        """Times the cases of these ids, and compares them with the baseline if ``judging``; ``pairs``: how
        many of all of the run's cases have to be paired, on whichever GPU."""
        if self.pairing is None:
            self.pairing = Pairing(self.gpu, Rule(), pairs, plan=PairPlan((), l2=plan.l2))
        baseline = self.baseline if judging else None
        kept = partial(binary, self.root)
        gate = Gate(self.gpu, baseline, kept, policy, plan, self.pairing, self.look_for_visitors, says)

        def told(result: Result) -> None:
            done(result.case.id, result)

        gate.run((self.timed[name] for name in names), told)


# What may change how long a binary takes: names in machine_info.
SETTINGS = (
    *("board", "vbios", "driver", "cuda_driver", "cublas", "power_limit_w", "ecc", "mig"),
    *("applications_sm_clock_mhz", "max_sm_clock_mhz", "max_memory_clock_mhz"),
)
_BOUNDS = {Level.DRAM: "dram", Level.L2: "l2"}


def judge_board(
    board: Board,
    results: Iterable[Result],
    known: Known,
) -> MachineVerdict:
    """The verdict on the machine of one GPU by the cases that it timed; ``known``: how much they move."""
    machine = board.machine()
    probes = {name: value for name, value in board.health.items() if isinstance(value, Mapping)}
    now = Health.of({**machine, **board.health, "roofs": probes}, board.visitors)
    before = [Health.of(one.machine_info) for one in board.measured]
    roofs = roofs_of({**machine, "roofs": probes or None})
    shifts = [shift_of(board, result, machine, known, roofs) for result in results if usable_shift(result)]
    return judge_machine(now, before, shifts)


def shift_of(
    board: Board, result: Result, machine: Mapping[str, object], known: Known, roofs: Roofs | None
) -> Shift:
    """How a case whose binary has not changed compares with its stored figure."""
    case, seen = result.case, result.evidence.seen
    entry = board.baseline.entry(case.id) if board.baseline else None
    assert seen is not None
    assert entry is not None
    level = None
    if roofs:
        work = known.work(board.slug, case, seen.cubin_sha256)
        level = bound(shares(work, roofs, case.dtype.name, seen.median))
    return Shift(
        case=case.id,
        kernel=case.kernel.name,
        dtype=case.dtype.name,
        core=core_of(case.kernel, case.config, case.dtype, arch(board.gpu.info.capability)),
        bound=_BOUNDS.get(level[0], "compute") if level else "latency",
        seconds=entry.median_s,
        log_ratio=math.log(seen.median / entry.median_s),
        noise=entry.noise_floor,
        own=_is_own(entry, board.gpu.info.board),
        changed=_changed_settings(entry, machine),
    )


def _is_own(entry: BaselineEntry, board: str | None) -> bool:
    """Whether this board measured it, timed as it is now."""
    return board is not None and entry.board == board and entry.machine.get("timing") == TIMING


def _changed_settings(entry: BaselineEntry, machine: Mapping[str, object]) -> tuple[str, ...]:
    then = entry.machine
    return tuple(n for n in SETTINGS if None not in (then.get(n), machine.get(n)) and then[n] != machine[n])

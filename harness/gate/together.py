"""Whether GPUs of one host may be timed at once: a few control cases are timed with the other GPUs idle, and
again while all of them time.

Two runs of one binary on one board agree within the limits of `baselines.agree` in nearly all cases. A
control that does not is timed once more in both ways, so that one unlucky measurement does not decide; if all
its times together are still farther from all of those alone than the limit, timing at once is not sound.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from harness.baselines.agree import LEAST, limit, near_cap
from harness.devices import DeviceError
from harness.gate.boards import Board
from harness.model import Case
from harness.timing.plan import Plan

_MOST = 5e-3  # seconds: of longer cases, the plan's few rounds take long
_GUESS = 1e13  # FLOP per second, where nothing is stored
_AT_LEAST = 3  # controls
_LOOKS = 2
_PATIENCE = 300.0  # seconds, for the slowest GPU


@dataclass(eq=False)
class Control:
    """A ``case`` on a ``board``: median seconds ``alone``, with the other GPUs idle, and ``together``, while
    they time too."""

    board: Board
    case: Case
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    @property
    def change(self) -> float:
        """Relative change of the time from alone to together."""
        return median(self.together) / median(self.alone) - 1

    @property
    def limit(self) -> float:
        return limit(self.case.kernel.duty)

    @property
    def agrees(self) -> bool:
        """Whether the ranges are no farther apart than the limit."""
        if not (self.alone and self.together):
            return False
        apart = max(min(self.together) - max(self.alone), min(self.alone) - max(self.together))
        return apart <= self.limit * median(self.alone)


@dataclass(frozen=True)
class Together:
    """``sound``: whether all GPUs may be timed at once, ``why`` in a few words; with the ``controls``."""

    sound: bool
    why: str
    controls: tuple[Control, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As a run's JSON has it: seconds."""
        controls = [
            {"case": c.case.id, "gpu": c.board.number, "alone": c.alone, "together": c.together}
            for c in self.controls
        ]
        return {"sound": self.sound, "why": self.why, "controls": controls}


def controls_of(boards: Sequence[Board], names: Sequence[str]) -> list[list[Control]]:
    """For each board the same number of controls, from the cases to be timed: different ones, with little
    noise, in turn of CUDA cores and of tensor cores."""
    each = -(-_AT_LEAST // len(boards))
    chosen, used = [], set[str]()
    for number, board in enumerate(boards):
        mine = []
        for place in range(each):
            fitting = [board.timed[n] for n in names if n in board.timed and _fits(board, board.timed[n])]
            capped = (number + place) % 2 == 1
            fitting.sort(key=lambda c: (c.id in used, near_cap(c.kernel.duty) != capped, _noise(board, c)))
            if fitting:
                used.add(fitting[0].id)
                mine.append(Control(board, fitting[0]))
        chosen.append(mine)
    return chosen


def _seconds(board: Board, case: Case) -> float:
    entry = board.baseline.entry(case.id) if board.baseline else None
    return entry.median_s if entry else case.flop / _GUESS


def _fits(board: Board, case: Case) -> bool:
    return 2 * LEAST <= _seconds(board, case) <= _MOST


def _noise(board: Board, case: Case) -> float:
    entry = board.baseline.entry(case.id) if board.baseline else None
    return entry.noise_floor if entry else _seconds(board, case)


def verified(
    boards: Sequence[Board], names: Sequence[str], plan: Plan, quiet: Callable[[], None] = lambda: None
) -> Together:
    """Times the controls. A control that fails to run is its own test's finding, and is left out here.

    ``quiet`` ends whatever else uses the GPUs; meanwhile the controls are made ready.
    """
    chosen = controls_of(boards, names)
    if not all(chosen):
        quiet()
        return Together(False, "no case is fit for a control")
    plan = replace(plan, reference=False, sustained=0.0)
    every = [control for mine in chosen for control in mine]
    with ThreadPoolExecutor(len(boards)) as threads:
        # Of one GPU after another this takes long, and no process starts while another GPU is timed alone.
        ready = [threads.submit(_made_ready, mine, plan) for mine in chosen]
        quiet()
        for each in ready:
            each.result()
        for _ in range(_LOOKS):
            apart = [control for control in every if not control.agrees]
            for control in apart:
                _time(control, control.alone, plan)
            barrier = threading.Barrier(len(boards), timeout=_PATIENCE)
            jobs = [threads.submit(_all_at_once, mine, apart, barrier, plan) for mine in chosen if apart]
            for job in jobs:
                job.result()
            every = [c for c in every if c.alone and c.together]
    return _concluded(every, {id(c.board) for c in every} == {id(b) for b in boards})


def _made_ready(mine: Sequence[Control], plan: Plan) -> None:
    """Process, clock, data and checks: one round of each control, whose time counts for nothing."""
    for control in mine:
        _time(control, [], replace(plan, target_seconds=0.0, min_rounds=1, max_rounds=1, retries=0))


def _time(control: Control, into: list[float], plan: Plan) -> None:
    with contextlib.suppress(DeviceError, ValueError):  # ValueError: no round at full clock
        into.append(control.board.gpu.time(control.case, plan).median)


def _all_at_once(
    mine: Sequence[Control], counted: Sequence[Control], barrier: threading.Barrier, plan: Plan
) -> None:
    """Each board times all of its controls, the first together with those of the others, and so on."""
    for control in mine:
        barrier.wait()
        _time(control, control.together if control in counted else [], plan)


def _concluded(every: Sequence[Control], complete: bool) -> Together:
    if not complete:
        return Together(False, "not every GPU could time a control", tuple(every))
    apart = [control for control in every if not control.agrees]
    if apart:
        worst = max(apart, key=lambda c: abs(c.change))
        why = f"{worst.case.id} changes by {100 * worst.change:+.2f} % while the other GPUs are timed"
        return Together(False, why, tuple(every))
    most = max(abs(control.change) for control in every)
    why = f"{len(every)} control cases agree with the same GPU timed alone, within {100 * most:.2f} %"
    return Together(True, why, tuple(every))

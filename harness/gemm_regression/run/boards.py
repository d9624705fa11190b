"""The GPUs of a run, each with what its cases are judged by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gemm_regression.baselines import Baseline, binary, gpu_slug, provenance
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Case
from gemm_regression.run.pairing import Pairing
from gemm_regression.run.spread import Done
from gemm_regression.run.timed import Gate, Result, changed
from gemm_regression.timing.looks import Rule
from gemm_regression.timing.plan import PairPlan, Plan


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

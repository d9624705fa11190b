"""The GPUs of a run, each with what its cases are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.baselines import Baseline, gpu_slug, provenance
from harness.devices import DeviceError, Gpu
from harness.gate.against import Against
from harness.gate.spread import Done
from harness.gate.timed import Result, run_all
from harness.model import Case
from harness.timing.plan import Plan
from harness.verdicts.vocabulary import Policy


@dataclass(eq=False)
class Board:
    """One GPU of a run.

    Attributes:
        number: which of the visible GPUs, from 0.
        gpu: the device.
        baseline, path: what its cases are compared with, and the file; None without one.
        against: pairs a case with its baseline's commit.
        busy: lists other processes on the GPU, if that matters.
        verified, timed: the cases that can run on it, by id.
    """

    number: int
    gpu: Gpu
    baseline: Baseline | None = None
    path: Path | None = None
    against: Against | None = None
    busy: Callable[[], Sequence[str]] = tuple
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

    def judge(
        self,
        names: Iterable[str],
        done: Done[Result],
        policy: Policy,
        plan: Plan,
        says: Callable[[str], None],
        judging: bool = True,
    ) -> None:
        """Times the cases of these ids, and compares them with the baseline if ``judging``."""
        cases = (self.timed[name] for name in names)
        baseline = self.baseline if judging else None

        def told(result: Result) -> None:
            done(result.case.id, result)

        run_all(self.gpu, cases, told, baseline, policy, plan, self.machine, self.against, self.busy, says)

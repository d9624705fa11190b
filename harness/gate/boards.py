"""The GPUs of a run, each with what its cases are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.baselines import Baseline, provenance
from harness.devices import Gpu
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
        number: as the run counts the GPUs, from 0.
        gpu: the device.
        baseline: what its cases are compared with; None without one, or where nothing is judged.
        against: pairs a case with its baseline's commit.
        busy: lists other processes on the GPU, if that matters.
        timed: the cases that it can time, by id.
    """

    number: int
    gpu: Gpu
    baseline: Baseline | None = None
    against: Against | None = None
    busy: Callable[[], Sequence[str]] = tuple
    timed: dict[str, Case] = field(default_factory=dict)

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
    ) -> None:
        """Times and judges the cases of these ids, one after another."""
        cases = (self.timed[name] for name in names)

        def told(result: Result) -> None:
            done(result.case.id, result)

        run_all(
            self.gpu, cases, told, self.baseline, policy, plan, self.machine, self.against, self.busy, says
        )

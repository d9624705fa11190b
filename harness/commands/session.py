"""The state of one pytest run; the plugins share it through the config's stash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import baselines
from harness.baselines import Baseline
from harness.compiler.static import ARCHES
from harness.devices import Device, Gpu
from harness.gate.against import Against
from harness.gate.boards import Board
from harness.gate.passed import Records
from harness.gate.spread import Spread
from harness.gate.timed import Result
from harness.model import Waiver
from harness.project import selection as cases
from harness.project.loader import Project
from harness.reports.failures import Failure
from harness.timing.plan import Plan
from harness.verdicts.vocabulary import Policy


@dataclass(frozen=True)
class Answer:
    """A test that is not run, because it passed and nothing of it changed since: what it recorded then, in
    the form of pytest's report of it."""

    nodeid: str
    user_properties: Records
    when: str = "call"
    passed: bool = True
    failed: bool = False
    skipped: bool = False


@dataclass
class Session:
    """The state of one pytest run.

    Attributes:
        project: the project under test.
        device: where cases run; None if they cannot be run.
        gpu: the device if it is a GPU, otherwise None.
        no_gpu: why there is no GPU.
        arch: the architecture the emulated device compiles for.
        selection: the selected cases.
        baseline, baseline_path: the baseline of this GPU, and its file; None without one.
        policy: how strict the run is.
        plan: how a case is timed.
        judging: False for a run that measures a new baseline.
        against: pairs a suspected regression with its baseline's commit.
        busy: lists other processes on the GPU, if that matters.
        boards: the GPUs that cases are spread over, the first being ``gpu``.
        timed: what they time and judge, ahead of the tests that wait for it; None before the first of these.
        results: of the timed cases.
        compile_errors: the compiler's messages, by variant.
        nothing_timed: whether cases were to be timed, there was no GPU, and nothing else was done.
        says: is told what a long test does.
        answered: the tests that are answered from the cache.
        failures, failed_reports: the failed tests of kernels, which are shown together.
        found: the same, also where each is shown by itself.
        without_baseline: the names of GPUs that have no baseline, of which each is one failure.
    """

    project: Project
    device: Device | None = None
    gpu: Gpu | None = None
    no_gpu: str = ""
    arch: str = "sm_90a"
    selection: cases.Selection = field(default_factory=cases.Selection)
    baseline: Baseline | None = None
    baseline_path: Path | None = None
    policy: Policy = field(default_factory=Policy)
    plan: Plan = field(default_factory=Plan)
    judging: bool = True
    against: Against | None = None
    busy: Callable[[], Sequence[str]] = tuple
    boards: list[Board] = field(default_factory=list)
    timed: Spread[Board, Result] | None = None
    results: list[Result] = field(default_factory=list)
    compile_errors: dict[str, str] = field(default_factory=dict)
    nothing_timed: bool = False
    says: Callable[[str], None] = lambda what: None
    unused_waivers: list[tuple[str, Waiver]] = field(default_factory=list)
    answered: list[Answer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    failed_reports: list[Any] = field(default_factory=list)
    found: list[Failure] = field(default_factory=list)
    without_baseline: set[str] = field(default_factory=set)

    @property
    def slug(self) -> str:
        return baselines.gpu_slug(self.gpu.info.name) if self.gpu else "no-gpu"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU, or of the one that is emulated."""
        capability: tuple[int, int] = self.gpu.info.capability if self.gpu else ARCHES[self.arch]
        return capability

    @property
    def orphans(self) -> list[str]:
        """Cases of the baseline that the suite no longer has."""
        if self.baseline is None or not self.judging:
            return []
        live = {case.id for case in cases.select(self.project, cases.Choice(), self.capability).timed}
        return sorted(set(self.baseline.case_ids) - live)


KEY = pytest.StashKey[Session]()

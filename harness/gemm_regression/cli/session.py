"""The state of one pytest run; the plugins share it through the config's stash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from gemm_regression.baselines import Baseline
from gemm_regression.compiler.static import ARCHES
from gemm_regression.devices import Device, Gpu
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Waiver
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project
from gemm_regression.report.failures import Failure
from gemm_regression.run.boards import Board, Spread
from gemm_regression.run.checked import Checked
from gemm_regression.run.checkers import Checker, Checks
from gemm_regression.run.passed import Records
from gemm_regression.run.timed import Result
from gemm_regression.timing.plan import Plan


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
        boards: the GPUs that cases are spread over; empty without one.
        no_gpu: why there is no GPU.
        arch: the architecture the emulated device compiles for.
        selection: the selected cases.
        policy: how strict the run is.
        plan: how a case is timed.
        judging: False for a run that measures a new baseline.
        checkers: the processes that check on the GPUs.
        free: whether it is known that nothing else used the GPUs when these were started.
        warming: the threads that start those that time.
        checked, timed: what the GPUs check and time, ahead of the tests that wait for it; None before that.
        timing: ``timed``, where it begins by itself once all is checked; None where it does not.
        orphaned: looks for `orphans` while GPUs time; None before that.
        results: of the timed cases.
        machines: the verdict on the machine of each GPU; None before it is asked.
        judged_on: the GPU that timed a case, by its id.
        compile_errors: the compiler's messages, by variant.
        nothing_timed: whether cases were to be timed, there was no GPU, and nothing else was done.
        says: is told what a long test does.
        planned: the ids of the tests that are to run.
        answered: the tests that are answered from the cache.
        failures, failed_reports: the failed tests of kernels, which are shown together.
        found: the same, also where each is shown by itself.
        without_baseline: the names of GPUs that have no baseline, of which each is one failure.
    """

    project: Project
    device: Device | None = None
    boards: list[Board] = field(default_factory=list)
    no_gpu: str = ""
    arch: str = "sm_90a"
    selection: cases.Selection = field(default_factory=cases.Selection)
    policy: Policy = field(default_factory=Policy)
    plan: Plan = field(default_factory=Plan)
    judging: bool = True
    checkers: list[Checker] = field(default_factory=list)
    free: bool = False
    warming: list[threading.Thread] = field(default_factory=list)
    checked: Spread[Checks, Checked] | None = None
    timed: Spread[Board, Result] | None = None
    timing: Future[Spread[Board, Result]] | None = None
    orphaned: Future[list[str]] | None = None
    results: list[Result] = field(default_factory=list)
    judged_on: dict[str, Board] = field(default_factory=dict)
    machines: dict[Board, MachineVerdict] | None = None
    compile_errors: dict[str, str] = field(default_factory=dict)
    nothing_timed: bool = False
    says: Callable[[str], None] = lambda what: None
    unused_waivers: list[tuple[str, Waiver]] = field(default_factory=list)
    planned: Sequence[str] = ()
    answered: list[Answer] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    failed_reports: list[Any] = field(default_factory=list)
    found: list[Failure] = field(default_factory=list)
    without_baseline: set[str] = field(default_factory=set)

    @property
    def gpu(self) -> Gpu | None:
        """The first GPU, which is the only one unless --gpus names more."""
        return self.boards[0].gpu if self.boards else None

    @property
    def baseline(self) -> Baseline | None:
        """Of the first GPU; None without one."""
        return self.boards[0].baseline if self.boards else None

    @property
    def slug(self) -> str:
        return self.boards[0].slug if self.boards else "no-gpu"

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU, or of the one that is emulated."""
        capability: tuple[int, int] = self.gpu.info.capability if self.gpu else ARCHES[self.arch]
        return capability

    @cached_property
    def orphans(self) -> list[str]:
        """Cases of the baselines that the suite no longer has."""
        gone: set[str] = set()
        live: dict[tuple[int, int], set[str]] = {}
        for board in self.boards if self.judging else ():
            if board.baseline is not None:
                capability = board.gpu.info.capability
                if capability not in live:
                    timed = cases.select(self.project, cases.Choice(), capability).timed
                    live[capability] = {case.id for case in timed}
                gone |= set(board.baseline.case_ids) - live[capability]
        return sorted(gone)


KEY = pytest.StashKey[Session]()

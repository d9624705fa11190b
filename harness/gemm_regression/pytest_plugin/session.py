"""The state of one pytest run, which the plugins share through the config's stash: its GPUs, what each is
compared with, and what became of the cases."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import Baseline, BaselineError, current, history, merge
from gemm_regression.cli.common import gpu_numbers
from gemm_regression.compiler.static import ARCHES
from gemm_regression.devices import Device, Gpu, NoDevice, count_gpus, open_cuda
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Case, Waiver
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project
from gemm_regression.report.failures import Failure
from gemm_regression.run.boards import Board, Spread
from gemm_regression.run.checked import Checked
from gemm_regression.run.checkers import Checker, CheckPlace
from gemm_regression.run.passed import Records
from gemm_regression.run.timed import Result
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.select import Selector


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
    checked: Spread[CheckPlace, Checked] | None = None
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


def open_gpus(config: pytest.Config) -> list[Any]:
    """The devices of the GPUs that were asked for. Raises NoDevice, and UsageError for GPUs that are not
    there."""
    limit, text = config.option.time_limit, config.option.gpus
    if text is None:
        devices = [open_cuda(limit)]
    else:
        there = count_gpus()
        if not there:
            raise NoDevice("no GPU is visible")
        try:
            numbers = gpu_numbers(text, there)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        devices = [open_cuda(limit, number) for number in numbers]
    for place, device in enumerate(devices):
        config.add_cleanup(device.close)
        for other in devices[:place]:
            if other.info.capability == device.info.capability:
                device.compiles_like(other)
                break
    return devices


def select(session: Session, choice: cases.Choice) -> cases.Selection:
    """The selected cases of all GPUs: those of the first, and what only others can run. Each GPU is told its
    own.

    Raises ValueError and BaselineError, if no GPU has any.
    """
    found: list[cases.Selection] = []
    of_models: dict[str, cases.Selection | Exception] = {}
    for board in session.boards:
        if board.slug not in of_models:
            try:
                of_models[board.slug] = _selected(session, choice, board)
            except (ValueError, BaselineError) as error:
                of_models[board.slug] = error
        selection = of_models[board.slug]
        if isinstance(selection, cases.Selection):
            board.verified = {case.id: case for case in selection.verify}
            board.timed = {case.id: case for case in selection.timed}
            found.append(selection)
    if not found:
        raise next(error for error in of_models.values() if isinstance(error, Exception))
    first = found[0]
    return cases.Selection(
        _united(*(each.verify for each in found)), _united(*(each.timed for each in found)), first.refused
    )


def _selected(session: Session, choice: cases.Choice, board: Board) -> cases.Selection:
    """What one GPU can run, with a choice in the place of each case of a kernel that chooses."""
    capability = board.gpu.info.capability
    found = cases.select(session.project, choice, capability)
    if not any(case.kernel.is_dispatcher for case in (*found.verify, *found.timed)):
        return found
    selector = Selector.of(session.project, board.slug, capability)
    verify, timed = (tuple(map(selector.resolved, part)) for part in (found.verify, found.timed))
    return cases.Selection(verify, timed, found.refused)


def _united(*parts: Sequence[Case]) -> tuple[Case, ...]:
    """Each case once, as the first GPU that has it."""
    found: dict[str, Case] = {}
    for case in (case for part in parts for case in part):
        found.setdefault(case.id, case)
    return tuple(found.values())


def variants_of(session: Session, names: Collection[str]) -> dict[Gpu, list[Case]]:
    """A case of each variant that these cases need, by the GPU that compiles it: the first of its model."""
    found: dict[Gpu, dict[str, Case]] = {}
    of_models: dict[str, Gpu] = {}
    for board in session.boards:
        gpu = of_models.setdefault(board.slug, board.gpu)
        every = (*board.verified.values(), *board.timed.values())
        found.setdefault(gpu, {}).update((case.variant, case) for case in every if case.id in names)
    return {gpu: list(each.values()) for gpu, each in found.items()}


def choose_baselines(config: pytest.Config, session: Session) -> None:
    """Resolves --benchmark-compare to the baseline of each GPU, or raises a usage error."""
    wanted = config.option.benchmark_compare
    if not session.boards and wanted:
        raise pytest.UsageError(
            f"--benchmark-compare: nothing can be compared without a GPU ({session.no_gpu})"
        )
    root = session.project.baselines
    for board in session.boards:
        info = board.gpu.info
        try:
            if isinstance(wanted, str):
                board.baseline = merge.named(root, board.slug, info.board, wanted)
            else:
                board.baseline = current(root, board.slug, info.board)
            if board.baseline:
                board.baseline.require_mig(info.mig)
            board.measured = history(root, board.slug)
        except BaselineError as error:  # nothing could be stored beside it, either
            raise pytest.UsageError(str(error)) from None
        if wanted and board.baseline is None:
            folder = os.path.relpath(root / board.slug)
            raise pytest.UsageError(
                f"--benchmark-compare: no baseline for {info.name} in {folder}; measure one with "
                "`nox -s baseline`"
            )
    if wanted and session.boards:
        config.option.benchmark_compare = str(_for_the_table(config, session.boards[0].baseline, wanted))


def _for_the_table(config: pytest.Config, baseline: Baseline | None, wanted: Any) -> Path:
    """The file that pytest-benchmark's own table compares with."""
    if isinstance(wanted, str) and Path(wanted).is_file():
        return Path(wanted)
    assert baseline is not None
    folder = tempfile.TemporaryDirectory(prefix="gemm-baseline-")
    config.add_cleanup(folder.cleanup)
    return merge.write_export(baseline, Path(folder.name) / f"{baseline.label}.json")

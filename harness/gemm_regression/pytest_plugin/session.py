"""One pytest run, which the plugins share through the config's stash: what was asked for, where it runs, and
what became of its tests."""

from __future__ import annotations

import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import PercentageRegressionCheck

from gemm_regression.baselines import Baseline, BaselineError, current, history, merge
from gemm_regression.cli.common import can_be_written, gpu_numbers, margin_of
from gemm_regression.compiler.static import ARCHES, architectures
from gemm_regression.devices import Device, Gpu, NoDevice, count_gpus, has_gpu, open_cuda, open_emulated
from gemm_regression.hints import typed
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.judge.vocabulary import CompareFail, Policy
from gemm_regression.model import Case, Waiver
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project, ProjectError, find, load
from gemm_regression.pytest_plugin.entry import project_of
from gemm_regression.report.failures import Failure
from gemm_regression.report.figures import count_text
from gemm_regression.run.ahead import Ahead
from gemm_regression.run.creep import by_choice
from gemm_regression.run.timed import Board, TimedCase
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.select import Selector


@dataclass
class TestResults:
    """What became of the tests of a run.

    Attributes:
        results: of the timed cases, each with the GPU that judged it.
        machines: the verdict on the machine of each GPU; None before it is asked.
        planned: the ids of the tests that are to run.
        answered: reports of the tests that are answered from the cache: they passed, and nothing of them has
            changed since.
        failures: the failed tests of kernels; ``hidden``: pytest's reports of those that are shown together.
        unused_waivers: kernels and their waivers that matched nothing.
        without_baseline: the names of GPUs that have no baseline, of which each is one failure.
    """

    results: list[tuple[Board, TimedCase]] = field(default_factory=list)
    machines: dict[Board, MachineVerdict] | None = None
    planned: Sequence[str] = ()
    answered: list[pytest.TestReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    hidden: list[Any] = field(default_factory=list)
    unused_waivers: list[tuple[str, Waiver]] = field(default_factory=list)
    without_baseline: set[str] = field(default_factory=set)


@dataclass
class Session:
    """The ``project`` under test; the GPUs, and what they do ``ahead``; the architecture ``arch`` that the
    emulated device compiles for; the ``device`` where cases run, None if they cannot be run; why there is
    ``no_gpu``; the ``selection`` of cases; what was ``seen`` of the tests."""

    project: Project
    ahead: Ahead
    arch: str
    device: Device | None = None
    no_gpu: str = ""
    selection: cases.Selection = field(default_factory=cases.Selection)
    seen: TestResults = field(default_factory=TestResults)

    @property
    def boards(self) -> list[Board]:
        return self.ahead.boards

    @property
    def policy(self) -> Policy:
        return self.ahead.policy

    @property
    def gpu(self) -> Gpu | None:
        """The first GPU, which is the only one unless --gpus names more."""
        return self.boards[0].gpu if self.boards else None

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability of the GPU, or of the one that is emulated."""
        return self.gpu.info.capability if self.gpu else ARCHES[self.arch]

    def illegal(self, only: Collection[str] = ()) -> str:
        """Which variants of `configs` no launch could run here, of kernels (``only`` those with these names)
        that are made for this GPU, with the first reason; empty if there are none."""
        made_for = [
            replace(kernel, advised=())
            for kernel in self.project.kernels
            if kernel.min_capability <= self.capability <= kernel.max_capability
            and (not only or kernel.name in only)
        ]
        found = cases.illegal(made_for, GpuLimits.of(self.capability))
        if not found:
            return ""
        (name, reasons), more = found[0], len(found) - 1
        others = f"; {count_text(more, 'other variant')}, see --list-cases" if more else ""
        return f"{name}: {'; '.join(reasons)}{others}"

    @cached_property
    def orphans(self) -> list[str]:
        """Cases of the baselines that no suite has."""
        stored = defaultdict[tuple[int, int], set[str]](set)
        for board in self.boards if self.ahead.judging else []:
            stored[board.gpu.info.capability].update(board.baseline.case_ids if board.baseline else ())
        left = (names - cases.timed_by_any(self.project, of) for of, names in stored.items())
        return sorted({case for names in left for case in names})


KEY = pytest.StashKey[Session]()


def parameters(item: pytest.Item) -> list[Any]:
    """What a test is called with."""
    spec = getattr(item, "callspec", None)
    return list(spec.params.values()) if spec else []


def open_session(config: pytest.Config) -> Session:
    """The state of this run, opened once. Raises UsageError for options that nothing can be run with."""
    if KEY in config.stash:
        return config.stash[KEY]
    try:
        return _opened(config)
    except (ProjectError, ValueError, BaselineError) as error:
        raise pytest.UsageError(str(error)) from None


def _opened(config: pytest.Config) -> Session:
    """Raises ProjectError, ValueError and BaselineError."""
    given = config.option
    project = load(find(given.project) if given.project else project_of(config))
    architectures(project.table.architectures)  # which refuses an unknown one
    policy = _policy(given)
    _check_values(given)
    ahead = Ahead(project, policy, Plan(sustained=given.sustained), judging=not given.baseline_run)
    session = config.stash[KEY] = Session(project, ahead, given.arch)
    if given.help or (given.collectonly and not given.list_cases):
        session.no_gpu = "not opened for --collect-only"
        # What would run here is collected: an editor runs each by the id that it got.
        emulated = given.device == "emulated" or (given.device == "auto" and not has_gpu())
    else:
        _open_device(config, session)
        # Of pytest-xdist's processes each has its own.
        if not (given.list_cases or getattr(given, "numprocesses", None)):
            ahead.start()
        emulated = session.gpu is None and session.device is not None
    choice = cases.Choice.of(given)
    if given.list_cases:  # Nothing is collected, so pytest does not apply it.
        choice = replace(choice, expression=given.keyword)
    if session.boards:
        session.selection = _select(session, choice)
        if ahead.answering and not (given.benchmark_skip or given.benchmark_disable):
            ahead.make_ready(session.selection.timed)
    else:
        session.selection = cases.select(project, choice, session.capability, emulated)
    if emulated and not session.selection.verify:
        if illegal := session.illegal(given.kernel):
            raise ValueError(f"nothing that is selected can be launched: {illegal}")
        what = ", ".join(given.kernel) or "what is selected"
        raise ValueError(f"no GPU ({session.no_gpu}), and {what} has no PTX to execute")
    if not (given.collectonly or given.list_cases):
        _choose_baselines(config, session)
    return session


def _policy(given: Any) -> Policy:
    """How strict the run is. Raises ValueError."""
    return Policy(
        allow_no_baseline=given.allow_no_baseline or given.baseline_run,
        allow_orphans=given.allow_orphans,
        fail_on_drift=not given.allow_drift,
        compare_fail=tuple(map(_compare_fail, given.benchmark_compare_fail or [])),
        margin=margin_of(given.margin),
    )


def _compare_fail(check: Any) -> CompareFail:
    """One of pytest-benchmark's --benchmark-compare-fail checks, applied to each case."""
    unit = "percent" if isinstance(check, PercentageRegressionCheck) else "seconds"
    return CompareFail(check.field, **{unit: check.threshold})


def _check_values(given: Any) -> None:
    if not 0 < given.time_limit < math.inf:
        raise ValueError(f"--time-limit {given.time_limit}: must be more than 0 seconds")
    if isinstance(processes := getattr(given, "numprocesses", None), int) and processes < 0:
        raise ValueError(f"-n {processes}: must be 0 or more processes")
    if not 0 <= given.sustained <= 10:
        raise ValueError(f"--sustained {given.sustained}: must be 0 to 10 seconds")
    for option in ("--job-summary", "--benchmark-json", "--sarif"):
        can_be_written(option, getattr(given, option[2:].replace("-", "_")))


def _open_device(config: pytest.Config, session: Session) -> None:
    """The GPUs, or the emulated device, or why there is neither. Raises ValueError."""
    given, wanted = config.option, config.option.device
    if given.gpus and getattr(given, "numprocesses", None):
        raise ValueError("--gpus spreads the cases over the GPUs by itself; run without -n")
    session.no_gpu = "--device emulated"
    if wanted != "emulated":
        try:
            found = config.hook.pytest_gemm_device(config=config)
        except NoDevice as error:
            session.no_gpu = str(error)
            if wanted == "cuda":
                raise ValueError(f"--device cuda: {error}") from None
        else:
            for place, gpu in enumerate(found if isinstance(found, list) else [found]):
                number = getattr(gpu, "index", None)
                board = Board(place if number is None else number, gpu, root=session.project.baselines)
                board.busy = tuple if given.allow_busy else gpu.busy
                session.boards.append(board)
            session.device = session.gpu  # type: ignore[assignment]  # a GPU that runs cases
            return
    if given.gpus:
        raise ValueError(f"--gpus {given.gpus}: {session.no_gpu}")
    try:
        session.device = open_emulated(session.arch, given.strict_notes, given.time_limit)
    except NoDevice as error:
        if wanted == "emulated":
            raise ValueError(f"--device emulated: {error}") from None
        session.no_gpu += f"; kernels cannot be emulated either: {error}"
        return
    config.add_cleanup(session.device.close)


def open_gpus(config: pytest.Config) -> list[Any]:
    """The devices of the GPUs that were asked for. Raises NoDevice, and ValueError for GPUs that are not
    there."""
    limit, text = config.option.time_limit, config.option.gpus
    numbers: list[int | None] = [None]
    if text is not None:
        there = count_gpus()
        if not there:
            raise NoDevice("no GPU is visible")
        numbers = [*gpu_numbers(text, there)]
    devices = [open_cuda(limit, number) for number in numbers]
    first: dict[tuple[int, int], Any] = {}
    for device in devices:
        config.add_cleanup(device.close)
        other = first.setdefault(device.info.capability, device)
        if other is not device:
            device.compiles_like(other)
    return devices


def _select(session: Session, choice: cases.Choice) -> cases.Selection:
    """The selected cases of all GPUs: those of the first, and what only others can run. Each GPU is told its
    own.

    Raises ValueError and BaselineError, if no GPU has any.
    """
    found: dict[str, cases.Selection] = {}
    failed: dict[str, Exception] = {}
    verify, timed = dict[str, Case](), dict[str, Case]()  # each once, as the first GPU that has it
    for board in session.boards:
        if board.slug not in {*found, *failed}:
            try:
                found[board.slug] = _selected(session, choice, board)
            except (ValueError, BaselineError) as error:
                failed[board.slug] = error
        if selection := found.get(board.slug):
            board.verified = {case.id: case for case in selection.verify}
            board.timed = {case.id: case for case in selection.timed}
            board.baseline = board.baseline and by_choice(board.baseline, board.timed)
            verify = verify | board.verified | verify
            timed = timed | board.timed | timed
    if not found:
        raise next(iter(failed.values()))
    refused = next(iter(found.values())).refused
    return cases.Selection(tuple(verify.values()), tuple(timed.values()), refused)


def _selected(session: Session, choice: cases.Choice, board: Board) -> cases.Selection:
    """What one GPU can run, with a choice in the place of each case of a kernel that chooses."""
    capability = board.gpu.info.capability
    found = cases.select(session.project, choice, capability)
    if not any(case.kernel.is_dispatcher for case in (*found.verify, *found.timed)):
        return found
    selector = Selector.of(session.project, board.slug, capability)
    verify, timed = (tuple(map(selector.resolved, part)) for part in (found.verify, found.timed))
    return cases.Selection(verify, timed, found.refused)


def variants_of(session: Session, names: Collection[str]) -> dict[Gpu, list[Case]]:
    """A case of each variant that these cases need, by the GPU that compiles it: the first of its model."""
    found: dict[Gpu, dict[str, Case]] = {}
    of_models: dict[str, Gpu] = {}
    for board in session.boards:
        gpu = of_models.setdefault(board.slug, board.gpu)
        every = (*board.verified.values(), *board.timed.values())
        found.setdefault(gpu, {}).update((case.variant, case) for case in every if case.id in names)
    return {gpu: list(each.values()) for gpu, each in found.items()}


def _choose_baselines(config: pytest.Config, session: Session) -> None:
    """Resolves --benchmark-compare to the baseline of each GPU. Raises ValueError and BaselineError."""
    wanted = config.option.benchmark_compare
    if not session.boards and wanted:
        raise ValueError(f"--benchmark-compare: nothing can be compared without a GPU ({session.no_gpu})")
    root = session.project.baselines
    for board in session.boards:
        info = board.gpu.info
        if isinstance(wanted, str):
            board.baseline = merge.named(root, board.slug, info.board, wanted)
        else:
            board.baseline = current(root, board.slug, info.board)
        board.measured = history(root, board.slug)
        if wanted and board.baseline is None:
            raise ValueError(
                f"--benchmark-compare: no baseline for {info.name} in {os.path.relpath(root / board.slug)}; "
                f"measure one with `{typed('baseline')}`"
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

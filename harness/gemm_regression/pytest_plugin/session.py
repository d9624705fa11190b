"""One pytest run, which the plugins share through the config's stash: what was asked for, where it runs, and
what became of its tests."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import PercentageRegressionCheck

from gemm_regression.baselines import Baseline, BaselineError, current, history, merge
from gemm_regression.cli.common import folder_exists, gpu_numbers, margin_of
from gemm_regression.compiler.static import ARCHES
from gemm_regression.devices import Device, Gpu, NoDevice, count_gpus, has_gpu, open_cuda, open_emulated
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.judge.vocabulary import CompareFail, Policy
from gemm_regression.model import Case, Waiver
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project, ProjectError, find, load
from gemm_regression.report.failures import Failure
from gemm_regression.run.ahead import Ahead
from gemm_regression.run.passed import Records
from gemm_regression.run.timed import Board, Result
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
class Seen:
    """What became of the tests of a run.

    Attributes:
        results: of the timed cases, each with the GPU that judged it.
        machines: the verdict on the machine of each GPU; None before it is asked.
        planned: the ids of the tests that are to run.
        answered: the tests that are answered from the cache.
        failures: the failed tests of kernels; ``hidden``: pytest's reports of those that are shown together.
        unused_waivers: kernels and their waivers that matched nothing.
        without_baseline: the names of GPUs that have no baseline, of which each is one failure.
    """

    results: list[tuple[Board, Result]] = field(default_factory=list)
    machines: dict[Board, MachineVerdict] | None = None
    planned: Sequence[str] = ()
    answered: list[Answer] = field(default_factory=list)
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
    seen: Seen = field(default_factory=Seen)

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
        capability: tuple[int, int] = self.gpu.info.capability if self.gpu else ARCHES[self.arch]
        return capability

    @cached_property
    def orphans(self) -> list[str]:
        """Cases of the baselines that the suite no longer has."""
        gone: set[str] = set()
        stored = [board for board in self.boards if board.baseline] if self.ahead.judging else []
        for capability in {board.gpu.info.capability for board in stored}:
            of_it = [b.baseline for b in stored if b.baseline and b.gpu.info.capability == capability]
            live = {case.id for case in cases.select(self.project, cases.Choice(), capability).timed}
            gone |= {case for baseline in of_it for case in baseline.case_ids} - live
        return sorted(gone)


KEY = pytest.StashKey[Session]()


def parameters(item: pytest.Item) -> list[Any]:
    """What a test is called with."""
    spec = getattr(item, "callspec", None)
    return list(spec.params.values()) if spec else []


def open_session(config: pytest.Config) -> Session:
    """The state of this run, opened once. Raises UsageError for options that nothing can be run with."""
    if KEY in config.stash:
        return config.stash[KEY]
    given = config.option
    try:
        project = load(find(given.project or config.rootpath))
        policy = _policy(given)
        _check_values(given)
    except (ProjectError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None
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
    try:
        choice = cases.Choice.of(given)
        if given.list_cases:  # Nothing is collected, so pytest does not apply it.
            choice = replace(choice, expression=given.keyword)
        if session.boards:
            session.selection = _select(session, choice)
        else:
            session.selection = cases.select(project, choice, session.capability, emulated)
        if emulated and not session.selection.verify:
            what = ", ".join(given.kernel) or "what is selected"
            raise ValueError(f"no GPU ({session.no_gpu}), and {what} has no PTX to execute")
        if not (given.collectonly or given.list_cases):
            _choose_baselines(config, session)
    except (ValueError, BaselineError) as error:
        raise pytest.UsageError(str(error)) from None
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
    if isinstance(check, PercentageRegressionCheck):
        return CompareFail(check.field, percent=check.threshold)
    return CompareFail(check.field, seconds=check.threshold)


def _check_values(given: Any) -> None:
    if not 0 < given.time_limit < math.inf:
        raise ValueError(f"--time-limit {given.time_limit}: must be more than 0 seconds")
    if not 0 <= given.sustained <= 10:
        raise ValueError(f"--sustained {given.sustained}: must be 0 to 10 seconds")
    for option in ("--job-summary", "--benchmark-json", "--sarif"):
        folder_exists(option, getattr(given, option[2:].replace("-", "_")))


def _open_device(config: pytest.Config, session: Session) -> None:
    """The GPUs, or the emulated device, or why there is neither."""
    given, wanted = config.option, config.option.device
    if given.gpus and getattr(given, "numprocesses", None):
        raise pytest.UsageError("--gpus spreads the cases over the GPUs by itself; run without -n")
    session.no_gpu = "--device emulated"
    if wanted != "emulated":
        try:
            found = config.hook.pytest_gemm_device(config=config)
        except NoDevice as error:
            session.no_gpu = str(error)
            if wanted == "cuda":
                raise pytest.UsageError(f"--device cuda: {error}") from None
        else:
            for place, gpu in enumerate(found if isinstance(found, list) else [found]):
                number = getattr(gpu, "index", None)
                board = Board(place if number is None else number, gpu, root=session.project.baselines)
                if not given.allow_busy:
                    board.busy = gpu.busy
                session.boards.append(board)
            session.device = session.gpu  # type: ignore[assignment]  # a GPU that runs cases
            return
    if given.gpus:
        raise pytest.UsageError(f"--gpus {given.gpus}: {session.no_gpu}")
    try:
        session.device = open_emulated(session.arch, given.strict_notes, given.time_limit)
    except NoDevice as error:
        if wanted == "emulated":
            raise pytest.UsageError(f"--device emulated: {error}") from None
        session.no_gpu += f"; kernels cannot be emulated either: {error}"
        return
    config.add_cleanup(session.device.close)


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
    verify, timed = _united(each.verify for each in found), _united(each.timed for each in found)
    return cases.Selection(verify, timed, found[0].refused)


def _united(parts: Iterable[Sequence[Case]]) -> tuple[Case, ...]:
    """Each case once, as the first GPU that has it."""
    found: dict[str, Case] = {}
    for case in itertools.chain.from_iterable(parts):
        found.setdefault(case.id, case)
    return tuple(found.values())


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
                "measure one with `nox -s baseline`"
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

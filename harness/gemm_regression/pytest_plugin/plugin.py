"""The pytest plugin: options, the device, the baseline, cases as tests.

Each hook only calls into the layers below. ``plugin_benchmark`` contains what concerns pytest-benchmark,
``plugin_summary`` what is printed at the beginning and the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.utils import PercentageRegressionCheck

from gemm_regression.baselines import BaselineError
from gemm_regression.cli import gpus
from gemm_regression.cli.common import busy_text, in_ci, share, swallowed
from gemm_regression.cli.options import add_options
from gemm_regression.cli.progress import progress
from gemm_regression.cli.session import KEY, Session
from gemm_regression.compiler import static
from gemm_regression.compiler.nvcc import Variant
from gemm_regression.compiler.static.store import holds_any
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.counters import check as counted
from gemm_regression.devices import DeviceError, Gpu, NoDevice, has_gpu, open_emulated
from gemm_regression.judge.vocabulary import CompareFail, Policy
from gemm_regression.model import Case, CaseId
from gemm_regression.model.kernel import LARGEST_MARGIN
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project, ProjectError, find, load
from gemm_regression.report.figures import count_text
from gemm_regression.run.boards import Board
from gemm_regression.timing.plan import Plan

pytest_plugins = [
    f"gemm_regression.pytest_plugin.plugin_{part}"
    for part in (
        *("ahead", "gpus", "machine", "benchmark", "failures", "progress", "shards", "summary"),
        *("unchanged", "workers"),
    )
]


class Hooks:
    """Hooks defined by this plugin."""

    @pytest.hookspec(firstresult=True)
    def pytest_gemm_device(self, config: pytest.Config) -> Any:
        """The devices to run on, or one; the suite's own tests use it to replay recorded samples."""


def _percent(option: str, text: str, example: str) -> float:
    try:
        return share(text, f"{option} {text!r}", example)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser.getgroup("gemm", "GEMM kernels").addoption)


# Before anything runs


MARKERS = (
    "gpu: needs an NVIDIA GPU",
    "static: compares compiler metrics with the stored ones, no GPU",
    "xdist_group(name): tests that run in one process; pytest-xdist's own, declared for runs without it",
)
# Where timing is off, a case fails before it uses the fixture.
UNUSED = "ignore:Benchmark fixture was not used at all:pytest_benchmark.logger.PytestBenchmarkWarning"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.addinivalue_line("filterwarnings", UNUSED)
    if fault := swallowed(config.args):
        raise pytest.UsageError(fault)
    open_session(config)


def open_session(config: pytest.Config) -> Session:
    """The state of this run, opened once. Raises UsageError for options that nothing can be run with."""
    if KEY in config.stash:
        return config.stash[KEY]
    try:
        project = load(find(config.option.project or config.rootpath))
    except ProjectError as error:
        raise pytest.UsageError(str(error)) from None
    session = config.stash[KEY] = Session(
        project=project,
        policy=_policy(config),
        judging=not config.option.baseline_run,
        arch=config.option.arch,
        plan=Plan(sustained=config.option.sustained),
    )
    if config.option.help or (config.option.collectonly and not config.option.list_cases):
        session.no_gpu = "not opened for --collect-only"
        # What would run here is collected: an editor runs each by the id that it got.
        emulated = config.option.device == "emulated" or (config.option.device == "auto" and not has_gpu())
    else:
        _open_device(config, session)
        # Of pytest-xdist's processes each has its own.
        if not (config.option.list_cases or getattr(config.option, "numprocesses", None)):
            gpus.start(session)
        emulated = session.gpu is None and session.device is not None
    _check_numbers(config)
    if session.warming:
        gpus.ahead(config, session)
    try:
        choice = cases.Choice.of(config.option)
        if config.option.list_cases:  # Nothing is collected, so pytest does not apply it.
            choice = replace(choice, expression=config.option.keyword)
        if session.boards:
            session.selection = gpus.select(session, choice)
        else:
            session.selection = cases.select(session.project, choice, session.capability, emulated)
    except (ValueError, BaselineError) as error:
        raise pytest.UsageError(str(error)) from None
    if emulated and not session.selection.verify:
        what = ", ".join(config.option.kernel) or "what is selected"
        raise pytest.UsageError(f"no GPU ({session.no_gpu}), and {what} has no PTX to execute")
    if not (config.option.collectonly or config.option.list_cases):
        gpus.choose_baselines(config, session)
    return session


def _check_numbers(config: pytest.Config) -> None:
    limit, summary = config.option.time_limit, config.option.job_summary
    if not 0 < limit < math.inf:
        raise pytest.UsageError(f"--time-limit {limit}: must be more than 0 seconds")
    if not 0 <= config.option.sustained <= 10:
        raise pytest.UsageError(f"--sustained {config.option.sustained}: must be 0 to 10 seconds")
    given = config.option
    files = (summary, given.benchmark_json, given.sarif)
    written = zip(("--job-summary", "--benchmark-json", "--sarif"), files, strict=True)
    for option, path in written:
        if path and not Path(path).absolute().parent.is_dir():
            raise pytest.UsageError(f"{option} {path}: its folder does not exist")
        if path and Path(path).is_dir():
            raise pytest.UsageError(f"{option} {path}: is a folder; name a file")


def _policy(config: pytest.Config) -> Policy:
    policy = Policy(
        allow_no_baseline=config.option.allow_no_baseline or config.option.baseline_run,
        allow_orphans=config.option.allow_orphans,
        fail_on_drift=not config.option.allow_drift,
    )
    checks = config.option.benchmark_compare_fail or []
    if checks:
        policy = replace(policy, compare_fail=tuple(map(_compare_fail, checks)))
    if (given := config.option.margin) is not None:
        policy = replace(policy, margin=_percent("--margin", given, "0.5%"))
        if policy.margin_of(None) > LARGEST_MARGIN:
            raise pytest.UsageError(f"--margin {given}: must be at most {100 * LARGEST_MARGIN:g}%")
    return policy


def _compare_fail(check: Any) -> CompareFail:
    """One of pytest-benchmark's --benchmark-compare-fail checks, applied to each case."""
    if isinstance(check, PercentageRegressionCheck):
        return CompareFail(check.field, percent=check.threshold)
    return CompareFail(check.field, seconds=check.threshold)


def _add_board(config: pytest.Config, session: Session, place: int, gpu: Gpu) -> None:
    number = getattr(gpu, "index", None)
    board = Board(place if number is None else number, gpu, root=session.project.baselines)
    if not config.option.allow_busy:
        board.busy = gpu.busy
    session.boards.append(board)


def _open_device(config: pytest.Config, session: Session) -> None:
    wanted = config.option.device
    if config.option.gpus and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--gpus spreads the cases over the GPUs by itself; run without -n")
    if wanted != "emulated":
        try:
            found = config.hook.pytest_gemm_device(config=config)
            for place, gpu in enumerate(found if isinstance(found, list) else [found]):
                _add_board(config, session, place, gpu)
            session.device = session.gpu  # type: ignore[assignment]  # a GPU that runs cases
            return
        except NoDevice as error:
            session.no_gpu = str(error)
            if wanted == "cuda":
                raise pytest.UsageError(f"--device cuda: {error}") from None
    else:
        session.no_gpu = "--device emulated"
    if config.option.gpus:
        raise pytest.UsageError(f"--gpus {config.option.gpus}: {session.no_gpu}")
    try:
        session.device = open_emulated(session.arch, config.option.strict_notes, config.option.time_limit)
    except NoDevice as error:
        if wanted == "emulated":
            raise pytest.UsageError(f"--device emulated: {error}") from None
        session.no_gpu += f"; kernels cannot be emulated either: {error}"
        return
    config.add_cleanup(session.device.close)


@pytest.hookimpl(trylast=True)
def pytest_gemm_device(config: pytest.Config) -> Any:
    return gpus.open_gpus(config)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not config.option.list_cases:
        return None
    config._do_configure()
    session = config.stash[KEY]
    print("\n".join(cases.listing(session.project, session.selection, session.capability)))
    config._ensure_unconfigure()
    return 0


# Cases become tests


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    selection = metafunc.config.stash[KEY].selection
    for name, chosen in (("verify_case", selection.verify), ("timed_case", selection.timed)):
        if name in metafunc.fixturenames:
            # With pytest-xdist's --dist loadgroup, one process parses the PTX of a variant for all its cases.
            marked = [pytest.param(c, id=c.id, marks=pytest.mark.xdist_group(c.variant)) for c in chosen]
            metafunc.parametrize(name, marked, scope="session")
    for name, entries in (("figures_entry", _figures), ("counts_entry", _counts)):
        if name in metafunc.fixturenames:
            state = metafunc.config.stash[KEY]
            metafunc.parametrize(name, entries(state.project, cases.Choice.of(metafunc.config.option)))


def _figures(project: Project, choice: cases.Choice) -> list[Any]:
    """The selected variants on each architecture, and stored entries without a variant."""
    found = static.entries(project.kernels, project.static)
    return [pytest.param(e, id=str(e)) for e in found if _is_chosen(e.name, e.variant, project, choice)]


def _counts(project: Project, choice: cases.Choice) -> list[Any]:
    """The selected variants, and stored entries without a variant."""
    return [
        pytest.param(e, id=str(e), marks=pytest.mark.xdist_group(e.name))
        for e in counted.entries(project.kernels, project.static)
        if _is_chosen(e.name, e.variant, project, choice)
    ]


def _is_chosen(name: str, variant: Variant | None, project: Project, choice: cases.Choice) -> bool:
    """Whether suite, kernels and configs select a variant; None is a stored entry without a variant."""
    named = CaseId.parse(name)
    if choice.kernels and named.kernel not in choice.kernels:
        return False
    if choice.configs and named.config not in choice.configs:
        return False
    return variant is None or variant[1] in project.suites[choice.suite].configs_of(variant[0])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    session = config.stash[KEY]
    if session.gpu is not None:
        # If there is a GPU, correctness tests are GPU tests: -m gpu selects them.
        for item in items:
            if _has(item, "verify_case"):
                item.add_marker(pytest.mark.gpu)
    if config.option.verify_timed:
        # -k and -m select among the timed cases only; the variants of those are verified.
        others = [item for item in items if not _has(item, "timed_case")]
        items[:] = [item for item in items if _has(item, "timed_case")]
        yield
        variants = {case.variant for item in items if (case := _case_of(item))}
        kept = [item for item in others if (case := _case_of(item)) and case.variant in variants]
        dropped = set(others) - set(kept)
        config.hook.pytest_deselected(items=[*items, *dropped])
        items[:] = kept
    else:
        yield
    if session.gpu is not None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {session.no_gpu}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses a busy GPU, and compiles everything selected before the first test."""
    state, config = session.config.stash[KEY], session.config
    if state.gpu is None or config.option.collectonly:
        return
    chosen = [c for item in session.items if (c := _case_of(item))]
    timed = any(_has(item, "timed_case") for item in session.items)
    timed = timed and not config.option.benchmark_skip
    for board in state.boards if timed and not config.option.allow_busy and not state.free else ():
        if others := board.gpu.busy():
            name = board.gpu.info.name + (f", GPU {board.label}," if len(state.boards) > 1 else "")
            raise pytest.UsageError(busy_text(name, others))
    if chosen and not hasattr(config, "workerinput"):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        each = gpus.variants(state, {c.id for c in chosen})
        count = sum(map(len, each.values()))
        gpus.warm_up(state, sum(_has(item, "verify_case") for item in session.items))
        silent = not config.option.progress or config.option.verbose < 0
        if reporter and silent and config.option.verbose >= 0:
            reporter.write_line(f"compiling {count_text(count, 'kernel variant')} ...")
        try:
            with progress("compile", 2 * count, silent) as step:  # PTX and cubin
                for gpu, variants in each.items():
                    state.compile_errors |= gpu.prepare(variants, step)
        except DeviceError as error:
            raise pytest.UsageError(f"the GPU cannot be used: {error.code}: {error}") from None


def _has(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _case_of(item: pytest.Item) -> Case | None:
    """The case of a test, or None; an empty parameter list gives pytest's own marker instead of a case."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    case = parameters.get("verify_case") or parameters.get("timed_case")
    return case if isinstance(case, Case) else None


# Fixtures


@pytest.fixture
def gemm_record(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """pytest's record_property, without its warning in each test of a run with --junitxml."""
    return lambda name, value: request.node.user_properties.append((name, value))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Any:
    """The open device. Skips if there is none, with the reason."""
    session = request.config.stash[KEY]
    if session.device is None:
        pytest.skip(f"no GPU: {session.no_gpu}")
    return session.device


@pytest.fixture(scope="session")
def check(request: pytest.FixtureRequest) -> static.Check:
    """Compiles what this run selects, one architecture at a time. Skips without the pinned compiler."""
    selected = (getattr(item, "callspec", None) for item in request.session.items)
    entries = [spec.params.get("figures_entry") for spec in selected if spec]
    root = request.config.stash[KEY].project.static
    try:
        chosen = [entry for entry in entries if isinstance(entry, static.Entry)]
        return static.Check(chosen, root, request.config.option.every_architecture, in_ci())
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def counter_check(request: pytest.FixtureRequest) -> counted.CounterCheck:
    """Skips without the pinned compiler."""
    try:
        return counted.CounterCheck(request.config.stash[KEY].project.static)
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def stores_figures(request: pytest.FixtureRequest) -> bool:
    """Whether the project stores metrics at all; a new one does not yet."""
    return holds_any(request.config.stash[KEY].project.static)


@pytest.fixture
def orphans(request: pytest.FixtureRequest) -> list[str]:
    """Baseline cases that the suite no longer has; empty if they are allowed."""
    session = request.config.stash[KEY]
    return [] if session.policy.allow_orphans else session.orphans

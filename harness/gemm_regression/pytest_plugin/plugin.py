"""The pytest plugin: options, cases as tests, what they are given. Each hook only calls into the layers
below. ``session.py`` opens the run, ``judged.py`` has the tests, ``shown.py`` prints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest

from gemm_regression.cli.common import busy_text, in_ci, swallowed
from gemm_regression.cli.options import PYTESTS, add_options
from gemm_regression.cli.progress import progress
from gemm_regression.compiler import static
from gemm_regression.compiler.static.store import holds_any
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.counters import check as counted
from gemm_regression.devices import Device, DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, CaseId
from gemm_regression.project import selection as cases
from gemm_regression.pytest_plugin.session import (
    KEY,
    Session,
    open_gpus,
    open_session,
    parameters,
    variants_of,
)
from gemm_regression.report.figures import count_text
from gemm_regression.run import paths
from gemm_regression.run.checked import Checked

pytest_plugins = [
    f"gemm_regression.pytest_plugin.{part}" for part in ("judged", "left_out", "shown", "workers")
]


class Hooks:
    """Hooks defined by this plugin."""

    @pytest.hookspec(firstresult=True)
    def pytest_gemm_device(self, config: pytest.Config) -> Any:
        """The devices to run on, or one; the suite's own tests use it to replay recorded samples."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


@pytest.hookimpl(trylast=True)
def pytest_gemm_device(config: pytest.Config) -> Any:
    return open_gpus(config)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser.getgroup("gemm", "GEMM kernels").addoption, *PYTESTS)


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
    session, names = metafunc.config.stash[KEY], metafunc.fixturenames
    project, selection = session.project, session.selection
    for name, chosen in (("verify_case", selection.verify), ("timed_case", selection.timed)):
        if name in names:
            metafunc.parametrize(name, chosen, ids=[case.id for case in chosen], scope="session")
    stored = partial(static.entries, names=project.table.architectures)
    for name, entries in (("figures_entry", stored), ("counts_entry", counted.entries)):
        if name in names:
            choice = cases.Choice.of(metafunc.config.option)
            found = [e for e in entries(project.kernels, project.static) if _is_chosen(e, session, choice)]
            metafunc.parametrize(name, found, ids=map(str, found))
    if "paths_entry" in names:
        whole = isinstance(session.device, EmulatedDevice) and not metafunc.config.option.shape
        variants = paths.entries(selection.verify) if whole else []
        metafunc.parametrize("paths_entry", variants, ids=map(str, variants))


def _is_chosen(entry: Any, session: Session, choice: cases.Choice) -> bool:
    """Whether suite, kernels and configs select a stored entry; one without a variant by its name alone."""
    named, variant = CaseId.parse(entry.name), entry.variant
    if choice.kernels and named.kernel not in choice.kernels:
        return False
    if choice.configs and named.config not in choice.configs:
        return False
    return variant is None or variant[1] in session.project.suites[choice.suite].configs_of(variant[0])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    session = config.stash[KEY]
    none = (item for item in items if _has(item, "paths_entry"))
    drop = [item for item in none if not any(isinstance(v, paths.PathsEntry) for v in parameters(item))]
    items[:] = [item for item in items if item not in drop]  # instead of a skipped test that says nothing
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
        variants = {case.variant for case in _cases(items)}
        kept = [item for item in others if any(case.variant in variants for case in _cases([item]))]
        config.hook.pytest_deselected(items=[*items, *(set(others) - set(kept))])
        items[:] = kept
    else:
        yield
    for item in items if session.gpu is None else ():
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {session.no_gpu}"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses a busy GPU, and compiles everything selected before the first test."""
    config, items = session.config, session.items
    state, option = config.stash[KEY], config.option
    state.seen.planned = [item.nodeid for item in items]
    if state.gpu is None or option.collectonly:
        return
    ahead = state.ahead
    ahead.to_check = list(dict.fromkeys(case.id for case in _cases(items, "verify_case")))
    ahead.to_time = list(dict.fromkeys(case.id for case in _cases(items, "timed_case")))
    # Not where a failed check ends the run, or where other tests use a GPU before.
    untimed = option.benchmark_skip or option.benchmark_disable or option.maxfail
    ahead.unasked = not untimed and not any(map(_uses_a_gpu, items))
    if ahead.to_time and not (option.benchmark_skip or option.allow_busy):
        for board in state.boards:
            if others := board.gpu.busy():
                name = board.gpu.info.name + (f", GPU {board.label}," if len(state.boards) > 1 else "")
                raise pytest.UsageError(busy_text(name, others))
    chosen = {*ahead.to_check, *ahead.to_time}
    if not chosen or hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    each = variants_of(state, chosen)
    count = sum(map(len, each.values()))
    ahead.start_checkers()
    silent = not option.progress or option.verbose < 0
    if reporter and silent and option.verbose >= 0:
        reporter.write_line(f"compiling {count_text(count, 'kernel variant')} ...")
    try:
        with progress("compile", count, silent) as step:
            for gpu, variants in each.items():
                ahead.compile_errors |= gpu.prepare(variants, step)
    except DeviceError as error:
        raise pytest.UsageError(f"the GPU cannot be used: {error.code}: {error}") from None
    threading.Thread(target=lambda: state.orphans, daemon=True).start()  # asked for when all else is done


def _has(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _cases(items: list[pytest.Item], fixture: str = "") -> list[Case]:
    """The cases of tests, or of those with this fixture; an empty parameter list gives pytest's own marker
    instead of a case."""
    found = (value for item in items if not fixture or _has(item, fixture) for value in parameters(item))
    return [value for value in found if isinstance(value, Case)]


def _uses_a_gpu(item: pytest.Item) -> bool:
    """Whether a test does so by itself."""
    return _has(item, "device") and not _has(item, "verify_case")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Another test that uses a GPU waits for what is done on it."""
    if _uses_a_gpu(item):
        item.config.stash[KEY].ahead.settle()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    session.config.stash[KEY].ahead.close()
    return (yield)


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


@pytest.fixture
def checks(
    request: pytest.FixtureRequest, device: Device, gemm_record: Callable[[str, object], None]
) -> Callable[[Case], Checked]:
    """Whether a case is correct; of several GPUs, the test records which one it ran on."""

    def of(case: Case) -> Checked:
        board, found = request.config.stash[KEY].ahead.checked(device, case)
        if board:
            gemm_record("gpu", board.label)
        return found

    return of


@pytest.fixture(scope="session")
def check(request: pytest.FixtureRequest) -> static.Check:
    """Compiles what this run selects, one architecture at a time. Skips without the pinned compiler."""
    chosen = [
        e for item in request.session.items for e in parameters(item) if isinstance(e, static.StaticEntry)
    ]
    root = request.config.stash[KEY].project.static
    try:
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

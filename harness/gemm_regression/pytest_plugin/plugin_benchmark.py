"""Adapts pytest-benchmark to GPUs, and closes its silent passes (listed in docs/architecture.md)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NoReturn

import pytest

from gemm_regression.cli.session import KEY, Session
from gemm_regression.devices import DeviceError
from gemm_regression.judge.evidence import MACHINES, UNUSABLE
from gemm_regression.judge.vocabulary import NO_BASELINE_FILE, VerdictKind
from gemm_regression.model import Case
from gemm_regression.pytest_plugin.plugin_gpus import judged
from gemm_regression.pytest_plugin.plugin_machine import machines
from gemm_regression.report import wording
from gemm_regression.report.failures import NOT_STORED, Reason
from gemm_regression.run.boards import Board
from gemm_regression.run.timed import Result, SampleClock, extra_info

DEVICE_CLOCK = SampleClock()
_LEGEND = "  OPS: 1 / Median; GFLops/s are GFLOPS, 2·M·N·K·batch / Median"


class GateFixture:
    """Measures, judges and records one timed case; a verdict that fails becomes one pytest failure."""

    def __init__(
        self,
        session: Session,
        benchmark: Any,
        record: Callable[[str, object], None],
        items: Sequence[pytest.Item],
    ) -> None:
        self._session, self._benchmark, self._says, self._items = session, benchmark, record, items

    def __call__(self, case: Case) -> None:
        if self._benchmark.disabled:
            pytest.fail(
                "timing is disabled (by pytest-xdist's -n or --benchmark-disable), so this case cannot be "
                "judged: run without that option, or deselect with --benchmark-skip; for several GPUs there "
                "is --gpus all",
                pytrace=False,
            )
        s = self._session
        board, result = judged(s, case, self._items)
        s.results.append(result)
        self._record(result, board)
        if result.verdict.failed(s.policy):
            kind = result.verdict.kind
            if result.verdict.reason == NO_BASELINE_FILE:
                self._without_baseline(board.gpu.info.name)
            # All such cases have one reason, and one remedy.
            stored = kind is not VerdictKind.NO_BASELINE
            reason = (
                Reason(f"{kind} {result.verdict.reason}", _message(result)) if stored else Reason(NOT_STORED)
            )
            self._says("variant", case.variant)
            self._says("reason", str(reason))
            pytest.fail(f"{kind}: {_message(result)}", pytrace=False)

    def _without_baseline(self, gpu: str) -> NoReturn:
        """A GPU without a baseline is one failure, whatever the number of cases; the others say so."""
        if gpu in self._session.without_baseline:
            pytest.skip(f"{VerdictKind.NO_BASELINE}: timed, and compared with nothing")
        self._session.without_baseline.add(gpu)
        self._says("variant", "")
        self._says("reason", str(Reason(wording.no_baseline(gpu))))
        pytest.fail(wording.no_baseline(gpu), pytrace=False)

    def _record(self, result: Result, board: Board) -> None:
        benchmark = self._benchmark
        benchmark.group = result.case.problem.id
        benchmark.params = {"timed_case": result.case.id}  # the repr of a Case contains paths of this machine
        benchmark.extra_info.update(extra_info(result))
        benchmark.extra_info["board"] = board.gpu.info.board
        if len(self._session.boards) > 1:
            benchmark.extra_info["gpu"] = board.number
            self._says("gpu", board.label)
        if result.measurement is None or not result.usable:
            benchmark.extra_info["message"] = _message(result)
            # pytest-benchmark sees an error, so the case is in neither its table nor its "benchmarks".
            with contextlib.suppress(_UnusableError):
                benchmark.pedantic(_no_samples, rounds=1, iterations=1)
            return
        seconds = result.measurement.seconds
        DEVICE_CLOCK.load(seconds)
        benchmark.pedantic(DEVICE_CLOCK.tick, rounds=len(seconds), iterations=1)


def _message(result: Result) -> str:
    return wording.message(result.case.id, result.verdict, result.evidence, result.policy)


class _UnusableError(Exception):
    """There are no samples to compute statistics from."""


def _no_samples() -> None:
    raise _UnusableError


@pytest.fixture
def gate(
    request: pytest.FixtureRequest, benchmark: Any, gemm_record: Callable[[str, object], None]
) -> GateFixture:
    """Call it with a timed case."""
    return GateFixture(request.config.stash[KEY], benchmark, gemm_record, request.session.items)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Files that users save with pytest-benchmark's own options are stored under the GPU's name, too."""
    benchmark_session = getattr(session.config, "_benchmarksession", None)
    if benchmark_session is not None and session.config.stash[KEY].gpu:
        if hasattr(benchmark_session.storage, "default_machine_id"):
            benchmark_session.storage.default_machine_id = session.config.stash[KEY].slug
        # The ladder shows the same; -v and --benchmark-compare ask for more.
        if session.config.option.verbose <= 0 and not session.config.option.benchmark_compare:
            benchmark_session.quiet = True
        # pytest-benchmark's own check aborts the run without a failing test; here each case fails
        # individually.
        benchmark_session.compare_fail = []


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """The GPU instead of the host: no host name, no user name."""
    boards = config.stash[KEY].boards
    if not boards:
        return {"gpu": None}
    found = boards[0].machine()
    with contextlib.suppress(DeviceError):  # what it can do at most: nothing is judged by it
        found["roofs"] = boards[0].gpu.roofs()
    return found


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    """Cases that crashed, were wrong or had too few samples are stored separately, not as benchmarks."""
    judged = machines(config.stash[KEY])
    output_json[MACHINES] = {str(board.number): judged[board].recorded() for board in judged}
    output_json[UNUSABLE] = [dict(bench.extra_info) for bench in benchmarks if bench.has_error]
    if len((state := config.stash[KEY]).boards) > 1:
        output_json["gpus"] = {str(board.number): board.gpu.info.as_dict() for board in state.boards}


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    """Without git, as in a container, GEMM_COMMIT (or GITHUB_SHA) names the commit."""
    if commit_info.get("id") in (None, "unknown", "unversioned"):
        named = os.environ.get("GEMM_COMMIT") or os.environ.get("GITHUB_SHA")
        commit_info.clear()
        commit_info |= {"id": named or "unknown", "dirty": not named, "time": None}


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(benchmarks: list[Any]) -> Generator[None, Any, Any]:
    """The table's OPS are those of the median, which is judged: for this run and the one it is compared with.

    In JSON they remain pytest-benchmark's own, for other readers.
    """
    for benchmark in benchmarks:
        if benchmark["median"]:
            benchmark["ops"] = 1 / benchmark["median"]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, None, None]:
    """Corrects the table's legend accordingly."""
    write_line = terminalreporter.write_line

    def write_true_line(line: str, **markup: bool) -> None:
        write_line(_LEGEND if line.startswith("  OPS: ") else line, **markup)

    terminalreporter.write_line = write_true_line
    try:
        return (yield)
    finally:
        terminalreporter.write_line = write_line


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_scale_unit(config: Any, unit: str, benchmarks: list[Any]) -> tuple[str, float] | None:
    """Shows the operations of one problem as GFLOPS: ``OPS (GFLops/s)``."""
    flops = {b["extra_info"].get("flops") for b in benchmarks} if unit == "operations" else set()
    if len(flops) == 1 and (count := flops.pop()):
        return "GFL", count / 1e9
    return None


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """A run with a failure is never saved, since it would become the next run's baseline."""
    config = session.config
    benchmark_session = getattr(config, "_benchmarksession", None)
    if (
        benchmark_session is not None
        and session.testsfailed
        and (benchmark_session.save or benchmark_session.autosave)
    ):
        benchmark_session.save = benchmark_session.autosave = None
        config.get_terminal_writer().line(
            "\nnot saved: a run with failures must not become the baseline of the next one", red=True
        )
    yield

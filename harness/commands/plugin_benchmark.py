"""pytest-benchmark, told about GPUs and without its silent passes (docs/architecture.md lists them)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from harness.baselines import provenance
from harness.commands.session import KEY, Session
from harness.devices import DeviceError, Gpu
from harness.gate.timed import Result, SampleClock, extra_info, run
from harness.model import Case
from harness.reports import wording
from harness.verdicts.evidence import UNUSABLE

DEVICE_CLOCK = SampleClock()
_LEGEND = "  OPS: 1 / Median; GFLops/s are GFLOPS, 2·M·N·K·batch / Median"


class GateFixture:
    """Measures, judges and records one timed case; a verdict that fails becomes one pytest failure."""

    def __init__(self, session: Session, benchmark: Any) -> None:
        self._session, self._benchmark = session, benchmark

    def __call__(self, case: Case) -> None:
        if self._benchmark.disabled:
            pytest.fail(
                "timing is off (pytest-xdist's -n or --benchmark-disable), so this case cannot be judged: "
                "run without it, or deselect with --benchmark-skip",
                pytrace=False,
            )
        s = self._session
        stored = s.baseline if s.judging else None
        gpu = s.gpu
        assert gpu is not None  # without one, a timed case was skipped
        result = run(gpu, case, stored, s.policy, s.plan, lambda: machine_info(gpu), s.against, s.busy)
        s.results.append(result)
        self._record(result)
        if result.verdict.failed(s.policy):
            pytest.fail(f"{result.verdict.kind}: {_message(result)}", pytrace=False)

    def _record(self, result: Result) -> None:
        benchmark = self._benchmark
        benchmark.group = result.case.problem.id
        benchmark.params = {"timed_case": result.case.id}  # a Case's repr names this machine's paths
        benchmark.extra_info.update(extra_info(result), path=wording.path(result.evidence))
        if result.measurement is None or not result.usable:
            benchmark.extra_info["message"] = _message(result)
            # To pytest-benchmark it is one that raised: kept out of its table and of its "benchmarks".
            with contextlib.suppress(_UnusableError):
                benchmark.pedantic(_no_samples, rounds=1, iterations=1)
            return
        seconds = result.measurement.seconds
        DEVICE_CLOCK.load(seconds)
        benchmark.pedantic(DEVICE_CLOCK.tick, rounds=len(seconds), iterations=1)


def _message(result: Result) -> str:
    return wording.message(result.verdict, result.evidence)


class _UnusableError(Exception):
    """There are no samples that a statistic could be of."""


def _no_samples() -> None:
    raise _UnusableError


@pytest.fixture
def gate(request: pytest.FixtureRequest, benchmark: Any) -> GateFixture:
    """Call it with a timed case."""
    return GateFixture(request.config.stash[KEY], benchmark)


def pytest_sessionstart(session: pytest.Session) -> None:
    """What a user saves with pytest-benchmark's own options is filed under the GPU's name too."""
    benchmark_session = getattr(session.config, "_benchmarksession", None)
    if benchmark_session is not None and session.config.stash[KEY].gpu:
        if hasattr(benchmark_session.storage, "default_machine_id"):
            benchmark_session.storage.default_machine_id = session.config.stash[KEY].slug
        # pytest-benchmark's own check ends the run without a failing test: here each case fails by itself.
        benchmark_session.compare_fail = []


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """The GPU in place of the host: no host name, no user."""
    gpu = config.stash[KEY].gpu
    return {"gpu": None} if gpu is None else machine_info(gpu)


def machine_info(gpu: Gpu) -> dict[str, Any]:
    """What `provenance.machine_info` tells, and what the worker knows of libraries."""
    facts: dict[str, Any] = {}
    with contextlib.suppress(DeviceError):  # A case has said so already; the samples are worth keeping.
        facts = gpu.facts()
    return {**provenance.machine_info(gpu.info), **facts}


def pytest_benchmark_update_json(benchmarks: list[Any], output_json: dict[str, Any]) -> None:
    """What crashed, was wrong or gave too few samples is told, too, but is no benchmark to compare with."""
    output_json[UNUSABLE] = [dict(bench.extra_info) for bench in benchmarks if bench.has_error]


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    """A copy of the tree without git, as in a container, says by GEMM_COMMIT (or GITHUB_SHA) what it is."""
    if commit_info.get("id") in (None, "unknown", "unversioned"):
        told = os.environ.get("GEMM_COMMIT") or os.environ.get("GITHUB_SHA")
        commit_info.clear()
        commit_info |= {"id": told or "unknown", "dirty": not told, "time": None}


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(benchmarks: list[Any]) -> Generator[None, Any, Any]:
    """The table's OPS are of the median, as judged: those of this run and those it is compared with.

    In JSON they stay pytest-benchmark's own, for other readers.
    """
    for benchmark in benchmarks:
        if benchmark["median"]:
            benchmark["ops"] = 1 / benchmark["median"]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, None, None]:
    """Makes the table's legend say so."""
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
    """Operations of one problem read as GFLOPS: ``OPS (GFLops/s)``."""
    flops = {b["extra_info"].get("flops") for b in benchmarks} if unit == "operations" else set()
    if len(flops) == 1 and (count := flops.pop()):
        return "GFL", count / 1e9
    return None


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """A run with a failure is never saved: it would be the next run's baseline."""
    config = session.config
    benchmark_session = getattr(config, "_benchmarksession", None)
    if (
        benchmark_session is not None
        and session.testsfailed
        and (benchmark_session.save or benchmark_session.autosave)
    ):
        benchmark_session.save = benchmark_session.autosave = None
        config.get_terminal_writer().line(
            "\nnot saved: a run with failures must not become what the next one is compared with", red=True
        )
    yield

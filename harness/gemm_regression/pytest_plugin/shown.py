"""What a run prints: before its first test what it uses; while tests run how far it is, in place of a dot a
test; after its last failures of other tests, what failed of kernels (equal ones once, in place of a section
and a line for each; not with -v), the tables, and which tests failed."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import provenance
from gemm_regression.cli.progress import Steps, progress
from gemm_regression.compiler.static.store import ACCEPT
from gemm_regression.counters.traffic import TrafficData
from gemm_regression.devices import DeviceError
from gemm_regression.files import write_whole
from gemm_regression.judge.vocabulary import BINARY_NOT_KEPT, NO_BASELINE_FILE, NOT_IN_BASELINE, VerdictKind
from gemm_regression.model import CaseId, Finding, Kernel, Waiver
from gemm_regression.project import selection as cases
from gemm_regression.pytest_plugin.judged import known_traffic, lines_of
from gemm_regression.pytest_plugin.session import KEY, Session
from gemm_regression.report import failures as failing
from gemm_regression.report import runs, wording
from gemm_regression.report.failures import NOT_STORED, Failure, entry_of, placed
from gemm_regression.report.figures import bound_text, dram_share
from gemm_regression.report.runs import CheckRow, RunRow
from gemm_regression.report.wording import refresh_several
from gemm_regression.run.checked import unused
from gemm_regression.run.timed import TimedCase
from gemm_regression.timing.bounds import Roofs, roofs_of
from ptxsan.native import describe, library

# Before the first test


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What the run uses, and what it is compared with."""
    session, suite = config.stash[KEY], f"suite: {config.option.suite}"
    refused = [f"{VerdictKind.REFUSED}: {said}"] if (said := session.selection.refused_text) else []
    refused += [f"ILLEGAL: {illegal}"] if (illegal := session.illegal()) else []
    nvcc = f"nvcc {provenance.nvcc_version()}"
    if session.gpu is None:
        emulated = f"; {session.arch} is emulated, {nvcc}" if session.device else ""
        return [f"gpu: none ({session.no_gpu}){emulated}", suite, *refused]
    several, lines = len(session.boards) > 1, []
    for board in session.boards:
        i = board.gpu.info
        shown = f", baseline: {wording.baseline_text(board.baseline, i.board)}"
        lines.append(
            f"gpu{f' {board.number}' if several else ''}: {i.name}{f', board {i.board}' if i.board else ''}, "
            f"{i.memory_mib} MiB, compute capability {'.'.join(map(str, i.capability))}, power limit "
            f"{i.power_limit_w or '?'} W, max SM clock {i.max_sm_clock_mhz or '?'} MHz"
            f"{shown if several else ''}"
        )
    driver = f"driver: {i.driver}, CUDA {i.cuda_driver}, {nvcc}"
    more = cases.left_out(session.project, config.option.suite, i.capability)
    return [*lines, driver, suite if several else suite + shown, *more, *refused]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """What is compared with what is shown also where a command leaves out the rest of pytest's header."""
    option = session.config.option
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and option.progress and option.no_header and option.verbose >= 0:
        for line in pytest_report_header(session.config):
            reporter.write_line(line)


# While tests run


class Watched:
    """The tests of a run, while they run."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._failed = steps, 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """Workers collect, each the same."""
        self._steps.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed += report.failed
        if report.when in ("teardown", "???"):  # "???": its process was killed
            self._steps(self._named(report.nodeid))

    def now(self, what: str) -> None:
        """What is being done."""
        self._steps.now(self._named(what))

    def _named(self, what: str) -> str:
        """Of a test, its case; and how many failed."""
        failed = f"{self._failed} failed, " if self._failed else ""
        name = what.rpartition("::")[2]
        return failed + (name.partition("[")[2].removesuffix("]") or name)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """No letter: what failed is told at the end."""
        category, *_ = yield
        return category, "", ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    config, option = session.config, session.config.option
    unwanted = option.verbose or option.collectonly or option.usepdb
    if not option.progress or unwanted or hasattr(config, "workerinput"):
        return (yield)
    with progress(str(option.progress), len(session.items)) as steps:
        watched, reporter = Watched(steps), config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # the names of two files, before their dots
        config.stash[KEY].ahead.says = watched.now
        config.pluginmanager.register(watched)
        try:
            return (yield)
        finally:
            config.pluginmanager.unregister(watched)
            config.stash[KEY].ahead.says = lambda what: None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Workers collect, each the same."""
    node.config.stash[KEY].seen.planned = ids


# After the last


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Not green: a run that was to time cases, had no GPU, and did nothing else; one with a waiver that
    matched nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    state = session.config.stash[KEY]
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and state.seen.answered:
        exitstatus = session.exitstatus = pytest.ExitCode.OK
    if reporter is not None and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        state.seen.unused_waivers = _unused_waivers(reporter, state)
        if state.seen.unused_waivers:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif exitstatus == pytest.ExitCode.OK and _nothing_timed(reporter, state):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _nothing_timed(reporter: Any, session: Session) -> bool:
    """Whether cases were to be timed, there was no GPU, and nothing else was done."""
    skipped = any("::test_performance[" in report.nodeid for report in reporter.stats.get("skipped", []))
    return skipped and not (session.gpu or reporter.stats.get("passed"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> Generator[None, None, None]:
    """Keeps the failures of kernels from pytest, which shows each in full, and shows their ids at the end."""
    seen, stats = config.stash[KEY].seen, terminalreporter.stats
    reports = stats.get("failed", [])
    kernels = {kernel.name: kernel for kernel in config.stash[KEY].project.kernels}
    told = {report.nodeid: _failure(report, config.stash[KEY], kernels) for report in reports}
    seen.failures = _measured_together(
        [f for f in told.values() if f], [result for _, result in seen.results]
    )
    seen.hidden = [r for r in reports if told[r.nodeid]] if config.option.verbose <= 0 else []
    if seen.hidden:
        stats["failed"] = [report for report in reports if not told[report.nodeid]]
    try:
        return (yield)
    finally:
        if seen.hidden and "f" in terminalreporter.reportchars and not config.option.no_summary:
            terminalreporter.section("failed", "=")
            for line in filter(None, (*failing.summary(seen.failures), _next(seen.failures))):
                terminalreporter.write_line(line)
        if seen.hidden:
            stats["failed"] = reports


def _failure(report: Any, session: Session, kernels: Mapping[str, Kernel]) -> Failure | None:
    """What a failed test of a kernel recorded; None for any other test."""
    said = report.user_properties
    variant = next((str(value) for name, value in said if name == "variant"), "")
    findings = tuple(Finding.from_json(value) for name, value in said if name == "finding")
    if report.when == "???" and (case := runs.killed(report.nodeid, session.project.kernels)):
        variant, findings = str(case["variant"]), (Finding("its process was killed", report.longreprtext),)
    if not findings:
        return None
    kernel = kernels.get(CaseId.parse(variant).kernel)
    if kernel is None or kernel.source is None:
        return Failure(report.nodeid, variant, findings)
    found = tuple(placed(finding, kernel.source) for finding in findings)
    return Failure(report.nodeid, variant, found, entry_of(kernel.source, kernel.entry))


def _measured_together(failures: Iterable[Failure], results: Sequence[TimedCase]) -> list[Failure]:
    """The failures, those of cases that the baseline lacks, or has no binary of, with the command that
    measures all of these."""
    of_them = (NOT_IN_BASELINE, BINARY_NOT_KEPT.reason)
    lacking = [r.case.id for r in results if r.verdict.reason in of_them]
    if not lacking:
        return list(failures)
    command = refresh_several(lacking, [r.case.id for r in results])
    more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
    binary = any(r.verdict.reason == BINARY_NOT_KEPT.reason for r in results)
    what = f"not in the baseline{', or without their binary' if binary else ''}"
    finding = Finding(f"{VerdictKind.NO_BASELINE}: {command}", f"{what}: {lacking[0]}{more}")
    return [replace(f, findings=(finding,)) if f.findings[0] == NOT_STORED else f for f in failures]


def _next(failures: Sequence[Failure]) -> str:
    """The commands that run what failed again, and accept what may be accepted: not what a wrong kernel is
    compiled to."""
    again = "to run these again, and nothing else, add --lf to the command"
    ran = ("::test_kernel", "::test_paths")
    wrong = {failure.kernel for failure in failures if failure.function.endswith(ran)}
    stored = [f for f in failures if f.function.endswith(("::test_compiler_metrics", "::test_counts"))]
    compiled = [f.kernel for f in stored if not f.is_compilers]
    changed = [kernel for kernel in dict.fromkeys(compiled) if kernel not in wrong]
    if not changed:
        measured = all(failure.findings[0].check.startswith(VerdictKind.NO_BASELINE) for failure in failures)
        return "" if measured else again
    kernels = " ".join(f"--kernel {name}" for name in changed)
    return f"{again}; to accept metrics and counters: {ACCEPT} {kernels}"


@pytest.hookimpl(specname="pytest_terminal_summary")
def pytest_gemm_tables(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Between the failures of other tests and the ids of what failed."""
    session, write, option = config.stash[KEY], terminalreporter.write_line, config.option
    seen, kernels = session.seen, session.project.kernels
    color, room = terminalreporter.hasmarkup, _room(terminalreporter)
    terse = option.verbose < 0  # of the tables what is red
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and option.keyword and not seen.answered:
        write(cases.nothing_fits(option.keyword), red=True)
    if exitstatus == pytest.ExitCode.OK and _nothing_timed(terminalreporter, session):
        write(f"nothing was timed and nothing checked: no GPU: {session.no_gpu}", red=True)
    together = seen.failures if seen.hidden else []
    if together:
        terminalreporter.section("what failed")
        for line in failing.page(together):
            write(line)
    if os.environ.get("GITHUB_ACTIONS"):
        for line in failing.github_annotations(seen.failures):
            write(line)
    if option.sarif:
        write_whole(Path(option.sarif), json.dumps(failing.sarif_of(seen.failures), indent=1) + "\n")
    checked, said = _checked(terminalreporter, session), list[str]()
    if checked:
        terminalreporter.section(f"kernels without a GPU, {session.arch}")
        if library() is None:
            write(f"slower than need be: {describe()}")
        red = [row for row in checked if row.failed or row.left]
        brief = 0 < len(red) < len(checked) and not option.verbose
        if shown := red if terse or brief else checked:
            write(runs.checks(shown).text(color, room))
        if seen.answered:
            tests = len(_reports(terminalreporter, session))
            said.append(runs.answered_text(len(seen.answered), tests))
        said += [*runs.notes_lines(checked, kernels), *runs.waived_lines(checked, seen.unused_waivers)]
        more = "; -v shows those that pass, too" if brief else ""
        for line in (runs.counts_text(checked) + more, *said):
            write(line)
    rows, notes = _rows(session), _notes(session)
    if rows:
        terminalreporter.section("ladder")
        if shown_rows := [row for row in rows if row.failed or not terse]:
            write(runs.ladder(shown_rows, kernels).text(color, room))
        for line in ([runs.judged_text(rows)] if terse else []) + notes:
            write(line)
    if option.job_summary:
        header = [*pytest_report_header(config), *notes, *said]
        others = _other_failures(terminalreporter, session)
        failed = failing.bullets(together)
        text = runs.job_summary(rows, header, int(exitstatus), others, checked, kernels, failed)
        write_whole(Path(option.job_summary), text)


def _room(terminalreporter: Any) -> int:
    """Columns; 0 for a file or a log, which have no width."""
    return terminalreporter._tw.fullwidth if os.environ.get("COLUMNS") or sys.stdout.isatty() else 0


def _reports(terminalreporter: Any, session: Session) -> list[Any]:
    """Of all tests of the run, also of those that were answered."""
    told = [r for how in ("passed", "failed", "skipped") for r in terminalreporter.stats.get(how, [])]
    return [*told, *session.seen.hidden, *session.seen.answered]


def _checked(terminalreporter: Any, session: Session) -> list[CheckRow]:
    """The rows of a run without a GPU, one per variant."""
    if session.gpu is not None or session.device is None:
        return []
    reports = _reports(terminalreporter, session)
    told = {r.nodeid for r in (*reports, *terminalreporter.stats.get("error", []))}
    left = [test for test in session.seen.planned if test not in told]
    # "???" is pytest-xdist's report of a test that killed its worker.
    done = [r for r in reports if r.when in ("call", "???")]
    return runs.check_rows(done, session.arch, session.project.kernels, left)


def _unused_waivers(terminalreporter: Any, session: Session) -> list[tuple[str, Waiver]]:
    """Of kernels whose every case has just been run."""
    declared = {kernel.name: kernel.waived for kernel in session.project.kernels if kernel.waived}
    rows = _checked(terminalreporter, session) if declared else []
    if not rows:
        return []
    every = cases.select(session.project, cases.Choice(), session.capability, emulated=True).verify
    planned = {name: [case.id for case in every if case.kernel.name == name] for name in declared}
    used = {name: [w for row in rows if row.of.kernel == name for w in row.waived] for name in declared}
    return unused(declared, used, planned, {case for row in rows for case in row.done})


def _rows(session: Session) -> list[RunRow]:
    """The judged cases, each with what bounds it if the roofs of its GPU model are known."""
    of_models, rows = dict[str, Roofs | None](), list[RunRow]()
    known = known_traffic(session) if session.seen.results else TrafficData()
    for board, r in session.seen.results:
        if board.slug not in of_models:
            of_models[board.slug] = None
            with contextlib.suppress(DeviceError):  # nothing is judged by it
                of_models[board.slug] = roofs_of({"roofs": board.gpu.roofs()})
        made = RunRow(r)
        if roofs := of_models[board.slug]:
            resources = r.measurement.resources if r.measurement else None
            work = known.work(board.slug, r.case, resources.cubin_sha256 if resources else None)
            seconds = r.case.work / (1e9 * r.verdict.gflops) if r.verdict.gflops else None
            bound = bound_text(work, roofs, r.case.dtype.name, seconds)
            made = replace(made, dram=dram_share(roofs, r.case, r.verdict.gflops), bound=bound)
        rows.append(replace(made, gpu=str(board.number)) if len(session.boards) > 1 else made)
    return rows


def _other_failures(terminalreporter: Any, session: Session) -> list[str]:
    """Tests that failed or had errors, other than the judged cases that fail."""
    failed = [r for _, r in session.seen.results if r.verdict.failed(session.policy)]
    red = [r.case.id for r in failed if r.verdict.reason != NO_BASELINE_FILE]
    shown = tuple(f"::test_performance[{case}]" for case in red)
    reports = [r for how in ("failed", "error") for r in terminalreporter.stats.get(how, [])]
    return list(dict.fromkeys(r.nodeid for r in reports if not r.nodeid.endswith(shown)))


def _notes(session: Session) -> list[str]:
    """Remarks on what passes, and on what could not be judged."""
    notes, results = [], [result for _, result in session.seen.results]
    if improved := [r.case.id for r in results if r.verdict.kind is VerdictKind.IMPROVED]:
        command = refresh_several(improved, [r.case.id for r in results])
        notes.append(f"{len(improved)} improved; to update their baseline: {command}")
    notes += filter(None, [wording.changed_text(results)])
    if session.policy.allow_orphans and (orphans := session.orphans):
        notes.append(f"{len(orphans)} orphans in the baseline: {wording.some(orphans)}")
    for board, verdict in (session.seen.machines or {}).items():
        if not (session.policy.fail_on_drift and verdict.failed):  # else its test has said so
            notes += lines_of(session, board, verdict)
    return notes + wording.sustained_texts(results)

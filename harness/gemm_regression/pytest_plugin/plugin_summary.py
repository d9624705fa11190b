"""What a run prints before its first test and after its last: the header, the ladder, the notes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import provenance
from gemm_regression.cli.session import KEY, Session
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.traffic import Known
from gemm_regression.devices import DeviceError
from gemm_regression.files import write_whole
from gemm_regression.judge.vocabulary import NO_BASELINE_FILE, VerdictKind
from gemm_regression.model import Waiver
from gemm_regression.project import selection as cases
from gemm_regression.project.selection import nothing_fits
from gemm_regression.pytest_plugin.plugin_machine import lines_of
from gemm_regression.report import Row, row
from gemm_regression.report.bounds import bound_text
from gemm_regression.report.changed import changed_text
from gemm_regression.report.check import (
    CheckRow,
    answered_text,
    check_rows,
    check_table,
    counts_text,
    notes_lines,
    waived_lines,
)
from gemm_regression.report.failures import bullets, github_annotations, page
from gemm_regression.report.markdown import job_summary
from gemm_regression.report.page.roofs import dram_share
from gemm_regression.report.sarif import sarif
from gemm_regression.report.sustained import sustained_texts
from gemm_regression.report.terminal import ladder_table
from gemm_regression.report.wording import baseline_text, refresh_several, some
from gemm_regression.run.checked import unused
from gemm_regression.timing.bounds import Roofs, roofs_of
from ptxsan.native import describe, library


def pytest_report_header(config: pytest.Config) -> list[str]:
    session = config.stash[KEY]
    refused = session.selection.refused_text
    return [*_about(config, session), *([f"{VerdictKind.REFUSED}: {refused}"] if refused else [])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """What is compared with what is shown also where a command leaves out the rest of pytest's header."""
    option = session.config.option
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and option.progress and option.no_header and option.verbose >= 0:
        for line in pytest_report_header(session.config):
            reporter.write_line(line)


def _about(config: pytest.Config, session: Session) -> list[str]:
    """What the run uses, and what it is compared with."""
    if session.gpu is None:
        emulated = f"; {session.arch} is emulated, nvcc {provenance.nvcc_version()}" if session.device else ""
        return [f"gpu: none ({session.no_gpu}){emulated}", f"suite: {config.option.suite}"]
    several, lines, shown = len(session.boards) > 1, [], ""
    for board in session.boards:
        i = board.gpu.info
        shown = f", baseline: {baseline_text(board.baseline, i.board)}"
        named = f", board {i.board}" if i.board else ""
        number = f" {board.number}" if several else ""
        lines.append(
            f"gpu{number}: {i.name}{named}, {i.memory_mib} MiB, compute capability "
            f"{'.'.join(map(str, i.capability))}, power limit {i.power_limit_w or '?'} W, "
            f"max SM clock {i.max_sm_clock_mhz or '?'} MHz{shown if several else ''}"
        )
    i = session.gpu.info
    suite = f"suite: {config.option.suite}{'' if several else shown}"
    return [*lines, f"driver: {i.driver}, CUDA {i.cuda_driver}, nvcc {provenance.nvcc_version()}", suite]


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[KEY].planned = [item.nodeid for item in session.items]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Workers collect, each the same."""
    node.config.stash[KEY].planned = ids


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Not green: a run that was to time cases, had no GPU, and did nothing else; one with a waiver that
    matched nothing."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.stash[KEY].answered:
        exitstatus = session.exitstatus = pytest.ExitCode.OK
    if reporter is not None and exitstatus in (0, pytest.ExitCode.TESTS_FAILED):
        state = config.stash[KEY]
        state.unused_waivers = _unused_waivers(reporter, state)
        if state.unused_waivers:
            exitstatus = session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if reporter is None or exitstatus != 0 or config.stash[KEY].gpu or reporter.stats.get("passed"):
        return
    if any("::test_performance[" in report.nodeid for report in reporter.stats.get("skipped", [])):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        config.stash[KEY].nothing_timed = True


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    session = config.stash[KEY]
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and config.option.keyword:
        terminalreporter.write_line(nothing_fits(config.option.keyword, session.project.kernels), red=True)
    if session.nothing_timed:
        terminalreporter.write_line(
            f"nothing was timed and nothing checked: no GPU: {session.no_gpu}", red=True
        )
    if session.failures:
        terminalreporter.section("what failed")
        for line in page(session.failures):
            terminalreporter.write_line(line)
    _at_lines(terminalreporter, config, session)
    checked = _checked(terminalreporter, session)
    if checked:
        terminalreporter.section(f"kernels without a GPU, {session.arch}")
        if library() is None:
            terminalreporter.write_line(f"slower than need be: {describe()}")
        terminalreporter.write_line(check_table(checked, terminalreporter.hasmarkup, _room(terminalreporter)))
        terminalreporter.write_line(counts_text(checked))
        if answered := _answered(terminalreporter, session):
            terminalreporter.write_line(answered)
        for line in (*notes_lines(checked), *waived_lines(checked, session.unused_waivers)):
            terminalreporter.write_line(line)
    rows = _rows(session)
    notes = _notes(session)
    if rows:
        terminalreporter.section("ladder")
        ladder = ladder_table(
            rows, _room(terminalreporter), terminalreporter.hasmarkup, session.project.kernels
        )
        terminalreporter.write_line(ladder)
        for note in notes:
            terminalreporter.write_line(note)
    if config.option.job_summary:
        said = f"tests: {_counts(terminalreporter, session)}"
        header = [*pytest_report_header(config), said, *notes, *notes_lines(checked)]
        header += waived_lines(checked, session.unused_waivers)
        header += filter(None, [_answered(terminalreporter, session)])
        others = _other_failures(terminalreporter, session)
        kernels = session.project.kernels
        failures = bullets(session.failures)
        text = job_summary(rows, header, int(exitstatus), others, checked, kernels, failures)
        write_whole(Path(config.option.job_summary), text)


def _rows(session: Session) -> list[Row]:
    """The judged cases, each with what bounds it if the roofs of its GPU model are known."""
    of_models, known, rows = _roofs(session), Known(), list[Row]()
    if any(of_models.values()):
        with contextlib.suppress(StoreError):  # nothing is judged by it
            known = Known.of(session.project.baselines)
    for r in session.results:
        board = session.judged_on[r.case.id]
        made = row(r.case, r.verdict, r.cublas_ratio, session.policy)
        if roofs := of_models.get(board.slug):
            resources = r.measurement.resources if r.measurement else None
            work = known.work(board.slug, r.case, resources.cubin_sha256 if resources else None)
            bound = bound_text(work, roofs, r.case.dtype.name, r.verdict.gflops)
            made = replace(made, dram=dram_share(roofs, r.case, r.verdict.gflops), bound=bound)
        rows.append(replace(made, gpu=str(board.number)) if len(session.boards) > 1 else made)
    return rows


def _roofs(session: Session) -> dict[str, Roofs | None]:
    """What each GPU model can do at most, measured in this run; without timed cases, or where that failed,
    nothing."""
    found: dict[str, Roofs | None] = {}
    for board in session.boards if session.results else ():
        if board.slug not in found:
            with contextlib.suppress(DeviceError):  # nothing is judged by it
                found[board.slug] = roofs_of({"roofs": board.gpu.roofs()})
    return found


def _room(terminalreporter: Any) -> int:
    """Columns; 0 for a file or a log, which have no width."""
    return terminalreporter._tw.fullwidth if os.environ.get("COLUMNS") or sys.stdout.isatty() else 0


def _counts(terminalreporter: Any, session: Session) -> str:
    """pytest's own count of all tests, those of kernels among them."""
    others = terminalreporter.stats.get("failed", [])
    if every := [*others, *session.failed_reports]:
        terminalreporter.stats["failed"] = every
    try:
        return ", ".join(text for text, _ in terminalreporter.build_summary_stats_line()[0])
    finally:
        if every:
            terminalreporter.stats["failed"] = others


def _at_lines(terminalreporter: Any, config: pytest.Config, session: Session) -> None:
    """What failed at a line of a source: for GitHub to show there, and as a file."""
    sources = {k.name: Path(os.path.relpath(k.source)) for k in session.project.kernels if k.source}
    if os.environ.get("GITHUB_ACTIONS"):
        for line in github_annotations(session.found, sources):
            terminalreporter.write_line(line)
    if config.option.sarif:
        write_whole(Path(config.option.sarif), json.dumps(sarif(session.found, sources), indent=1) + "\n")


def _checked(terminalreporter: Any, session: Session) -> list[CheckRow]:
    """The rows of a run without a GPU, one per variant."""
    if session.gpu is not None or session.device is None:
        return []
    reports = [r for how in ("passed", "failed", "skipped") for r in terminalreporter.stats.get(how, [])]
    reports += [*session.failed_reports, *session.answered]
    told = {r.nodeid for r in (*reports, *terminalreporter.stats.get("error", []))}
    left = [test for test in session.planned if test not in told]
    # "???" is pytest-xdist's report of a test that killed its worker.
    done = [r for r in reports if r.when in ("call", "???")]
    return check_rows(done, session.arch, session.project.kernels, left)


def _answered(terminalreporter: Any, session: Session) -> str:
    """How many tests were not run, since they passed and nothing changed; empty if none."""
    there = [r for how in ("passed", "failed", "skipped") for r in terminalreporter.stats.get(how, [])]
    tests = len(there) + len(session.failed_reports) + len(session.answered)
    return answered_text(len(session.answered), tests) if session.answered else ""


def _unused_waivers(terminalreporter: Any, session: Session) -> list[tuple[str, Waiver]]:
    """Of kernels whose every case has just been run."""
    declared = {kernel.name: kernel.waived for kernel in session.project.kernels if kernel.waived}
    rows = _checked(terminalreporter, session) if declared else []
    if not rows:
        return []
    every = cases.select(session.project, cases.Choice(), session.capability, emulated=True).verify
    planned = {name: [case.id for case in every if case.kernel.name == name] for name in declared}
    used = {name: [w for row in rows if row.stage == name for w in row.waived] for name in declared}
    return unused(declared, used, planned, {case for row in rows for case in row.done})


def _other_failures(terminalreporter: Any, session: Session) -> list[str]:
    """Tests that failed or had errors, other than the judged cases that fail."""
    failed = [r for r in session.results if r.verdict.failed(session.policy)]
    red = [r.case.id for r in failed if r.verdict.reason != NO_BASELINE_FILE]
    shown = tuple(f"::test_performance[{case}]" for case in red)
    reports = [r for how in ("failed", "error") for r in terminalreporter.stats.get(how, [])]
    return list(dict.fromkeys(r.nodeid for r in reports if not r.nodeid.endswith(shown)))


def _notes(session: Session) -> list[str]:
    """Remarks on what passes, and on what could not be judged."""
    notes = []
    if improved := [r.case.id for r in session.results if r.verdict.kind is VerdictKind.IMPROVED]:
        command = _on_all(refresh_several(improved, [r.case.id for r in session.results]), session)
        notes.append(f"{len(improved)} improved; to update their baseline: {command}")
    notes += filter(None, [changed_text(session.results)])
    if session.policy.allow_orphans and (orphans := session.orphans):
        notes.append(f"{len(orphans)} orphans in the baseline: {some(orphans)}")
    allowed = not session.policy.fail_on_drift
    for board, verdict in (session.machines or {}).items():
        if allowed or not verdict.failed:  # else its test has said so
            notes += lines_of(session, board, verdict)
    return notes + sustained_texts(session.results)


def _on_all(command: str, session: Session) -> str:
    """A command of nox, for the GPUs of this run."""
    if len(session.boards) < 2:
        return command
    numbers = ",".join(str(board.number) for board in session.boards)
    return f"{command}{'' if ' -- ' in command else ' --'} --gpus {numbers}"

"""The failed tests of kernels: equal ones once, in place of a section and a line for each; not with -v.

The order is: failures of other tests, what failed of kernels, the tables, which tests failed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gemm_regression.cli.session import KEY, Session
from gemm_regression.compiler.static.store import ACCEPT
from gemm_regression.judge.paired import BINARY_NOT_KEPT
from gemm_regression.judge.vocabulary import NOT_IN_BASELINE, VerdictKind
from gemm_regression.report.check import killed
from gemm_regression.report.failures import NOT_STORED, Failure, Reason, summary
from gemm_regression.report.wording import refresh_several


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: Any, exitstatus: int, config: pytest.Config
) -> Generator[None, None, None]:
    """Keeps the failures of kernels from pytest, which shows each in full, and shows their ids at the end."""
    session, stats = config.stash[KEY], terminalreporter.stats
    reports = stats.get("failed", [])
    session.found = [f for r in reports if (f := _failure(r, session))]
    failures = [] if config.option.verbose > 0 else session.found
    grouped = {failure.test for failure in failures}
    stats["failed"] = [report for report in reports if report.nodeid not in grouped]
    try:
        if failures:
            session.failures = failures = _measured_together(failures, session)
            session.failed_reports = [report for report in reports if report.nodeid in grouped]
        return (yield)
    finally:
        if failures and "f" in terminalreporter.reportchars and not config.option.no_summary:
            terminalreporter.section("failed", "=")
            for line in summary(failures):
                terminalreporter.write_line(line)
            if following := _next(failures):
                terminalreporter.write_line(following)
        stats["failed"] = reports
        if not reports:
            del stats["failed"]


def _failure(report: Any, session: Session) -> Failure | None:
    """What a failed test of a kernel recorded; None for any other test."""
    said = report.user_properties
    variant = next((str(value) for name, value in said if name == "variant"), "")
    reasons = tuple(Reason.parse(str(value)) for name, value in said if name == "reason")
    if report.when == "???" and (case := killed(report.nodeid, session.project.kernels)):
        variant, reasons = str(case["variant"]), (Reason("its process was killed", report.longreprtext),)
    return Failure(report.nodeid, variant, reasons) if reasons else None


def _measured_together(failures: Sequence[Failure], session: Session) -> list[Failure]:
    """The failures, those of cases that the baseline lacks, or has no binary of, with the command that
    measures all of these."""
    of_them = (NOT_IN_BASELINE, BINARY_NOT_KEPT.reason)
    lacking = [r.case.id for r in session.results if r.verdict.reason in of_them]
    if not lacking:
        return list(failures)
    command = refresh_several(lacking, [r.case.id for r in session.results])
    more = f" and {len(lacking) - 1} more" if lacking[1:] else ""
    binary = any(r.verdict.reason == BINARY_NOT_KEPT.reason for r in session.results)
    what = f"not in the baseline{', or without their binary' if binary else ''}"
    reason = Reason(f"{VerdictKind.NO_BASELINE}: {command}", f"{what}: {lacking[0]}{more}")
    return [replace(f, reasons=(reason,)) if f.reasons[0].what == NOT_STORED else f for f in failures]


def _next(failures: Sequence[Failure]) -> str:
    """The commands that run what failed again, and accept what may be accepted: not what a wrong kernel is
    compiled to."""
    again = "to run these again, and nothing else, add --lf to the command"
    wrong = {failure.kernel for failure in failures if failure.function.endswith("::test_kernel")}
    stored = [f for f in failures if f.function.endswith(("::test_compiler_metrics", "::test_counts"))]
    compiled = [f.kernel for f in stored if not f.reasons[0].is_compilers]
    changed = [kernel for kernel in dict.fromkeys(compiled) if kernel not in wrong]
    if not changed:
        measured = all(failure.reasons[0].what.startswith(VerdictKind.NO_BASELINE) for failure in failures)
        return "" if measured else again
    kernels = " ".join(f"--kernel {name}" for name in changed)
    return f"{again}; to accept metrics and counters: {ACCEPT} {kernels}"

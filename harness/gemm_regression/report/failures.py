"""What failed of the kernels, equal findings of a kernel once: in a terminal, as Markdown, as GitHub's
annotations, and in SARIF 2.1.0 (OASIS) for code scanning and editors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gemm_regression import __version__
from gemm_regression.hints import typed
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import CaseId, Finding
from gemm_regression.report.figures import count_text
from gemm_regression.run.checked import Checked
from ptxsan.report import annotation, sarif, sarif_result

_FILE = re.compile(r"(?<![\w./])[\w.][\w.+/-]*(?=[(:]\d)")  # before the number of a line
_NVCC = re.compile(r"^(\S+?)[(:](\d+)\)?(?::\d+)?: (?:fatal )?error: (.*)$", re.MULTILINE)
DOES_NOT_COMPILE = "does not compile"
NOT_STORED = Finding(f"{VerdictKind.NO_BASELINE}: {typed('baseline')}", "")  # of each case the baseline lacks
_LONGEST = 400  # characters of the details that are shown


@dataclass(frozen=True)
class Failure:
    """A failed test of a kernel: its node id, the variant (empty for a failure of the run), and why.
    ``entry``: file and line where the kernel begins, for what has no line; empty and 0 if not known."""

    test: str
    variant: str
    findings: tuple[Finding, ...]
    entry: tuple[str, int] = ("", 0)

    @property
    def kernel(self) -> str:
        return CaseId.parse(self.variant).kernel

    @property
    def function(self) -> str:
        return self.test.partition("[")[0]

    @property
    def is_compilers(self) -> bool:
        return self.findings[0].check == DOES_NOT_COMPILE


@dataclass
class FailureGroup:
    """The failed tests of a kernel (of any, where it is empty) with the same finding, and their variants."""

    kernel: str
    finding: Finding
    entry: tuple[str, int] = ("", 0)
    tests: list[str] = field(default_factory=list)
    variants: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        return f"{self.kernel}: {self.finding.title}" if self.kernel else self.finding.title

    @property
    def seen(self) -> str:
        """In how many tests and variants; empty for a failure of the run."""
        if self.variants == {""}:
            return ""
        return f"{count_text(len(self.tests), 'test')}, {count_text(len(self.variants), 'variant')}"

    @property
    def place(self) -> tuple[str, int]:
        """File and line: its own, else those of the kernel's entry."""
        return (self.finding.file, self.finding.line) if self.finding.line else self.entry

    @property
    def text(self) -> str:
        return f"{self.title}: {self.finding.message}"


def of_error(text: str, check: str) -> Finding:
    """Why a kernel could not be compiled, at the line that nvcc names; else what the ``check`` says."""
    if error := _NVCC.search(text):
        return Finding(DOES_NOT_COMPILE, text[error.start() :], error[1], int(error[2]), problem=error[3])
    compilers = DOES_NOT_COMPILE in text or ": nvcc " in text
    return Finding(DOES_NOT_COMPILE if compilers else check, text)


def of_check(checked: Checked) -> list[Finding]:
    """Why a case failed in a correctness test."""
    if checked.outcome.kind is VerdictKind.WRONG:
        return list(checked.findings)
    return [of_error(reason, str(checked.outcome)) for reason in checked.reasons]


@cache
def entry_of(source: Path, entry: str) -> tuple[str, int]:
    """The file of a kernel's source, as a path from the working directory, and the line where its ``entry``
    is declared, or else the first one; empty and 0 if it cannot be read."""
    try:
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", 0
    name = re.split(r"[<(]", entry)[0].rpartition("::")[2].strip()
    declared = re.compile(rf"\b{re.escape(name)}\s*\(") if name else re.compile("$^")
    return os.path.relpath(source), next((n for n, text in enumerate(lines, 1) if declared.search(text)), 1)


def placed(finding: Finding, source: Path | None) -> Finding:
    """The same, with its file, and those that its message names, as paths from the working directory, which a
    terminal or an editor opens. A finding has them relative to the folder of the kernel's ``source``."""
    if source is None:
        return finding

    def path(name: str) -> str:
        there = source.parent / name
        return os.path.relpath(there) if there.is_file() else name

    message = _FILE.sub(lambda found: path(found[0]), finding.message)
    return replace(finding, message=message, file=finding.file and path(finding.file))


def grouped(
    failures: Iterable[Failure], key: Callable[[Failure], Iterable[Finding]] = lambda one: one.findings
) -> list[FailureGroup]:
    """Failures of a kernel with the same finding, in the order they are first seen."""
    groups: dict[tuple[str, str], FailureGroup] = {}
    for failure in failures:
        for finding in key(failure):
            # Cases without a baseline have one remedy, whatever the kernel.
            kernel = "" if finding.check.startswith(VerdictKind.NO_BASELINE) else failure.kernel
            group = groups.setdefault((kernel, finding.title), FailureGroup(kernel, finding, failure.entry))
            if group.tests[-1:] != [failure.test]:
                group.tests.append(failure.test)
                group.variants.add(failure.variant)
    return list(groups.values())


def page(failures: Sequence[Failure]) -> list[str]:
    """Each finding of each kernel: in how many tests and variants, and an example."""
    lines = []
    for group in grouped(failures):
        details, seen = group.finding.message, f"   ({group.seen})" if group.seen else ""
        if len(details) > _LONGEST and "\n" not in details:
            details = f"{details[:_LONGEST]} ..."
        lines += [f"{group.title}{seen}", *(f"  {line}" for line in details.splitlines())]
    return lines


def bullets(failures: Sequence[Failure]) -> list[str]:
    """The same page, a line a finding."""
    lines = []
    for group in grouped(failures):
        example = group.finding.message.partition("\n")[0][:_LONGEST]
        seen = f" ({group.seen}, first {group.tests[0]}): {example}" if group.seen else ""
        lines.append(f"{group.title}{seen}")
    return lines


def summary(failures: Sequence[Failure]) -> list[str]:
    """A line a test function, kernel and first finding, one for all functions of what does not compile: the
    first test, and how many more there are."""
    by_function: dict[str, list[Failure]] = {}
    for failure in sorted(failures, key=lambda one: not one.is_compilers):
        by_function.setdefault("" if failure.is_compilers else failure.function, []).append(failure)
    lines = []
    for there in by_function.values():
        for group in grouped(there, lambda failure: failure.findings[:1]):
            more = f" and {len(group.tests) - 1} more" if len(group.tests) > 1 else ""
            lines.append(f"FAILED {group.tests[0]}{more} - {group.finding.title}")
    return lines


def located(failures: Iterable[Failure]) -> list[FailureGroup]:
    """The findings that have a line or whose kernel does, equal ones of a kernel once."""
    return [group for group in grouped(failures) if group.place[1] and group.kernel]


def github_annotations(failures: Iterable[Failure]) -> list[str]:
    """GitHub's annotations of the lines that failed, as workflow commands; of findings that are `placed`."""
    return [annotation(*group.place, group.text) for group in located(failures)]


def sarif_of(failures: Sequence[Failure]) -> dict[str, Any]:
    """The same findings as `github_annotations`; a run that found nothing has no results, which closes the
    alerts of earlier ones."""
    results = [
        sarif_result(
            group.finding.check,
            *group.place,
            group.text,
            kernel=group.kernel,
            variants=sorted(group.variants),
        )
        for group in located(failures)
    ]
    return sarif("gemm-regression", __version__, results)

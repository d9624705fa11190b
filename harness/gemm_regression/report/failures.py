"""What failed, on a page: equal reasons of a kernel together, the first in full.

The tests of a kernel record a ``reason`` of each failure: what equal failures share, a tab, and the details.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import CaseId
from gemm_regression.oracle import Finding
from gemm_regression.report.figures import count_text
from gemm_regression.run.checked import Checked

_PLACE = re.compile(r" at (\S+:\d+)(?= |$|;|,)")
_ERROR = re.compile(r"^(\S+?)[(:](\d+)\)?(?::\d+)?: (?:fatal )?error: (.*)$", re.MULTILINE)
NOT_STORED = f"{VerdictKind.NO_BASELINE}: nox -s baseline"  # of every case that the baseline lacks
_LONGEST = 400  # characters of the details that are shown


@dataclass(frozen=True)
class Reason:
    """``what`` failed, with the line of the .cu file where one is known; ``details``: an example."""

    what: str
    details: str = ""

    def __str__(self) -> str:
        return f"{self.what}\t{self.details}"

    @classmethod
    def parse(cls, text: str) -> Reason:
        what, _, details = text.partition("\t")
        return cls(what, details)

    @property
    def is_compilers(self) -> bool:
        """Whether it is an error of the compiler."""
        return "does not compile" in self.what or ": nvcc " in self.what

    @property
    def place(self) -> tuple[str, int] | None:
        """File and line, where the reason has them."""
        found = re.search(r" at (\S+):(\d+)$", self.what) or re.search(r"(?:^|: )(\S+):(\d+): ", self.what)
        return (found[1], int(found[2])) if found else None


@dataclass
class Failed:
    """The failed tests of a kernel (of any, where it is empty) with the same reason, and their variants."""

    kernel: str
    reason: Reason
    tests: list[str] = field(default_factory=list)
    variants: set[str] = field(default_factory=set)

    @property
    def title(self) -> str:
        return f"{self.kernel}: {self.reason.what}" if self.kernel else self.reason.what

    @property
    def seen(self) -> str:
        """In how many tests and variants; empty for a failure of the run."""
        tests, variants = len(self.tests), len(self.variants)
        return (
            f"{count_text(tests, 'test')}, {count_text(variants, 'variant')}" if self.variants != {""} else ""
        )


@dataclass(frozen=True)
class Failure:
    """A failed test of a kernel: its node id, the variant (empty for a failure of the run), and why."""

    test: str
    variant: str
    reasons: tuple[Reason, ...]

    @property
    def kernel(self) -> str:
        return CaseId.parse(self.variant).kernel

    @property
    def function(self) -> str:
        return self.test.partition("[")[0]


def of_finding(finding: Finding) -> Reason:
    """Why a check of the oracle or of the device failed: in which line, where that is known."""
    found = _PLACE.search(finding.message)
    return Reason(finding.check + (f" at {found[1]}" if found else ""), finding.message)


def of_error(text: str) -> Reason:
    """Why a kernel could not be compiled or run."""
    if error := _ERROR.search(text):
        return Reason(f"does not compile: {error[1]}:{error[2]}: {error[3]}", text[error.start() :])
    head, _, rest = text.partition("\n")
    return Reason(head, rest)


def of_check(checked: Checked) -> list[Reason]:
    """Why a case failed in a correctness test."""
    if checked.outcome.kind is VerdictKind.WRONG:
        return [of_finding(finding) for finding in checked.findings]
    return [of_error(reason) for reason in checked.reasons] or [Reason(str(checked.outcome))]


def grouped(failures: Iterable[Failure], key: Callable[[Failure], Iterable[Reason]]) -> list[Failed]:
    """Failures of a kernel with the same reason, in the order they are first seen."""
    groups: dict[tuple[str, str], Failed] = {}
    for failure in failures:
        first: dict[str, Reason] = {}
        for reason in key(failure):
            first.setdefault(reason.what, reason)
        for reason in first.values():
            # Cases without a baseline have one remedy, whatever the kernel.
            kernel = "" if reason.what.startswith(VerdictKind.NO_BASELINE) else failure.kernel
            group = groups.setdefault((kernel, reason.what), Failed(kernel, reason))
            group.tests.append(failure.test)
            group.variants.add(failure.variant)
    return list(groups.values())


def page(failures: Sequence[Failure]) -> list[str]:
    """Each reason of each kernel: in how many tests and variants, and an example."""
    lines = []
    for group in grouped(failures, lambda failure: failure.reasons):
        lines.append(group.title + (f"   ({group.seen})" if group.seen else ""))
        details = group.reason.details
        if len(details) > _LONGEST and "\n" not in details:
            details = f"{details[:_LONGEST]} ..."
        lines += [f"  {line}" for line in details.splitlines()]
    return lines


def bullets(failures: Sequence[Failure]) -> list[str]:
    """The same page, a line a reason."""
    lines = []
    for group in grouped(failures, lambda failure: failure.reasons):
        example = group.reason.details.partition("\n")[0][:_LONGEST]
        seen = f" ({group.seen}, first {group.tests[0]}): {example}" if group.seen else ""
        lines.append(group.title + seen)
    return lines


@dataclass(frozen=True)
class Located:
    """A failure at a ``line`` of a ``file``, a path from the repository's root."""

    failed: Failed
    file: Path
    line: int

    @property
    def text(self) -> str:
        return f"{self.failed.title}: {self.failed.reason.details}"


def located(failures: Iterable[Failure], sources: Mapping[str, Path]) -> Iterator[Located]:
    """The failures whose line is known, equal ones of a kernel once; ``sources``: the .cu file of each
    kernel, as a path from the repository's root."""
    for group in grouped(failures, lambda failure: failure.reasons):
        if group.reason.place and group.kernel in sources:
            name, line = group.reason.place
            yield Located(group, Path(os.path.normpath(sources[group.kernel].parent / name)), line)


def github_annotations(failures: Iterable[Failure], sources: Mapping[str, Path]) -> list[str]:
    """GitHub's annotations of the lines that failed, as workflow commands; arguments as in `located`."""
    return [
        f"::error file={_escaped(str(one.file), ':,')},line={one.line}::{_escaped(one.text)}"
        for one in located(failures, sources)
    ]


def _escaped(text: str, more: str = "") -> str:
    """As @actions/core writes a workflow command; ``more`` is escaped in its properties."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + more else c for c in text)


def summary(failures: Sequence[Failure]) -> list[str]:
    """A line a test function, kernel and first reason, one for all functions of what does not compile: the
    first test, and how many more there are."""
    lines = []
    broken = [failure for failure in failures if failure.reasons[0].is_compilers]
    others = [failure for failure in failures if not failure.reasons[0].is_compilers]
    functions = dict.fromkeys(failure.function for failure in others)
    for there in (broken, *([f for f in others if f.function == function] for function in functions)):
        for group in grouped(there, lambda failure: failure.reasons[:1]):
            more = f" and {len(group.tests) - 1} more" if len(group.tests) > 1 else ""
            lines.append(f"FAILED {group.tests[0]}{more} - {group.reason.what}")
    return lines

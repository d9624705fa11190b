"""What a check without a GPU said of each kernel, and what that amounts to."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.public.source import Source


class Result(StrEnum):
    """What is shown of a kernel; ``UNEXPLAINED`` and ``OUTDATED`` are failures."""

    PASS = "right"
    NOTE = "right, with a note"
    EXPLAINED = "red, explained"
    NOT_EMULATED = "not emulated"
    UNEXPLAINED = "UNEXPLAINED"
    OUTDATED = "OUTDATED"


@dataclass
class Ran:
    """What was said of a kernel: ``passed`` counts its problems; ``checks`` that failed, each with the first
    message; ``lacking``: what the device does not support; ``notes``: its remarks, which are no errors."""

    kernel: str
    passed: int = 0
    checks: dict[str, str] = field(default_factory=dict)
    lacking: str = ""
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """A kernel with its result, and the line that explains it."""

    kernel: str
    result: Result
    line: str = ""

    @property
    def failed(self) -> bool:
        return self.result in (Result.UNEXPLAINED, Result.OUTDATED)


def read_results(xml: str) -> list[Ran]:
    """The kernels of a JUnit report (``junit_family=xunit1``) by name, numbers in it by their value: several
    processes end in any order. Raises ValueError if it has none."""
    found: dict[str, Ran] = {}
    for test in ElementTree.fromstring(xml).iter("testcase"):
        said = {p.get("name", ""): p.get("value", "") for p in test.iter("property")}
        if "variant" in said:
            _add(
                found.setdefault(said["variant"].partition("-")[0], Ran(said["variant"].partition("-")[0])),
                said,
                test,
            )
    if not found:
        raise ValueError("the check ran no kernel")
    return sorted(found.values(), key=lambda ran: _by_value(ran.kernel))


def _by_value(name: str) -> list[tuple[int, str]]:
    """A key that sorts v10 after v9."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _add(ran: Ran, said: Mapping[str, str], test: ElementTree.Element) -> None:
    failure, skipped = test.find("failure"), test.find("skipped")
    # A failure's whole text is that of the element; its message is cut after a few lines.
    told = failure.text if failure is not None else skipped.get("message") if skipped is not None else ""
    text = told or ""
    verdict = said.get("verdict", "")
    if "UNSUPPORTED" in verdict or ": UNSUPPORTED: " in text:
        ran.lacking = ran.lacking or _needed(text)
    elif failure is not None:
        names = said.get("findings", "").split() or [
            verdict.partition(" ")[2] or test.get("name", "").partition("[")[0]
        ]
        for name in names:
            ran.checks.setdefault(name, _message(name, text))
    elif skipped is None and "problem" in said:
        ran.passed += 1
        for line in filter(None, said.get("notes", "").splitlines()):
            # Where it is, without the instruction.
            short = re.sub(r"(PTX line \d+): .*", r"\1", re.sub(r" \(PTX line \d+: .*", "", line))
            ran.notes.setdefault(line.partition(":")[0], short)


def _needed(text: str) -> str:
    """The instruction that a message says is unknown, or its last part."""
    named = re.search(
        r"(?:unknown instruction|unknown form of \w+,|cannot read the operands of) '?([\w.:]+)", text
    )
    return named[1].rstrip(":") if named else _last(text)


def _message(check: str, text: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if line.startswith(f"{check}:")), lines[-1] if lines else "")


def _last(text: str) -> str:
    return (text.splitlines() or [""])[-1]


def judge(source: Source, ran: list[Ran]) -> Iterator[Judged]:
    """The results of a project's kernels. A failure is explained only if no check failed but those that the
    explanation names."""
    for kernel in ran:
        known = source.explained.get(kernel.kernel)
        if kernel.checks:
            if known and set(known.checks) >= set(kernel.checks):
                yield Judged(
                    kernel.kernel, Result.EXPLAINED, f"{', '.join(sorted(kernel.checks))}: {known.why}"
                )
            else:
                yield Judged(kernel.kernel, Result.UNEXPLAINED, "; ".join(kernel.checks.values()))
        elif kernel.lacking:
            yield Judged(kernel.kernel, Result.NOT_EMULATED, kernel.lacking)
        elif known:
            yield Judged(
                kernel.kernel, Result.OUTDATED, f"explained as {', '.join(known.checks)}, but passes"
            )
        elif not kernel.passed:
            yield Judged(kernel.kernel, Result.UNEXPLAINED, "no problem was run")
        elif kernel.notes:
            yield Judged(kernel.kernel, Result.NOTE, "; ".join(kernel.notes.values()))
        else:
            yield Judged(kernel.kernel, Result.PASS)
    for name in source.explained.keys() - {kernel.kernel for kernel in ran}:
        yield Judged(name, Result.OUTDATED, "explained, but there is no such kernel")

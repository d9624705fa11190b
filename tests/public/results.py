"""Where a project's kernels come from, what a check without a GPU said of each, and the page of it."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.pages import table

FILE = "source.toml"
Line = Annotated[str, Field(min_length=1, pattern=r"^[^\n|]+$")]


class Explained(BaseModel):
    """Why a kernel fails these ``checks`` (``exact``, ``bounds``, …), in one line."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    checks: tuple[Line, ...] = Field(min_length=1)
    why: Line


class Source(BaseModel):
    """A repository at one revision.

    ``repository`` is ``owner/name``; ``licence`` an SPDX identifier, or "none stated"; ``declared``: what the
    declarations say that the repository does not, in one line; ``on_gpu``: what the same checks gave on a
    GPU; ``explained``: faults of kernels, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    repository: Line
    revision: Line
    date: Line
    licence: Line
    declared: str = ""
    on_gpu: str = ""
    explained: dict[str, Explained] = {}


def read_source(project: Path) -> Source:
    """The record of a project. Raises ValueError, in one line, if there is none or it is not understood."""
    path = project / FILE
    try:
        return Source.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


# What was said of a kernel


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
            name = said["variant"].partition("-")[0]
            _add(found.setdefault(name, Ran(name)), said, test)
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


# The page

_HEAD = Path(__file__).with_name("head.md").read_text(encoding="utf-8")


def render(found: Mapping[str, tuple[Source, Sequence[Judged]]], command: str) -> str:
    """The page, of the projects by name."""
    every = [judged for _, kernels in found.values() for judged in kernels]
    shown = [result for result in Result if not Judged("", result).failed or _count(every, result)]

    def counted(kernels: Sequence[Judged]) -> list[str]:
        return [str(len(kernels)), *(str(_count(kernels, result) or "") for result in shown)]

    rows = [[*_origin(source), *counted(kernels)] for source, kernels in found.values()]
    rows.append(["all", "", "", *counted(every)])
    heads = ["repository", "revision", "licence", "kernels", *shown]
    on_gpu = [[source.repository, source.on_gpu or "not run"] for source, _ in found.values()]
    faults = [
        [source.repository, f"`{judged.kernel}`", judged.result, judged.line.replace("|", "\\|")]
        for source, kernels in found.values()
        for judged in kernels
        if judged.result is not Result.PASS
    ]
    parts = [_HEAD.format(command=command)]
    parts += ["## By repository\n", table(heads, rows, "lll" + "r" * (1 + len(shown)))]
    parts += ["\n## On a GPU\n", table(["repository", "the same checks on a GPU"], on_gpu)]
    parts += ["\n## Faults, notes and refusals\n", table(["repository", "kernel", "result", "why"], faults)]
    parts.append("\n## What the declarations say\n")
    for source, kernels in found.values():
        names = ", ".join(f"`{judged.kernel}`" for judged in kernels)
        parts.append(f"- **{source.repository}**: {names}. {source.declared}".rstrip())
    return "\n".join(parts) + "\n"


def counts(kernels: Sequence[Judged]) -> str:
    """``12 kernels: 11 right, 1 red, explained``."""
    said = Counter(judged.result for judged in kernels)
    return f"{len(kernels)} kernels: " + ", ".join(f"{said[r]} {r}" for r in Result if said[r])


def _count(kernels: Sequence[Judged], result: Result) -> int:
    return sum(judged.result is result for judged in kernels)


def _origin(source: Source) -> tuple[str, str, str]:
    link = f"[{source.repository}](https://github.com/{source.repository})"
    return link, f"{source.revision} ({source.date})", source.licence

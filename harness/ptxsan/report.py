"""What each check means, and where findings go besides a terminal: JSON, GitHub's annotations, and SARIF
2.1.0 (OASIS) for code scanning and editors."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ptxsan.api import LaunchResult
from ptxsan.checks import Hazard

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def path(result: LaunchResult, hazard: Hazard) -> str:
    """The source file of a finding: relative to the working directory if it lies below; "" if unknown."""
    named = result.compiled.paths.get(hazard.file, hazard.file)
    full, here = os.path.abspath(named), os.getcwd()
    return os.path.relpath(full, here) if full.startswith(here + os.sep) else named


def source_line(result: LaunchResult, hazard: Hazard) -> str:
    """The text of its line; "" where the file is not at hand."""
    try:
        text = Path(path(result, hazard)).read_text(encoding="utf-8") if hazard.file else ""
    except (OSError, UnicodeDecodeError):
        text = result.compiled.source if hazard.file == result.compiled.name else ""
    lines = text.splitlines()
    return lines[hazard.line - 1].strip() if 0 < hazard.line <= len(lines) else ""


def shown(result: LaunchResult, hazard: Hazard) -> str:
    """``scan.cu:15: race: thread ... reads ...``, and below it the line of the source."""
    place = f"{path(result, hazard)}:{hazard.line}: " if hazard.line else ""
    code = source_line(result, hazard)
    said = f"{place}{hazard.check}: {hazard.thread} {hazard.problem}"
    return f"{said}\n    {code}" if code else f"{said} ({hazard.ptx})"


def launch_text(result: LaunchResult) -> str:
    """``scan<<<4, 256>>>``, ``gemm<<<(8, 8), (16, 16)>>>``"""

    def shape(extents: tuple[int, int, int]) -> str:
        kept = extents[: max((i + 1 for i, n in enumerate(extents) if n > 1), default=1)]
        return str(kept[0] if len(kept) == 1 else kept)

    return f"{result.entry}<<<{shape(result.grid)}, {shape(result.block)}>>>"


def as_json(result: LaunchResult) -> dict[str, Any]:
    """A result without its arrays, as JSON has it."""

    def listed(hazards: Iterable[Hazard]) -> list[dict[str, Any]]:
        return [asdict(h) | {"path": path(result, h), "source": source_line(result, h)} for h in hazards]

    arrays = {str(at): {"shape": a.shape, "dtype": str(a.dtype)} for at, a in result.arrays.items()}
    return {
        "entry": result.entry,
        "grid": result.grid,
        "block": result.block,
        "clean": result.clean,
        "stopped": result.stopped,
        "findings": listed(result.hazards),
        "notes": listed(result.notes),
        "printed": list(result.printed),
        "parameters": list(result.names),
        "arrays": arrays,
        "lane_instructions": result.lane_instructions,
        "counts": _counts(result),
    }


def _counts(result: LaunchResult) -> dict[str, Any]:
    counts = result.counts
    accesses = {
        name: getattr(counts, name)._asdict()
        for name in ("loads", "stores", "copies", "shared_loads", "shared_stores", "shared_copies")
    }
    names = ("instructions", "divergent", "barriers", "flop")
    return {name: getattr(counts, name) for name in names} | accesses


def annotation(file: str, line: int, text: str, level: str = "error") -> str:
    """A workflow command, by which GitHub shows a text at a line."""
    return f"::{level} file={_escaped(file, ':,')},line={line}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """As @actions/core writes a workflow command; ``more`` is escaped in its properties."""
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + more else c for c in text)


def github_annotations(result: LaunchResult, hazards: Iterable[Hazard]) -> list[str]:
    """Of each of these whose line is known."""
    return [annotation(path(result, h), h.line, f"{h.check}: {h.message}") for h in hazards if h.line]


def sarif_result(
    check: str, file: str, line: int, text: str, level: str = "error", **properties: Any
) -> dict[str, Any]:
    """A SARIF result."""
    artifact = {"uri": Path(file).as_posix(), "uriBaseId": "%SRCROOT%"}
    place = {"artifactLocation": artifact, "region": {"startLine": line}}
    of = {"ruleId": check.replace(" ", "-"), "level": level, "message": {"text": text}}
    more = {"properties": properties} if properties else {}
    return of | {"locations": [{"physicalLocation": place}]} | more


def sarif(tool: str, version: str, results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A SARIF log of one run. One without results closes the alerts of earlier ones."""
    rules: dict[str, int] = {}  # each with its index
    listed = [{**r, "ruleIndex": rules.setdefault(r["ruleId"], len(rules))} for r in results]
    known = [{"id": rule, "shortDescription": {"text": rule.replace("-", " ")}} for rule in rules]
    driver = {"name": tool, "version": version, "rules": known}
    run = {"tool": {"driver": driver}, "results": listed, "columnKind": "utf16CodeUnits"}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def sarif_results(result: LaunchResult) -> list[dict[str, Any]]:
    """Those of a launch: its findings, and its notes at level "note"."""
    levels = [(h, "error") for h in result.hazards] + [(h, "note") for h in result.notes]
    return [sarif_result(h.check, path(result, h), h.line, h.message, level) for h, level in levels if h.line]


CHECKS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("explanations.toml").read_text(encoding="utf-8")
)


def explain(check: str) -> str:
    """A check by its name, in any case. Raises KeyError for an unknown one."""
    about = CHECKS[check.lower()]
    parts = [f"{check.lower()}\n{about['means'].strip()}"]
    if "wrong" in about:
        parts.append(f"wrong:   {about['wrong'].strip()}\nright:   {about['right'].strip()}")
    return "\n\n".join([*parts, f"To mend it\n{about['mend'].strip()}"])

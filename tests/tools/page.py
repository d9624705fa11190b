"""The page of the planted bugs, made of results.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tools.bugs import BUGS, HERE, Bug

FILE = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "results" / "tools.md"
COLUMNS = {
    "ptxsan": "ptxsan",
    "values": "values on a GPU",
    "memcheck": "memcheck",
    "racecheck": "racecheck",
    "initcheck": "initcheck",
    "synccheck": "synccheck",
    "consan": "ConSan",
    "numba": "Numba's simulator",
}
MADE_OF = {  # the version that a column's results depend on
    "ptxsan": ("nvcc of ptxsan",),
    "values": ("gpu", "nvcc"),
    **dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), ("gpu", "compute-sanitizer")),
    "consan": ("gpu", "triton"),
    "numba": ("numba",),
}
NOT_RUN, NOT_WRITTEN, NOTHING, BOTH = "not run", "n/a", "–", "both"


def load(path: Path = FILE) -> dict[str, Any]:
    """What is stored: ``versions`` by name, ``results`` by tool, bug and variant."""
    found: dict[str, Any] = {"versions": {}, "results": {}}
    return found | (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def store(found: Mapping[str, Any], path: Path = FILE) -> None:
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def merged(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Whole tools of the one replaced by those of the other."""
    return {part: {**before[part], **more.get(part, {})} for part in ("versions", "results")}


def cell(tool: str, bug: Bug, results: Mapping[str, Any], variant: str = "bug") -> str:
    """What the table has of a tool and a bug: what it says in a word, ``NOTHING`` where it says nothing."""
    if tool in ("numba", "consan") and not (bug.numba if tool == "numba" else bug.gluon):
        return NOT_WRITTEN
    said = results.get(tool, {}).get(bug.name, {}).get(variant)
    if said is None or said.startswith(NOT_RUN):
        return NOT_RUN
    if not said or tool == "ptxsan":
        return said or NOTHING
    if wrong := re.fullmatch(r"wrong in (\d+) of (\d+) launches", said):
        return f"{wrong[1]} of {wrong[2]} wrong"
    for word in ("hang", "failed", "stopped", "wrong values"):
        if said.startswith(word):
            return {"failed": "no result", "stopped": "stops"}.get(word, word)
    if tool == "values":
        return "error" if said.startswith("CUDA_ERROR") else said
    return said.partition(":")[0] if tool == "numba" else "found"


def found(tool: str, text: str) -> bool:
    """Whether a cell counts as found. That a kernel hangs, or the driver stops it, is what the values show:
    a tool that runs it on a GPU and adds nothing has not found it."""
    said_by_gpu = ("hang", "stops") if tool not in ("ptxsan", "values", "numba") else ()
    silent = (NOT_RUN, NOT_WRITTEN, NOTHING, BOTH, "no result", *said_by_gpu)
    return text not in silent and not text.startswith("note")


def told_apart(tool: str, bug: Bug, results: Mapping[str, Any]) -> str:
    """What the table has of a bug: its cell, ``BOTH`` where the tool finds something in the twin, too."""
    text, twin = (cell(tool, bug, results, variant) for variant in ("bug", "twin"))
    return BOTH if found(tool, text) and found(tool, twin) else text


def page(stored: Mapping[str, Any]) -> str:
    results, versions = stored["results"], stored["versions"]
    head = "".join(f" {title} |" for title in COLUMNS.values())
    lines = [(HERE / "head.md").read_text(encoding="utf-8"), f"| bug | |{head}"]
    lines += ["| --- | --- |" + " --- |" * len(COLUMNS)]
    totals = dict.fromkeys(COLUMNS, 0)
    for bug in BUGS:
        cells = {tool: told_apart(tool, bug, results) for tool in COLUMNS}
        for tool, text in cells.items():
            totals[tool] += found(tool, text)
        lines.append(f"| `{bug.name}` | {bug.about} | {' | '.join(cells.values())} |")
    counted = [str(totals[tool]) if tool in results else NOT_RUN for tool in COLUMNS]
    tried = [str(sum(cell(t, b, results) not in (NOT_RUN, NOT_WRITTEN) for b in BUGS)) for t in COLUMNS]
    shown = [f"{n} of {of}" if n != NOT_RUN else n for n, of in zip(counted, tried, strict=True)]
    lines += [f"| | **found** | {' | '.join(shown)} |", ""]
    lines += ["## The right twins", "", *_twins(results), "", "## Versions", ""]
    for tool, title in COLUMNS.items():
        of = ", ".join(f"{name} {versions[name]}" for name in MADE_OF[tool] if name in versions)
        lines.append(f"- {title}: {of if tool in results else NOT_RUN}.")
    return "\n".join(lines) + "\n\n" + (HERE / "others.md").read_text(encoding="utf-8")


def _twins(results: Mapping[str, Any]) -> list[str]:
    """What each tool says of kernels that are right."""
    lines = []
    for tool, title in COLUMNS.items():
        if tool not in results:
            continue
        cells = {bug.name: cell(tool, bug, results, "twin") for bug in BUGS}
        ran = [name for name, text in cells.items() if text not in (NOT_RUN, NOT_WRITTEN)]
        wrong = [f"`{name}` ({cells[name]})" for name in ran if cells[name] != NOTHING]
        lines.append(f"- {title}: {len(ran)} run, {', '.join(wrong) if wrong else 'nothing said'}.")
    if "values" in results:
        digests = {tool: results[tool] for tool in ("ptxsan", "values")}
        same = sum(
            digests["ptxsan"][bug.name]["digest"] == digests["values"][bug.name]["digest"] for bug in BUGS
        )
        lines.append(
            f"- The arrays that ptxsan and the GPU leave are the same bytes for {same} of {len(BUGS)}."
        )
    return lines

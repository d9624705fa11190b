"""The report: one HTML file that needs no network, its essentials as Markdown, the ladder in the README."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from typing import Any

from gemm_regression import __version__
from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.model import Case, DType, Kernel
from gemm_regression.report import charts, sources
from gemm_regression.report.charts import SHOWN, Record
from gemm_regression.report.figures import render
from gemm_regression.report.sources import Content, Source, VerdictSummary

BUDGET = 5_000_000  # bytes
_MOST = 20  # rows of a table of Markdown that may have any number
_DRAWN = ("ladder", "sizes", "roofline", "configs", "against", "history", "compared", "rounds")


def html(content: Content, kernels: Sequence[Kernel]) -> str:
    """The report. Where it is larger than BUDGET, it leaves out the samples of cases that are not red, and
    says so.

    Raises BaselineError for a run or comparison that cannot be judged, NoDrawingError without vl-convert.
    """
    verdicts = _verdicts(content)
    data, maps = datasets(content, kernels), charts.spaces(content.tuned)
    data["configs"] = [cell for space in maps for cell in space["cells"]]
    values = {
        "content": content,
        "verdicts": verdicts,
        "by_case": {source: {one.case: one for one in said} for source, said in verdicts.items()},
        "changed": charts.change_points(content.histories),
        "problem": charts.usual_problem(data["cases"]),
        "beside": _beside(content.sources),
        "specs": {name: charts.specification(name, {}) for name in _DRAWN},
        "spaces": {one["label"]: {"axes": one["axes"], "note": one["note"]} for one in maps},
        "counts": sources.counts,
        "bundle": charts.bundle(),
        "version": __version__,
        "datasets": data,
    }
    page, red = "", {(one.source, one.case) for said in verdicts.values() for one in said if one.red}
    for only in (None, red):
        records = packed({"datasets": data, "rounds": charts.rounds(content.runs, only)})
        page = render("page.html.jinja", **values, records=records, every_round=only is None)
        if len(page.encode()) <= BUDGET:
            break
    return page


def datasets(content: Content, kernels: Sequence[Kernel]) -> dict[str, list[Record]]:
    """The records of every chart but that of single rounds and of config spaces, by name."""
    declared = charts.variants(kernels)
    measured = charts.cases(content.sources, declared, content.known)
    return {
        "cases": measured,
        "roofs": charts.roof_lines(content.sources, measured),
        "history": charts.history(content.histories, declared),
        "compared": [one for each in content.comparisons for one in charts.intervals(*each)],
    }


def _verdicts(content: Content) -> dict[str, list[VerdictSummary]]:
    """By what said them. Raises BaselineError."""
    found: dict[str, list[VerdictSummary]] = {}
    for one in sources.judged(content):
        found.setdefault(one.source, []).append(one)
    return found


def _beside(shown: Sequence[Source]) -> str:
    """What the first source is compared with first: the baseline of its GPU model, if that is another one,
    else the next."""
    alike = [one for one in shown[1:] if one.gpu == shown[0].gpu and not one.judged]
    return next((one.label for one in (*alike, *shown[1:], *shown)), "")


def packed(value: Any) -> str:
    """JSON, compressed by gzip and in Base64: a seventh of its size. The browser unpacks it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def markdown(content: Content, kernels: Sequence[Kernel]) -> str:
    """Verdicts, the failures in full, the ladder of the newest source and what changed over the history.
    Raises BaselineError for what cannot be judged."""
    measured = charts.cases(content.sources[:1], charts.variants(kernels))
    made = render(
        "page.md.jinja",
        verdicts=_verdicts(content),
        counts=sources.counts,
        tested=content.tested,
        ladder=charts.ladder(measured),
        changed=charts.change_points(content.histories),
        most=_MOST,
    )
    return f"{made}\n"


BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"


_Best = tuple[BaselineEntry, str]


def readme_section(baselines: Sequence[Baseline], kernels: Sequence[Kernel]) -> str:
    """The text between the markers in the README: what was measured where, and the best config of each stage;
    of several GPU models side by side, with a dash where one of them has not measured a stage."""
    stages = [(kernel, dtype) for kernel in kernels for dtype in kernel.dtypes]
    rows = [(*stage, [_best(baseline, *stage) for baseline in baselines]) for stage in stages]
    of_each = ([one[0] for *_, best in rows if (one := best[n])] for n in range(len(baselines)))
    said = map(_provenance, baselines, of_each)
    return render(
        "ladder.md.jinja", said=said, baselines=baselines, rows=[row for row in rows if any(row[2])]
    )


def _best(baseline: Baseline, kernel: Kernel, dtype: DType) -> _Best | None:
    """The fastest config of a stage, with its name, or that of what was chosen."""
    stored = ((baseline.entry(Case(kernel, dtype, c, SHOWN).id), c.label) for c in kernel.configs)
    there = [(entry, entry.chosen or label) for entry, label in stored if entry]
    return max(there, key=lambda one: one[0].gflops, default=None)


def _provenance(baseline: Baseline, shown: Sequence[BaselineEntry]) -> str:
    """What the figures that are shown have in common; each row names its own board and commit."""
    machines = (entry.machine for entry in shown)
    software = [f"driver {m['driver']}, CUDA {m['cuda_driver']}, nvcc {m['nvcc']}" for m in machines]
    days = sorted({entry.datetime[:10] for entry in shown})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) + "; " if days else ""
    said = " or ".join(dict.fromkeys(software)) or "nothing of that size is stored"
    return f"{baseline.name}, M = N = K = {SHOWN.m}, the best config of each stage; {when}{said}."

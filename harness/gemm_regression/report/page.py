"""The report: one HTML file that needs no network, its essentials as Markdown, the ladder in the README."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from gemm_regression import __version__
from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.model import Case, Kernel
from gemm_regression.report import charts, records, sources
from gemm_regression.report.figures import gflops_text, percent_text, safe, share_text, table_text
from gemm_regression.report.records import SHOWN, Record
from gemm_regression.report.sources import Content, Source, VerdictSummary

BUDGET = 5_000_000  # bytes
_MOST = 20  # rows of a table that may have any number


def html(content: Content, kernels: Sequence[Kernel]) -> str:
    """The report. Where it is larger than BUDGET, it leaves out the samples of cases that are not red, and
    says so.

    Raises BaselineError for a run or comparison that cannot be judged, NoDrawingError without vl-convert,
    ImportError without Jinja2.
    """
    import jinja2  # late: in the group `report`

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gemm_regression.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"gflops": gflops_text, "percent": percent_text}
    template = environment.get_template("page.html.jinja")
    said = sources.judged(content)
    values = _values(content, kernels, said)
    page = ""
    for only in (None, {(one.source, one.case) for one in said if one.red}):
        drawn = {"datasets": values["datasets"], "rounds": records.rounds(content.runs, only)}
        page = template.render(**values, records=packed(drawn), every_round=only is None)
        if len(page.encode()) <= BUDGET:
            break
    return page


def datasets(content: Content, kernels: Sequence[Kernel]) -> dict[str, list[Record]]:
    """The records of every chart but that of single rounds and of config spaces, by name."""
    declared = records.variants(kernels)
    measured = records.cases(content.sources, declared, content.known)
    return {
        "cases": measured,
        "roofs": records.roof_lines(content.sources, measured),
        "history": records.history(content.histories, declared),
        "compared": list(chain.from_iterable(map(records.intervals, content.comparisons))),
    }


def _values(content: Content, kernels: Sequence[Kernel], said: Sequence[VerdictSummary]) -> dict[str, Any]:
    """What the template shows."""
    data = datasets(content, kernels)
    measured, history = data["cases"], data["history"]
    maps = records.spaces(content.tuned)
    data["configs"] = [cell for space in maps for cell in space.cells]
    longest = sorted(history, key=lambda r: -len(r["files"]))
    options = {
        "source": [source.label for source in content.sources],
        "problem": _distinct(sorted(measured, key=lambda r: int(r["place"])), "problem"),
        "dtype": _distinct(measured, "dtype"),
        "stage": _distinct(sorted(measured, key=lambda r: int(r["order"])), "stage"),
        "space": [one.label for one in maps],
        "past": _distinct(longest, "history"),
        "comparison": [each.label for each in content.comparisons],
        "verdict": list(dict.fromkeys(one.verdict for one in said)),
    }
    first = {name: values[0] if values else "" for name, values in options.items()}
    chosen = {"source": first["source"], "problem": records.usual_problem(measured)}
    space = {"space": maps[0].label, "down": maps[0].axes[0], "across": maps[0].axes[:2][-1]} if maps else {}
    parameters: dict[str, dict[str, Any]] = {
        "ladder": chosen | {"dtype": first["dtype"]},
        "sizes": {"source": first["source"], "dtype": first["dtype"]},
        "roofline": chosen,
        "configs": space,
        "against": _side_by_side(content.sources),
        "history": {"gpu": first["past"]},
        "compared": {"comparison": first["comparison"]},
        "rounds": {},
    }
    specs = {name: charts.specification(name, values) for name, values in parameters.items()}
    by_case: dict[str, dict[str, Any]] = {}
    for one in said:
        by_case.setdefault(one.source, {})[one.case] = asdict(one)
    shown = {one.label: {"axes": one.axes, "note": one.note} for one in maps}
    return {
        "content": content,
        "said": said,
        "red": [one for one in said if one.red],
        "counts": sources.counts(said),
        "changed": records.change_points(content.histories),
        "options": options,
        "chosen": parameters,
        "specs": specs,
        "bundle": charts.bundle(),
        "version": __version__,
        "datasets": data,
        "data": _embedded({"specs": specs, "verdicts": by_case, "spaces": shown}),
        "gpus": list(dict.fromkeys(source.gpu for source in content.sources)),
    }


def _side_by_side(shown: Sequence[Source]) -> dict[str, str]:
    """The first source and what it is compared with first: the baseline of its GPU model, if that is another
    one, else the next."""
    if not shown:
        return {}
    first, *others = shown
    alike = [one for one in others if one.gpu == first.gpu and not one.judged]
    return {"one": [*alike, *others, first][0].label, "other": first.label}


def packed(value: Any) -> str:
    """JSON, compressed by gzip and in Base64: a seventh of its size. The browser unpacks it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _embedded(value: Any) -> str:
    """JSON that may stand in a <script> element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _distinct(found: Sequence[Record], name: str) -> list[str]:
    return list(dict.fromkeys(r[name] for r in found))


def markdown(content: Content, kernels: Sequence[Kernel]) -> str:
    """Verdicts, the failures in full, the ladder of the newest source and what changed over the history.
    Raises BaselineError for what cannot be judged."""
    said = sources.judged(content)
    parts: list[str] = []
    for label in dict.fromkeys(one.source for one in said):
        parts += _verdicts(label, [one for one in said if one.source == label])
    parts += [f"{safe(each.label)}: {each.tests} tests, {each.red} failed." for each in content.tested]
    measured = records.cases(content.sources[:1], records.variants(kernels))
    problem = records.usual_problem(measured)
    shown = sorted((r for r in measured if r["best"] and r["problem"] == problem), key=lambda r: r["order"])
    if shown:
        heads = ["stage", "dtype", "best config", "GFLOPS", "% of cuBLAS", "ms", "board, commit"]
        ladder = [
            (
                *(r["stage"], r["dtype"], r["config"], gflops_text(r["gflops"])),
                *("–" if r["share"] is None else f"{r['share']:.1f}", f"{r['ms']:.4g}"),
                f"{r.get('board', 'unknown')}, {r['commit'][:8]}",
            )
            for r in shown
        ]
        parts += [f"### {safe(shown[0]['source'])}, {problem}", table_text(heads, "lllrrrl", ladder)]
    if found := records.change_points(content.histories):
        slower = sum(one[2] for one in found)
        parts.append(f"### History: {len(found)} change points, {slower} of cases that are slower now")
        columns = ("case", "measurement", "commit", "GFLOPS before", "after", "change")
        moves = [
            (
                *(("**slower** " if is_slower else "") + move.case, move.at, move.commit),
                *(*map(gflops_text, move.gflops), percent_text(move.change, 2)),
            )
            for _, move, is_slower in found[:_MOST]
        ]
        parts.append(table_text(columns, "lllrrr", moves))
    return "\n\n".join(parts or ["Nothing is measured yet: `nox -s baseline` on a GPU."]) + "\n"


def _verdicts(label: str, said: Sequence[VerdictSummary]) -> Iterator[str]:
    red = [one for one in said if one.red]
    numbers = ", ".join(f"{number} {kind}" for kind, number, _ in sources.counts(said))
    yield f"## {'Red' if red else 'Green'}: {safe(label)}: {numbers}"
    for one in red[:_MOST]:
        line = f"{one.case}: {one.message.removeprefix(f'{one.case}: ')}".partition("\n")[0]
        yield f"- **{f'{one.verdict} {one.reason}'.strip()}** {safe(line)}\n\n  `{one.command}`"
    if len(red) > _MOST:
        yield f"… and {len(red) - _MOST} more"


BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
NO_BASELINE = "No baseline yet: run nox -s baseline on a GPU."


def readme_section(baselines: Sequence[Baseline], kernels: Sequence[Kernel]) -> str:
    """The text between the markers in the README: what was measured where, and the best config of each stage;
    of several GPU models side by side, with a dash where one of them has not measured a stage."""
    if not baselines:
        return NO_BASELINE
    heads, rows = ["stage", "idea", "dtype"], []
    for baseline in baselines:
        name = f"{baseline.name.removeprefix('NVIDIA ')}: " if len(baselines) > 1 else ""
        heads += [f"{name}best config", "GFLOPS", "% of cuBLAS"]
    shown: list[list[BaselineEntry]] = [[] for _ in baselines]
    for kernel, dtype in [(each, dtype) for each in kernels for dtype in each.dtypes]:
        cells, boards = [kernel.name, kernel.idea, str(dtype)], []
        for baseline, of_gpu in zip(baselines, shown, strict=True):
            stored = ((baseline.entry(Case(kernel, dtype, c, SHOWN).id), c.label) for c in kernel.configs)
            best = max(
                ((e.gflops, e, label) for e, label in stored if e), key=lambda one: one[0], default=None
            )
            if best is None:
                cells += ["–"] * 3
                boards.append("–")
                continue
            _, entry, label = best
            of_gpu.append(entry)
            share = share_text(1.0 if kernel.library else entry.cublas_ratio)
            cells += [entry.chosen or label, gflops_text(entry.gflops), share]
            changed = " with changes" if entry.dirty else ""
            boards.append(f"{entry.board or 'unknown'}@{entry.commit[:8]}{changed}")
        if set(boards) != {"–"}:
            rows.append((*cells, ", ".join(boards)))
    said = [f"- {_provenance(baseline, of)}" for baseline, of in zip(baselines, shown, strict=True)]
    align = "lll" + "lrr" * len(baselines) + "l"
    return "\n".join(said) + "\n\n" + table_text((*heads, "measured on (board@commit)"), align, rows)


def _provenance(baseline: Baseline, shown: Sequence[BaselineEntry]) -> str:
    """What the figures that are shown have in common; each row names its own board and commit."""
    software = dict.fromkeys(
        f"driver {m['driver']}, CUDA {m['cuda_driver']}, nvcc {m['nvcc']}" for m in (e.machine for e in shown)
    )
    days = sorted({entry.datetime[:10] for entry in shown})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) + "; " if days else ""
    return (
        f"{baseline.name}, M = N = K = {SHOWN.m}, the best config of each stage; {when}"
        f"{' or '.join(software) or 'nothing of that size is stored'}."
    )

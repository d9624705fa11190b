"""The report as one HTML file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import jinja2

from gemm_regression import __version__
from gemm_regression.model import Kernel
from gemm_regression.report.figures import gflops_text, percent_text, share_text
from gemm_regression.report.page import charts, records, verdicts
from gemm_regression.report.page.charts import Space
from gemm_regression.report.page.records import Record
from gemm_regression.report.page.sources import Compared, Content, Source, VerdictSummary

BUDGET = 5_000_000  # bytes


class TooLargeError(Exception):
    """A report would exceed its budget."""


def html(content: Content, kernels: Sequence[Kernel]) -> str:
    """The report. To stay within BUDGET, it leaves out the samples of cases that are not red, and says so.

    Raises BaselineError for a run or comparison that cannot be judged, NoDrawingError without vl-convert,
    TooLargeError if it is larger than BUDGET even so.
    """
    said = verdicts.judged(content)
    red = {(one.source, one.case) for one in said if one.red}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gemm_regression.report.page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"gflops": gflops_text, "percent": percent_text, "share": share_text}
    template = environment.get_template("page.html.jinja")
    values = _values(content, kernels, said)
    for every_round in (True, False):
        wanted = None if every_round else red
        drawn = {"datasets": values["datasets"], "rounds": records.rounds(content.runs, wanted)}
        page = template.render(**values, records=packed(drawn), every_round=every_round)
        if (size := len(page.encode())) <= BUDGET:
            return page
    raise TooLargeError(f"the report has {size:,} bytes, more than {BUDGET:,}: give it fewer files")


def heat_maps(content: Content, measured: Sequence[Record]) -> list[Space]:
    """The tuned spaces, then those of the sources, the largest first; of equal ones, at the usual problem."""
    usual = records.usual_problem(measured)
    found = charts.of_cases(sorted(measured, key=lambda r: r["problem"] != usual))
    of_cases = sorted(found, key=lambda space: -len(space.cells))
    return [*charts.of_tuned(content.tuned), *of_cases]


def datasets(content: Content, kernels: Sequence[Kernel]) -> dict[str, list[Record]]:
    """The records of every chart but that of single rounds, by name."""
    declared = records.variants(kernels)
    measured = records.cases(content.sources, declared, content.known)
    return {
        "cases": measured,
        "padding": records.padding(measured),
        "configs": [cell for space in heat_maps(content, measured) for cell in space.cells],
        "roofs": records.roof_lines(content.sources, measured),
        "history": charts.series(content.histories, declared),
        "compared": [record for each in content.comparisons for record in _intervals(each)],
    }


def _intervals(compared: Compared) -> Iterable[Record]:
    """A record for each timed pair; all in %, ``from`` and ``to`` being the margin."""
    for kind in ("cases", "controls"):
        for one in compared.document[kind]:
            if one.get("change") is not None:
                low, high = (round(100 * end, 4) for end in one["interval"])
                margin = round(100 * one["margin"], 4)
                yield {
                    "comparison": compared.label,
                    "case": one["case"] if kind == "cases" else f"control {one['case']}",
                    "verdict": one["kind"] if kind == "cases" else "control",
                    "change": round(100 * one["change"], 4),
                    "blocks": len(one.get("second") or one["log_ratios"]),
                    **{"low": low, "high": high, "from": -margin, "to": margin},
                }


def _values(content: Content, kernels: Sequence[Kernel], said: Sequence[VerdictSummary]) -> dict[str, Any]:
    """What the template shows."""
    data = datasets(content, kernels)
    maps = heat_maps(content, data["cases"])
    measured = data["cases"]
    problem = records.usual_problem(measured)
    labels = [source.label for source in content.sources]
    options = {
        "source": labels,
        "problem": _distinct(sorted(measured, key=lambda r: int(r["place"])), "problem"),
        "dtype": _distinct(measured, "dtype"),
        "stage": _distinct(sorted(measured, key=lambda r: int(r["order"])), "stage"),
        "space": [one.label for one in maps],
        "padded": _distinct(data["padding"], "problem"),
        "past": charts.histories(data["history"]),
        "comparison": [each.label for each in content.comparisons],
        "verdict": _distinct([asdict(one) for one in said], "verdict"),
    }
    first = {name: values[0] if values else "" for name, values in options.items()}
    chosen = {"source": first["source"], "problem": problem}
    specs = {
        "ladder": charts.with_values("ladder", chosen | {"dtype": first["dtype"]}),
        "sizes": charts.with_values("sizes", {"source": first["source"], "dtype": first["dtype"]}),
        "roofline": charts.with_values("roofline", chosen),
        "padding": charts.with_values("padding", chosen | {"problem": _among(problem, options["padded"])}),
        "configs": charts.with_values("configs", _first_map(maps)),
        "against": charts.with_values("against", _side_by_side(content.sources)),
        "history": charts.with_values("history", {"gpu": first["past"]}),
        "compared": charts.with_values("compared", {"comparison": first["comparison"]}),
        "rounds": charts.specification("rounds"),
    }
    shown = {one.label: {"axes": one.axes, "note": one.note} for one in maps}
    by_case: dict[str, dict[str, Any]] = {}
    for one in said:
        by_case.setdefault(one.source, {})[one.case] = asdict(one)
    return {
        "content": content,
        "said": said,
        "red": [one for one in said if one.red],
        "counts": verdicts.counts(said),
        "changed": charts.change_points(content.histories),
        "options": options,
        "specs": specs,
        "measured_roofs": {
            source.label: (found, records.latencies(source.machine))
            for source in content.sources
            if (found := records.measured_roofs(source.machine))
        },
        "bundle": charts.bundle(),
        "version": __version__,
        "datasets": data,
        "data": {"specs": specs, "verdicts": by_case, "spaces": shown},
        "gpus": _distinct([{"gpu": source.gpu} for source in content.sources], "gpu"),
        "to_json": _embedded,
    }


def _side_by_side(sources: Sequence[Source]) -> dict[str, str]:
    """The first source and what it is compared with first: the baseline of its GPU model, if that is another
    one, else the next."""
    if not sources:
        return {}
    first, *others = sources
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


def _distinct(found: Iterable[Record], name: str) -> list[str]:
    return list(dict.fromkeys(r[name] for r in found))


def _among(wanted: str, there: Sequence[str]) -> str:
    return wanted if wanted in there or not there else there[0]


def _first_map(maps: Sequence[Space]) -> dict[str, str]:
    """The parameters of the heat map that is shown first."""
    if not maps:
        return {}
    axes = maps[0].axes
    return {"space": maps[0].label, "down": axes[0], "across": axes[min(1, len(axes) - 1)]}

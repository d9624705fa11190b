"""docs/results/slowdowns.md, from measured.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_regression.report.figures import TextTable
from lab.study import frozen
from lab.study.analysis import Rate
from lab.study.trials import CLASSES, class_of
from tests.slowdowns.gate import RED
from tests.slowdowns.measured import GATE, cost
from tests.slowdowns.slowdown import Slowdown

_SIZES = ((-1.0, 0.003), (0.003, 0.005), (0.005, 0.007), (0.007, 1.0))  # of what a slowdown costs
_UNUSUAL = "AMBIGUOUS"  # red, too
Run = Mapping[str, Any]

_HEAD = Path(__file__).with_name("head.md").read_text(encoding="utf-8").rstrip()


def text(slowdowns: Sequence[Slowdown], runs: Sequence[Run]) -> str:
    """The page. What is not measured is said to be so."""
    parts = [_HEAD.format(count=len(slowdowns))]
    for gpu in dict.fromkeys(run["gpu"] for run in runs):
        mine = [run for run in runs if run["gpu"] == gpu]
        for after in (True, False):
            if chosen := [run for run in mine if _after(run) is after]:
                when = "after the freeze of the rule" if after else "before the freeze of the rule"
                parts += [f"## {gpu}, {when}", *_section(slowdowns, chosen, mine)]
        parts += [f"## {gpu}, one by one", _one_by_one(slowdowns, mine)]
    return "\n\n".join(parts) + "\n"


def _after(run: Run) -> bool:
    return run["datetime"] is not None and frozen.after(run)


def _section(slowdowns: Sequence[Slowdown], runs: Sequence[Run], every: Sequence[Run]) -> Iterator[str]:
    said = list(_said(slowdowns, runs, every))
    by_class = {name: [one for one in said if one[0] == name] for name in CLASSES}
    rows = []
    for name, chosen in {**by_class, "all": said}.items():
        if chosen:
            cells = [[said for _, cost, said in chosen if low <= cost < high] for low, high in _SIZES]
            rows.append([name, *map(_verdicts, cells)])
    if rows:
        heads = ["planted", *(_span(*size) for size in _SIZES)]
        yield TextTable(heads, "l" + "r" * len(_SIZES), rows).markdown()
    yield "\n".join(_about(run) for run in runs)


def _said(
    slowdowns: Sequence[Slowdown], runs: Sequence[Run], every: Sequence[Run]
) -> Iterator[tuple[str, float, str]]:
    """Class, cost and verdict of each slowdown in each of the runs; one is judged by what it costs there, and
    where that was not measured, by the last time that it was."""
    for run in runs:
        for slowdown in slowdowns:
            found = run["found"].get(slowdown.name, {})
            known = found if "change" in found else cost(every, run["gpu"], slowdown.name)
            if "said" in found and known:
                yield _class(slowdown, every), known["change"], found["said"]["verdict"]


def _class(slowdown: Slowdown, runs: Sequence[Run]) -> str:
    known = cost(runs, runs[0]["gpu"], slowdown.name)
    return class_of(slowdown.real.id, 1e-6 * known["us"] if known else 1.0)


def _span(low: float, high: float) -> str:
    if low < 0:
        return f"below {100 * high:g} %"
    return f"{100 * low:g} to {100 * high:g} %" if high < 1 else f"{100 * low:g} % and more"


def _verdicts(verdicts: Sequence[str]) -> str:
    """``12 of 14 REGRESSED, 1 AMBIGUOUS; red 92.9 (66.1–99.8) %``"""
    if not verdicts:
        return "–"
    regressed, unsure = verdicts.count(RED), verdicts.count(_UNUSUAL)
    more = f", {unsure} {_UNUSUAL}" if unsure else ""
    return f"{regressed} of {len(verdicts)} {RED}{more}; red {Rate(regressed + unsure, len(verdicts))} %"


def _about(run: Run) -> str:
    where = f"board {run['board'] or 'not recorded'}, commit {str(run['commit'] or 'not recorded')[:12]}"
    when = (run["datetime"] or "date not recorded")[: 10 if run["datetime"] else None]
    others = ""
    if run["how"] == GATE:
        red = "".join(f"; {case}" for case in run["red"])
        others = f"; {len(run['red'])} of {run['others']} other cases red{red}"
    return f"- `{run['how']}`: {where}, nvcc {run['nvcc']}, {when}: {len(run['found'])} edits{others}"


def _one_by_one(slowdowns: Sequence[Slowdown], runs: Sequence[Run]) -> str:
    rows = []
    for slowdown in slowdowns:
        known = cost(runs, runs[0]["gpu"], slowdown.name)
        said = [run["found"][slowdown.name] for run in runs if slowdown.name in run["found"]]
        verdicts = [one["said"]["verdict"] for one in said if "said" in one]
        shown = "not measured"
        if known:
            low, high = (100 * end for end in known["interval"])
            shown = f"{100 * known['change']:+.2f} % ({low:+.2f} … {high:+.2f})"
        us = f"{known['us']:.0f}" if known else "–"
        told = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)) or "–"
        rows.append([slowdown.about, f"`{slowdown.real.id}`", us, shown, told])
    heads = ["what was done", "case", "µs", "costs, measured last", "verdicts"]
    return TextTable(heads, "llrrl", rows).markdown()

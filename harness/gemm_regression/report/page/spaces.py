"""Config spaces as heat maps: those that were tuned, and the configs of a baseline or run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gemm_regression.report.figures import gflops_text, share_text
from gemm_regression.report.page.records import Record, digits, grouped
from gemm_regression.tune.stored import Evaluation, Tuned

_PART = re.compile(r"([a-z_]+)(\d[\dx]*)")
_LEAST = 3  # configs of a heat map
_ABSENT = "–"


@dataclass(frozen=True)
class Space:
    """One heat map: ``cells`` are its configs, ``axes`` the names of what varies, those first that matter
    most; ``note``: what there is to say of it. ``label`` is unique in a report."""

    label: str
    axes: tuple[str, ...]
    cells: tuple[Record, ...]
    note: str = ""


def of_tuned(found: Iterable[Tuned]) -> list[Space]:
    """The tuned spaces; of each, the configs that are the best of a cell of some pair of axes."""
    return [space for one in found if (space := _tuned(one))]


def _tuned(one: Tuned) -> Space | None:
    label = f"tuned: {one.kernel} {one.dtype} {one.problem}, {one.machine_info['name']}"
    defaults = one.defaults or {}
    cells = [
        {
            "config": e.config.label,
            "gflops": digits(e.gflops),
            **{name: str(e.config.get(name, defaults.get(name, _ABSENT))) for name in one.axes},
        }
        for e in one.evaluations
    ]
    return _space(label, list(one.axes), cells, _note(one))


def _note(one: Tuned) -> str:
    said = f"{len(one.evaluations)} configs timed by {one.strategy}, {len(one.failed)} failed"
    if one.pruned:
        said += f", {sum(one.pruned.values())} excluded without a GPU"
    for what, e in (("best", one.best), ("declared first", one.of_declared)):
        if e:
            said += f"; {what}: {e.config.label}, {gflops_text(e.gflops)} GFLOPS{_of_library(one, e)}"
    return f"{said}."


def _of_library(one: Tuned, e: Evaluation) -> str:
    return f", {share_text(e.gflops / one.library_gflops)} % of cuBLAS" if one.library_gflops else ""


def of_cases(records: Iterable[Record]) -> list[Space]:
    """The configs of each stage, dtype and problem of a source, where there are at least three."""
    found = []
    for group in grouped(records, "source", "stage", "dtype", "problem"):
        parts = [dict(_PART.findall(r["config"])) for r in group]
        names = list(dict.fromkeys(name for part in parts for name in part))
        cells = [
            {"case": r["case"], "config": r["config"], "gflops": r["gflops"]}
            | {name: part.get(name, _ABSENT) for name in names}
            for r, part in zip(group, parts, strict=True)
        ]
        first = group[0]
        label = f"{first['stage']} {first['dtype']} {first['problem']}, {first['source']}"
        if space := _space(label, names, cells):
            found.append(space)
    return found


def _space(label: str, names: Sequence[str], cells: Sequence[Record], note: str = "") -> Space | None:
    """The space; None for less than three configs, or where nothing varies. Each cell gets its share of the
    fastest, in %."""
    weights = {name: _weight(name, cells) for name in names}
    axes = sorted((name for name in names if weights[name] > 0), key=lambda name: -weights[name])
    if len(cells) < _LEAST or not axes:
        return None
    fastest = max(cell["gflops"] for cell in cells)
    kept = [
        {"space": label, "of_best": digits(100 * cell["gflops"] / fastest, 4), **cell}
        for cell in _shown(axes, cells)
    ]
    return Space(label, tuple(axes), tuple(kept), note)


def _weight(axis: str, cells: Sequence[Record]) -> float:
    """How much an axis matters: between its values, the fastest configs differ by this much of the slower;
    at least a little where it has several values."""
    best = _fastest((axis,), cells)
    speeds = [cell["gflops"] for cell in best.values()]
    return max(speeds) / min(speeds) - 1 + 1e-9 if len(best) > 1 else 0.0


def _shown(axes: Sequence[str], cells: Sequence[Record]) -> list[Record]:
    """The configs that are the fastest of a cell, whichever two axes are shown; in their order."""
    pairs = combinations(axes, min(2, len(axes)))
    chosen = {id(cell) for pair in pairs for cell in _fastest(pair, cells).values()}
    return [cell for cell in cells if id(cell) in chosen]


def _fastest(axes: tuple[str, ...], cells: Sequence[Record]) -> Mapping[tuple[str, ...], Record]:
    """The fastest config of each place on some axes."""
    found: dict[tuple[str, ...], Record] = {}
    for cell in cells:
        place = tuple(cell[name] for name in axes)
        if place not in found or cell["gflops"] > found[place]["gflops"]:
            found[place] = cell
    return found

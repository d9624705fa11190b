"""Charts and pictures: Vega-Lite specifications, and the records of histories and config spaces.

A specification in ``charts/`` names its data set and its parameters; in the browser a parameter is bound to
the control of the page with its name. vl-convert, which has Vega and Vega-Lite inside, draws the same
specification as SVG without a browser.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

from gemm_regression.baselines import Baseline, gpu_slug
from gemm_regression.baselines.moves import Move, lost, measured, moves
from gemm_regression.baselines.store import derived
from gemm_regression.files import write_whole
from gemm_regression.model import Kernel
from gemm_regression.report.figures import gflops_text, share_text
from gemm_regression.report.page import records
from gemm_regression.report.page.records import Record, Variants, digits, grouped, names_of
from gemm_regression.report.page.sources import Content
from gemm_regression.tune.stored import Evaluation, Tuned

NAMES = ("ladder", "sizes", "roofline", "padding", "configs", "against", "history", "compared", "rounds")
_MARK = "made of "


class NoDrawingError(Exception):
    """vl-convert is not installed."""


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "charts" / name).read_text(encoding="utf-8")


def specification(name: str) -> dict[str, Any]:
    """The specification of a chart, with the look that all have."""
    made: dict[str, Any] = json.loads(_text(f"{name}.vl.json"))
    return {"config": json.loads(_text("look.json")), **made}


def on_paper() -> dict[str, Any]:
    """What a specification of a picture has besides its own: the look, and a white ground."""
    return {"config": json.loads(_text("look.json")), "background": "white"}


def with_values(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with these values of its parameters, which it must have."""
    made = specification(name)
    known = {parameter["name"]: parameter for parameter in made.get("params", ())}
    for parameter, value in values.items():
        known[parameter]["value"] = value
    return made


def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed in one text. Raises NoDrawingError."""
    return str(_vl_convert().javascript_bundle()).replace("</script", "<\\/script")


def picture(
    name: str, values: Mapping[str, Any], data: Mapping[str, Sequence[Record]], width: int
) -> dict[str, Any]:
    """The specification of a picture for paper: its own data, a width in pixels, no controls."""
    made = with_values(name, values) | on_paper() | {"datasets": dict(data), "width": width}
    made["params"] = [
        {key: value for key, value in parameter.items() if key != "bind"}
        for parameter in made.get("params", ())
        if "select" not in parameter
    ]
    return made


def mark_of(spec: Mapping[str, Any]) -> str:
    """What a picture was made of: SHA-256 of its specification and data. The same wherever it is drawn."""
    return _MARK + hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def made_of(drawn: str, spec: Mapping[str, Any]) -> bool:
    """Whether a picture was made of this specification: an SVG file whose first description says so."""
    head, _, rest = drawn.partition("<desc>")
    whole = head.startswith("<svg") and drawn.endswith("</svg>\n")
    return whole and rest.startswith(f"{mark_of(spec)}<")


def svg(spec: Mapping[str, Any], mark: str = "") -> str:
    """The picture as SVG, with a mark in it, by default that of the specification. Raises NoDrawingError."""
    drawn = str(_vl_convert().vegalite_to_svg(dict(spec)))
    return drawn.replace(">", f"><desc>{mark or mark_of(spec)}</desc>", 1) + "\n"


def _vl_convert() -> Any:
    try:
        import vl_convert  # late: the harness is used without it
    except ImportError as error:
        raise NoDrawingError(
            f"no charts ({error}): `nox -s report` runs this where vl-convert-python is installed; of the "
            "package, it is in the extra `report`"
        ) from None
    return vl_convert


_WIDTH = 620  # pixels
_USED = ("source", "stage", "dtype", "problem", "best", "gflops", "compulsory", "requested", "dram")


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The pictures that are missing or were made of something else; unless ``check``, they are written.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    stale = []
    for name, spec in _wanted(content, kernels):
        path = folder / name
        if path.is_file() and made_of(path.read_text(encoding="utf-8"), spec):
            continue
        stale.append(path)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, svg(spec))
    return stale


def _wanted(content: Content, kernels: Sequence[Kernel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each picture's file name and specification."""
    declared = records.variants(kernels)
    seen = set()
    for source in content.baselines:
        slug = gpu_slug(source.gpu)
        if slug in seen:
            continue
        seen.add(slug)
        measured = records.cases([source], declared, content.known)
        problem = records.usual_problem(measured)
        shown = _bare(r for r in measured if r["best"] and r["problem"] == problem)
        chosen = {"source": source.label, "problem": problem}
        data: dict[str, dict[str, list[Record]]] = {
            "ladder": {"cases": shown},
            "roofline": {"cases": shown, "roofs": records.roof_lines([source], shown)},
        }
        for name, own in data.items():
            yield f"{name}-{slug}.svg", picture(name, chosen, own, _WIDTH)


def _bare(shown: Iterable[Record]) -> list[Record]:
    """What the pictures use of the records; kernels that are not shown leave no trace in their order."""
    ordered = sorted(shown, key=lambda r: int(r["order"]))
    places = {stage: place for place, stage in enumerate(dict.fromkeys(r["stage"] for r in ordered))}
    return [{name: r[name] for name in _USED if name in r} | {"order": places[r["stage"]]} for r in ordered]


def series(histories: Mapping[str, Sequence[Baseline]], declared: Variants) -> list[Record]:
    """A record for each case of a GPU model that at least two comparable measurements have: ``files``,
    ``relative`` (change of the GFLOPS from the first, in %), ``gflops``, ``boards`` and ``moved`` (%, at a
    change point, else 0), a value per measurement; ``trend``: slower, faster or steady."""
    return [record for found in histories.values() for record in _of_model(found, declared)]


def _of_model(measurements: Sequence[Baseline], declared: Variants) -> list[Record]:
    changes = moves(measurements)
    slower = lost(changes)
    found = []
    for case in derived(measurements).case_ids:
        points = measured(measurements, case)
        if len(points) < 2:
            continue
        first = points[0].gflops
        own = {move.at: move.change for move in changes if move.case == case}
        trend = "slower" if case in slower else "faster" if own else "steady"
        found.append(
            {
                "history": measurements[-1].name,
                "case": case,
                **names_of(case, points[-1].entry.info, declared),
                "trend": trend,
                "files": [point.at[:4] for point in points],
                "relative": [round(100 * (point.gflops / first - 1), 3) for point in points],
                "gflops": [float(f"{point.entry.gflops:.6g}") for point in points],
                "commits": [point.entry.commit[:8] for point in points],
                "boards": [point.entry.board or "unknown" for point in points],
                "moved": [round(100 * own.get(point.at, 0.0), 2) for point in points],
            }
        )
    return found


def change_points(histories: Mapping[str, Sequence[Baseline]]) -> list[tuple[str, Move, bool]]:
    """Every change point: the GPU, the move, and whether the case is slower now than it was; the slower ones
    first, the largest change first."""
    found: list[tuple[str, Move, bool]] = []
    for measurements in histories.values():
        made = moves(measurements)
        slower = lost(made)
        found += [(measurements[-1].name, move, move.case in slower) for move in made]
    return sorted(found, key=lambda one: (not one[2], -abs(one[1].change)))


def histories(records: Sequence[Record]) -> list[Any]:
    """The GPU models with a history, the longest first."""
    longest: dict[str, int] = {}
    for record in records:
        longest[record["history"]] = max(longest.get(record["history"], 0), len(record["files"]))
    return sorted(longest, key=lambda label: -longest[label])


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

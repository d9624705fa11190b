"""Charts: flat records of what was measured (cases, roofs, rounds, comparisons of commits, histories, config
spaces), and the Vega-Lite specifications in ``charts/`` that draw them; the pictures of ladder and roofline.

A specification names its data set and its parameters; in the browser a parameter is bound to the control of
the page with its name. vl-convert, which has Vega and Vega-Lite inside, draws the same specification as SVG
without a browser.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from gemm_regression.baselines import Baseline, gpu_slug
from gemm_regression.baselines.moves import Move, lost, measured, moves
from gemm_regression.baselines.records import significant
from gemm_regression.baselines.store import derived
from gemm_regression.counters.counts import expected_bytes
from gemm_regression.counters.traffic import TrafficData, requested
from gemm_regression.files import write_whole
from gemm_regression.hints import install
from gemm_regression.model import Case, CaseId, Kernel, Problem, find_problem, stage_name
from gemm_regression.report.figures import MEMORIES, gflops_text, share_text
from gemm_regression.report.sources import Content, Measured, ReportSource
from gemm_regression.timing.bounds import bound, roofs_of, shares
from gemm_regression.tune.stored import Tuned
from gemm_regression.tune.table import Variant

Record = dict[str, Any]
Declared = tuple[int, Variant]  # with the number of its kernel
Variants = Mapping[str, Declared]
Traffic = TrafficData | None

SHOWN = Problem(4096, 4096, 4096)


# Records


def variants(kernels: Sequence[Kernel]) -> Variants:
    """The declared variants by name, each with the number of its kernel."""
    found: dict[str, Declared] = {}
    for number, kernel in enumerate(kernels):
        every = [Variant(kernel, config, dtype) for dtype in kernel.dtypes for config in kernel.configs]
        found |= {variant.name: (number, variant) for variant in every}
    return found


def cases(sources: Iterable[ReportSource], declared: Variants, known: Traffic = None) -> list[Record]:
    """A record for each case with samples, of every source.

    ``us`` is the median; ``share``: % of cuBLAS; ``speedup``: over the best ``naive`` of the same source and
    problem; ``best``: the fastest config of its stage and dtype; ``everywhere``: the config that is timed at
    most problems; ``compulsory``, ``requested`` and ``dram``: FLOP per byte (`_traffic`); ``levels``:
    the percentage of each level's roof that is reached; ``bound``: the level that bounds the case, and
    ``of_bound`` its percentage (`timing/bounds.py`); ``counted``: by what the traffic is known.
    """
    return [record for source in sources for record in _of_source(source, declared, known or TrafficData())]


def _of_source(source: ReportSource, declared: Variants, known: TrafficData) -> list[Record]:
    found = [_record(source, one, declared, known) for one in source.cases if one.stats]
    _order_problems(found)
    for group in grouped(found, "stage", "dtype", "problem"):
        max(group, key=lambda r: float(r["gflops"]))["best"] = True
    for group in grouped(found, "stage", "dtype"):
        configs = [r["config"] for r in group]
        chosen = max(dict.fromkeys(configs), key=configs.count)
        for r in group:
            r["everywhere"] = r["config"] == chosen
    for group in grouped(found, "problem"):
        naive = min((r["us"] for r in group if r["stage"] == "naive"), default=None)
        for r in group:
            r["speedup"] = naive and significant(naive / r["us"], 4)
    return found


def _record(source: ReportSource, one: Measured, declared: Variants, known: TrafficData) -> Record:
    info, times = one.info, {"us": one.median, "low": one.stats["q1"], "high": one.stats["q3"]}
    seen = {
        "mhz": info.get("sm_clock_mhz") or None,
        "watts": info.get("power_w") or None,  # 0: unknown, as in a pair
        "celsius": info.get("temperature_c") or None,
        "noise": _percent(info.get("noise_floor")),
        "change": _percent(info.get("change")),
        **{name: info.get(name) for name in ("registers", "shared_bytes", "launch", "verdict")},
        "board": info.get("board") or one.machine.get("board"),
    }
    return {
        **{"source": source.label, "case": one.case, "commit": one.commit, "best": False},
        **_names(one.case, info, declared),
        **{name: significant(1e6 * seconds, 6) for name, seconds in times.items()},
        "ms": significant(1e3 * one.median, 5),
        "gflops": significant(float(info["gflops"]), 6),
        "share": _percent(info.get("cublas_ratio")),
        **_traffic(gpu_slug(source.gpu), one, declared, known),
        **{name: value for name, value in seen.items() if value is not None},
    }


def _declared(case: CaseId, info: Mapping[str, Any], declared: Variants) -> Declared | None:
    return declared.get(str(info.get("variant") or case.variant))


def _names(case: str, info: Mapping[str, Any], declared: Variants) -> Record:
    """Stage, dtype, config and problem of a case, and the order of its stage; also of one that is not
    declared any more."""
    of = CaseId.parse(case)
    made = {"stage": of.kernel, "order": 999, "dtype": of.dtype, "config": of.config, "problem": of.problem}
    if found := _declared(of, info, declared):
        number, variant = found
        config = info.get("chosen") or variant.config.label
        made |= {"stage": variant.kernel.name, "order": number, "config": config}
    return made


def _traffic(gpu: str, one: Measured, declared: Variants, known: TrafficData) -> Record:
    """What bounds a declared case, and FLOP per byte: ``compulsory`` if each operand is read once and the
    result written once; ``requested`` of the sectors that its blocks ask for, as the emulated device counted,
    or for the bytes of a kernel which reads each element once per block; ``dram`` as ncu counted."""
    case = CaseId.parse(one.case)
    found = _declared(case, one.info, declared)
    if found is None:
        return {}
    variant = found[1]
    if stage := one.info.get("chosen"):  # by a row that chooses
        alike = (v for _, v in declared.values() if stage_name(v.kernel, v.config) == stage)
        variant = next((v for v in alike if v.dtype == variant.dtype), variant)
    kernel, config, dtype = variant.kernel, variant.config, variant.dtype
    of = Case(kernel, dtype, config, find_problem(case.problem))
    moved: dict[str, float] = {"compulsory": kernel.operation.compulsory_bytes(of.problem, dtype)}
    if kernel.compiled and kernel.operation.plain_product:
        split = kernel.shape_of(config, dtype).split > 1  # what it adds to its workspace does not grow with K
        counts = None if split else known.emulated.get(of.variant)
        moved["requested"] = requested(of, counts) if counts else sum(map(sum, expected_bytes(of).values()))
    work = known.work(gpu, of, one.info.get("cubin_sha256"))
    if not work.estimated and work.dram:
        moved["dram"] = work.dram
    made: Record = {name: significant(of.flop / max(1, size), 4) for name, size in moved.items() if of.flop}
    roofs = roofs_of(one.machine)
    if roofs and (near := bound(reached := shares(work, roofs, dtype.name, one.median))):
        made |= {"bound": MEMORIES.get(near[0], near[0]), "of_bound": _percent(near[1])}
        made["levels"] = {MEMORIES.get(level, level): _percent(share) for level, share in reached.items()}
        made["counted"] = "estimated" if work.estimated else "ncu"
    return made


def _order_problems(found: Sequence[Record]) -> None:
    """Gives each problem its place on an axis: squares by size, then the others in their order; and whether
    it is ``square``, and ``ragged``: not a multiple of 32."""
    problems = {name: find_problem(name) for name in dict.fromkeys(r["problem"] for r in found)}
    squares = {name: p.m for name, p in problems.items() if name == f"{p.m}x{p.m}x{p.m}"}
    places = [*sorted(squares, key=lambda name: squares[name]), *(n for n in problems if n not in squares)]
    for r in found:
        p, square = problems[r["problem"]], r["problem"] in squares
        ragged = any(size % 32 for size in (p.m, p.n, p.k))
        r |= {"place": places.index(r["problem"]), "square": square, "ragged": ragged}
        r["size"] = str(p.m) if square else r["problem"]


def usual_problem(found: Sequence[Record]) -> str:
    """The problem to show first: that of the README's ladder, else the one with most stages."""
    problems = [r["problem"] for r in found if r["best"]]
    return SHOWN.id if SHOWN.id in problems else max(problems, key=problems.count, default="")


def ladder(found: Sequence[Record]) -> list[Record]:
    """The best of each stage at the usual problem, in the order of the kernels."""
    problem = usual_problem(found)
    return sorted((r for r in found if r["best"] and r["problem"] == problem), key=lambda r: int(r["order"]))


_LEFT, _RIGHT = 0.1, 1500.0  # FLOP per byte


def roof_lines(sources: Iterable[ReportSource], found: Iterable[Record]) -> list[Record]:
    """The points of the roofs of each source whose GPU is known, or that measured its own, for the dtypes of
    its records: GFLOPS = GB/s · FLOP/B up to the peak. ``level``: whether it is the peak."""
    dtypes = dict.fromkeys((r["source"], r["dtype"]) for r in found)
    made = []
    for source in sources:
        roofs = roofs_of(source.machine)
        for dtype in (dtype for label, dtype in dtypes if label == source.label):
            if roofs is None or (peak := roofs.peak(dtype)) is None:
                continue
            lines = {}
            for memory, rate in roofs.bandwidths.items():
                ends = (min(_LEFT, peak / rate / 2), peak / rate)
                lines[f"{MEMORIES[memory]} {rate:,.0f} GB/s"] = [(x, x * rate) for x in ends]
            first = min((end for _, (end, _) in lines.values()), default=_LEFT)
            top = f"{dtype} {peak / 1000:,.1f} TFLOPS"
            lines[top] = [(first, peak), (_RIGHT, peak)]
            about = {"source": source.label, "origin": roofs.origin, "dtype": dtype}
            made += [
                {**about, "roof": roof, "x": round(x, 4), "y": round(y, 2), "level": roof == top}
                for roof, ends_ in lines.items()
                for x, y in ends_
            ]
    return made


def rounds(runs: Iterable[ReportSource], only: Collection[tuple[str, str]] | None = None) -> Record:
    """By source and case: microseconds of each round, with SM clock and, evenly spaced over
    the measurement, temperatures where they are stored;
    of all cases, or ``only`` of these, each given by source and case id."""
    return {
        source.label: {
            one.case: {
                "us": [significant(1e6 * s, 5) for s in one.seconds],
                "mhz": one.info.get("round_mhz", []),
                "celsius": one.info.get("temperatures_c", []),
            }
            for one in source.cases
            if one.seconds and (only is None or (source.label, one.case) in only)
        }
        for source in runs
    }


def intervals(label: str, document: Mapping[str, Any]) -> Iterator[Record]:
    """A record for each timed pair of a comparison; all in %, ``from`` and ``to`` being the margin."""
    controls = [{**one, "case": f"control {one['case']}", "kind": "control"} for one in document["controls"]]
    for one in (*document["cases"], *controls):
        if one.get("change") is not None:
            ends = {"change": one["change"], "low": one["interval"][0], "high": one["interval"][1]}
            ends |= {"from": -one["margin"], "to": one["margin"]}
            yield {
                **{"comparison": label, "case": one["case"], "verdict": one["kind"]},
                **{name: round(100 * value, 4) for name, value in ends.items()},
                "blocks": len(one.get("second") or one["log_ratios"]),
            }


def history(histories: Mapping[str, Sequence[Baseline]], declared: Variants) -> list[Record]:
    """A record for each case of a GPU model that at least two comparable measurements have: ``files``,
    ``relative`` (change of the GFLOPS from the first, in %), ``gflops``, ``boards`` and ``moved`` (%, at a
    change point, else 0), a value per measurement; ``trend``: slower, faster or steady. The GPU model
    that was measured most often comes first."""
    found = []
    for measurements in sorted(histories.values(), key=len, reverse=True):
        changes = moves(measurements)
        slower = lost(changes)
        for case in derived(measurements).case_ids:
            points = measured(measurements, case)
            if len(points) < 2:
                continue
            own = {move.at: move.change for move in changes if move.case == case}
            found.append(
                {
                    "history": measurements[-1].name,
                    "case": case,
                    **_names(case, points[-1].entry.info, declared),
                    "trend": "slower" if case in slower else "faster" if own else "steady",
                    "files": [point.at[:4] for point in points],
                    "relative": [round(100 * (p.gflops / points[0].gflops - 1), 3) for p in points],
                    "gflops": [significant(point.entry.gflops, 6) for point in points],
                    "commits": [point.entry.commit[:8] for point in points],
                    "boards": [point.entry.board or "unknown" for point in points],
                    "moved": [round(100 * own.get(point.at, 0.0), 2) for point in points],
                }
            )
    return found


def change_points(histories: Mapping[str, Sequence[Baseline]]) -> list[tuple[str, Move, bool]]:
    """Every change point: the GPU, the move, and whether the case is slower now than it was; the slower ones
    first, the largest change first."""
    found = []
    for measurements in histories.values():
        made = moves(measurements)
        found += [(measurements[-1].name, move, move.case in lost(made)) for move in made]
    return sorted(found, key=lambda one: (not one[2], -abs(one[1].change)))


_LEAST = 3  # configs of a heat map


def spaces(tuned: Iterable[Tuned]) -> list[Record]:
    """A heat map of each tuned space with three configs or more in which anything varies. ``label``: unique
    in a report; ``cells``: its configs; ``axes``: what varies, those first that matter most: as much as the
    fastest configs differ between the values of one; ``note``: what there is to say of it."""
    return [space for one in tuned if (space := _space(one))]


def _space(one: Tuned) -> Record | None:
    label = f"tuned: {one.kernel} {one.dtype} {one.problem}, {one.machine_info['name']}"
    fastest = max((e.gflops for e in one.evaluations), default=0.0)
    cells: list[Record] = [
        {"space": label, "config": e.config.label, "of_best": significant(100 * e.gflops / fastest, 4)}
        | {name: str(e.config.get(name, one.defaults.get(name, "–"))) for name in one.axes}
        | {"gflops": significant(e.gflops, 6)}
        for e in one.evaluations
    ]
    best = {name: [max(c["gflops"] for c in group) for group in grouped(cells, name)] for name in one.axes}
    varies = [name for name in best if len(best[name]) > 1]
    if len(cells) < _LEAST or not varies:
        return None
    axes = sorted(varies, key=lambda name: -max(best[name]) / min(best[name]))
    note = f"{len(cells)} configs timed by {one.strategy}, {len(one.failed)} failed"
    if one.pruned:
        note += f", {sum(one.pruned.values())} excluded without a GPU"
    for what, e in (("best", one.best), ("declared first", one.of_declared)):
        if e:
            of = f", {share_text(e.gflops / one.library_gflops)} % of cuBLAS" if one.library_gflops else ""
            note += f"; {what}: {e.config.label}, {gflops_text(e.gflops)} GFLOPS{of}"
    return {"label": label, "axes": axes, "cells": cells, "note": f"{note}."}


def grouped(records: Iterable[Record], *fields: str) -> list[list[Record]]:
    """The records with the same values of these fields, in the order they are first seen."""
    groups: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in fields)].append(record)
    return list(groups.values())


def _percent(share: float | None) -> float | None:
    return None if share is None else significant(100 * share, 4)


# Specifications, and pictures

_WIDTH = 620  # pixels
_PICTURED = ("f32", "f16", "bf16", "tf32")
# What the pictures use of the records.
_USED = ("source", "stage", "dtype", "problem", "best", "gflops", "compulsory", "requested", "dram")


class NoDrawingError(Exception):
    """vl-convert is not installed."""


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "charts" / name).read_text(encoding="utf-8")


def on_paper() -> dict[str, Any]:
    """What a specification of a picture has besides its own: the look, and a white ground."""
    return {"config": json.loads(_text("look.json")), "background": "white"}


def specification(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of a chart, with the look that all have and these values of its parameters, which it
    must have."""
    made: dict[str, Any] = {"config": json.loads(_text("look.json")), **json.loads(_text(f"{name}.vl.json"))}
    known = {parameter["name"]: parameter for parameter in made.get("params", ())}
    for parameter, value in values.items():
        known[parameter]["value"] = value
    return made


def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed in one text. Raises NoDrawingError."""
    return _bundled(_vl_convert())


@cache
def _bundled(drawer: Any) -> str:
    return str(drawer.javascript_bundle()).replace("</script", "<\\/script")


def picture(
    name: str, values: Mapping[str, Any], data: Mapping[str, Sequence[Record]], width: int
) -> dict[str, Any]:
    """The specification of a picture for paper: its own data, a width in pixels, no controls."""
    made = specification(name, values) | on_paper() | {"datasets": dict(data), "width": width}
    if "padding" in made:  # another font than that which was measured may be wider
        made["padding"] = {**made["padding"], "left": 30}
    made["params"] = [
        {key: value for key, value in parameter.items() if key != "bind"}
        for parameter in made.get("params", ())
        if "select" not in parameter
    ]
    return made


def mark_of(spec: Mapping[str, Any]) -> str:
    """What a picture was made of: SHA-256 of its specification and data. The same wherever it is drawn."""
    return f"made of {hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()}"


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
            f"no charts ({error}): vl-convert-python is needed: `{install('report')}`"
        ) from None
    return vl_convert


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The pictures of ladder and roofline that are stale; as `redraw`."""
    return redraw(folder, _wanted(content, kernels), check)


def redraw(folder: Path, wanted: Iterable[tuple[str, Mapping[str, Any]]], check: bool) -> list[Path]:
    """Those pictures, by file name and specification, that are missing or were made of something else; unless
    ``check``, they are written.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    stale = []
    for name, spec in wanted:
        path = folder / name
        if path.is_file() and made_of(path.read_text(encoding="utf-8"), spec):
            continue
        stale.append(path)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, svg(spec))
    return stale


def _drawn(stage: str, records: Sequence[Record]) -> list[str]:
    """The dtypes of a stage in the picture of the ladder: FP32, or else its first one of tensor cores; of the
    library all that others have."""
    own = [r["dtype"] for r in records if r["stage"] == stage]
    if stage != "cublas":
        return sorted(own, key=_PICTURED.index)[:1] if set(own) <= set(_PICTURED) else own[:1]
    others = {dtype for s in {r["stage"] for r in records} - {stage} for dtype in _drawn(s, records)}
    return [dtype for dtype in own if dtype in others]


def _wanted(content: Content, kernels: Sequence[Kernel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each picture's file name and specification. Kernels that are not shown leave no trace in their
    order."""
    newest = {gpu_slug(source.gpu): source for source in reversed(content.baselines)}
    for slug, source in newest.items():
        best = ladder(cases([source], variants(kernels), content.known))
        stages = list(dict.fromkeys(r["stage"] for r in best))
        shown = [
            {name: r[name] for name in _USED if name in r} | {"order": stages.index(r["stage"])} for r in best
        ]
        chosen = {"source": source.label, "problem": best[0]["problem"] if best else ""}
        roofs = roof_lines([source], shown)
        bars, every = [r for r in shown if r["dtype"] in _drawn(r["stage"], shown)], {"dtype": "all"}
        yield f"ladder-{slug}.svg", picture("ladder", chosen | every, {"cases": bars}, _WIDTH)
        yield f"roofline-{slug}.svg", picture("roofline", chosen, {"cases": shown, "roofs": roofs}, _WIDTH)

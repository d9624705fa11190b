"""Flat records of what was measured, which charts and tables are drawn from: cases, roofs, rounds,
comparisons of commits, histories, config spaces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gemm_regression.baselines import Baseline, gpu_slug
from gemm_regression.baselines.moves import Move, lost, measured, moves
from gemm_regression.baselines.store import derived
from gemm_regression.counters.counts import expected_bytes
from gemm_regression.counters.traffic import Known, requested
from gemm_regression.model import (
    Case,
    CaseId,
    Config,
    DType,
    Kernel,
    Problem,
    find_problem,
    stage_name,
    variant_name,
)
from gemm_regression.report.figures import gflops_text, share_text
from gemm_regression.report.sources import Compared, Measured, Source
from gemm_regression.timing.bounds import Level, bound, roofs_of, shares
from gemm_regression.tune.stored import Tuned

Record = dict[str, Any]
Declared = tuple[int, Kernel, Config, DType]
Variants = Mapping[str, Declared]

SHOWN = Problem(4096, 4096, 4096)
_MEMORIES = {"dram": "DRAM", "l2": "L2", "shared": "shared memory"}
_LEVELS = _MEMORIES | {Level.ISSUE: "issue", Level.MATH: "math"}


def variants(kernels: Sequence[Kernel]) -> Variants:
    """The declared variants by name, each with the number of its kernel."""
    return {
        variant_name(kernel, config, dtype): (number, kernel, config, dtype)
        for number, kernel in enumerate(kernels)
        for dtype in kernel.dtypes
        for config in kernel.configs
    }


def cases(sources: Iterable[Source], declared: Variants, known: Known | None = None) -> list[Record]:
    """A record for each case with samples, of every source.

    ``us`` is the median; ``share``: % of cuBLAS; ``speedup``: over the best ``naive`` of the same source and
    problem; ``best``: the fastest config of its stage and dtype; ``everywhere``: the config that is timed at
    most problems; ``compulsory``, ``requested`` and ``dram``: FLOP per byte (`_traffic`); ``levels``:
    the percentage of each level's roof that is reached; ``bound``: the level that bounds the case, and
    ``of_bound`` its percentage (`timing/bounds.py`); ``counted``: by what the traffic is known.
    """
    return [record for source in sources for record in _of_source(source, declared, known or Known())]


def _of_source(source: Source, declared: Variants, known: Known) -> list[Record]:
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
            r["speedup"] = naive and digits(naive / r["us"], 4)
    return found


def _record(source: Source, one: Measured, declared: Variants, known: Known) -> Record:
    info, stats = one.info, one.stats
    names = _names(one.case, info, declared)
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
        "source": source.label,
        "case": one.case,
        "commit": one.commit,
        **names,
        "us": digits(1e6 * _seconds(one)),
        "low": digits(1e6 * stats["q1"]),
        "high": digits(1e6 * stats["q3"]),
        "ms": digits(1e3 * _seconds(one), 5),
        "gflops": digits(float(info["gflops"]), 6),
        "share": _percent(info.get("cublas_ratio")),
        "best": False,
        **_traffic(one, names["problem"], declared, gpu_slug(source.gpu), known),
        **{name: value for name, value in seen.items() if value is not None},
    }


def _names(case: str, info: Mapping[str, Any], declared: Variants) -> Record:
    """Stage, dtype, config and problem of a case, and the order of its stage; also of one that is not
    declared any more."""
    of = CaseId.parse(case)
    found = declared.get(str(info.get("variant") or of.variant))
    if found is None:
        names = (of.kernel, 999, of.dtype, of.config, of.problem)
    else:
        number, kernel, config, dtype = found
        names = (kernel.name, number, dtype.name, str(info.get("chosen") or config.label), of.problem)
    return dict(zip(("stage", "order", "dtype", "config", "problem"), names, strict=True))


def _traffic(one: Measured, problem: str, declared: Variants, gpu: str, known: Known) -> Record:
    """What bounds a declared case, and FLOP per byte: ``compulsory`` if each operand is read once and the
    result written once; ``requested`` of the sectors that its blocks ask for, as the emulated device counted,
    or for the bytes of a kernel which reads each element once per block; ``dram`` as ncu counted."""
    found = declared.get(str(one.info.get("variant") or CaseId.parse(one.case).variant))
    if found is None:
        return {}
    if stage := one.info.get("chosen"):  # by a row that chooses
        alike = (v for v in declared.values() if stage_name(v[1], v[2]) == stage and v[3] == found[3])
        found = next(alike, found)
    _, kernel, config, dtype = found
    of = Case(kernel, dtype, config, find_problem(problem))
    made: Record = {"compulsory": of.flop / max(1, kernel.operation.compulsory_bytes(of.problem, dtype))}
    if kernel.compiled and kernel.operation.plain_product:
        split = kernel.shape_of(config, dtype).split > 1  # what it adds to its workspace does not grow with K
        counts = None if split else known.emulated.get(of.variant)
        asked = requested(of, counts) if counts else sum(sum(b) for b in expected_bytes(of).values())
        made["requested"] = of.flop / max(1, asked)
    work = known.work(gpu, of, one.info.get("cubin_sha256"))
    if not work.estimated and work.dram:
        made["dram"] = of.flop / work.dram
    made = {name: digits(value, 4) for name, value in made.items()}
    roofs = roofs_of(one.machine)
    if roofs and (near := bound(reached := shares(work, roofs, dtype.name, _seconds(one)))):
        made |= {"bound": _LEVELS[near[0]], "of_bound": _percent(near[1])}
        made["levels"] = {_LEVELS[level]: _percent(share) for level, share in reached.items()}
        made["counted"] = "estimated" if work.estimated else "ncu"
    return made


def _seconds(one: Measured) -> float:
    """The median of a case."""
    return float(one.info.get("median_s") or one.stats["median"])


def _order_problems(found: Sequence[Record]) -> None:
    """Gives each problem its place on an axis: squares by size, then the others in their order; and whether
    it is ``square``, and ``ragged``: not a multiple of 32."""
    problems = {name: find_problem(name) for name in dict.fromkeys(r["problem"] for r in found)}
    squares = {name: p.m for name, p in problems.items() if name == f"{p.m}x{p.m}x{p.m}"}
    places = [*sorted(squares, key=lambda name: squares[name]), *(n for n in problems if n not in squares)]
    for r in found:
        p, square = problems[r["problem"]], r["problem"] in squares
        r["place"], r["square"] = places.index(r["problem"]), square
        r["ragged"] = any(size % 32 for size in (p.m, p.n, p.k))
        r["size"] = str(p.m) if square else r["problem"]


def usual_problem(found: Sequence[Record]) -> str:
    """The problem to show first: that of the README's ladder, else the one with most stages."""
    problems = [r["problem"] for r in found if r["best"]]
    return SHOWN.id if SHOWN.id in problems else max(problems, key=problems.count, default="")


def roof_lines(
    sources: Iterable[Source], found: Iterable[Record], left: float = 0.1, right: float = 1500.0
) -> list[Record]:
    """The points of the roofs of each source whose GPU is known, or that measured its own, for the dtypes of
    its records, from ``left`` to ``right`` FLOP per byte: GFLOPS = GB/s · FLOP/B up to the peak. ``level``:
    whether it is the peak."""
    dtypes = dict.fromkeys((r["source"], r["dtype"]) for r in found)
    made = []
    for source in sources:
        roofs = roofs_of(source.machine)
        for dtype in (dtype for label, dtype in dtypes if label == source.label):
            if roofs is None or (peak := roofs.peak(dtype)) is None:
                continue
            lines = {}
            for memory, rate in roofs.bandwidths.items():
                ridge = peak / rate
                name = f"{_MEMORIES[memory]} {rate:,.0f} GB/s"
                lines[name] = [(x, x * rate) for x in (min(left, ridge / 2), ridge)]
            first = min((ends[1][0] for ends in lines.values()), default=left)
            top = f"{dtype} {peak / 1000:,.1f} TFLOPS"
            lines[top] = [(first, peak), (right, peak)]
            about = {"source": source.label, "origin": roofs.origin, "dtype": dtype}
            made += [
                {**about, "roof": roof, "x": round(x, 4), "y": round(y, 2), "level": roof == top}
                for roof, ends in lines.items()
                for x, y in ends
            ]
    return made


def rounds(runs: Iterable[Source], only: Collection[tuple[str, str]] | None = None) -> Record:
    """By source and case: microseconds of each round, with SM clock and, evenly spaced over
    the measurement, temperatures where they are stored;
    of all cases, or ``only`` of these, each given by source and case id."""
    return {
        source.label: {
            one.case: {
                "us": [digits(1e6 * s, 5) for s in one.seconds],
                "mhz": one.info.get("round_mhz", []),
                "celsius": one.info.get("temperatures_c", []),
            }
            for one in source.cases
            if one.seconds and (only is None or (source.label, one.case) in only)
        }
        for source in runs
    }


def intervals(compared: Compared) -> Iterator[Record]:
    """A record for each timed pair of a comparison; all in %, ``from`` and ``to`` being the margin."""
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


def history(histories: Mapping[str, Sequence[Baseline]], declared: Variants) -> list[Record]:
    """A record for each case of a GPU model that at least two comparable measurements have: ``files``,
    ``relative`` (change of the GFLOPS from the first, in %), ``gflops``, ``boards`` and ``moved`` (%, at a
    change point, else 0), a value per measurement; ``trend``: slower, faster or steady."""
    found = []
    for measurements in histories.values():
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
    found = []
    for measurements in histories.values():
        made = moves(measurements)
        found += [(measurements[-1].name, move, move.case in lost(made)) for move in made]
    return sorted(found, key=lambda one: (not one[2], -abs(one[1].change)))


_LEAST = 3  # configs of a heat map


@dataclass(frozen=True)
class Space:
    """One heat map: ``cells`` are its configs, ``axes`` the names of what varies, those first that matter
    most; ``note``: what there is to say of it. ``label`` is unique in a report."""

    label: str
    axes: tuple[str, ...]
    cells: tuple[Record, ...]
    note: str


def spaces(tuned: Iterable[Tuned]) -> list[Space]:
    """The heat maps of the tuned spaces."""
    return [space for one in tuned if (space := _tuned(one))]


def _tuned(one: Tuned) -> Space | None:
    defaults = one.defaults or {}
    cells = [
        {"config": e.config.label, "gflops": digits(e.gflops)}
        | {name: str(e.config.get(name, defaults.get(name, "–"))) for name in one.axes}
        for e in one.evaluations
    ]
    note = f"{len(one.evaluations)} configs timed by {one.strategy}, {len(one.failed)} failed"
    if one.pruned:
        note += f", {sum(one.pruned.values())} excluded without a GPU"
    for what, e in (("best", one.best), ("declared first", one.of_declared)):
        if e:
            share = one.library_gflops and e.gflops / one.library_gflops
            of = f", {share_text(share)} % of cuBLAS" if share else ""
            note += f"; {what}: {e.config.label}, {gflops_text(e.gflops)} GFLOPS{of}"
    label = f"tuned: {one.kernel} {one.dtype} {one.problem}, {one.machine_info['name']}"
    return _space(label, list(one.axes), cells, f"{note}.")


def _space(label: str, names: Sequence[str], cells: Sequence[Record], note: str) -> Space | None:
    """The space; None for less than three configs, or where nothing varies. Each cell gets its share of the
    fastest, in %. An axis matters as much as the fastest configs differ between its values. The configs are
    those that are the fastest of a cell, whichever two axes are shown."""
    best = {name: [cell["gflops"] for cell in _fastest((name,), cells)] for name in names}
    varies = [name for name in names if len(best[name]) > 1]
    axes = sorted(varies, key=lambda name: -max(best[name]) / min(best[name]))
    if len(cells) < _LEAST or not axes:
        return None
    pairs = combinations(axes, min(2, len(axes)))
    chosen = {id(cell) for pair in pairs for cell in _fastest(pair, cells)}
    fastest = max(cell["gflops"] for cell in cells)
    kept = [
        {"space": label, "of_best": digits(100 * cell["gflops"] / fastest, 4), **cell}
        for cell in cells
        if id(cell) in chosen
    ]
    return Space(label, tuple(axes), tuple(kept), note)


def _fastest(axes: tuple[str, ...], cells: Iterable[Record]) -> list[Record]:
    """The fastest config of each place on some axes."""
    return [max(group, key=lambda cell: float(cell["gflops"])) for group in grouped(cells, *axes)]


def grouped(records: Iterable[Record], *fields: str) -> list[list[Record]]:
    """The records with the same values of these fields, in the order they are first seen."""
    groups: defaultdict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(record[name] for name in fields)].append(record)
    return list(groups.values())


def _percent(share: float | None) -> float | None:
    return None if share is None else digits(100 * share, 4)


def digits(value: float, kept: int = 6) -> float:
    """A value with so many significant digits."""
    return float(f"{value:.{kept}g}")

"""Flat records of measured cases, which charts and tables are drawn from. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gemm_regression.baselines import gpu_slug
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
from gemm_regression.report.markdown import SHOWN
from gemm_regression.report.page.roofs import LEVELS, lines
from gemm_regression.report.page.sources import Measured, Source
from gemm_regression.timing.bounds import Roofs, bound, roofs_of, shares

Record = dict[str, Any]
Declared = tuple[int, Kernel, Config, DType]
Variants = Mapping[str, Declared]

NOTHING = Known()
_PAD = re.compile(r"-?pad(\d+)")


def variants(kernels: Sequence[Kernel]) -> Variants:
    """The declared variants by name, each with the number of its kernel."""
    return {
        variant_name(kernel, config, dtype): (number, kernel, config, dtype)
        for number, kernel in enumerate(kernels)
        for dtype in kernel.dtypes
        for config in kernel.configs
    }


def cases(sources: Iterable[Source], declared: Variants, known: Known = NOTHING) -> list[Record]:
    """A record for each case with samples, of every source.

    ``us`` is the median; ``share``: % of cuBLAS; ``speedup``: over the best ``naive`` of the same source and
    problem; ``best``: the fastest config of its stage and dtype; ``everywhere``: the config that is timed at
    most problems; ``compulsory``, ``requested`` and ``dram``: FLOP per byte (`_traffic`); ``levels``:
    the percentage of each level's roof that is reached; ``bound``: the level that bounds the case, and
    ``of_bound`` its percentage (`timing/bounds.py`); ``counted``: by what the traffic is known.
    """
    return [record for source in sources for record in _of_source(source, declared, known)]


def _of_source(source: Source, declared: Variants, known: Known) -> list[Record]:
    found = [
        _record(source, one, declared, known, roofs_of(one.machine)) for one in source.cases if one.stats
    ]
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


def _record(source: Source, one: Measured, declared: Variants, known: Known, roofs: Roofs | None) -> Record:
    info, stats = one.info, one.stats
    names = names_of(one.case, info, declared)
    median = _seconds(one)
    ratio = info.get("cublas_ratio")
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
        "us": digits(1e6 * median),
        "low": digits(1e6 * stats["q1"]),
        "high": digits(1e6 * stats["q3"]),
        "ms": digits(1e3 * median, 5),
        "gflops": digits(float(info["gflops"]), 6),
        "share": _percent(ratio),
        "best": False,
        **_traffic(one, names["problem"], declared, gpu_slug(source.gpu), known, roofs),
        **{name: value for name, value in seen.items() if value is not None},
    }


def names_of(case: str, info: Mapping[str, Any], declared: Variants) -> Record:
    """Stage, dtype, config and problem of a case, and the order of its stage; also of one that is not
    declared any more."""
    of = CaseId.parse(case)
    variant = str(info.get("variant") or of.variant)
    if variant in declared:
        number, kernel, config, dtype = declared[variant]
        return {
            "stage": kernel.name,
            "order": number,
            "dtype": dtype.name,
            "config": str(info.get("chosen") or config.label),
            "problem": of.problem,
        }
    return {"stage": of.kernel, "order": 999, "dtype": of.dtype, "config": of.config, "problem": of.problem}


def _traffic(
    one: Measured, problem: str, declared: Variants, gpu: str, known: Known, roofs: Roofs | None
) -> Record:
    """What bounds a declared case, and FLOP per byte: ``compulsory`` if each operand is read once and the
    result written once; ``requested`` of the sectors that its blocks ask for, as the emulated device counted,
    or for the bytes of a kernel which reads each element once per block; ``dram`` as ncu counted."""
    found = declared.get(str(one.info.get("variant") or CaseId.parse(one.case).variant))
    if found is None:
        return {}
    _, kernel, config, dtype = _chosen(found, one.info.get("chosen"), declared)
    of, cubin = Case(kernel, dtype, config, find_problem(problem)), one.info.get("cubin_sha256")
    made: Record = {"compulsory": of.flop / max(1, kernel.operation.compulsory_bytes(of.problem, dtype))}
    if kernel.compiled and kernel.operation.plain_product:
        split = kernel.shape_of(config, dtype).split > 1  # what it adds to its workspace does not grow with K
        counts = None if split else known.emulated.get(of.variant)
        asked = requested(of, counts) if counts else sum(sum(b) for b in expected_bytes(of).values())
        made["requested"] = of.flop / max(1, asked)
    work = known.work(gpu, of, cubin)
    if not work.estimated and work.dram:
        made["dram"] = of.flop / work.dram
    made = {name: digits(value, 4) for name, value in made.items()}
    if roofs and (near := bound(reached := shares(work, roofs, dtype.name, _seconds(one)))):
        made |= {"bound": LEVELS[near[0]], "of_bound": _percent(near[1])}
        made["levels"] = {LEVELS[level]: _percent(share) for level, share in reached.items()}
        made["counted"] = "estimated" if work.estimated else "ncu"
    return made


def _chosen(found: Declared, stage: str | None, declared: Variants) -> Declared:
    """What was chosen for a row that chooses, a stage and config, if that is declared."""
    alike = (v for v in declared.values() if stage_name(v[1], v[2]) == stage and v[3] == found[3])
    return next(alike, found) if stage else found


def _seconds(one: Measured) -> float:
    """The median of a case."""
    return float(one.info.get("median_s") or one.stats["median"])


def _order_problems(found: Sequence[Record]) -> None:
    """Gives each problem its place on an axis: squares by size, then the others in their order; and whether
    it is ``square``, and ``ragged``: not a multiple of 32."""
    problems = {name: find_problem(name) for name in dict.fromkeys(r["problem"] for r in found)}
    squares = sorted((n for n in problems if _square(problems[n])), key=lambda n: problems[n].m)
    places = {
        name: place for place, name in enumerate([*squares, *(n for n in problems if n not in squares)])
    }
    for r in found:
        problem = problems[r["problem"]]
        r["place"] = places[r["problem"]]
        r["square"] = _square(problem)
        r["ragged"] = any(size % 32 for size in (problem.m, problem.n, problem.k))
        r["size"] = str(problem.m) if r["square"] else r["problem"]


def _square(problem: Problem) -> bool:
    return problem.id == f"{problem.m}x{problem.m}x{problem.m}"


def usual_problem(measured: Sequence[Record]) -> str:
    """The problem to show first: that of the README's ladder, else the one with most stages."""
    problems = [r["problem"] for r in measured if r["best"]]
    return SHOWN.id if SHOWN.id in problems else max(problems, key=problems.count, default="")


def padding(records: Iterable[Record]) -> list[Record]:
    """The change of the GFLOPS, in %, of each padded config against the same one without padding."""
    found = []
    for group in grouped(
        [r | {"bare": _PAD.sub("", r["config"])} for r in records if _PAD.search(r["config"])],
        *("source", "stage", "dtype", "problem", "bare"),
    ):
        plain = next((r for r in group if _pad(r) == 0), None)
        for r in group:
            if plain is not None and r is not plain:
                kept = {k: r[k] for k in ("source", "case", "stage", "order", "dtype", "problem", "gflops")}
                change = _percent(r["gflops"] / plain["gflops"] - 1)
                pair = f"{r['stage']} {r['bare']}"
                found.append(
                    kept | {"pair": pair, "pad": f"+{_pad(r)}", "plain": plain["gflops"], "change": change}
                )
    return found


def _pad(record: Record) -> int:
    found = _PAD.search(record["config"])
    return int(found[1]) if found else 0


def roof_lines(sources: Iterable[Source], measured: Iterable[Record]) -> list[Record]:
    """The points of the roofs of each source whose GPU is known, or that measured its own, for the dtypes of
    its records."""
    dtypes: dict[str, dict[str, None]] = {}
    for record in measured:
        dtypes.setdefault(record["source"], {})[record["dtype"]] = None
    made = []
    for source in sources:
        if roofs := roofs_of(source.machine):
            points = lines(roofs, dtypes.get(source.label, ()))
            made += [{"source": source.label, "origin": roofs.origin, **point} for point in points]
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

"""Fresh runs to a baseline: what each run must be, and what all of them must agree on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.baselines.fields import (
    STATS_OTHER,
    STATS_POSITIVE,
    BaselineError,
    agree,
    check_binary,
    check_stats,
    commit_of,
    machine_of,
    moment,
    need,
    parts_of,
    positive,
    read_json,
)
from harness.baselines.store import MIN_RUNS, Baseline, BaselineEntry, gpu_slug, noise_floor
from harness.verdicts.judge import MIN_SAMPLES

_COPIED = (
    *("case", "variant", "flops", "l2", "duty", "clock_event_reasons"),
    *("registers", "shared_bytes", "local_bytes", "cubin_sha256", "launch"),
)
_SET = ("board", "driver", "nvcc", "power_limit_w", "ecc", "mig")
_OBSERVED = ("cublas_ratio", "sm_clock_mhz", "power_w", "temperature_c")


@dataclass(frozen=True)
class Run:
    """What ``--benchmark-json`` wrote in one fresh run, checked; ``label`` names the file."""

    label: str
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    records: Mapping[str, Mapping[str, Any]]


def load_run(path: Path) -> Run:
    """One run as ``pytest --benchmark-json`` wrote it. Raises BaselineError."""
    document = read_json(path, "run it again")
    try:
        return _run(document, path.name)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; run it again") from None


def _run(document: dict[str, Any], label: str) -> Run:
    records: dict[str, Mapping[str, Any]] = {}
    for record in need(document, "benchmarks", list):
        case, info, stats = parts_of(record)
        if case in records:
            raise ValueError(f"{case} is in it twice")
        try:
            _usable(info, stats)
        except ValueError as error:
            raise ValueError(f"{case}: {error}") from None
        records[case] = record
    if not records:
        raise ValueError("no timed case in it")
    return Run(label, machine_of(document), commit_of(document), moment(document), records)


def _usable(info: Mapping[str, Any], stats: Mapping[str, Any]) -> None:
    """Raises ValueError for a case that no baseline may rest on."""
    if info.get("verdict") in ("WRONG", "CRASHED", "AMBIGUOUS"):
        raise ValueError(f"{info['verdict']} ({info.get('verdict_reason')}), no baseline can rest on it")
    if info.get("throttled") is not False:
        raise ValueError("throttled, no baseline can rest on it")
    check_stats(stats)
    if stats["rounds"] < MIN_SAMPLES:
        raise ValueError(f"{stats['rounds']} rounds, at least {MIN_SAMPLES} are needed")
    positive(info, "spread", zero=True)
    check_binary(info)
    agree("gflops", positive(info, "gflops"), positive(info, "flops") / stats["median"] / 1e9)


def merge_runs(runs: Sequence[Run], previous: Baseline | None = None) -> Baseline:
    """The baseline that fresh runs make: of each case, the stats of the run with the middle median.

    Cases of ``previous`` that were not run stay as they are, under their own provenance. Raises
    BaselineError for too few runs, or runs that differ in GPU, software, commit, cases or binaries.
    """
    if len(runs) < MIN_RUNS:
        raise BaselineError(f"{len(runs)} runs, a baseline needs at least {MIN_RUNS} fresh ones")
    first = runs[0]
    slug = gpu_slug(first.machine_info["name"])
    for run in runs[1:]:
        _refuse_other(first, run)
    if len({run.datetime for run in runs}) < len(runs):
        raise BaselineError("the same run was given twice; every run must be a fresh one")
    if previous is not None:
        previous.require_gpu(slug, first.machine_info["name"])
        previous.require_mig(first.machine_info.get("mig"))
    fresh = {case: _merge_case(case, runs) for case in first.records}
    return Baseline(
        slug=slug,
        runs=len(runs),
        machine_info=first.machine_info,
        commit_info=first.commit_info,
        datetime=max(run.datetime for run in runs),
        entries={**(previous.entries if previous else {}), **fresh},
    )


def _refuse_other(first: Run, run: Run) -> None:
    for kind, one, other in (
        ("", first.machine_info, run.machine_info),
        ("commit ", first.commit_info, run.commit_info),
    ):
        for name in (*one, *other):
            if one.get(name) != other.get(name):
                raise BaselineError(
                    f"{run.label}: {kind}{name} is {other.get(name)}, in {first.label} {one.get(name)}; "
                    "a baseline needs runs of one GPU, one software and one commit"
                )
    for have, lack in ((first, run), (run, first)):
        if missing := sorted(set(have.records) - set(lack.records)):
            raise BaselineError(
                f"{lack.label}: lacks {', '.join(missing[:3])}{' …' if missing[3:] else ''}, "
                f"which {have.label} has; every run must hold the same cases"
            )


def _merge_case(case: str, runs: Sequence[Run]) -> BaselineEntry:
    records = [run.records[case] for run in runs]
    for name in ("cubin_sha256", "launch", "l2", "duty", "flops"):
        if len({record["extra_info"].get(name) for record in records}) > 1:
            raise BaselineError(
                f"{case}: {name} differs between the runs; all must time the same binary alike"
            )
    medians = [_significant(record["stats"]["median"]) for record in records]
    middle = records[medians.index(statistics.median_low(medians))]
    stats, seen, first = middle["stats"], middle["extra_info"], runs[0]
    info: dict[str, Any] = {name: seen[name] for name in _COPIED if name in seen}
    info |= {
        "gflops": _significant(seen["flops"] / stats["median"] / 1e9),
        "median_s": _significant(stats["median"]),
        "spread": _significant(seen["spread"], 3),
        "noise_floor": _significant(noise_floor(medians), 3),
        "run_medians": medians,
        **{name: _seen(seen.get(name)) for name in _OBSERVED},
        "commit": first.commit_info["id"],
        "dirty": first.commit_info["dirty"],
        **{name: first.machine_info[name] for name in _SET if name in first.machine_info},
    }
    kept = {name: _significant(stats[name]) for name in (*STATS_POSITIVE, *STATS_OTHER)}
    counts = {name: stats[name] for name in ("outliers", "rounds", "iterations")}
    return BaselineEntry(middle["fullname"], middle["group"], {**kept, **counts}, info)


def _significant(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _seen(value: Any) -> float | None:
    """What was seen around the samples; None where it was not (some boards do not tell their power)."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return _significant(value, 4)

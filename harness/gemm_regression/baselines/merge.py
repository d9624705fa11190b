"""Baselines from runs, and as files: what each run must contain, and what all must agree on; a baseline as
pytest-benchmark's JSON, for its own ``compare``; and what ``--benchmark-compare`` names."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, StrictStr

from gemm_regression.baselines.lines import validated, written
from gemm_regression.baselines.records import (
    MIN_RUNS,
    SEEN,
    BaselineEntry,
    BaselineError,
    CommitInfo,
    Moment,
    checked,
    entry_of,
    gpu_slug,
    numbers_of,
    read_json,
    short,
)
from gemm_regression.baselines.store import Baseline, derived, figures_path, history, measurements
from gemm_regression.files import write_whole
from gemm_regression.judge.evidence import MACHINES, MIN_SAMPLES
from gemm_regression.judge.machine import Machine
from gemm_regression.judge.vocabulary import VerdictKind

_UNUSABLE = (
    *(VerdictKind.WRONG, VerdictKind.NOT_COMPILED, VerdictKind.NOT_LAUNCHED),
    *(VerdictKind.CRASHED, VerdictKind.AMBIGUOUS),
)
_SAME = ("cubin_sha256", "launch", "l2", "duty", "flops")  # in all runs
_OF_INFO = (*_SAME, "chosen", "registers", "shared_bytes", "local_bytes")
_MEASURED = ("roofs",)  # of machine_info: differs from run to run


@dataclass(frozen=True)
class Run(Baseline):
    """One run, written by ``--benchmark-json``: each case as one process timed it. ``healthy``: whether its
    machine was judged, and as it should be; a kept survey does not say."""

    healthy: bool = False


def load_run(path: Path) -> Run:
    """One run as ``pytest --benchmark-json`` wrote it. Raises BaselineError."""
    document = read_json(path, "run it again")
    try:
        return _run(document, path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else error
        raise BaselineError(f"{path}: {said}; run it again") from None


def _run(document: Mapping[str, Any], path: Path) -> Run:
    if "gpus" in document or "shard" in document:
        raise ValueError("its cases were spread over several GPUs, and a baseline is of one")
    machines = document.get(MACHINES, {}).values()
    for verdict in machines:
        if verdict["kind"] != VerdictKind.PASS:
            raise ValueError(f"its machine was {verdict['kind']} ({verdict['reason']}), not as it should be")
    entries: dict[str, BaselineEntry] = {}
    for record in document["benchmarks"]:
        entry = _entry(document, record)
        if entry.case_id in entries:
            raise ValueError(f"contains {entry.case_id} twice")
        entries[entry.case_id] = entry
    if not entries:
        raise ValueError("no timed case in it")
    slug = gpu_slug(entry.machine["name"])
    return Run(slug, entry.machine, entry.commit_info, entry.datetime, entries, path, healthy=bool(machines))


def _entry(document: Mapping[str, Any], record: Mapping[str, Any]) -> BaselineEntry:
    """A case as one process timed it. Raises ValueError, or KeyError, where no baseline can rest on it."""
    info, stats = record["extra_info"], record["stats"]
    if not record["fullname"].endswith(f"[{info.get('case')}]"):
        raise ValueError(f"{record['fullname']} is not a timed case of this suite")
    case, verdict, reason = info["case"], info.get("verdict"), info.get("verdict_reason")
    if verdict in _UNUSABLE:
        raise ValueError(f"{case}: {verdict} ({reason}) cannot be used for a baseline")
    if info.get("throttled") is not False:
        raise ValueError(f"{case}: throttled, no baseline can rest on it")
    if stats["rounds"] < MIN_SAMPLES:
        raise ValueError(f"{case}: {stats['rounds']} rounds, at least {MIN_SAMPLES} are needed")
    mhz, ratio = _seen(info, "sm_clock_mhz", 5), _seen(info, "cublas_ratio")
    seen = (*(_seen(info, name) for name in SEEN[:-1]), int(info.get(SEEN[-1], 0)))
    says = {
        **{"machine": machine_of(document), "commit_info": commit_of(document)},
        **{"datetime": document["datetime"], "group": record["group"], "case_id": case, "seen": seen},
        **{name: info[name] for name in _OF_INFO if info.get(name) is not None},
        "test": record["fullname"].removesuffix(f"[{case}]"),
        "us": [short(1e6 * stats["median"], 6)],
        "clocks_mhz": [mhz] if mhz else [],
        "numbers": numbers_of(stats),
        "cublas_ratio": None if ratio is None else float(ratio),
    }
    entry = entry_of(says)
    if abs(info["gflops"] - entry.gflops) > 1e-3 * entry.gflops:
        raise ValueError(f"{case}: gflops is {info['gflops']:.6g}, but its median gives {entry.gflops:.6g}")
    return entry


def _seen(info: Mapping[str, Any], name: str, digits: int = 4) -> float | None:
    """A value measured around the samples, rounded; None if unknown (some boards do not report power)."""
    value = info.get(name)
    return short(value, digits) if isinstance(value, (int, float)) and math.isfinite(value) else None


def merge_runs(runs: Sequence[Run]) -> Baseline:
    """The measurement of several runs: for each case, the statistics of the run with the middle median.

    Raises BaselineError for too few runs, a machine that was not judged, or runs that differ in GPU,
    software, commit, cases or binaries.
    """
    if len(runs) < MIN_RUNS:
        raise BaselineError(f"{len(runs)} runs; a baseline needs at least {MIN_RUNS}")
    first, when = runs[0], max(run.datetime for run in runs)
    for run in runs:
        if not run.healthy:
            raise BaselineError(f"{run.path}: says nothing of its machine; run it again")
        _refuse_other(first, run)
    if len({run.datetime for run in runs}) < len(runs):
        raise BaselineError("the same run was given twice; every run must be a separate one")
    entries = {case: _merged([run.entries[case] for run in runs], when) for case in first.entries}
    return Baseline(first.slug, first.machine_info, first.commit_info, when, entries)


def _refuse_other(first: Run, run: Run) -> None:
    one, other = (
        {**each.machine_info, **{f"commit {name}": value for name, value in each.commit_info.items()}}
        for each in (first, run)
    )
    for name in (*one, *other):
        if name not in _MEASURED and one.get(name) != other.get(name):
            raise BaselineError(
                f"{run.path}: {name} is {other.get(name)}, but {one.get(name)} in {first.path}; "
                "a baseline needs runs of one GPU, one software and one commit"
            )
    for have, lack in ((first, run), (run, first)):
        if missing := sorted(set(have.entries) - set(lack.entries)):
            raise BaselineError(
                f"{lack.path} does not contain {', '.join(missing[:3])}{' …' if missing[3:] else ''}, "
                f"which {have.path} does; all runs must contain the same cases"
            )


def _merged(runs: Sequence[BaselineEntry], when: str) -> BaselineEntry:
    for name in _SAME:
        if len({getattr(run, name) for run in runs}) > 1:
            raise BaselineError(
                f"{runs[0].case_id}: {name} differs between the runs; all must time one binary in one way"
            )
    us = tuple(run.us[0] for run in runs)
    clocks = tuple(mhz for run in runs for mhz in run.clocks_mhz)
    middle = runs[us.index(statistics.median_low(us))]
    known = clocks if len(clocks) == len(us) else ()
    return replace(middle, machine=runs[0].machine, datetime=when, us=us, clocks_mhz=known)


_OURS = "gemm_baseline"
_REMEDY = "give what `gemm-regression baseline export` or --benchmark-json wrote"


def export(baseline: Baseline) -> dict[str, Any]:
    """pytest-benchmark's JSON, with our lines in it, from which `read_file` has all that they say. Raises
    BaselineError."""
    benchmarks = [
        {
            "group": entry.group,
            "name": entry.fullname.rpartition("::")[2],
            "fullname": entry.fullname,
            "params": {"timed_case": entry.case_id},
            "param": entry.case_id,
            "extra_info": entry.info,
            "options": {},
            "stats": entry.stats,
        }
        for entry in baseline.entries.values()
    ]
    return {
        "machine_info": dict(baseline.machine_info),
        "commit_info": dict(baseline.commit_info),
        "benchmarks": benchmarks,
        "datetime": baseline.datetime,
        "version": baseline.machine_info.get("pytest_benchmark", ""),
        _OURS: {"gpu": baseline.slug, "lines": [each.text for each in written(baseline.entries.values())]},
    }


def write_export(baseline: Baseline, path: Path) -> Path:
    """Raises BaselineError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(export(baseline), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise BaselineError(f"{path}: could not be written ({error.strerror})") from None
    return path


class _Ours(BaseModel):
    gpu: StrictStr
    lines: list[StrictStr]


def read_file(path: Path, board: str | None = None) -> Baseline:
    """An exported baseline, or one run. Raises BaselineError."""
    document = read_json(path, _REMEDY)
    if _OURS not in document:
        return load_run(path)
    try:
        ours: _Ours = checked(document[_OURS], _Ours)
    except ValueError as error:
        raise BaselineError(f"{path}: {_OURS}: {error}; {_REMEDY}") from None
    read = [validated(f"{path}, line {number}", text) for number, text in enumerate(ours.lines, 1)]
    if not (found := measurements(read, path, ours.gpu)):
        raise BaselineError(f"{path}: contains no figure; {_REMEDY}")
    return derived(found, board)


def named(root: Path, slug: str, board: str | None, wanted: str) -> Baseline:
    """What ``--benchmark-compare=WANTED`` means: a file that `read_file` reads, or the number of a
    measurement of this GPU model. Raises BaselineError."""
    said = f"--benchmark-compare={wanted}"
    if Path(wanted).is_file():
        found = read_file(Path(wanted), board)
        if gpu_slug(found.name) != slug:
            raise BaselineError(f"{said}: has figures of {found.name}, but this GPU's folder is {slug}")
        return found
    every = history(root, slug)
    if not wanted.isdecimal() or not 0 < int(wanted) <= len(every):
        there = f"measurements 1 to {len(every)}" if every else "nothing"
        raise BaselineError(f"{said}: no such file, and {figures_path(root, slug)} has {there}")
    return every[int(wanted) - 1]


class File(BaseModel):
    """What the file of any run contains."""

    machine_info: Machine
    commit_info: CommitInfo
    datetime: Moment
    benchmarks: list[Any]


def machine_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a file's ``machine_info``, as in `Machine`."""
    said = document["machine_info"]
    return {name: said[name] for name in Machine.model_fields if name in said}


def commit_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of its ``commit_info``, as in `CommitInfo`."""
    return {name: document["commit_info"].get(name) for name in CommitInfo.model_fields}

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

from pydantic import BaseModel, StrictStr, model_validator

from gemm_regression.baselines.entries import Baseline, BaselineEntry, gpu_slug, noise_floor
from gemm_regression.baselines.fields import (
    BaselineError,
    File,
    Info,
    NotNegative,
    Record,
    Stats,
    checked,
    checked_record,
    commit_of,
    machine_of,
    read_json,
)
from gemm_regression.baselines.lines import MIN_RUNS, OF_A_CASE, validated, written
from gemm_regression.baselines.store import derived, figures_path, history, measurements
from gemm_regression.files import write_whole
from gemm_regression.judge.evidence import MACHINES, MIN_SAMPLES
from gemm_regression.judge.vocabulary import VerdictKind

_UNUSABLE = (VerdictKind.WRONG, VerdictKind.CRASHED, VerdictKind.AMBIGUOUS)
_COPIED = (
    *("case", "variant", "chosen", "flops", "l2", "duty", "clock_event_reasons"),
    *("registers", "shared_bytes", "local_bytes", "cubin_sha256", "launch"),
)
_COUNTS = ("outliers", "rounds", "iterations")
_MEASURED = ("roofs",)  # of machine_info: differs from run to run
_OBSERVED = ("cublas_ratio", "sm_clock_mhz", "power_w", "temperature_c")


@dataclass(frozen=True)
class Run:
    """The validated file of one run, written by ``--benchmark-json``.

    Attributes:
        label: the file's name.
        machine_info, commit_info, datetime: as in Baseline.
        records: pytest-benchmark's record of each case, by case id.
        healthy: whether its machine was judged, and as it should be; a kept survey does not say.
    """

    label: str
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    records: Mapping[str, Mapping[str, Any]]
    healthy: bool = False


def load_run(path: Path) -> Run:
    """One run as ``pytest --benchmark-json`` wrote it. Raises BaselineError."""
    document = read_json(path, "run it again")
    try:
        return _run(document, path.name)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; run it again") from None


class _Info(Info):
    spread: NotNegative


class _Record(Record):
    extra_info: _Info

    @model_validator(mode="before")
    @classmethod
    def _usable(cls, record: Any) -> Any:
        """Unusable cases are reported before anything else."""
        info = record.get("extra_info") if isinstance(record, dict) else None
        if isinstance(info, dict):
            if info.get("verdict") in _UNUSABLE:
                raise ValueError(
                    f"{info['verdict']} ({info.get('verdict_reason')}) cannot be used for a baseline"
                )
            if info.get("throttled") is not False:
                raise ValueError("throttled, no baseline can rest on it")
        return record

    @model_validator(mode="after")
    def _enough(self) -> _Record:
        if self.stats.rounds < MIN_SAMPLES:
            raise ValueError(f"{self.stats.rounds:g} rounds, at least {MIN_SAMPLES} are needed")
        return self


class _Machine(BaseModel):
    """The verdict on the machine of a run."""

    kind: VerdictKind
    reason: StrictStr


class _File(File):
    gemm_machines: dict[str, _Machine] = {}  # noqa: RUF012


def _run(document: dict[str, Any], label: str) -> Run:
    checked(document, _File)
    if "gpus" in document or "shard" in document:
        raise ValueError("its cases were spread over several GPUs, and a baseline is of one")
    machines = document.get(MACHINES, {}).values()
    for machine in machines:
        if machine["kind"] != VerdictKind.PASS:
            raise ValueError(f"its machine was {machine['kind']} ({machine['reason']}), not as it should be")
    records: dict[str, Mapping[str, Any]] = {}
    for record in document["benchmarks"]:
        case = checked_record(record, _Record)
        if case in records:
            raise ValueError(f"contains {case} twice")
        records[case] = record
    if not records:
        raise ValueError("no timed case in it")
    healthy = bool(machines)
    return Run(label, machine_of(document), commit_of(document), document["datetime"], records, healthy)


def of_run(run: Run) -> Baseline:
    """One run alone, whose noise floor is the spread of its rounds."""
    return _measurement([run])


def merge_runs(runs: Sequence[Run]) -> Baseline:
    """The measurement of several runs: for each case, the statistics of the run with the middle median.

    Raises BaselineError for too few runs, a machine that was not judged, or runs that differ in GPU,
    software, commit, cases or binaries.
    """
    if len(runs) < MIN_RUNS:
        raise BaselineError(f"{len(runs)} runs; a baseline needs at least {MIN_RUNS}")
    for run in runs:
        if not run.healthy:
            raise BaselineError(f"{run.label}: says nothing of its machine; run it again")
        _refuse_other(runs[0], run)
    if len({run.datetime for run in runs}) < len(runs):
        raise BaselineError("the same run was given twice; every run must be a separate one")
    return _measurement(runs)


def _measurement(runs: Sequence[Run]) -> Baseline:
    first, moment = runs[0], max(run.datetime for run in runs)
    return Baseline(
        slug=gpu_slug(first.machine_info["name"]),
        machine_info=first.machine_info,
        commit_info=first.commit_info,
        datetime=moment,
        entries={case: _merge_case(case, runs, moment) for case in first.records},
    )


def _refuse_other(first: Run, run: Run) -> None:
    for kind, one, other in (
        ("", first.machine_info, run.machine_info),
        ("commit ", first.commit_info, run.commit_info),
    ):
        for name in (*one, *other):
            if name not in _MEASURED and one.get(name) != other.get(name):
                raise BaselineError(
                    f"{run.label}: {kind}{name} is {other.get(name)}, but {one.get(name)} in {first.label}; "
                    "a baseline needs runs of one GPU, one software and one commit"
                )
    for have, lack in ((first, run), (run, first)):
        if missing := sorted(set(have.records) - set(lack.records)):
            raise BaselineError(
                f"{lack.label} does not contain {', '.join(missing[:3])}{' …' if missing[3:] else ''}, "
                f"which {have.label} does; all runs must contain the same cases"
            )


def _merge_case(case: str, runs: Sequence[Run], moment: str) -> BaselineEntry:
    records = [run.records[case] for run in runs]
    for name in ("cubin_sha256", "launch", "l2", "duty", "flops"):
        if len({record["extra_info"].get(name) for record in records}) > 1:
            raise BaselineError(
                f"{case}: {name} differs between the runs; all must time the same binary in the same way"
            )
    medians = [_significant(record["stats"]["median"]) for record in records]
    middle = records[medians.index(statistics.median_low(medians))]
    clocks = [_clock(record["extra_info"].get("sm_clock_mhz")) for record in records]
    stats, seen, first = middle["stats"], middle["extra_info"], runs[0]
    info: dict[str, Any] = {name: seen[name] for name in _COPIED if name in seen}
    info |= {
        "gflops": _significant(seen["flops"] / stats["median"] / 1e9),
        "median_s": _significant(stats["median"]),
        "noise_floor": _significant(noise_floor(medians) if medians[1:] else seen["spread"], 3),
        "run_medians": medians,
        **({"run_clocks_mhz": clocks} if all(clocks) else {}),
        **{name: _seen(seen.get(name)) for name in _OBSERVED},
        "commit": first.commit_info["id"],
        "dirty": first.commit_info["dirty"],
        **{name: first.machine_info[name] for name in OF_A_CASE if name in first.machine_info},
    }
    kept = {name: _significant(stats[name]) for name in Stats.model_fields if name not in _COUNTS}
    counts = {name: stats[name] for name in _COUNTS}
    return BaselineEntry(
        fullname=middle["fullname"],
        group=middle["group"],
        stats={**kept, **counts},
        info=info,
        machine=first.machine_info,
        commit_info=first.commit_info,
        datetime=moment,
    )


def _significant(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _clock(mhz: Any) -> float:
    """The SM clock of a run, which is known to 0.1 MHz; 0 if unknown."""
    known = isinstance(mhz, (int, float)) and math.isfinite(mhz) and mhz > 0
    return _significant(mhz, 5) if known else 0.0


def _seen(value: Any) -> float | None:
    """A value measured around the samples, rounded; None if unknown (some boards do not report power)."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return _significant(value, 4)


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
            "extra_info": dict(entry.info),
            "options": {},
            "stats": dict(entry.stats),
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


def read_file(path: Path, board: str | None = None) -> Baseline:
    """An exported baseline, or one run. Raises BaselineError."""
    document = read_json(path, _REMEDY)
    if _OURS not in document:
        return replace(of_run(load_run(path)), path=path)
    ours = document[_OURS]
    lines, slug = (ours.get("lines"), ours.get("gpu")) if isinstance(ours, dict) else (None, None)
    if not isinstance(lines, list) or not isinstance(slug, str) or not all(isinstance(t, str) for t in lines):
        raise BaselineError(f"{path}: no lines in its {_OURS}; {_REMEDY}")
    read = [validated(f"{path}, line {number}", text) for number, text in enumerate(lines, 1)]
    if not (found := measurements(read, path, slug)):
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

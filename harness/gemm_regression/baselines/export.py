"""Baselines as pytest-benchmark's JSON, for its own ``compare``; and what ``--benchmark-compare`` names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemm_regression.baselines.entries import Baseline, gpu_slug
from gemm_regression.baselines.fields import BaselineError, read_json
from gemm_regression.baselines.lines import validated, written
from gemm_regression.baselines.merge import load_run, of_run
from gemm_regression.baselines.store import derived, figures_path, history, measurements
from gemm_regression.files import write_whole

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

"""The advised configs as timed in one run, ``baselines/<gpu>/advice.json``; and the speeds that are stored of
a GPU in all.

One run, not five: the file judges nothing, and what it compares differs by more than the noise. It is the
run's own file without its samples, so a run's reader reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_regression.baselines import BaselineError, current, gpu_slug, load_run
from gemm_regression.baselines.store import FIGURES
from gemm_regression.files import write_whole

FILE = "advice.json"
_KEPT = (
    *("case", "variant", "flops", "l2", "duty", "registers", "shared_bytes", "local_bytes", "cubin_sha256"),
    *("gflops", "median_s", "spread", "cublas_ratio", "sm_clock_mhz", "power_w", "throttled"),
)


@dataclass(frozen=True)
class Surveyed:
    """What is stored of a GPU model.

    Attributes:
        slug: its folder.
        name, capability: of the GPU.
        files: names of the files.
        based: the problems, by id, whose fastest kernel is known: those of the baseline. Of others the survey
            only has what it recommends.
        gflops: by problem id and variant name, libraries among them; of a case in both files that of the
            survey, whose cases were timed together.
        library: GFLOPS of the library beside a case, in the same run, by problem id and variant name.
        seconds: median device seconds, as ``gflops``.
        roofs: what the GPU can do at most, as a run measures it (devices/cuda/roofs.py); empty if none did.
    """

    slug: str
    name: str
    capability: tuple[int, int]
    files: tuple[str, ...]
    gflops: Mapping[str, Mapping[str, float]]
    library: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    roofs: Mapping[str, Any] = field(default_factory=dict)
    based: frozenset[str] = frozenset()


def store(run: Path, root: Path) -> Path:
    """Writes the survey of a run of the suite ``advice`` in the baselines' folder. Raises BaselineError."""
    found = load_run(run)
    target = root / gpu_slug(found.machine_info["name"]) / FILE
    document = {
        "machine_info": dict(found.machine_info),
        "commit_info": dict(found.commit_info),
        "datetime": found.datetime,
        "benchmarks": [
            {
                "fullname": record["fullname"],
                "group": record["group"],
                "extra_info": {k: _short(record["extra_info"].get(k)) for k in _KEPT},
                "stats": {k: _short(v) for k, v in record["stats"].items() if k != "data"},
            }
            for record in found.records.values()
        ],
    }
    records = ",\n".join(json.dumps(record, allow_nan=False) for record in document.pop("benchmarks"))
    head = json.dumps(document, indent=1)[:-2]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, f'{head},\n "benchmarks": [\n{records}\n ]\n}}\n')
        load_run(target)  # what would be refused is not kept
    except OSError as error:
        raise BaselineError(f"{target}: cannot be written ({error.strerror})") from None
    return target


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Cases:
    """What is current of a GPU model, and its survey.

    Attributes:
        machines: the machine_info of each.
        records: the file, the problem id and the extra_info of each case; first those of the baseline.
    """

    machines: tuple[Mapping[str, Any], ...]
    records: tuple[tuple[str, str, Mapping[str, Any]], ...]


def stored_cases(root: Path, slug: str) -> Cases:
    """Raises BaselineError for a file that cannot be trusted."""
    machines: list[Mapping[str, Any]] = []
    records: list[tuple[str, str, Mapping[str, Any]]] = []
    if baseline := current(root, slug):
        machines.append(baseline.machine_info)
        records += [(FIGURES, entry.group, entry.info) for entry in baseline.entries.values()]
    if (root / slug / FILE).is_file():
        run = load_run(root / slug / FILE)
        machines.append(run.machine_info)
        records += [(FILE, str(of["group"]), of["extra_info"]) for of in run.records.values()]
    return Cases(tuple(machines), tuple(records))


def surveyed(root: Path, slug: str) -> Surveyed | None:
    """All speeds stored of a GPU model, None without any. Raises BaselineError."""
    found = stored_cases(root, slug)
    if not found.machines:
        return None
    gflops: dict[str, dict[str, float]] = {}
    library: dict[str, dict[str, float]] = {}
    seconds: dict[str, dict[str, float]] = {}
    for _, problem, info in found.records:
        speed, ratio, variant = float(info["gflops"]), info.get("cublas_ratio"), str(info["variant"])
        gflops.setdefault(problem, {})[variant] = speed
        if isinstance(info.get("median_s"), float):
            seconds.setdefault(problem, {})[variant] = float(info["median_s"])
        if ratio:
            library.setdefault(problem, {})[variant] = speed / float(ratio)
    machine = found.machines[0]
    major, minor = map(int, str(machine["capability"]).split("."))
    files = tuple(dict.fromkeys(file for file, _, _ in found.records))
    roofs: Mapping[str, Any] = next((own for one in found.machines if (own := one.get("roofs"))), {})
    based = frozenset(problem for file, problem, _ in found.records if file != FILE)
    name = str(machine["name"])
    return Surveyed(slug, name, (major, minor), files, gflops, library, seconds, roofs, based)


def every(root: Path) -> list[Surveyed]:
    """What is stored of each GPU model. Raises BaselineError."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [found for name in folders if (found := surveyed(root, name))]

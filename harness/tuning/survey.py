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

from harness.baselines import BaselineError, Run, current, gpu_slug, load, load_run
from harness.files import write_whole

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


def surveyed(root: Path, slug: str) -> Surveyed | None:
    """All speeds stored of a GPU model, None without any. Raises BaselineError."""
    gflops: dict[str, dict[str, float]] = {}
    library: dict[str, dict[str, float]] = {}
    seconds: dict[str, dict[str, float]] = {}

    def add(group: str, info: Mapping[str, object]) -> None:
        speed, ratio, variant = info["gflops"], info.get("cublas_ratio"), str(info["variant"])
        assert isinstance(speed, float | int)
        gflops.setdefault(group, {})[variant] = float(speed)
        if isinstance(info.get("median_s"), float):
            seconds.setdefault(group, {})[variant] = float(str(info["median_s"]))
        if isinstance(ratio, float | int) and ratio:
            library.setdefault(group, {})[variant] = speed / ratio

    path = current(root, slug)
    baseline = load(path) if path else None
    for entry in baseline.entries.values() if baseline else ():
        add(entry.group, entry.info)
    survey: Run | None = load_run(root / slug / FILE) if (root / slug / FILE).exists() else None
    for record in survey.records.values() if survey else ():
        add(record["group"], record["extra_info"])
    machine = baseline.machine_info if baseline else survey.machine_info if survey else None
    if machine is None:
        return None
    major, minor = map(int, machine["capability"].split("."))
    files = [path.name] if path else []
    files += [FILE] if survey else []
    roofs = machine.get("roofs") or (survey.machine_info.get("roofs") if survey else None) or {}
    return Surveyed(slug, machine["name"], (major, minor), tuple(files), gflops, library, seconds, roofs)


def every(root: Path) -> list[Surveyed]:
    """What is stored of each GPU model. Raises BaselineError."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [found for name in folders if (found := surveyed(root, name))]

"""What was measured of the planted slowdowns: runs in measured.json, in the order in which they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.devices.cuda.environment import GpuInfo

FILE = Path(__file__).with_name("measured.json")
MEASURE, GATE = "measure", "gate"  # how a run was made


def read(file: Path = FILE) -> list[dict[str, Any]]:
    """Each ``how``, ``gpu``, ``board``, ``nvcc``, ``commit`` and ``datetime``, and what was ``found`` by the
    name of a slowdown: what the gate ``said``, and by `measure` what it costs, with the microseconds of the
    kernel as it is. Of `gate`, also how many ``others`` there were, and which of them were ``red``."""
    runs: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return runs


def add(file: Path, how: str, gpu: GpuInfo, commit: str, found: Mapping[str, Any], **more: Any) -> None:
    """Appends a run."""
    run = {
        "how": how,
        "gpu": gpu.name,
        "nvcc": nvcc_version(),
        "board": gpu.board,
        "commit": commit,
        "datetime": datetime.now(UTC).isoformat(timespec="seconds"),
        **more,
        "found": dict(found),
    }
    file.write_text(_text([*read(file), run]), encoding="utf-8")


def cost(runs: Sequence[Mapping[str, Any]], gpu: str, name: str) -> dict[str, Any] | None:
    """What a slowdown costs on a model of GPU, measured last; None if it is not known."""
    known = [run["found"] for run in runs if (run["how"], run["gpu"]) == (MEASURE, gpu)]
    found: list[dict[str, Any]] = [of[name] for of in known if "change" in of.get(name, {})]
    return found[-1] if found else None


def _text(runs: Sequence[Mapping[str, Any]]) -> str:
    """A line for each slowdown."""
    parts = []
    for run in runs:
        head = json.dumps({key: value for key, value in run.items() if key != "found"})
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(of)}" for name, of in run["found"].items())
        parts.append(f' {head[:-1]}, "found": {{\n{lines}\n }}}}')
    return "[\n" + ",\n".join(parts) + "\n]\n"

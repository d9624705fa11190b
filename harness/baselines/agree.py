"""Do two runs of the same binaries agree: later, on another board, or with another driver? Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.baselines.fields import BaselineError, read_json
from harness.baselines.merge import load_run
from harness.baselines.store import load

CUDA_CORES, TENSOR_CORES = "CUDA cores", "tensor cores"
LIMITS = {CUDA_CORES: 0.003, TENSOR_CORES: 0.01}  # relative, of cases that last LEAST seconds or more
LEAST = 100e-6


def kind_of(case: str) -> str:
    """By the dtype, the second part of an id: FP32 runs on CUDA cores, everything else on tensor cores."""
    return CUDA_CORES if case.split("-")[1:2] == ["f32"] else TENSOR_CORES


@dataclass(frozen=True)
class Agreement:
    """One ``case`` in both files: its median ``seconds`` in each."""

    case: str
    seconds: tuple[float, float]

    @property
    def kind(self) -> str:
        return kind_of(self.case)

    @property
    def change(self) -> float:
        """Relative change of the time from the first to the second."""
        return self.seconds[1] / self.seconds[0] - 1

    @property
    def judged(self) -> bool:
        return self.seconds[0] >= LEAST

    @property
    def agrees(self) -> bool:
        return not self.judged or abs(self.change) <= LIMITS[self.kind]


def agreement(first: Path, second: Path) -> list[Agreement]:
    """The cases with the same binary, launched and timed in the same way, in both files (runs or baselines);
    the largest change first. A measurement that a baseline carried over from the other one is left out; an
    unknown launch counts as equal.

    Raises BaselineError if there is no such case, or the GPU model differs.
    """
    (one, machine), (other, other_machine) = _medians(first), _medians(second)
    if machine["name"] != other_machine["name"]:
        raise BaselineError(f"{first} is of {machine['name']}, {second} of {other_machine['name']}")
    found = [
        Agreement(case, (one[case][0], other[case][0]))
        for case in one
        if case in other and alike(one[case][1], other[case][1]) and one[case][0] != other[case][0]
    ]
    if not found:
        raise BaselineError(f"{first} and {second} have no case that both measured with the same binary")
    return sorted(found, key=lambda a: -abs(a.change))


_Medians = tuple[dict[str, tuple[float, dict[str, Any]]], Mapping[str, Any]]


def _medians(path: Path) -> _Medians:
    """Median seconds and what was run, by case, and the machine; for a baseline, the median of its runs."""
    if "gemm_baseline" in read_json(path, "use a file written by --benchmark-json, or a baseline"):
        baseline = load(path)
        found = {
            case: (
                median(entry.info.get("run_medians") or [entry.median_s]),
                what_ran(entry.info, baseline.machine_info),
            )
            for case, entry in baseline.entries.items()
        }
        return found, baseline.machine_info
    run = load_run(path)
    records = run.records.items()
    machine = run.machine_info
    return {c: (r["stats"]["median"], what_ran(r["extra_info"], machine)) for c, r in records}, machine


def what_ran(info: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The binary (for a library, its version), and how it is launched and timed."""
    binary = info.get("cubin_sha256") or machine.get("cublas")
    return {"binary": binary, "launch": info.get("launch"), "l2": info["l2"], "duty": info.get("duty", 1.0)}


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(
        one[name] == other[name] or (name == "launch" and None in (one[name], other[name])) for name in one
    )


def boards(first: Path, second: Path) -> str:
    """``boards 4173df1b and unknown``: the board of each file."""
    named = [str(_medians(path)[1].get("board") or "unknown") for path in (first, second)]
    return f"boards {named[0]} and {named[1]}"


def summary(found: Sequence[Agreement]) -> list[str]:
    """One line per kind, and one for cases that are too short to be judged."""
    lines = []
    for kind, limit in LIMITS.items():
        judged = [a for a in found if a.kind == kind and a.judged]
        if judged:
            agreeing, worst = sum(a.agrees for a in judged), max(abs(a.change) for a in judged)
            middle = median(abs(a.change) for a in judged)
            lines.append(
                f"{kind}, {1e6 * LEAST:.0f} µs and more: {agreeing} of {len(judged)} cases agree within "
                f"{100 * limit:g} %; half within {100 * middle:.2f} %, all within {100 * worst:.2f} %"
            )
    short = [abs(a.change) for a in found if not a.judged]
    if short:
        lines.append(f"{len(short)} shorter cases, not judged: half within {100 * median(short):.2f} %")
    return lines

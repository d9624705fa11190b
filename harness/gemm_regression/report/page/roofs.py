"""The roofs of a GPU as a report shows them: their names, the lines of a roofline, what is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gemm_regression.model import Case
from gemm_regression.timing.bounds import Level, Roofs

MEMORIES = {"dram": "DRAM", "l2": "L2", "shared": "shared memory"}
LEVELS = MEMORIES | {Level.ISSUE: "issue", Level.MATH: "math"}


class Measured(NamedTuple):
    """A roof as measured: ``rate`` in GFLOPS or GB/s (``unit``) at ``mhz``, and the datasheet's arithmetic at
    that clock; None if unknown."""

    name: str
    rate: float
    unit: str
    mhz: float | None
    arithmetic: float | None

    @property
    def share(self) -> float | None:
        """The measured rate as a share of the arithmetic."""
        return self.rate / self.arithmetic if self.arithmetic else None


def measured(machine: Mapping[str, Any]) -> list[Measured]:
    """The roofs that a run has measured; empty if it has none."""
    found = []
    for name, values in dict(machine.get("roofs") or {}).items():
        for unit, key in (("GFLOPS", "gflops"), ("GB/s", "gbps")):
            if rate := values.get(key):
                title = MEMORIES.get(str(name), str(name))
                found.append(Measured(title, rate, unit, values.get("mhz"), values.get("arithmetic")))
    return found


def latencies(machine: Mapping[str, Any]) -> dict[str, float]:
    """Cycles from one dependent step to the next, by what is waited for; empty if they were not measured."""
    cycles = (machine.get("roofs") or {}).get("cycles", {})
    return {MEMORIES.get(name, {"l1": "L1", "fma": "FMA"}.get(name, name)): n for name, n in cycles.items()}


def dram_share(roofs: Roofs, case: Case, gflops: float | None) -> float | None:
    """The bandwidth that the compulsory bytes alone need at this speed, as a share of DRAM's; None if either
    is unknown, and where arithmetic is the lower roof, by FLOP per compulsory byte."""
    peak, dram = roofs.peak(case.dtype.name), roofs.bandwidths.get("dram")
    intensity = case.flop / max(1, case.kernel.operation.compulsory_bytes(case.problem, case.dtype))
    if gflops is None or not peak or not dram or intensity * dram > peak:
        return None
    return gflops / (intensity * dram)


def lines(
    roofs: Roofs, dtypes: Iterable[str], left: float = 0.1, right: float = 1500.0
) -> list[dict[str, Any]]:
    """The points of the roofs of each dtype from ``left`` to ``right`` FLOP per byte: GFLOPS = GB/s · FLOP/B
    up to the peak. ``level``: whether it is the peak."""
    points = []
    for dtype in dtypes:
        peak = roofs.peak(dtype)
        if peak is None:
            continue
        ends = [
            (f"{MEMORIES[memory]} {rate:,.0f} GB/s", rate, peak / rate)
            for memory, rate in roofs.bandwidths.items()
        ]
        for roof, rate, ridge in ends:
            start = min(left, ridge / 2)
            points += [_point(dtype, roof, x, x * rate, level=False) for x in (start, ridge)]
        top = f"{dtype} {peak / 1000:,.1f} TFLOPS"
        first = min((ridge for _, _, ridge in ends), default=left)
        points += [_point(dtype, top, x, peak, level=True) for x in (first, right)]
    return points


def _point(dtype: str, roof: str, x: float, y: float, level: bool) -> dict[str, Any]:
    return {"dtype": dtype, "roof": roof, "x": round(x, 4), "y": round(y, 2), "level": level}

"""The roofs of a roofline: GFLOPS by dtype, and GB/s of the memories.

Those that a run has measured (``roofs`` in its ``machine_info``) come first; else the datasheet's, dense, of
the GPU. Sources: NVIDIA's datasheets of the H100 (SXM), H200 and A100 Tensor Core GPUs. The FP32 peak of the
first two is 132 SMs · 128 FMA · 2 · 1.98 GHz.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from harness.model import Case

_HOPPER = {"f32": 66_900.0, "tf32": 494_700.0, "f16": 989_400.0, "bf16": 989_400.0, "s8": 1_978_900.0}
_AMPERE = {"f32": 19_500.0, "tf32": 156_000.0, "f16": 312_000.0, "bf16": 312_000.0, "s8": 624_000.0}
_DATASHEETS = {
    "NVIDIA H200": _HOPPER | {"dram": 4800.0},
    "NVIDIA H100 80GB HBM3": _HOPPER | {"dram": 3350.0},
    "NVIDIA A100-SXM4-80GB": _AMPERE | {"dram": 2039.0},
    "NVIDIA A100-SXM4-40GB": _AMPERE | {"dram": 1555.0},
}
_MEMORIES = {"dram": "DRAM", "l2": "L2", "shared": "shared memory"}


class Roofs(NamedTuple):
    """``peaks``: GFLOPS by dtype; ``bandwidths``: GB/s by memory; ``origin``: where they are from."""

    peaks: Mapping[str, float]
    bandwidths: Mapping[str, float]
    origin: str


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
                title = _MEMORIES.get(str(name), str(name))
                found.append(Measured(title, rate, unit, values.get("mhz"), values.get("arithmetic")))
    return found


def latencies(machine: Mapping[str, Any]) -> dict[str, float]:
    """Cycles from one dependent step to the next, by what is waited for; empty if they were not measured."""
    cycles = (machine.get("roofs") or {}).get("cycles", {})
    return {_MEMORIES.get(name, {"l1": "L1", "fma": "FMA"}.get(name, name)): n for name, n in cycles.items()}


def roofs_of(machine: Mapping[str, Any]) -> Roofs | None:
    """The roofs of a GPU by the machine_info of a file; None for an unknown GPU that measured none."""
    if own := measured(machine):
        peaks = {one.name: one.rate for one in own if one.unit == "GFLOPS"}
        return Roofs(peaks, {one.name: one.rate for one in own if one.unit == "GB/s"}, "measured")
    values = _DATASHEETS.get(str(machine.get("name")))
    if not values:
        return None
    peaks = {name: value for name, value in values.items() if name not in _MEMORIES}
    return Roofs(peaks, {_MEMORIES[n]: v for n, v in values.items() if n in _MEMORIES}, "datasheet")


def nearest(roofs: Roofs, dtype: str, gflops: float, intensity: float | None) -> tuple[str, float] | None:
    """The roof that a case comes nearest to, ``math`` or ``DRAM``, and its GFLOPS as a share of what that
    roof alone would allow, by FLOP per compulsory byte; None if neither is known."""
    reached = {}
    if peak := _peak(roofs, dtype):
        reached["math"] = gflops / peak
    if intensity and (dram := roofs.bandwidths.get("DRAM")):
        reached["DRAM"] = gflops / (intensity * dram)
    return max(reached.items(), key=lambda one: one[1], default=None)


def dram_share(roofs: Roofs, case: Case, gflops: float | None) -> float | None:
    """The bandwidth that the compulsory bytes alone need at this speed, as a share of DRAM's; None if either
    is unknown, and where arithmetic is the lower roof, by FLOP per compulsory byte."""
    peak, dram = _peak(roofs, case.dtype.name), roofs.bandwidths.get("DRAM")
    intensity = case.flop / max(1, case.kernel.operation.compulsory_bytes(case.problem, case.dtype))
    if gflops is None or not peak or not dram or intensity * dram > peak:
        return None
    return gflops / (intensity * dram)


def _peak(roofs: Roofs, dtype: str) -> float | None:
    """The product decides, whatever the output is rounded to: ``f16_f16`` has the roof of ``f16``."""
    return roofs.peaks.get(dtype.partition("_")[0].removesuffix("acc16"))


def lines(
    roofs: Roofs, dtypes: Iterable[str], left: float = 0.2, right: float = 1500.0
) -> list[dict[str, Any]]:
    """The points of the roofs of each dtype from ``left`` to ``right`` FLOP per byte: GFLOPS = GB/s · FLOP/B
    up to the peak. ``level``: whether it is the peak."""
    points = []
    for dtype in dtypes:
        peak = _peak(roofs, dtype)
        if peak is None:
            continue
        ends = [
            (f"{memory} {rate:,.0f} GB/s", rate, peak / rate) for memory, rate in roofs.bandwidths.items()
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

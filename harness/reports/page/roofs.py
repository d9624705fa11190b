"""The roofs of a roofline: peak GFLOPS by dtype and GB/s of the device memory.

What a file measured itself (``machine_info["roofs"]``) comes first; else the datasheet's, dense, of the GPU.
Sources: NVIDIA H100 Tensor Core GPU datasheet (SXM and PCIe), NVIDIA H200 Tensor Core GPU datasheet, NVIDIA
A100 Tensor Core GPU datasheet. The FP32 peak of the first two is 132 SMs · 128 FMA · 2 · 1.98 GHz.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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


def roofs_of(machine: Mapping[str, Any]) -> Roofs | None:
    """The roofs of a GPU by the machine_info of a file; None for an unknown GPU that measured none."""
    measured = machine.get("roofs")
    values = measured or _DATASHEETS.get(str(machine.get("name")))
    if not values:
        return None
    return Roofs(
        {name: value for name, value in values.items() if name not in _MEMORIES},
        {_MEMORIES[name]: value for name, value in values.items() if name in _MEMORIES},
        "measured" if measured else "datasheet",
    )


def lines(roofs: Roofs, left: float = 0.2, right: float = 1500.0) -> list[dict[str, Any]]:
    """The points of the roofs of each dtype from ``left`` to ``right`` FLOP per byte: GFLOPS = GB/s · FLOP/B
    up to the peak. ``level``: whether it is the peak."""
    points = []
    for dtype, peak in roofs.peaks.items():
        ends = [
            (f"{memory} {rate:,.0f} GB/s", rate, peak / rate) for memory, rate in roofs.bandwidths.items()
        ]
        for roof, rate, ridge in ends:
            points += [_point(dtype, roof, x, x * rate, level=False) for x in (left, ridge)]
        top = f"{dtype} {peak / 1000:,.1f} TFLOPS"
        first = min((ridge for _, _, ridge in ends), default=left)
        points += [_point(dtype, top, x, peak, level=True) for x in (first, right)]
    return points


def _point(dtype: str, roof: str, x: float, y: float, level: bool) -> dict[str, Any]:
    return {"dtype": dtype, "roof": roof, "x": round(x, 4), "y": round(y, 2), "level": level}

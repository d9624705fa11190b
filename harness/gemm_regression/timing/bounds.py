"""The peak rates of a GPU (the roofs of a roofline), and which of them bounds a kernel. Pure.

The roofline model (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
2009) asks how long a kernel's work takes at least: FLOP at the peak, bytes at the bandwidth of DRAM. The
hierarchical roofline (Yang, Kurth and Williams, "Hierarchical roofline analysis for GPUs", 2020) asks the
same of each memory, and Ding and Williams ("An instruction roofline model for GPUs", 2019) of the issue of
instructions. The level that takes longest is the bound; its share of the measured time says how near it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from gemm_regression.model.gpus import MODELS, architecture

THREADS = 256  # of a block of the probes of arithmetic and of shared memory
SHARED_BYTES = 128  # per SM and cycle: 32 banks of 4


def probe_work(rounds: int) -> Mapping[str, int]:
    """FLOP, or for "shared" bytes, of one block in so many rounds."""
    tensor = 2 * 128 * 256 * rounds
    return {
        "f32": 2 * 16 * 16 * THREADS * rounds,
        "f16": tensor * 64,
        "bf16": tensor * 64,
        "tf32": tensor * 32,
        "shared": 16 * 16 * THREADS * rounds,
    }


def arithmetic(capability: tuple[int, int], sms: int, bus: float, hz: float) -> Mapping[str, float]:
    """FLOP, and for memories bytes, per second at an SM clock in Hz. ``bus``: bytes per second of the
    memory's pins."""
    known = architecture(capability)
    found = {"f32": known.fma * sms * hz, "shared": SHARED_BYTES * sms * hz, "dram": bus}
    if known.tensor:
        rate = known.tensor * sms * hz
        found |= {"f16": rate, "bf16": rate, "tf32": rate / 2}
    return found


def sms_of(machine: Mapping[str, Any]) -> int | None:
    """The number of SMs by the roof of FP32 in a run's machine_info, else of a known model."""
    model = MODELS.get(str(machine.get("name")))
    roof = (machine.get("roofs") or {}).get("f32", {})
    if not (roof.get("arithmetic") and roof.get("mhz")):
        return model.sms if model else None
    major, minor = map(int, str(machine["capability"]).split("."))
    rate = architecture((major, minor)).fma * float(roof["mhz"])
    return round(1e3 * float(roof["arithmetic"]) / rate)


_MEMORIES = ("dram", "l2", "shared")
_SCHEDULERS = 4  # of an SM since Volta; each issues at most one instruction of a warp per cycle
_MOSTLY_MATH = 0.75


class Level(StrEnum):
    """SHARED: L1 and shared memory, which have one data path. ISSUE: the slots of the schedulers."""

    DRAM = "dram"
    L2 = "l2"
    SHARED = "shared"
    ISSUE = "issue"
    MATH = "math"


class Roofs(NamedTuple):
    """``peaks``: GFLOPS by dtype; ``bandwidths``: GB/s by memory; ``origin``: where they are from; ``issue``:
    10⁹ instructions of warps per second, None if unknown."""

    peaks: Mapping[str, float]
    bandwidths: Mapping[str, float]
    origin: str
    issue: float | None = None

    def peak(self, dtype: str) -> float | None:
        """GFLOPS. The product decides, whatever the output is rounded to: ``f16_f16`` has the roof of
        ``f16``."""
        return self.peaks.get(dtype.partition("_")[0].removesuffix("acc16"))


class Workload(NamedTuple):
    """What a launch does: FLOP; bytes from and to DRAM, between L1 and L2, and on the data path of L1 and
    shared memory; and instructions of warps issued. None where it is not known. ``estimated``: from counts of
    a smaller problem."""

    flop: float
    dram: float | None = None
    l2: float | None = None
    shared: float | None = None
    issued: float | None = None
    estimated: bool = False


def roofs_of(machine: Mapping[str, Any]) -> Roofs | None:
    """The peak rates of a GPU by the machine_info of a file: those that its run measured, else the
    datasheet's;
    None for an unknown GPU that measured none."""
    if own := machine.get("roofs"):
        shared = own.get("shared", {}).get("arithmetic")
        return Roofs(
            {name: one["gflops"] for name, one in own.items() if "gflops" in one},
            {name: own[name]["gbps"] for name in _MEMORIES if own.get(name, {}).get("gbps")},
            "measured",
            _SCHEDULERS * shared / SHARED_BYTES if shared else None,
        )
    model = MODELS.get(str(machine.get("name")))
    return Roofs(model.peaks, {"dram": model.dram}, "datasheet") if model else None


def shares(work: Workload, roofs: Roofs, dtype: str, seconds: float) -> dict[Level, float]:
    """The least time that each level takes for the work, as a share of the measured seconds: amount / roof /
    seconds. Levels of which the amount or the roof is not known are missing.

    Estimated work may be too much: its shares end at 1. Roofs are used as measured, at the clock of their
    probes; a kernel under the power cap has a lower one, and reaches less of them.
    """
    asked = {
        Level.DRAM: (work.dram, roofs.bandwidths.get("dram")),
        Level.L2: (work.l2, roofs.bandwidths.get("l2")),
        Level.SHARED: (work.shared, roofs.bandwidths.get("shared")),
        Level.ISSUE: (work.issued, roofs.issue),
        Level.MATH: (work.flop, roofs.peak(dtype)),
    }
    most = 1.0 if work.estimated else inf
    return {
        level: min(most, amount / (1e9 * rate) / seconds)
        for level, (amount, rate) in asked.items()
        if amount is not None and rate
    }


def bound(found: Mapping[Level, float]) -> tuple[Level, float] | None:
    """The level that takes longest, with its share; None if nothing is known.

    On GPUs whose schedulers find FP32 units for a whole warp each cycle, every multiply-add takes a slot, so
    issue is never the smaller of the two: math is named where it takes three quarters of the slots that are
    used, and longer than any memory.
    """
    level = max(found, key=lambda one: found[one], default=None)
    if level is None:
        return None
    math = found.get(Level.MATH, 0.0)
    if level is Level.ISSUE and math >= _MOSTLY_MATH * found[level] and math == sorted(found.values())[-2]:
        return Level.MATH, math
    return level, found[level]

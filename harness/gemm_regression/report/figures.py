"""Number formats, the same everywhere; and what bounds a case, in a few columns."""

from __future__ import annotations

from gemm_regression.model import Case
from gemm_regression.timing.bounds import Level, Roofs, Workload, bound, shares


def gflops_text(gflops: float | None) -> str:
    """``8,838`` from 1000 up, at least three significant digits below."""
    if gflops is None:
        return "–"
    return f"{gflops:,.0f}" if gflops >= 1000 else f"{gflops:.1f}" if gflops >= 100 else f"{gflops:.2f}"


def percent_text(share: float | None, digits: int = 1) -> str:
    """A signed change: -0.031 is ``-3.1 %``, and what rounds to zero is ``+0.0 %``."""
    return "–" if share is None else f"{100 * share:+z.{digits}f} %"


def share_text(ratio: float | None) -> str:
    """A share, as of cuBLAS's speed, in percent: 0.903 is ``90.3``."""
    return "–" if ratio is None else f"{100 * ratio:.1f}"


def count_text(number: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def noise_text(floor: float | None) -> str:
    """A noise floor: 0.0003 is ``0.03 %``."""
    return "–" if floor is None else f"{100 * floor:.2f} %"


_SHORT = {
    Level.DRAM: "DRAM",
    Level.L2: "L2",
    Level.SHARED: "smem",
    Level.ISSUE: "issue",
    Level.MATH: "math",
}


def bound_text(work: Workload, roofs: Roofs, dtype: str, gflops: float | None) -> str:
    """``smem 84``: the work takes 84 % of the measured time at the rate of L1 and shared memory; ``~`` before
    it where the traffic is estimated from a smaller problem. Empty if nothing is known."""
    found = bound(shares(work, roofs, dtype, work.flop / (1e9 * gflops))) if gflops else None
    return f"{'~' if work.estimated else ''}{_SHORT[found[0]]} {100 * found[1]:.0f}" if found else ""


def dram_share(roofs: Roofs, case: Case, gflops: float | None) -> float | None:
    """The bandwidth that the compulsory bytes alone need at this speed, as a share of DRAM's; None if either
    is unknown, and where arithmetic is the lower roof, by FLOP per compulsory byte."""
    peak, dram = roofs.peak(case.dtype.name), roofs.bandwidths.get("dram")
    intensity = case.flop / max(1, case.kernel.operation.compulsory_bytes(case.problem, case.dtype))
    if gflops is None or not peak or not dram or intensity * dram > peak:
        return None
    return gflops / (intensity * dram)

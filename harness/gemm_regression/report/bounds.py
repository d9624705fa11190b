"""What bounds a case, in a few columns."""

from __future__ import annotations

from gemm_regression.timing.bounds import Level, Roofs, Workload, bound, shares

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

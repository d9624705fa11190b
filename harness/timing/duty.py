"""Short bursts with rests between them, for kernels that would otherwise reach the power cap. Pure.

On an H200 the cap takes effect some 40 ms after a large tensor-core product starts; a burst is half of that.
"""

from __future__ import annotations

BURST_SECONDS = 0.02


def burst(wanted: int, one: float, duty: float) -> int:
    """How many of ``wanted`` launches, of ``one`` seconds each, fit into a burst; at least one."""
    return wanted if duty >= 1 else max(1, min(wanted, int(BURST_SECONDS / max(one, 1e-9))))


def rest(busy: float, duty: float) -> float:
    """Seconds to rest after ``busy`` seconds, so that the GPU is busy for a fraction ``duty`` of the time."""
    return busy * (1 / duty - 1)

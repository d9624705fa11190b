"""The SM clock during each timed launch, from stamps that a tiny kernel records between them. Pure.

NVML does not show it: on an H200 a large FP16 product runs at 1575 MHz from its first launch, and at 1320
once the power cap takes effect, some 40 ms later, while NVML still reads 1980. A stamp is (SM cycles,
nanoseconds, SM number); two stamps of the same SM give its clock between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WINDOW_NS = 1_000_000  # the nanosecond timer is coarse: over a millisecond its tick is below 0.1 %
TOLERANCE = 0.01  # rounds within this of one clock ran at the same clock
CLUSTER = 5  # so many rounds, and a fifth of all, at one clock are not just the first milliseconds


def steady(mhz: list[float], tolerance: float = TOLERANCE) -> list[int]:
    """Indices of the rounds at full clock: the highest clock shared within ``tolerance`` by CLUSTER rounds
    and a fifth of all, or else the highest of all. Rounds with unknown clock (NaN) are kept."""
    known = sorted((m for m in mhz if m == m), reverse=True)
    cluster = max(CLUSTER, len(known) // 5)
    shared = (k for k, low in zip(known, known[cluster - 1 :], strict=False) if low >= k * (1 - tolerance))
    full = next(shared, known[0] if known else 0.0)
    return [i for i, m in enumerate(mhz) if not abs(m - full) > full * tolerance]


def clocks(stamps: np.ndarray[Any, Any], window_ns: int = WINDOW_NS) -> list[float]:
    """The clock in MHz between consecutive stamps (rows of an (n + 1, 3) integer array): n values.

    Each is computed over a window of stamps that spans at least ``window_ns``, if there are enough; NaN if
    the stamps of a window came from different SMs."""
    cycles, times, sms = (stamps[:, i].astype(np.int64) for i in range(3))
    found = []
    for i in range(len(stamps) - 1):
        first, last = i, i + 1
        while times[last] - times[first] < window_ns and (first > 0 or last < len(stamps) - 1):
            first, last = max(0, first - 1), min(len(stamps) - 1, last + 1)
        span = int(times[last] - times[first])
        if span <= 0 or sms[first] != sms[last]:
            found.append(float("nan"))
        else:
            found.append(float(cycles[last] - cycles[first]) / span * 1e3)
    return found

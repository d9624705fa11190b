"""What timing a case gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.model import Resources


@dataclass(frozen=True)
class Measurement:
    """A case timed in one process.

    Attributes:
        seconds: device seconds of each round.
        reference_seconds: those of the library on the same problem, interleaved; may be empty.
        resources: of the binary; None of a library.
        sm_clock_mhz: median of ``mhz``; 0 where it was not seen.
        power_w, temperature_c: the most that NVML saw, in W and °C.
        clock_event_reasons: NVML's bits, or-ed over the rounds.
        discarded: rounds thrown away for a throttled clock.
        throttled: whether retries did not give enough clean ones.
        l2: ``cold`` or ``warm``, as in Plan.
        duty: the share of the time that the GPU was kept busy, at most.
        mhz: the SM clock during each round, where it was seen.
        extra: further figures for the run's JSON, by name.
    """

    seconds: tuple[float, ...]
    reference_seconds: tuple[float, ...]
    resources: Resources | None
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    clock_event_reasons: int
    discarded: int
    throttled: bool
    l2: str = "cold"
    duty: float = 1.0
    mhz: tuple[float, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median seconds. Raises ValueError where no sample survived."""
        if not self.seconds:
            raise ValueError("no samples")
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range over the median, dimensionless."""
        q1, q3 = np.percentile(self.seconds, (25, 75))
        return float((q3 - q1) / self.median)

    @property
    def cublas_ratio(self) -> float | None:
        """Speed as a share of cuBLAS's in the same run; 1.0 is as fast."""
        if not self.reference_seconds:
            return None
        return float(np.median(self.reference_seconds)) / self.median

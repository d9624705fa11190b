"""The result of timing a case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemm_regression.model import Resources


@dataclass(frozen=True)
class Measurement:
    """A case timed in one process.

    Attributes:
        seconds: device seconds of each round.
        reference_seconds: those of the library for the same problem, interleaved; may be empty.
        resources: of the binary; None for a library.
        sm_clock_mhz: median of ``mhz``; 0 if unknown.
        power_w, temperature_c: the maxima reported by NVML, in W and °C.
        clock_event_reasons: NVML's bits, or-ed over the rounds.
        discarded: number of rounds discarded because of a throttled clock.
        throttled: whether retries did not give enough valid rounds.
        l2: ``cold`` or ``warm``, as in Plan.
        duty: the duty cycle: the maximum fraction of time the GPU was kept busy.
        mhz: the SM clock during each round, if known.
        extra: further values for the run's JSON, by name.
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
        """Median seconds. Raises ValueError without samples."""
        if not self.seconds:
            raise ValueError("no samples")
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median, dimensionless."""
        q1, q3 = np.percentile(self.seconds, (25, 75))
        return float((q3 - q1) / self.median)

    @property
    def cublas_ratio(self) -> float | None:
        """Speed relative to cuBLAS's in the same run; 1.0 is equally fast."""
        if not self.reference_seconds:
            return None
        return float(np.median(self.reference_seconds)) / self.median

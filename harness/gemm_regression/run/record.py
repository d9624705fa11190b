"""What a timed case leaves behind: its samples for pytest-benchmark, and its record in the run's JSON."""

from __future__ import annotations

from typing import Any

from gemm_regression.judge.evidence import recorded
from gemm_regression.model import Case
from gemm_regression.run.timed import Result
from gemm_regression.timing.measurement import Measurement


class SampleClock:
    """A timer for pytest-benchmark that replays device samples.

    ``benchmark.pedantic(clock.tick, rounds=len(samples))`` then records exactly those seconds: no host time
    is included, and nothing is calibrated.
    """

    __name__ = "device_clock"  # recorded in pytest-benchmark's JSON

    def __init__(self) -> None:
        self._now = 0.0
        self._samples: list[float] = []

    def load(self, samples: tuple[float, ...]) -> None:
        self._now, self._samples = 0.0, list(reversed(samples))

    def tick(self) -> None:
        # Starting at zero each time keeps microseconds exact, however many seconds have accumulated.
        self._now += self._samples.pop()

    def __call__(self) -> float:
        return self._now


def extra_info(result: Result) -> dict[str, Any]:
    """The record in the run's JSON: what was measured, the verdict, and the evidence to judge it again.

    pytest-benchmark stores the samples of usable cases; those of unusable ones, few or none, are in here.
    """
    m, v, case = result.measurement, result.verdict, result.case
    info: dict[str, Any] = {
        "case": case.id,
        "variant": case.listed.variant,
        **({"chosen": case.choice} if case.choice else {}),
        "flops": case.flop,
        "verdict": str(v.kind),
        "verdict_reason": v.reason,
        "red": v.failed(result.policy),
        "launch": str(case.launch),
        "evidence": recorded(result.evidence, result.policy),
    }
    if m is None or not result.usable:
        return info | {"seconds": list(m.seconds) if m else []}
    info |= {
        "gflops": case.gflops(m.median),
        "median_s": m.median,
        "spread": m.spread,
        "cublas_ratio": m.cublas_ratio,
        "sm_clock_mhz": m.sm_clock_mhz,
        "power_w": m.power_w,
        "temperature_c": m.temperature_c,
        "round_mhz": [round(mhz) if mhz == mhz else None for mhz in m.mhz],  # NaN where unknown
        "clock_event_reasons": m.clock_event_reasons,
        "discarded": m.discarded,
        "throttled": m.throttled,
        "l2": m.l2,
        "duty": m.duty,
        "change": v.change,
        "margin": v.margin,
        "flop_per_clock": _per_clock(case, m),
        **m.extra,
    }
    if m.resources is not None:
        info |= {
            "registers": m.resources.registers,
            "shared_bytes": m.resources.shared_bytes,
            "local_bytes": m.resources.local_bytes,
            "cubin_sha256": m.resources.cubin_sha256,
        }
    if "sustained_s" in m.extra:
        info["sustained_gflops"] = case.gflops(m.extra["sustained_s"])
    return info


def _per_clock(case: Case, m: Measurement) -> float | None:
    """FLOP per SM clock cycle of the whole GPU; None if the clock is unknown."""
    return case.flop / (m.median * m.sm_clock_mhz * 1e6) if m.sm_clock_mhz else None

"""From a timed case to a verdict: measure, judge, confirm a suspicion in a fresh worker, record.

Knows neither pytest nor CUDA: a device that can `time`, a baseline, a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from harness.baselines import Baseline
from harness.devices import DeviceError
from harness.judge import Policy, Verdict, VerdictKind, confirm, judge
from harness.model import Case, Measurement


class TimingDevice(Protocol):
    """A device with a clock."""

    def time(self, case: Case, plan: Any) -> Measurement: ...

    def restart(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """``measurement`` is what the verdict rests on: of a confirmed suspicion, the confirming one."""

    case: Case
    verdict: Verdict
    measurement: Measurement | None = None
    first_median: float | None = None

    @property
    def cublas_ratio(self) -> float | None:
        return self.measurement.cublas_ratio if self.measurement and self.usable else None

    @property
    def usable(self) -> bool:
        """Whether there are samples, enough of them and each a duration."""
        return self.measurement is not None and self.verdict.gflops is not None


class SampleClock:
    """A timer for pytest-benchmark that replays device samples.

    ``benchmark.pedantic(clock.tick, rounds=len(samples))`` then records exactly those seconds: no host
    time gets in, and nothing is calibrated.
    """

    __name__ = "device_clock"  # what pytest-benchmark writes into its JSON

    def __init__(self) -> None:
        self._now = 0.0
        self._samples: list[float] = []

    def load(self, samples: tuple[float, ...]) -> None:
        self._now, self._samples = 0.0, list(reversed(samples))

    def tick(self) -> None:
        # Starting again at zero keeps microseconds exact however many seconds went before.
        self._now += self._samples.pop()

    def __call__(self) -> float:
        return self._now


def run(device: TimingDevice, case: Case, baseline: Baseline | None, policy: Policy, plan: Any) -> Result:
    """Times and judges one case; what the device cannot do becomes a verdict, never an exception."""
    try:
        measurement = device.time(case, plan)
        entry = baseline.entry(case.id) if baseline else None
        verdict = judge(case, measurement, entry, policy, stored=baseline is not None)
        if verdict.kind is not VerdictKind.REGRESSED or entry is None:
            return Result(case, verdict, measurement)
        # One process can be unlucky (memory layout, a neighbour's burst); two in a row are not.
        device.restart()
        second = device.time(case, plan)
        return Result(case, confirm(case, verdict, second, entry, policy), second, measurement.median)
    except DeviceError as error:
        if error.code == "WRONG":
            return Result(case, Verdict(VerdictKind.WRONG, "OUTPUT", message=str(error)))
        return Result(case, Verdict(VerdictKind.CRASHED, error.code, message=str(error)))


def extra_info(result: Result) -> dict[str, Any]:
    """What goes into pytest-benchmark's JSON beside the samples. Raises ValueError without a measurement."""
    m, v, case = result.measurement, result.verdict, result.case
    if m is None:
        raise ValueError(f"{case.id} was not measured")
    info: dict[str, Any] = {
        "case": case.id,
        "variant": case.variant,
        "flops": case.problem.flops,
        "gflops": case.problem.gflops(m.median),
        "median_s": m.median,
        "spread": m.spread,
        "cublas_ratio": m.cublas_ratio,
        "sm_clock_mhz": m.sm_clock_mhz,
        "power_w": m.power_w,
        "temperature_c": m.temperature_c,
        "clock_event_reasons": m.clock_event_reasons,
        "discarded": m.discarded,
        "throttled": m.throttled,
        "l2": m.l2,
        "verdict": str(v.kind),
        "verdict_reason": v.reason,
        "change": v.change,
        "threshold": v.threshold,
        "noise_floor": v.noise_floor,
        **m.extra,
    }
    if m.resources is not None:
        info |= {
            "registers": m.resources.registers,
            "shared_bytes": m.resources.shared_bytes,
            "local_bytes": m.resources.local_bytes,
            "cubin_sha256": m.resources.cubin_sha256,
        }
    if result.first_median is not None:
        info["first_median_s"] = result.first_median
    return info

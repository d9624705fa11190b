"""From a timed case to a verdict: measure, judge, confirm a suspected regression in a new process, record.

Knows neither pytest nor CUDA, only a device that can `time`, a baseline and a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness.baselines import Baseline, BaselineEntry
from harness.devices import DeviceError, TimingDevice
from harness.model import Case
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.verdicts.drift import differences
from harness.verdicts.evidence import Evidence, conclude, confirmed, recorded
from harness.verdicts.judge import CONFIRMED
from harness.verdicts.paired import Paired
from harness.verdicts.vocabulary import Observation, Policy, Verdict, VerdictKind


class PairsWithBaseline(Protocol):
    """Times a case side by side with the commit of its baseline."""

    def __call__(self, case: Case, entry: BaselineEntry, threshold: float) -> Paired: ...


@dataclass(frozen=True)
class Result:
    """A case, its verdict and what that is based on.

    Attributes:
        case: the case.
        verdict: its verdict.
        evidence: everything the verdict is based on.
        policy: the run's policy for this kernel.
        measurement: the last one (if a regression was suspected, the repetition); None if the device failed.
    """

    case: Case
    verdict: Verdict
    evidence: Evidence = field(default_factory=Evidence)
    policy: Policy = field(default_factory=Policy)
    measurement: Measurement | None = None

    @property
    def first_median(self) -> float | None:
        """Median seconds of the first measurement, if a new process repeated it."""
        e = self.evidence
        return e.first.median if e.first and e.second and e.first.seconds else None

    @property
    def cublas_ratio(self) -> float | None:
        return self.measurement.cublas_ratio if self.measurement and self.usable else None

    @property
    def usable(self) -> bool:
        """Whether there are enough samples, all of them valid durations."""
        return self.measurement is not None and self.verdict.gflops is not None


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


def run(
    device: TimingDevice,
    case: Case,
    baseline: Baseline | None,
    policy: Policy,
    plan: Plan,
    now: Callable[[], Mapping[str, Any]] = dict,
    against: PairsWithBaseline | None = None,
    busy: Callable[[], Sequence[str]] = tuple,
    says: Callable[[str], None] = lambda what: None,
) -> Result:
    """Times and judges one case; a failure of the device becomes a verdict, not an exception.

    A suspected regression is measured again in a new process, and if confirmed, ``against`` compares it with
    the baseline's commit. ``now`` returns this run's machine_info, to report what has changed; ``busy`` lists
    other GPU processes; ``says`` is told what is done again.
    """
    entry = baseline.entry(case.id) if baseline else None
    reference = entry.reference if entry else None
    policy = policy.of_kernel(case.kernel.threshold)
    evidence = Evidence(reference=reference, stored=baseline is not None)
    try:
        m = device.time(case, plan)
        evidence = replace(evidence, first=observation(case, m), others=tuple(busy()))
        verdict = conclude(evidence, policy)
        if verdict.kind is not VerdictKind.REGRESSED or not (baseline and entry and reference):
            return Result(case, verdict, evidence, policy, m)
        # One process can be unlucky (memory layout, another process's burst); two in a row are unlikely to
        # be.
        says(f"{case.id} again, in a new process")
        device.restart()
        m = device.time(case, plan)
        second = observation(case, m)
        unlike = differences(baseline.machine_of(entry), reference, now(), second)
        evidence = replace(evidence, second=second, differences=unlike)
        verdict = confirmed(evidence, policy)
        if verdict.reason == CONFIRMED and against and verdict.threshold is not None:
            says(f"{case.id} side by side with its baseline's commit")
            evidence = replace(evidence, paired=against(case, entry, verdict.threshold))
        evidence = replace(evidence, others=tuple(busy()))
        return Result(case, conclude(evidence, policy), evidence, policy, m)
    except DeviceError as error:
        evidence = replace(evidence, error=(error.code, str(error)))
        return Result(case, conclude(evidence, policy), evidence, policy)


def run_all(
    device: TimingDevice,
    cases: Iterable[Case],
    done: Callable[[Result], None],
    baseline: Baseline | None,
    policy: Policy,
    plan: Plan,
    now: Callable[[], Mapping[str, Any]] = dict,
    against: PairsWithBaseline | None = None,
    busy: Callable[[], Sequence[str]] = tuple,
    says: Callable[[str], None] = lambda what: None,
) -> None:
    """`run` for every case of one device. A case is taken from ``cases`` when the device is free for it, so
    that several devices can share them; ``done`` is told each result, maybe later and in another order."""
    for case in cases:
        done(run(device, case, baseline, policy, plan, now, against, busy, says))


def observation(case: Case, m: Measurement) -> Observation:
    """The part of a measurement that the judge uses."""
    return Observation(
        case_id=case.id,
        flop=case.flop,
        seconds=m.seconds,
        launch=str(case.launch),
        library=case.kernel.library,
        sm_clock_mhz=m.sm_clock_mhz,
        power_w=m.power_w,
        temperature_c=m.temperature_c,
        clock_event_reasons=m.clock_event_reasons,
        throttled=m.throttled,
        l2=m.l2,
        duty=m.duty,
        cubin_sha256=m.resources.cubin_sha256 if m.resources else None,
        reference_seconds=m.reference_seconds,
    )


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
        "flop_per_clock": _per_clock(case, m),
        "change_per_clock": v.per_clock,
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
    if "sustained_s" in m.extra:
        info["sustained_gflops"] = case.gflops(m.extra["sustained_s"])
    return info


def _per_clock(case: Case, m: Measurement) -> float | None:
    """FLOP per SM clock cycle of the whole GPU; None if the clock is unknown."""
    return case.flop / (m.median * m.sm_clock_mhz * 1e6) if m.sm_clock_mhz else None

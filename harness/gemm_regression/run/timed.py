"""From timed cases to verdicts, and to their records in the run's JSON: time what is the baseline's,
pair what has changed.

Knows neither pytest nor CUDA, only a device that can `time` and `pair`, a baseline and a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gemm_regression.baselines import Baseline, BaselineEntry, BaselineError
from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.judge.evidence import MIN_SAMPLES, Evidence, conclude, is_baselines, recorded, unusable
from gemm_regression.judge.paired import BINARY_NOT_KEPT, Paired
from gemm_regression.judge.vocabulary import Observation, Policy, Reference, Verdict
from gemm_regression.model import Case, Problem, Resources
from gemm_regression.run.pairing import Pair, Pairing, Timed
from gemm_regression.timing.plan import Measurement, Plan
from gemm_regression.timing.samples import PairedSamples

Kept = Callable[[BaselineEntry], StoredBinary]  # raises BaselineError


@dataclass(frozen=True)
class Result:
    """A case, its verdict and what that is based on.

    Attributes:
        case: the case.
        verdict: its verdict.
        evidence: everything the verdict is based on.
        policy: the run's policy.
        measurement: of a pair, the new side's; None if nothing was timed.
    """

    case: Case
    verdict: Verdict
    evidence: Evidence = field(default_factory=Evidence)
    policy: Policy = field(default_factory=Policy)
    measurement: Measurement | None = None

    @property
    def cublas_ratio(self) -> float | None:
        return self.measurement.cublas_ratio if self.measurement and self.usable else None

    @property
    def usable(self) -> bool:
        """Whether there are enough samples, all of them valid durations."""
        return self.measurement is not None and self.verdict.gflops is not None


@dataclass
class Gate:
    """What the cases of a run are judged by, on one device.

    Attributes:
        device: times and pairs.
        baseline: None without one, or where nothing is to be judged.
        kept: the binary of an entry.
        policy, plan: how strict, and how cases are timed.
        pairing: times the pairs.
        visited: is told, after each case, to look for other processes on the GPU.
        says: is told what is done while results are waited for.
    """

    device: Gpu
    baseline: Baseline | None
    kept: Kept
    policy: Policy
    plan: Plan
    pairing: Pairing
    visited: Callable[[], None] = lambda: None
    says: Callable[[str], None] = lambda what: None

    def run(self, cases: Iterable[Case], done: Callable[[Result], None]) -> None:
        """Judges cases; a failure of the device becomes a verdict, not an exception.

        A case is taken from ``cases`` when the device is free for it, so that several devices can share
        them; one that was chosen, and was measured before under its own name, has that measurement. ``done``
        is told each result, those of pairs at the end.
        """
        measured: dict[tuple[str, Problem], Measurement] = {}
        paired: dict[str, list[tuple[Case, Reference, StoredBinary]]] = {}
        same: dict[object, str] = {}
        for case in cases:
            entry = self.baseline.entry(case.id) if self.baseline else None
            reference = entry.reference if entry else None
            try:
                mine = self.device.binary(case)
                if entry is None or reference is None or not _changed(case, mine, reference):
                    self.says(case.id)
                    place = case.variant, case.problem
                    m = measured.get(place) if case.chosen_for else None
                    m = measured[place] = m or self.device.time(case, self.plan)
                    self.visited()
                    done(self._result(case, reference, m, mine))
                    continue
                base = self.kept(entry)
            except DeviceError as error:
                done(self._concluded(case, Evidence(None, reference, error=(error.code, str(error)))))
                continue
            except BaselineError as error:
                nothing = Paired(*BINARY_NOT_KEPT, detail=str(error))
                done(self._concluded(case, Evidence(None, reference, paired=nothing)))
                continue
            assert mine is not None  # a library has not changed
            pair = self._pair(case, entry, base)
            key = base.key, mine.key, pair.margin
            if same.setdefault(key, case.id) != case.id:  # a choice, and what was chosen: timed once
                paired[same[key]].append((case, reference, mine))
                continue
            paired[case.id] = [(case, reference, mine)]
            self.says(f"{case.id} beside the baseline's binary")
            self.pairing.time(pair)
            self.visited()
        for timed in self.pairing.finish():
            for case, reference, mine in paired[timed.pair.case.id]:
                done(self._of_pair(case, reference, mine, timed))

    def _pair(self, case: Case, entry: BaselineEntry, base: StoredBinary) -> Pair:
        margin = self.policy.margin_of(entry.margin)
        core = core_of(case.kernel, case.config, case.dtype, arch(self.device.info.capability))
        return Pair(case, base, margin, core, entry.median_s, entry.commit)

    def _result(
        self, case: Case, reference: Reference | None, m: Measurement, mine: StoredBinary | None
    ) -> Result:
        seen = observation(case, m, mine)
        return self._concluded(case, Evidence(seen, reference, self.baseline is not None), m)

    def _of_pair(self, case: Case, reference: Reference, mine: StoredBinary, timed: Timed) -> Result:
        m = self._new_side(case, timed.samples) if timed.samples.blocks else None
        seen = observation(case, m, mine) if m else None
        return self._concluded(case, Evidence(seen, reference, paired=timed.paired), m)

    def _new_side(self, case: Case, samples: PairedSamples) -> Measurement:
        """What was timed of the new binary: alone, if that is enough, else beside the baseline's."""
        clocks = tuple(mhz for block in samples.blocks for mhz in block.b_mhz)
        beside = tuple(s for block in samples.blocks for s in block.b)
        return Measurement(
            seconds=samples.warm if len(samples.warm) >= MIN_SAMPLES else beside,
            reference_seconds=(),
            resources=self._resources(case),
            sm_clock_mhz=median([mhz for mhz in clocks if mhz == mhz] or [0.0]),
            power_w=0.0,
            temperature_c=0.0,
            clock_event_reasons=samples.reasons,
            discarded=samples.discarded,
            throttled=False,
            l2=self.plan.l2,
            duty=case.kernel.duty,
            extra={"gpu_seconds": round(samples.gpu_seconds, 4)},
        )

    def _resources(self, case: Case) -> Resources | None:
        """None if the device cannot tell any more, which says nothing of the pair."""
        try:
            return self.device.resources(case)
        except DeviceError:
            return None

    def _concluded(self, case: Case, e: Evidence, m: Measurement | None = None) -> Result:
        return Result(case, conclude(e, self.policy), e, self.policy, m)


def changed(device: Gpu, case: Case, baseline: Baseline | None) -> bool:
    """Whether a case is to be paired: its binary or its launch is not the baseline's."""
    entry = baseline.entry(case.id) if baseline else None
    try:
        return entry is not None and _changed(case, device.binary(case), entry.reference)
    except DeviceError:
        return False  # told when it is timed


def _changed(case: Case, mine: StoredBinary | None, reference: Reference) -> bool:
    return mine is not None and not is_baselines(_unmeasured(case, mine), reference)


def _unmeasured(case: Case, mine: StoredBinary) -> Observation:
    return Observation(
        case.id, case.flop, (), str(case.launch), cubin_sha256=mine.sha256, launch_id=mine.launch_id
    )


def observation(case: Case, m: Measurement, mine: StoredBinary | None = None) -> Observation:
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
        cubin_sha256=mine.sha256 if mine else None,
        launch_id=mine.launch_id if mine else "",
        choice=case.choice,
        reference_seconds=m.reference_seconds,
    )


def usable_shift(result: Result) -> bool:
    """Whether a case says something of the machine: the baseline's own binary, timed as the baseline was."""
    e = result.evidence
    if not (e.seen and e.reference) or e.paired or unusable(e.seen):
        return False
    alike = (e.seen.l2, e.seen.duty) == (e.reference.l2, e.reference.duty)
    return alike and is_baselines(e.seen, e.reference)


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

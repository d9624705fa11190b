"""From timed cases to verdicts: measure, judge, pair what has changed, confirm in a new process, record.

Knows neither pytest nor CUDA, only a device that can `time`, a baseline and a policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness.baselines import Baseline, BaselineEntry
from harness.devices import DeviceError, TimingDevice
from harness.gate.against import Wanted
from harness.model import Case, Problem
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.verdicts.drift import differences
from harness.verdicts.evidence import Evidence, conclude
from harness.verdicts.judge import HIGHER_CLOCK, is_baselines, judge
from harness.verdicts.paired import UNSETTLED, Paired
from harness.verdicts.vocabulary import Observation, Policy, Verdict, VerdictKind


class PairsWithBaseline(Protocol):
    """Times cases side by side with the commits of their baselines (`against.Against`)."""

    def pair(
        self, wanted: Sequence[Wanted], measured_seconds: float, step: Callable[[str], None] = ...
    ) -> dict[str, Paired]: ...


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
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Times and judges cases on one device; a failure of the device becomes a verdict, not an exception.

    A case is taken from ``cases`` when the device is free for it, so that several devices can share them; one
    that was chosen, and was measured before under its own name, has that measurement. ``done`` is told each
    result, maybe later and in another order. First every case is measured. Then those whose binary is not the
    baseline's are compared with the baseline's commit by ``against``, the most suspicious ones first; then
    what is slower than the baseline, and not than that commit, is measured again in a new process, the same
    for all of them: one process can be unlucky (memory layout, another process's burst), two in a row are
    unlikely to be.

    ``now`` returns this run's machine_info, to report what has changed; ``busy`` lists other GPU processes;
    ``says`` is told what is done while results are waited for.
    """
    began, left = clock(), list[_Judging]()
    measured: dict[tuple[str, Problem], _Judging] = {}
    for case in cases:
        entry = baseline.entry(case.id) if baseline else None
        judging = _Judging(case, entry, policy.of_kernel(case.kernel.threshold), baseline is not None)
        if left:
            says(f"{case.id}; {len(left)} to be compared or repeated afterwards")
        same = measured.get((case.variant, case.problem)) if case.chosen_for else None
        if same is None:
            judging.measure(device, plan)
        else:
            judging.take(same)
        judging.see(busy)
        if not judging.evidence.error:
            measured[case.variant, case.problem] = judging
        if judging.needs_more(against is not None):
            left.append(judging)
            if judging.to_confirm:
                device.ahead()
        else:
            done(judging.result)
    measured_seconds = clock() - began
    left.sort(key=_Judging.suspicion)
    if against and (changed := [each for each in left if each.changed]):
        says(f"compiling what {len(changed)} changed cases are compared with")
        wanted = [Wanted(e.case, e.stored, e.policy.pair_margin) for e in changed]
        pairs = against.pair(
            wanted, measured_seconds, lambda what: says(f"{what} side by side with its baseline's commit")
        )
        for each in changed:
            each.evidence = replace(each.evidence, paired=pairs.get(each.case.id))
    if again := [each for each in left if each.to_confirm]:
        device.restart()
        machine: Mapping[str, Any] = {}
        for each in again:
            says(f"{each.case.id} again, in a new process")
            each.measure(device, plan)
            machine = machine or now()
            each.compare_machines(baseline, machine)
    for each in left:
        each.see(busy)
        done(each.result)


@dataclass
class _Judging:
    """A case on the way to its verdict; ``policy`` is the one for its kernel."""

    case: Case
    entry: BaselineEntry | None
    policy: Policy
    has_baseline: bool
    evidence: Evidence = field(init=False)
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        reference = self.entry.reference if self.entry else None
        self.evidence = Evidence(reference=reference, stored=self.has_baseline)

    @property
    def stored(self) -> BaselineEntry:
        assert self.entry is not None  # what needs more has a baseline
        return self.entry

    @property
    def verdict(self) -> Verdict:
        return conclude(self.evidence, self.policy)

    @property
    def result(self) -> Result:
        failed = self.evidence.error is not None
        return Result(
            self.case, self.verdict, self.evidence, self.policy, None if failed else self.measurement
        )

    def measure(self, device: TimingDevice, plan: Plan) -> None:
        """The first time, or once more."""
        try:
            self.measurement = device.time(self.case, plan)
        except DeviceError as error:
            self.evidence = replace(self.evidence, error=(error.code, str(error)))
            return
        seen = observation(self.case, self.measurement)
        e = self.evidence
        self.evidence = replace(e, second=seen) if e.first else replace(e, first=seen)

    def take(self, same: _Judging) -> None:
        """The measurement of a case of the same binary on the same problem."""
        assert same.measurement is not None
        assert same.evidence.first is not None
        self.measurement = same.measurement
        first = replace(same.evidence.first, case_id=self.case.id)
        self.evidence = replace(self.evidence, first=first, others=same.evidence.others)

    def see(self, busy: Callable[[], Sequence[str]]) -> None:
        """Who else uses the GPU."""
        others = dict.fromkeys((*self.evidence.others, *busy()))
        self.evidence = replace(self.evidence, others=tuple(others))

    def compare_machines(self, baseline: Baseline | None, machine: Mapping[str, Any]) -> None:
        e = self.evidence
        if baseline and e.reference and e.second:
            unlike = differences(self.stored.machine, e.reference, machine, e.second)
            self.evidence = replace(e, differences=unlike)

    @property
    def changed(self) -> bool:
        """Whether the binary is not the baseline's, or is launched in another way."""
        e = self.evidence
        return bool(e.first and e.reference and not is_baselines(e.first, e.reference))

    def needs_more(self, can_pair: bool) -> bool:
        """Whether one measurement does not decide."""
        e, verdict = self.evidence, self.verdict
        if e.error or e.others or e.reference is None:
            return False
        if verdict.kind is VerdictKind.AMBIGUOUS and verdict.reason != HIGHER_CLOCK:
            return False
        return verdict.kind is VerdictKind.REGRESSED or (self.changed and can_pair)

    def suspicion(self) -> float:
        """The lower, the more suspicious: the change of the GFLOPS in thresholds."""
        verdict = self.verdict
        return (verdict.change or 0.0) / (verdict.threshold or 1.0)

    @property
    def to_confirm(self) -> bool:
        """Whether it is slower than the baseline, and the pair has not said that the code is."""
        e = self.evidence
        slower = judge(e.first, e.reference, self.policy).kind is VerdictKind.REGRESSED if e.first else False
        return slower and (e.paired is None or e.paired.outcome in UNSETTLED)


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
        choice=case.choice,
        reference_seconds=m.reference_seconds,
    )

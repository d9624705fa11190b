"""Samples and a baseline to a verdict. Pure: no file, no clock, no device.

A change is judged against max(min_change, noise_factor × noise floor): the noise floor comes from fresh
runs of one binary, since rounds of one process are not independent. What cannot be judged never passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pytest_benchmark.stats import Stats

from harness.model import Case
from harness.timing.measurement import Measurement

if TYPE_CHECKING:
    from harness.baselines import BaselineEntry

DEFAULT_MIN_CHANGE = 0.01
CONFIRMED = "SLOWER_CONFIRMED"  # the one reason that a pair with the baseline's commit may still settle
CLOCK_TOLERANCE = 0.01  # relative; on an H200 a case's clock differs by less from run to run
# NVML's hardware slowdown, software and hardware thermal slowdown and power brake: never part of normal work.
_HEAT = 0x008 | 0x020 | 0x040 | 0x080
# Noise floors beyond the threshold that a slowdown needs for both looks to find it in 95 % of runs: of normal
# medians, the 95 % quantile of (median of 5 - lesser of 2 others) / range of the 5, after E. Lord, "The use
# of range in place of standard deviation in the t-test", Biometrika 34, 1947.
_POWER_FACTOR = 1.23
MIN_SAMPLES = 5  # Fewer rounds than this have no median worth comparing.


class VerdictKind(StrEnum):
    """What a case came to; the reason code of the Verdict says why."""

    PASS = "PASS"
    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    AMBIGUOUS = "AMBIGUOUS"
    DRIFTED = "DRIFTED"
    NO_BASELINE = "NO_BASELINE"
    ORPHAN = "ORPHAN"
    WRONG = "WRONG"
    CRASHED = "CRASHED"


_FIELDS = ("min", "max", "mean", "median", "stddev", "iqr")


@dataclass(frozen=True)
class CompareFail:
    """A check of the user's own: ``field`` of the device seconds may grow by so much, in percent or seconds.

    Raises ValueError for an unknown field, and where not exactly one of the two is given.
    """

    field: str
    percent: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.field not in _FIELDS:
            raise ValueError(f"unknown field {self.field!r}; known: {', '.join(_FIELDS)}")
        if (self.percent is None) == (self.seconds is None):
            raise ValueError(f"{self.field}: give either a percentage or seconds")

    def failure(self, seconds: tuple[float, ...], stored: Mapping[str, Any]) -> str | None:
        """One line if these samples exceed the limit, else None. ``stored``: a baseline's ``stats``."""
        stats = Stats()  # type: ignore[no-untyped-call]
        stats.data = list(seconds)
        now, then = float(getattr(stats, self.field)), float(stored[self.field])
        if self.seconds is not None:
            if now - then > self.seconds:
                return f"{self.field} {now:.4g} s against {then:.4g} s, more than {self.seconds:g} s above"
        elif self.percent is not None and now > then * (1 + self.percent / 100):
            return f"{self.field} {now:.4g} s against {then:.4g} s, more than {self.percent:g} % above"
        return None


@dataclass(frozen=True)
class Policy:
    """How strict a run is. ``min_change`` None: the kernel's own threshold, or 1 %."""

    min_change: float | None = None
    noise_factor: float = 3.0
    allow_no_baseline: bool = False
    allow_orphans: bool = False
    fail_on_drift: bool = True
    compare_fail: tuple[CompareFail, ...] = ()

    def threshold(self, case: Case, noise_floor: float) -> float:
        """The relative change of GFLOPS beyond which this case is not the same any more.

        What the run asks for goes before what the kernel declares; the noise floor counts in any case.
        """
        least = next(
            value
            for value in (self.min_change, case.kernel.threshold, DEFAULT_MIN_CHANGE)
            if value is not None
        )
        return max(least, self.noise_factor * noise_floor)


def detectable(threshold: float, noise_floor: float) -> float:
    """The smallest slowdown that the gate finds with 95 % power, as a share of the GFLOPS.

    H. S. Bloom's minimum detectable effect ("Minimum detectable effects", Evaluation Review 19, 1995), with
    the noise floor as the measure of spread. A slowdown between threshold and this is found less often.
    """
    return threshold + _POWER_FACTOR * noise_floor


@dataclass(frozen=True)
class Verdict:
    """``reason`` is a stable code; ``change`` the relative change of GFLOPS (-0.03: 3 % slower) against
    the baseline, ``per_clock`` that of the work per SM clock where both clocks are known, ``threshold`` and
    ``noise_floor`` relative too; ``message`` one line."""

    kind: VerdictKind
    reason: str
    change: float | None = None
    per_clock: float | None = None
    threshold: float | None = None
    noise_floor: float | None = None
    gflops: float | None = None
    baseline_gflops: float | None = None
    message: str = ""

    @property
    def detectable(self) -> float | None:
        """The minimum detectable effect: `detectable` at this threshold and noise floor."""
        if self.threshold is None or self.noise_floor is None:
            return None
        return detectable(self.threshold, self.noise_floor)

    def failed(self, policy: Policy) -> bool:
        """Whether the case is red. Only what is known to be fine is green."""
        return not (
            self.kind in (VerdictKind.PASS, VerdictKind.IMPROVED)
            or (self.kind is VerdictKind.NO_BASELINE and policy.allow_no_baseline)
            or (self.kind is VerdictKind.ORPHAN and policy.allow_orphans)
            or (self.kind is VerdictKind.DRIFTED and not policy.fail_on_drift)
        )


def judge(
    case: Case, measurement: Measurement, entry: BaselineEntry | None, policy: Policy, *, stored: bool = True
) -> Verdict:
    """The verdict on one measurement. ``stored`` False: this GPU has no baseline file at all.

    REGRESSED is a suspicion here, which `confirm` settles with a measurement from a fresh worker.
    """
    seconds = measurement.seconds
    if any(not (0 < s < math.inf) for s in seconds):
        text = f"{case.id}: a sample of {min(seconds):g} s is no duration; the timer is broken"
        return Verdict(VerdictKind.AMBIGUOUS, "IMPOSSIBLE_SAMPLE", message=text)
    if len(seconds) < MIN_SAMPLES:
        text = f"{case.id}: {len(seconds)} clean rounds, {MIN_SAMPLES} are needed; run it again"
        return Verdict(VerdictKind.AMBIGUOUS, "TOO_FEW_SAMPLES", message=text)
    verdict = Verdict(VerdictKind.PASS, "WITHIN_THRESHOLD", gflops=case.problem.gflops(measurement.median))
    heat = measurement.clock_event_reasons & _HEAT
    if measurement.throttled or (heat and _clock(measurement, entry) in (None, "lower")):
        text = (
            f"{case.id}: the SM clock was throttled ({measurement.sm_clock_mhz:.0f} MHz, "
            f"{measurement.power_w:.0f} W, {measurement.temperature_c:.0f} °C, "
            f"clock-event reasons: {measurement.slowed_by}); let the GPU rest and run it again"
        )
        return replace(verdict, kind=VerdictKind.AMBIGUOUS, reason="THROTTLED", message=text)
    if entry is None:
        where, reason = (
            ("in the baseline", "NOT_IN_BASELINE") if stored else ("of this GPU", "NO_BASELINE_FILE")
        )
        text = f"{case.id}: nothing {where} to compare with; measure it: {_refresh(case)}"
        return replace(verdict, kind=VerdictKind.NO_BASELINE, reason=reason, message=text)
    return _compare(case, measurement, entry, policy, verdict)


def _compare(
    case: Case, measurement: Measurement, entry: BaselineEntry, policy: Policy, verdict: Verdict
) -> Verdict:
    if measurement.l2 != entry.l2:
        text = f"{case.id}: timed with L2 {measurement.l2}, the baseline with L2 {entry.l2}; time it alike"
        return replace(verdict, kind=VerdictKind.AMBIGUOUS, reason="OTHER_L2_POLICY", message=text)
    if measurement.duty != entry.duty:
        text = (
            f"{case.id}: timed at a duty cycle of {measurement.duty:g}, the baseline at {entry.duty:g}; "
            f"measure it anew: {_refresh(case)}"
        )
        return replace(verdict, kind=VerdictKind.AMBIGUOUS, reason="OTHER_DUTY_CYCLE", message=text)
    change = entry.median_s / measurement.median - 1
    threshold = policy.threshold(case, entry.noise_floor)
    per_clock = None
    if entry.sm_clock_mhz and measurement.sm_clock_mhz:
        per_clock = (1 + change) * entry.sm_clock_mhz / measurement.sm_clock_mhz - 1
    verdict = replace(
        verdict,
        change=change,
        per_clock=per_clock,
        threshold=threshold,
        noise_floor=entry.noise_floor,
        baseline_gflops=entry.gflops,
    )
    figures = _figures(case, verdict)
    if change < -threshold:
        text = f"{figures}; suspected. {_reproduce(case)}"
        return replace(verdict, kind=VerdictKind.REGRESSED, reason="SLOWER", message=text)
    for check in policy.compare_fail:
        if failure := check.failure(measurement.seconds, entry.stats):
            text = f"{figures}; {failure}. {_reproduce(case)}"
            return replace(verdict, kind=VerdictKind.REGRESSED, reason="COMPARE_FAIL", message=text)
    if _clock(measurement, entry) == "higher" and per_clock is not None and per_clock < -threshold:
        text = (
            f"{figures}; only because the SM clock is {measurement.sm_clock_mhz:.0f} MHz, not "
            f"{entry.sm_clock_mhz:.0f} as in the baseline. Restore it, or measure anew: {_refresh(case)}"
        )
        return replace(verdict, kind=VerdictKind.AMBIGUOUS, reason="HIGHER_CLOCK", message=text)
    if change > threshold:
        return replace(verdict, kind=VerdictKind.IMPROVED, reason="FASTER", message=figures)
    return replace(verdict, message=figures)


def _clock(m: Measurement, entry: BaselineEntry | None) -> str | None:
    """Where the SM clock is against the baseline's: lower, higher or alike; None where either is unknown."""
    if entry is None or not entry.sm_clock_mhz or not m.sm_clock_mhz:
        return None
    off = m.sm_clock_mhz / entry.sm_clock_mhz - 1
    return "alike" if abs(off) <= CLOCK_TOLERANCE else "lower" if off < 0 else "higher"


def broken(code: str, text: str) -> Verdict:
    """The verdict where the device gave up, by the code of its error: WRONG, or CRASHED for all else."""
    if code == "WRONG":
        return Verdict(VerdictKind.WRONG, "OUTPUT", message=text)
    return Verdict(VerdictKind.CRASHED, code, message=text)


def shared(case: Case, verdict: Verdict, others: Sequence[str]) -> Verdict:
    """The verdict where other processes were on the GPU: its times say nothing."""
    text = f"{case.id}: the GPU was shared with {'; '.join(others)}; stop that and run it again"
    return replace(verdict, kind=VerdictKind.AMBIGUOUS, reason="SHARED_GPU", message=text)


def unpaired(
    case: Case, confirmed: Verdict, m: Measurement, entry: BaselineEntry, decisive: Sequence[str]
) -> Verdict:
    """What a regression that a fresh worker confirmed comes to where no pair could tell code from machine.

    It stands where the machine is as it was. At a lower clock a compute-bound kernel takes as many cycles as
    before; one that takes more has regressed, and of one that takes fewer, as what waits for memory does,
    nothing can be said. ``decisive`` are settings that differ and may change the number of cycles.
    """
    per_clock, threshold = confirmed.per_clock, confirmed.threshold
    if _clock(m, entry) == "lower" and per_clock is not None and threshold is not None:
        where = f"at {m.sm_clock_mhz:.0f} MHz in place of {entry.sm_clock_mhz:.0f} ({m.slowed_by})"
        if abs(per_clock) <= threshold:
            text = f"{confirmed.message} Per clock it does as much as before: the clock is lower, {where}"
            return replace(confirmed, kind=VerdictKind.DRIFTED, reason="LOWER_CLOCK", message=text)
        if per_clock > threshold:
            text = f"{confirmed.message} It cannot be judged {where}: set the clock as it was"
            return replace(confirmed, kind=VerdictKind.AMBIGUOUS, reason="LOWER_CLOCK", message=text)
    if decisive:
        text = (
            f"{confirmed.message} Code or machine, which is not as it was ({', '.join(decisive)})? Fetch the "
            f"baseline's commit, to be paired with, or measure anew: {_refresh(case)}"
        )
        return replace(confirmed, kind=VerdictKind.AMBIGUOUS, reason="OTHER_SETTINGS", message=text)
    return confirmed


def confirm(
    case: Case,
    first: Verdict,
    second: Measurement,
    entry: BaselineEntry,
    policy: Policy,
    differences: Sequence[str] = (),
) -> Verdict:
    """What a suspected regression comes to once a fresh worker has measured it again.

    It stands only if both are beyond the threshold; where the binary is the baseline's to the byte and
    launched alike, or is a library's, no code of ours changed and it is DRIFTED. ``differences`` are what
    else is not as it was when the baseline was measured, a few words each.
    """
    again = judge(case, second, entry, policy)
    if again.kind is VerdictKind.AMBIGUOUS or again.reason == "COMPARE_FAIL":
        return again
    if again.kind is not VerdictKind.REGRESSED:
        text = f"{_figures(case, again)}; a first look at {percent_text(first.change)} was not confirmed"
        return replace(again, kind=VerdictKind.PASS, reason="NOT_CONFIRMED", message=text)
    same = (
        second.resources is not None
        and second.resources.cubin_sha256 == entry.cubin_sha256
        and entry.launch in (None, str(case.launch))
    )
    if case.kernel.library or same:
        reason, what = (
            ("LIBRARY_SLOWER", "no code of ours is in it")
            if case.kernel.library
            else ("SAME_BINARY_SLOWER", "the binary is the baseline's to the byte")
        )
        text = f"{_figures(case, again)}; twice, but {what}: {_drift(differences)}. {_reproduce(case)}"
        return replace(again, kind=VerdictKind.DRIFTED, reason=reason, message=text)
    text = f"{_figures(case, again)}; confirmed in a fresh worker. {_reproduce(case)}"
    return replace(again, reason=CONFIRMED, message=text)


@dataclass(frozen=True)
class Paired:
    """What came of timing a case side by side with the baseline's commit.

    ``kind`` SLOWER, SAME, FASTER or AMBIGUOUS against ±``delta``; IDENTICAL where both compile to one binary
    today; UNFIT, CRASHED or WRONG; IMPOSSIBLE where it could not be done. ``text`` one line of it.
    """

    kind: str
    text: str
    commit: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    delta: float | None = None


# What a regression that a fresh worker confirmed comes to by the pair; what is not here, it stays.
_SETTLED = {
    "SAME": (VerdictKind.DRIFTED, "BASE_AS_SLOW"),
    "FASTER": (VerdictKind.DRIFTED, "BASE_AS_SLOW"),
    "IDENTICAL": (VerdictKind.DRIFTED, "SAME_CODE_SLOWER"),
    "AMBIGUOUS": (VerdictKind.AMBIGUOUS, "PAIR_AMBIGUOUS"),
    "UNFIT": (VerdictKind.AMBIGUOUS, "MACHINE_UNFIT"),
    "CRASHED": (VerdictKind.CRASHED, "PAIR_CRASHED"),
    "WRONG": (VerdictKind.WRONG, "OUTPUT"),
    "SLOWER": (VerdictKind.REGRESSED, "SLOWER_PAIRED"),
}


def settle(case: Case, confirmed: Verdict, paired: Paired, differences: Sequence[str] = ()) -> Verdict:
    """What a regression that a fresh worker confirmed comes to beside the baseline's own commit.

    Only where that is faster here and now, too, has the code become slower.
    """
    kind, reason = _SETTLED.get(paired.kind, (confirmed.kind, confirmed.reason))
    text = f"{_figures(case, confirmed)}; confirmed in a fresh worker; {paired.text}"
    if kind is VerdictKind.DRIFTED:
        text += f": {_drift(differences)}"
    return replace(confirmed, kind=kind, reason=reason, message=f"{text}. {_reproduce(case)}")


def _drift(differences: Sequence[str]) -> str:
    """Where to look, when the code is not what changed."""
    if differences:
        return f"not as it was: {', '.join(differences)}"
    return "look at the launch, the driver, the clocks and the power limit"


def orphan(entry: BaselineEntry) -> Verdict:
    """The verdict on a baseline case that no longer runs."""
    text = f"{entry.case_id}: no longer in the suite; `python -m harness baseline prune` drops it"
    return Verdict(VerdictKind.ORPHAN, "NOT_RUN", baseline_gflops=entry.gflops, message=text)


def gflops_text(gflops: float | None) -> str:
    """``8,838`` from a thousand up, three significant digits or more below."""
    if gflops is None:
        return "–"
    return f"{gflops:,.0f}" if gflops >= 1000 else f"{gflops:.1f}" if gflops >= 100 else f"{gflops:.2f}"


def percent_text(share: float | None, digits: int = 1) -> str:
    """A signed change: -0.031 reads ``-3.1 %``."""
    return "–" if share is None else f"{100 * share:+.{digits}f} %"


def share_text(ratio: float | None) -> str:
    """A speed over cuBLAS's, in percent: 0.903 reads ``90.3``."""
    return "–" if ratio is None else f"{100 * ratio:.1f}"


def noise_text(floor: float | None) -> str:
    """A noise floor: 0.0003 reads ``0.03 %``."""
    return "–" if floor is None else f"{100 * floor:.2f} %"


def _figures(case: Case, v: Verdict) -> str:
    per_clock = "" if v.per_clock is None else f"per clock {percent_text(v.per_clock, 2)}; "
    return (
        f"{case.id}: {gflops_text(v.gflops)} GFLOPS against {gflops_text(v.baseline_gflops)} "
        f"({percent_text(v.change, 2)}; {per_clock}threshold {100 * (v.threshold or 0):.2g} %, "
        f"noise floor {100 * (v.noise_floor or 0):.2g} %)"
    )


def _select(case: Case) -> str:
    """A pytest -k expression that no other case id contains: an id may begin another's, never with ``]``."""
    return f"[{case.id}]"


def _refresh(case: Case) -> str:
    return f'nox -s baseline -- -k "{_select(case)}"'


def _reproduce(case: Case) -> str:
    return f'Reproduce: nox -s gpu -- -k "{_select(case)}"'

"""From an observation, a reference and a policy to a verdict. Pure: no file, no clock, no device, no wording.

A change is compared with max(min_change, noise_factor × noise floor), plus what boards of the model differ
by where another board measured the baseline. The noise floor comes from several
processes running the same binary, since rounds of one process are not independent. A case that cannot be
judged never passes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harness.verdicts.paired import FASTER, NO_PAIR, SAME_BINARY, UNDECIDED, WITHIN, Paired, settled
from harness.verdicts.vocabulary import (
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    Observation,
    Policy,
    Reference,
    Verdict,
    VerdictKind,
)

CONFIRMED = (
    "SLOWER_CONFIRMED"  # the one reason after which a paired comparison with the baseline's commit decides
)
WITHIN_THRESHOLD, HIGHER_CLOCK = "WITHIN_THRESHOLD", "HIGHER_CLOCK"
SAME_PER_CLOCK = "SAME_PER_CLOCK"
_NOT_SLOWER = (WITHIN, FASTER, SAME_BINARY)  # verdicts of pairs
_GREEN = (VerdictKind.PASS, VerdictKind.IMPROVED)
CLOCK_TOLERANCE = 0.01  # relative; the clock of a case varies less between runs on an H200
BOARDS_CLOCKS = 0.02  # relative; how far boards of a model lie apart that nothing holds back
# NVML's hardware slowdown, software and hardware thermal slowdown and power brake: never normal operation.
_HEAT = 0x008 | 0x020 | 0x040 | 0x080
_POWER_CAP = 0x004  # its software power cap
MIN_SAMPLES = 5  # fewer rounds give no meaningful median


def judge(o: Observation, reference: Reference | None, policy: Policy, *, stored: bool = True) -> Verdict:
    """The verdict on one measurement. ``stored`` False: this GPU has no baseline file at all.

    REGRESSED only means that a regression is suspected; `confirm` decides, with a measurement in a new
    process."""
    if any(not (0 < s < math.inf) for s in o.seconds):
        return Verdict(VerdictKind.AMBIGUOUS, "IMPOSSIBLE_SAMPLE")
    if len(o.seconds) < MIN_SAMPLES:
        return Verdict(VerdictKind.AMBIGUOUS, "TOO_FEW_SAMPLES")
    verdict = Verdict(VerdictKind.PASS, WITHIN_THRESHOLD, gflops=o.gflops)
    heat = o.clock_event_reasons & _HEAT
    if o.throttled or (heat and _clock(o, reference) in (None, "lower")):
        return verdict.to(VerdictKind.AMBIGUOUS, "THROTTLED")
    if reference is None:
        return verdict.to(VerdictKind.NO_BASELINE, NOT_IN_BASELINE if stored else NO_BASELINE_FILE)
    if o.l2 != reference.l2:
        return verdict.to(VerdictKind.AMBIGUOUS, "OTHER_L2_POLICY")
    if o.duty != reference.duty and o.choice == reference.choice:  # Two kernels have each its own.
        return verdict.to(VerdictKind.AMBIGUOUS, "OTHER_DUTY_CYCLE")
    return _compare(o, reference, policy, verdict)


def _compare(o: Observation, reference: Reference, policy: Policy, verdict: Verdict) -> Verdict:
    change = reference.median_s / o.median - 1
    of_seconds = policy.threshold(reference.noise_floor) + reference.board_spread
    threshold, floor, per_clock = of_seconds, reference.noise_floor, None
    if reference.sm_clock_mhz and o.sm_clock_mhz:
        per_clock = (1 + change) * reference.sm_clock_mhz / o.sm_clock_mhz - 1
    # How far boards differ is known in seconds, or not at all, and their clocks are part of it.
    elsewhere = reference.other_board or bool(reference.board_spread)
    per_cycle = per_clock is not None and steadier_in_cycles(reference) and not elsewhere
    if per_cycle and reference.cycle_noise_floor is not None:
        floor = reference.cycle_noise_floor
        threshold = policy.threshold(floor)
    verdict = replace(
        verdict,
        change=change,
        per_clock=per_clock,
        threshold=threshold,
        noise_floor=floor,
        board_spread=reference.board_spread,
        per_cycle=per_cycle,
        baseline_gflops=reference.gflops,
    )
    fewer = per_clock is not None and per_clock < -threshold  # work per clock cycle
    # More cycles at a higher clock may be no slower: that is told below.
    slower = change < -of_seconds or (per_cycle and fewer and change < 0)
    # The clock alone is the machine's, unless another binary may have lowered it by drawing more power.
    a_clock = per_cycle or (elsewhere and _reached(o, reference))
    only_the_clock = slower and a_clock and not fewer and is_baselines(o, reference)
    if slower and not only_the_clock:
        return verdict.to(VerdictKind.REGRESSED, "SLOWER")
    for check in policy.compare_fail:
        if exceeded := check.exceeded(o.seconds, reference.stats):
            return replace(verdict.to(VerdictKind.REGRESSED, "COMPARE_FAIL"), exceeded=exceeded)
    if only_the_clock:
        return verdict.to(VerdictKind.PASS, SAME_PER_CLOCK)
    boards_clock = elsewhere and is_baselines(o, reference)
    if _clock(o, reference) == "higher" and fewer and not boards_clock:
        return verdict.to(VerdictKind.AMBIGUOUS, HIGHER_CLOCK)
    return verdict.to(VerdictKind.IMPROVED, "FASTER") if change > of_seconds else verdict


def steadier_in_cycles(reference: Reference) -> bool:
    """Whether the baseline's runs agree better in SM cycles than in seconds, as where the clock varies and
    arithmetic limits: then work per clock cycle is judged."""
    floor = reference.cycle_noise_floor
    return floor is not None and floor < reference.noise_floor


def is_baselines(o: Observation, reference: Reference) -> bool:
    """Whether our code is the baseline's: the binary byte-identical and launched in the same way, or a
    library's. An unknown launch counts as equal."""
    same = o.cubin_sha256 is not None and o.cubin_sha256 == reference.cubin_sha256
    return o.library or (same and reference.launch in (None, o.launch))


def _reached(o: Observation, reference: Reference) -> bool:
    """Whether another board than the reference's may have its SM clock by its own nature: at the power cap,
    where each reaches another one, or near the reference's."""
    off = _off(o, reference)
    return off is not None and (off >= -BOARDS_CLOCKS or bool(o.clock_event_reasons & _POWER_CAP))


def _off(o: Observation, reference: Reference | None) -> float | None:
    """How far the SM clock is from the reference's, relative; None if either is unknown."""
    if reference is None or not reference.sm_clock_mhz or not o.sm_clock_mhz:
        return None
    return o.sm_clock_mhz / reference.sm_clock_mhz - 1


def _clock(o: Observation, reference: Reference | None) -> str | None:
    """The SM clock relative to the reference's: lower, higher or alike; None if either is unknown."""
    off = _off(o, reference)
    if off is None:
        return None
    return "alike" if abs(off) <= CLOCK_TOLERANCE else "lower" if off < 0 else "higher"


def confirm(first: Verdict, second: Observation, reference: Reference, policy: Policy) -> Verdict:
    """The verdict on a suspected regression after a new process has measured it again.

    It is confirmed only if both measurements are beyond the threshold. If the binary is byte-identical to the
    baseline's and launched in the same way, or is a library's, our code has not changed: DRIFTED.
    """
    repeated = judge(second, reference, policy)
    if repeated.kind is VerdictKind.AMBIGUOUS or repeated.reason == "COMPARE_FAIL":
        return repeated
    if repeated.kind is not VerdictKind.REGRESSED:
        return replace(repeated.to(VerdictKind.PASS, "NOT_CONFIRMED"), first_change=first.change)
    if is_baselines(second, reference):
        reason = "LIBRARY_SLOWER" if second.library else "SAME_BINARY_SLOWER"
        return repeated.to(VerdictKind.DRIFTED, reason)
    return repeated.to(VerdictKind.REGRESSED, CONFIRMED)


def settle(confirmed: Verdict, paired: Paired) -> Verdict:
    """The verdict on a confirmed regression after the paired comparison with the baseline's commit.

    The code has become slower only if that commit is faster on this machine today, too.
    """
    outcome = settled(paired.outcome)
    return confirmed.to(*outcome) if outcome else confirmed


def beside(verdict: Verdict, paired: Paired) -> Verdict:
    """The verdict on a case of another binary than the baseline's, from what the baseline tells, confirmed if
    it was slower, and from the paired comparison.

    The pair tells whether the code is slower; the baseline, if the code is not, whether the machine is. A
    pair that cannot tell is no pass where the case is slower for certain, if perhaps by less than the margin;
    otherwise the baseline decides.
    """
    outcome = paired.outcome
    if outcome == NO_PAIR:
        return verdict
    if outcome == UNDECIDED and paired.interval and paired.interval[0] <= 0 and verdict.reason != CONFIRMED:
        return verdict
    if verdict.reason == CONFIRMED or outcome not in _NOT_SLOWER:
        return verdict.to(*(settled(outcome) or verdict.outcome))
    if outcome == FASTER and (verdict.kind in _GREEN or verdict.reason == HIGHER_CLOCK):
        return verdict.to(*FASTER)
    return verdict.to(*outcome) if verdict.reason in (WITHIN_THRESHOLD, HIGHER_CLOCK) else verdict


def unpaired(
    confirmed: Verdict, o: Observation, reference: Reference, *, decisive: bool, excuse: bool
) -> Verdict:
    """The verdict on a confirmed regression if no paired comparison was possible.

    It stands if the machine has not changed. At a lower clock a compute-bound kernel takes as many cycles as
    before; one that takes more cycles has regressed; for one that takes fewer, as memory-bound kernels do,
    the comparison is inconclusive. ``decisive``: a setting differs that may change the number of cycles.
    ``excuse``: as many cycles at a lower clock are drift, as runs of older versions have it; else that is
    inconclusive, too, since another binary may have lowered the clock by drawing more power."""
    per_clock, threshold = confirmed.per_clock, confirmed.threshold
    if _clock(o, reference) == "lower" and per_clock is not None and threshold is not None:
        if abs(per_clock) <= threshold and excuse:
            return confirmed.to(VerdictKind.DRIFTED, "LOWER_CLOCK")
        if per_clock >= -threshold:
            return confirmed.to(VerdictKind.AMBIGUOUS, "LOWER_CLOCK")
    return confirmed.to(VerdictKind.AMBIGUOUS, "OTHER_SETTINGS") if decisive else confirmed


def broken(code: str) -> Verdict:
    """The verdict if the device failed, by its error code: WRONG, or CRASHED for everything else."""
    if code == "WRONG":
        return Verdict(VerdictKind.WRONG, "OUTPUT")
    return Verdict(VerdictKind.CRASHED, code)


def shared(verdict: Verdict) -> Verdict:
    """The verdict if other processes used the GPU, which makes the timings useless."""
    return verdict.to(VerdictKind.AMBIGUOUS, "SHARED_GPU")

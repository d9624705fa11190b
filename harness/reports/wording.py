"""A verdict in one line for people: the figures, what is behind them, and the command that settles it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.gate.checked import UNSUPPORTED, Checked
from harness.reports.figures import gflops_text, percent_text
from harness.verdicts.drift import Difference
from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import MIN_SAMPLES
from harness.verdicts.paired import FASTER, NO_PAIR, SAME_BINARY, SLOWER, UNDECIDED, WITHIN, Paired
from harness.verdicts.vocabulary import Exceeded, Observation, Reference, Verdict, VerdictKind

# NVML's clock-event reasons (nvmlClocksEventReasons in its API reference): why the clock is not higher.
_CLOCK_EVENT_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
_SETTINGS = {
    "vbios": "VBIOS",
    "cuda_driver": "CUDA of the driver",
    "cublas": "cuBLAS",
    "pycuda": "PyCUDA",
    "power_limit_w": "power limit in W",
    "applications_sm_clock_mhz": "application SM clock in MHz",
    "max_sm_clock_mhz": "maximal SM clock in MHz",
    "max_memory_clock_mhz": "maximal memory clock in MHz",
    "memory_mib": "memory in MiB",
    "ecc": "ECC",
    "mig": "MIG",
}


def message(v: Verdict, e: Evidence) -> str:
    """The verdict on what the evidence is of, in one line."""
    if e.error:
        return e.error[1]
    if e.last is None:
        return f"{v.kind} {v.reason}"
    return _MESSAGES.get(v.reason, _confirmed)(v, e, e.last)  # what a pair settled is not in the table


def path(e: Evidence) -> str:
    """How the verdict was come to."""
    steps = ["against the baseline" if e.reference else "no baseline"]
    if e.second:
        steps.append("again in a fresh worker")
    if e.paired:
        steps.append("no pair" if e.paired.outcome == NO_PAIR else f"beside commit {e.paired.commit[:12]}")
    return ", ".join(steps)


def checked_text(c: Checked) -> str:
    """What checking a case came to; a line, and of what is wrong one for each finding."""
    kind, reason = c.outcome
    said = [*map(str, c.findings), *c.reasons]
    if kind is VerdictKind.WRONG:
        return "\n".join([f"{kind}: {c.name}", *said])
    if kind is VerdictKind.NOT_EMULATED:
        return f"{kind}: {c.kernel.name} needs {', '.join(c.kernel.features)}: {said[0]}"
    text = f"{kind}: {c.name}: {reason}: {'; '.join(said)}"
    if reason == UNSUPPORTED:
        text += (
            "; if that is meant, declare it: "
            f'Kernel(name="{c.kernel.name}", …, features=("wgmma",)), and only a GPU will judge it'
        )
    return text


def orphans_text(case_ids: Iterable[str]) -> str:
    """What ORPHAN says of these cases."""
    ids = list(case_ids)
    return (
        f"{VerdictKind.ORPHAN}: {len(ids)} baseline cases are no longer in the suite: {', '.join(ids)}. "
        "Drop them with `python -m harness baseline prune`, or pass --allow-orphans"
    )


def reasons_text(bits: int) -> str:
    """NVML's clock-event reasons in words, or ``none``."""
    words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
        words.append(f"{unknown:#x}")
    return ", ".join(words) or "none"


def difference_text(d: Difference) -> str:
    """``driver 999.1 → 1000.2``; one that an older run told is its text."""
    if d.what == "sm_clock_mhz":
        return f"SM clock {d.then:.0f} → {d.now:.0f} MHz ({reasons_text(d.reasons)})"
    if d.what == "temperature_c":
        return f"temperature {d.then:.0f} → {d.now:.0f} °C"
    if d.what == "cublas_speed":
        return f"cuBLAS on the same problem {percent_text(d.now)}"
    name = _SETTINGS.get(d.what, d.what)
    return name if d.then is None else f"{name} {d.then} → {d.now}"


def refresh(case_id: str) -> str:
    """The command that measures a case anew. No other id contains it in brackets, whatever it begins with."""
    return f'nox -s baseline -- -k "[{case_id}]"'


def reproduce(case_id: str) -> str:
    """The command that judges a case again."""
    return f'Reproduce: nox -s gpu -- -k "[{case_id}]"'


# By reason code


def _figures(v: Verdict, o: Observation) -> str:
    per_clock = "" if v.per_clock is None else f"per clock {percent_text(v.per_clock, 2)}; "
    return (
        f"{o.case_id}: {gflops_text(v.gflops)} GFLOPS against {gflops_text(v.baseline_gflops)} "
        f"({percent_text(v.change, 2)}; {per_clock}threshold {100 * (v.threshold or 0):.2g} %, "
        f"noise floor {100 * (v.noise_floor or 0):.2g} %)"
    )


def _plain(v: Verdict, e: Evidence, o: Observation) -> str:
    return _figures(v, o)


def _impossible(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: a sample of {min(o.seconds):g} s is no duration; the timer is broken"


def _few(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: {len(o.seconds)} clean rounds, {MIN_SAMPLES} are needed; run it again"


def _throttled(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{o.case_id}: the SM clock was throttled ({o.sm_clock_mhz:.0f} MHz, {o.power_w:.0f} W, "
        f"{o.temperature_c:.0f} °C, clock-event reasons: {reasons_text(o.clock_event_reasons)}); "
        "let the GPU rest and run it again"
    )


def _nothing(v: Verdict, e: Evidence, o: Observation) -> str:
    where = "in the baseline" if v.reason == "NOT_IN_BASELINE" else "of this GPU"
    return f"{o.case_id}: nothing {where} to compare with; measure it: {refresh(o.case_id)}"


def _other_l2(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: timed with L2 {o.l2}, the baseline with L2 {_then(e).l2}; time it alike"


def _other_duty(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{o.case_id}: timed at a duty cycle of {o.duty:g}, the baseline at {_then(e).duty:g}; "
        f"measure it anew: {refresh(o.case_id)}"
    )


def _then(e: Evidence) -> Reference:
    if e.reference is None:
        raise ValueError("a verdict against a baseline, without one")
    return e.reference


def _suspected(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; regression suspected. {reproduce(o.case_id)}"


def _compare_fail(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; {_exceeded(v.exceeded)}. {reproduce(o.case_id)}"


def _exceeded(x: Exceeded | None) -> str:
    if x is None:
        return "beyond --benchmark-compare-fail"
    limit = f"{x.check.percent:g} %" if x.check.seconds is None else f"{x.check.seconds:g} s"
    return f"{x.check.field} {x.now:.4g} s against {x.then:.4g} s, more than {limit} above"


def _higher_clock(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{_figures(v, o)}; only because the SM clock is {o.sm_clock_mhz:.0f} MHz, not "
        f"{_then(e).sm_clock_mhz:.0f} as in the baseline. Restore it, or measure anew: {refresh(o.case_id)}"
    )


def _shared(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: the GPU was shared with {'; '.join(e.others)}; stop that and run it again"


def _not_confirmed(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; a first look at {percent_text(v.first_change)} was not confirmed"


def _same_code(v: Verdict, e: Evidence, o: Observation) -> str:
    library = v.reason == "LIBRARY_SLOWER"
    what = "no code of ours is in it" if library else "the binary is the baseline's to the byte"
    return f"{_figures(v, o)}; twice, but {what}: {_drift(e)}. {reproduce(o.case_id)}"


def _drift(e: Evidence) -> str:
    """Where to look, when the code is not what changed."""
    if e.differences:
        return f"not as it was: {', '.join(map(difference_text, e.differences))}"
    return "look at the launch, the driver, the clocks and the power limit"


def _confirmed(v: Verdict, e: Evidence, o: Observation) -> str:
    """What a fresh worker confirmed, and what came of the pair."""
    text = f"{_figures(v, o)}; confirmed in a fresh worker"
    if e.paired:
        text += f"; {paired_text(e.paired)}"
        if v.kind is VerdictKind.DRIFTED and v.reason != "LOWER_CLOCK":
            text += f": {_drift(e)}"
    return f"{text}. {reproduce(o.case_id)}"


_MARGIN = {
    SLOWER.reason: "beyond",
    FASTER.reason: "beyond",
    WITHIN.reason: "within",
    UNDECIDED.reason: "undecided by",
}


def paired_text(p: Paired) -> str:
    """What came of a pair."""
    short = p.commit[:12]
    if p.outcome == NO_PAIR:
        return f"not paired: {p.detail}"
    if p.outcome == SAME_BINARY:
        return f"yet {short} compiles to the same binary today"
    if p.change is None or p.interval is None or p.delta is None:
        return f"beside {short}: {p.detail}"
    low, high = p.interval
    return (
        f"beside {short} its time is {percent_text(p.change, 2)} ({percent_text(low, 2)} … "
        f"{percent_text(high, 2)}), {_MARGIN[p.reason]} ±{100 * p.delta:.2g} %"
    )


def _lower_clock(v: Verdict, e: Evidence, o: Observation) -> str:
    where = (
        f"at {o.sm_clock_mhz:.0f} MHz in place of {_then(e).sm_clock_mhz:.0f} "
        f"({reasons_text(o.clock_event_reasons)})"
    )
    if v.kind is VerdictKind.DRIFTED:
        said = f"Per clock it does as much as before: the clock is lower, {where}"
    else:
        said = f"It cannot be judged {where}: set the clock as it was"
    return f"{_confirmed(v, e, o)} {said}"


def _other_settings(v: Verdict, e: Evidence, o: Observation) -> str:
    unlike = ", ".join(difference_text(d) for d in e.differences if d.decisive)
    return (
        f"{_confirmed(v, e, o)} Code or machine, which is not as it was ({unlike})? Fetch the "
        f"baseline's commit, to be paired with, or measure anew: {refresh(o.case_id)}"
    )


_MESSAGES: dict[str, Callable[[Verdict, Evidence, Observation], str]] = {
    "IMPOSSIBLE_SAMPLE": _impossible,
    "TOO_FEW_SAMPLES": _few,
    "THROTTLED": _throttled,
    "NOT_IN_BASELINE": _nothing,
    "NO_BASELINE_FILE": _nothing,
    "OTHER_L2_POLICY": _other_l2,
    "OTHER_DUTY_CYCLE": _other_duty,
    "WITHIN_THRESHOLD": _plain,
    "FASTER": _plain,
    "SLOWER": _suspected,
    "COMPARE_FAIL": _compare_fail,
    "HIGHER_CLOCK": _higher_clock,
    "SHARED_GPU": _shared,
    "NOT_CONFIRMED": _not_confirmed,
    "SAME_BINARY_SLOWER": _same_code,
    "LIBRARY_SLOWER": _same_code,
    "LOWER_CLOCK": _lower_clock,
    "OTHER_SETTINGS": _other_settings,
}

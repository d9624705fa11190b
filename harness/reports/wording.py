"""A verdict in one line: the numbers, the reason, and the command to run next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from harness.gate.checked import UNSUPPORTED, Checked
from harness.reports.figures import gflops_text, percent_text
from harness.verdicts.drift import Difference
from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import MIN_SAMPLES
from harness.verdicts.paired import FASTER, NO_PAIR, SAME_BINARY, SLOWER, UNDECIDED, WITHIN, Paired
from harness.verdicts.vocabulary import (
    NO_BASELINE_FILE,
    Exceeded,
    Observation,
    Reference,
    Verdict,
    VerdictKind,
)

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
_LISTED, _KERNELS = 5, 3  # cases, or kernels, that a command names one by one
_SETTINGS = {
    "vbios": "VBIOS",
    "cuda_driver": "CUDA version of the driver",
    "cublas": "cuBLAS",
    "pycuda": "PyCUDA",
    "power_limit_w": "power limit in W",
    "applications_sm_clock_mhz": "application SM clock in MHz",
    "max_sm_clock_mhz": "maximum SM clock in MHz",
    "max_memory_clock_mhz": "maximum memory clock in MHz",
    "memory_mib": "memory in MiB",
    "ecc": "ECC",
    "mig": "MIG",
}


def message(v: Verdict, e: Evidence) -> str:
    """The message of a verdict, in one line."""
    if e.error:
        return e.error[1]
    if e.last is None:
        return f"{v.kind} {v.reason}"
    return _MESSAGES.get(v.reason, _confirmed)(v, e, e.last)  # results of a pair are not in the table


def path(e: Evidence) -> str:
    """The steps that led to the verdict."""
    steps = ["compared with the baseline" if e.reference else "no baseline"]
    if e.paired:
        no_pair = e.paired.outcome == NO_PAIR
        steps.append("no pair" if no_pair else f"paired with commit {e.paired.commit[:12]}")
        if e.paired.second:
            steps.append("paired in a new process")
    if e.second:
        steps.append("repeated in a new process")
    return ", ".join(steps)


def checked_text(c: Checked) -> str:
    """The result of checking a case, in one line; for wrong results one more line per finding."""
    kind, reason = c.outcome
    said = [*map(str, c.findings), *c.reasons]
    if kind is VerdictKind.WRONG:
        return "\n".join([f"{kind}: {c.name}", *said])
    if kind is VerdictKind.NOT_EMULATED:
        return f"{kind}: {c.kernel.name} needs {', '.join(c.kernel.features)}: {said[0]}"
    text = f"{kind}: {c.name}: {reason}: {'; '.join(said)}"
    if reason == UNSUPPORTED:
        text += (
            "; if this is intended, declare it: "
            f'Kernel(name="{c.kernel.name}", …, features=("wgmma",)), and it is checked on a GPU only'
        )
    return text


def some(ids: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return f"{', '.join(ids[:_LISTED])}{more}"


def orphans_text(case_ids: Iterable[str]) -> str:
    """The message of ORPHAN for these cases."""
    ids = list(case_ids)
    return (
        f"{VerdictKind.ORPHAN}: {len(ids)} baseline cases are no longer in the suite: {some(ids)}. "
        "Remove them with `python -m harness baseline prune`, or pass --allow-orphans"
    )


def reasons_text(bits: int) -> str:
    """NVML's clock-event reasons as text, or ``none``."""
    words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
        words.append(f"{unknown:#x}")
    return ", ".join(words) or "none"


def difference_text(d: Difference) -> str:
    """``driver 999.1 → 1000.2``; one recorded by an older version is text already."""
    if d.what == "sm_clock_mhz":
        return f"SM clock {d.then:.0f} → {d.now:.0f} MHz ({reasons_text(d.reasons)})"
    if d.what == "temperature_c":
        return f"temperature {d.then:.0f} → {d.now:.0f} °C"
    if d.what == "cublas_speed":
        return f"cuBLAS for the same problem {percent_text(d.now)}"
    name = _SETTINGS.get(d.what, d.what)
    return name if d.then is None else f"{name} {d.then} → {d.now}"


def refresh(case_id: str) -> str:
    """The command that re-measures a case. In brackets, the id matches no longer id that contains it."""
    return f'nox -s baseline -- -k "[{case_id}]"'


def refresh_several(chosen: Sequence[str], timed: Collection[str]) -> str:
    """The command that re-measures these of the cases that a run ``timed``: by their ids up to five, by their
    kernels up to three that have few others, otherwise all."""
    if len(chosen) <= _LISTED:
        return f'nox -s baseline -- -k "{" or ".join(f"[{case}]" for case in chosen)}"'
    kernels = dict.fromkeys(case.partition("-")[0] for case in chosen)
    of_them = [case for case in timed if case.partition("-")[0] in kernels]
    if len(kernels) > _KERNELS or len(of_them) == len(timed) or 2 * len(chosen) < len(of_them):
        return "nox -s baseline"
    return f"nox -s baseline -- {' '.join(f'--kernel {name}' for name in kernels)}"


def strange_text(count: int, timed: int) -> str:
    """What is said where ``count`` of the cases that were ``timed`` have another board's figures."""
    return (
        f"{count} of {timed} cases have no figure of this board yet, and are shown beside another board's; "
        "nox -s baseline measures this board"
    )


def no_baseline(gpu: str) -> str:
    """The one failure of a run on a GPU that has no baseline."""
    return (
        f"{VerdictKind.NO_BASELINE}: {gpu} has no baseline yet, so no timed case can be judged; measure one: "
        "nox -s baseline"
    )


def judge_again(case_id: str) -> str:
    """The command that judges a case again."""
    return f'nox -s gpu -- -k "[{case_id}]"'


def reproduce(case_id: str) -> str:
    """The command that judges a case again, as a sentence."""
    return f"Reproduce: {judge_again(case_id)}"


# By reason code


def _figures(v: Verdict, o: Observation) -> str:
    between = f", of it {100 * v.board_spread:.2g} % between boards" if v.board_spread else ""
    beyond = f"{100 * (v.threshold or 0):.2g} %{' per clock' * v.per_cycle}{between}"
    per_clock = "" if v.per_clock is None else f"per clock {percent_text(v.per_clock, 2)}; "
    return (
        f"{o.case_id}: {gflops_text(v.gflops)} GFLOPS, baseline {gflops_text(v.baseline_gflops)} "
        f"({percent_text(v.change, 2)}; {per_clock}threshold {beyond}, "
        f"noise floor {100 * (v.noise_floor or 0):.2g} %)"
    )


def _plain(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; {paired_text(e.paired)}" if e.paired else _figures(v, o)


def _same_per_clock(v: Verdict, e: Evidence, o: Observation) -> str:
    where = f"{o.sm_clock_mhz:.0f} MHz instead of {_then(e).sm_clock_mhz:.0f}"
    return f"{_figures(v, o)}; slower only by the clock, {where} ({reasons_text(o.clock_event_reasons)})"


def _impossible(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: a sample of {min(o.seconds):g} s is not a valid duration; the timer is broken"


def _few(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: {len(o.seconds)} valid rounds, {MIN_SAMPLES} are needed; run it again"


def _throttled(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{o.case_id}: the SM clock was throttled ({o.sm_clock_mhz:.0f} MHz, {o.power_w:.0f} W, "
        f"{o.temperature_c:.0f} °C, clock-event reasons: {reasons_text(o.clock_event_reasons)}); "
        "let the GPU cool down and run it again"
    )


def _nothing(v: Verdict, e: Evidence, o: Observation) -> str:
    if v.reason == NO_BASELINE_FILE:
        return f"{o.case_id}: no baseline for this GPU; measure one: nox -s baseline"
    return f"{o.case_id}: not in the baseline; measure it: {refresh(o.case_id)}"


def _other_l2(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: timed with L2 {o.l2}, the baseline with L2 {_then(e).l2}; use the same L2 policy"


def _other_duty(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{o.case_id}: timed at a duty cycle of {o.duty:g}, the baseline at {_then(e).duty:g}; "
        f"re-measure it: {refresh(o.case_id)}"
    )


def _then(e: Evidence) -> Reference:
    if e.reference is None:
        raise ValueError("a verdict that needs a baseline, without one")
    return e.reference


def _suspected(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; regression suspected. {reproduce(o.case_id)}"


def _compare_fail(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_figures(v, o)}; {_exceeded(v.exceeded)}. {reproduce(o.case_id)}"


def _exceeded(x: Exceeded | None) -> str:
    if x is None:
        return "beyond --benchmark-compare-fail"
    limit = f"{x.check.percent:g} %" if x.check.seconds is None else f"{x.check.seconds:g} s"
    return f"{x.check.field} {x.now:.4g} s, baseline {x.then:.4g} s, more than {limit} slower"


def _higher_clock(v: Verdict, e: Evidence, o: Observation) -> str:
    return (
        f"{_figures(v, o)}; not slower only because the SM clock is {o.sm_clock_mhz:.0f} MHz instead of "
        f"{_then(e).sm_clock_mhz:.0f}. Restore the clock, or re-measure: {refresh(o.case_id)}"
    )


def _shared(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{o.case_id}: other processes used the GPU: {'; '.join(e.others)}; stop them and run it again"


def _not_confirmed(v: Verdict, e: Evidence, o: Observation) -> str:
    return f"{_plain(v, e, o)}; a first measurement of {percent_text(v.first_change)} was not confirmed"


def _same_code(v: Verdict, e: Evidence, o: Observation) -> str:
    library = v.reason == "LIBRARY_SLOWER"
    what = "it is a library call" if library else "the binary is byte-identical to the baseline's"
    return f"{_figures(v, o)}; confirmed, but {what}: {_drift(e)}. {reproduce(o.case_id)}"


def _drift(e: Evidence) -> str:
    """Possible causes if the code has not changed."""
    if e.differences:
        return f"changed since the baseline: {', '.join(map(difference_text, e.differences))}"
    return "check the launch, the driver, the clocks and the power limit"


def _confirmed(v: Verdict, e: Evidence, o: Observation) -> str:
    """The result of the paired comparison, and what a new process confirmed."""
    text = f"{_figures(v, o)}{'; confirmed in a new process' if e.second else ''}"
    if e.paired:
        text += f"; {paired_text(e.paired)}"
        if v.kind is VerdictKind.DRIFTED and v.reason != "LOWER_CLOCK":
            text += f": {_drift(e)}"
    return f"{text}. {reproduce(o.case_id)}"


_MARGIN = {
    SLOWER.reason: "outside",
    FASTER.reason: "outside",
    WITHIN.reason: "inside",
    UNDECIDED.reason: "inconclusive at",
}


def paired_text(p: Paired) -> str:
    """The result of a paired comparison."""
    short = p.commit[:12]
    if p.outcome == NO_PAIR:
        return f"not paired: {p.detail}"
    if p.outcome == SAME_BINARY:
        return f"but {short} compiles to the same binary today"
    if p.change is None or p.interval is None or p.delta is None:
        return f"paired with {short}: {p.detail}"
    low, high = p.interval
    second = ""
    if p.second:
        second = ", in a second process, too" if low > 0 else ": not slower in a second process"
    return (
        f"paired with {short}, its time changes by {percent_text(p.change, 2)} ({percent_text(low, 2)} … "
        f"{percent_text(high, 2)}), {_MARGIN[p.reason]} ±{100 * p.delta:.2g} %{second}"
    )


def _lower_clock(v: Verdict, e: Evidence, o: Observation) -> str:
    where = (
        f"{o.sm_clock_mhz:.0f} MHz instead of {_then(e).sm_clock_mhz:.0f} "
        f"({reasons_text(o.clock_event_reasons)})"
    )
    if v.kind is VerdictKind.DRIFTED:
        said = f"The work per clock cycle is unchanged; the clock is lower: {where}"
    else:
        said = f"It cannot be judged at {where}: restore the clock"
    return f"{_confirmed(v, e, o)} {said}"


def _other_settings(v: Verdict, e: Evidence, o: Observation) -> str:
    unlike = ", ".join(difference_text(d) for d in e.differences if d.decisive)
    return (
        f"{_confirmed(v, e, o)} The cause may be the code or the machine, which has changed ({unlike}). "
        "Fetch "
        f"the baseline's commit for a paired comparison, or re-measure: {refresh(o.case_id)}"
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
    **dict.fromkeys((WITHIN.reason, FASTER.reason, SAME_BINARY.reason), _plain),
    "SAME_PER_CLOCK": _same_per_clock,
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

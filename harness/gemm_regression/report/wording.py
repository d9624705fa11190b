"""Verdicts in words: the numbers, the reason, and the command to run next; and what else is said of a run: of
the machine, changed binaries, a refreshed baseline."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from gemm_regression.baselines import Baseline
from gemm_regression.judge import machine
from gemm_regression.judge.evidence import MIN_SAMPLES, Evidence
from gemm_regression.judge.machine import AS_ITS_MODEL, AS_STORED, MACHINE, SHIFTED, MachineVerdict
from gemm_regression.judge.vocabulary import (
    BASE_UNUSABLE,
    BINARY_NOT_KEPT,
    CONTROL_FAILED,
    FASTER,
    LIBRARY,
    MAYBE_SLOWER,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    NOT_PAIRED,
    NOT_RED,
    NOT_SLOWER,
    SLOWER,
    Exceeded,
    Paired,
    Verdict,
    VerdictKind,
)
from gemm_regression.model import Case, CaseId
from gemm_regression.report.figures import aligned, count_text, gflops_text, noise_text, percent_text
from gemm_regression.run.checked import UNSUPPORTED, Checked
from gemm_regression.run.creep import Refresh
from gemm_regression.run.timed import Result

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
_COMMIT = re.compile("[0-9a-f]{7,64}")
_LISTED, _KERNELS = 5, 3  # cases, or kernels, that a command names one by one
_BEYOND = {
    SLOWER: "more than",
    MAYBE_SLOWER: "which may be more than",
    NOT_SLOWER: "not more than",
    FASTER: "faster by more than",
}
_WITHOUT_PAIR = {
    LIBRARY: "a library call",
    NOT_PAIRED: "another binary than the baseline's, which was not timed beside it",
}


def message(case_id: str, v: Verdict, e: Evidence) -> str:
    """The message of a verdict: what was found, and the command to run next where there is something to do.
    One line, but for what a compiler or a device said."""
    text = told(case_id, v, e)
    if e.error or v.kind in NOT_RED:
        return text
    what = "; measure it" if _stores(v) else ". Reproduce"
    return f"{text}{what}: {following(case_id, v)}"


def told(case_id: str, v: Verdict, e: Evidence) -> str:
    """What was found."""
    if e.error:
        return e.error[1]
    said = [_exceeded(v.exceeded)] if v.exceeded else []
    if e.seen and v.reason == "IMPOSSIBLE_SAMPLE":
        said.append(
            f"{min(e.seen.seconds):g} s is not a valid duration; the timer is broken, check the driver"
        )
    elif e.seen and v.reason == "TOO_FEW_SAMPLES":
        said.append(f"{len(e.seen.seconds)} valid rounds, {MIN_SAMPLES} are needed")
    elif e.paired:
        said.append(paired_text(e.paired))
        if e.seen and e.paired.change is not None:
            said.append(f"{gflops_text(v.gflops)} GFLOPS")
    elif e.seen:
        said.append(f"{gflops_text(v.gflops)} GFLOPS{_alone(v)}")
    return f"{case_id}: {'; '.join(said).replace(f'{case_id}: ', '')}"


def following(case_id: str, v: Verdict) -> str:
    """The command to run after a verdict."""
    if v.reason == NO_BASELINE_FILE:
        return "nox -s baseline"
    return refresh(case_id) if _stores(v) else judge_again(case_id)


def _stores(v: Verdict) -> bool:
    """Whether it is the baseline that lacks something."""
    return v.kind is VerdictKind.NO_BASELINE or v.outcome == BASE_UNUSABLE


def paired_text(p: Paired) -> str:
    """The result of a pair."""
    base = p.base
    if base in ("", "unknown") or _COMMIT.fullmatch(base):
        base = "the baseline's binary" + (f" (commit {base[:12]})" if _COMMIT.fullmatch(base) else "")
    if p.change is None or p.interval is None or p.margin is None:
        what = {
            BASE_UNUSABLE: f"{base} does not run here: ",
            BINARY_NOT_KEPT: "",
            CONTROL_FAILED: "not judged, ",
        }
        return f"{what.get(p.outcome, f'beside {base}: ')}{p.detail}"
    low, high = (percent_text(end, 2) for end in p.interval)
    change = f"{percent_text(p.change, 2)} ({low.removesuffix(' %')} … {high})"
    second = " in a second process" if p.second else ""
    margin = f"the margin of {100 * (p.needed or p.margin):.3g} %"
    if p.needed:
        margin += f" (its own noise is too much for {100 * p.margin:.3g} %)"
    return f"its time changes by {change} beside {base}{second}, {_BEYOND[p.outcome]} {margin}"


def _alone(v: Verdict) -> str:
    """What follows the GFLOPS of a case without a pair."""
    if v.reason == NO_BASELINE_FILE:
        return "; this GPU has no baseline"
    if v.reason == NOT_IN_BASELINE:
        return "; not in the baseline"
    what = _WITHOUT_PAIR.get(v.outcome, "the baseline's own binary")
    return f", baseline {gflops_text(v.baseline_gflops)} ({percent_text(v.change, 2)}); {what}"


def _exceeded(x: Exceeded) -> str:
    limit = f"{x.check.percent:g} %" if x.check.seconds is None else f"{x.check.seconds:g} s"
    return (
        f"{x.check.field} {x.now:.4g} s, baseline {x.then:.4g} s, more than {limit} slower "
        "(--benchmark-compare-fail)"
    )


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


def baseline_text(baseline: Baseline | None, board: str | None) -> str:
    """What a GPU is compared with, and how much of it this board has measured."""
    if baseline is None:
        return "none"
    boards = [entry.board for entry in baseline.entries.values()]
    own = len([one for one in boards if one and one == board])
    return f"{baseline.slug}, {len(boards)} cases, {own} of them measured on this board"


def some(ids: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return f"{', '.join(ids[:_LISTED])}{more}"


def orphans_text(case_ids: Iterable[str]) -> str:
    """The message of ORPHAN for these cases."""
    ids = list(case_ids)
    return (
        f"{VerdictKind.ORPHAN}: {len(ids)} baseline cases are no longer in the suite: {some(ids)}. "
        "Remove them with `python -m gemm_regression baseline prune`, or pass --allow-orphans"
    )


def reasons_text(bits: int) -> str:
    """NVML's clock-event reasons as text, or ``none``."""
    words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
        words.append(f"{unknown:#x}")
    return ", ".join(words) or "none"


def judge_again(case_id: str) -> str:
    """The command that judges a case again."""
    return f'nox -s gpu -- -k "[{case_id}]"'


def refresh(case_id: str) -> str:
    """The command that re-measures a case. In brackets, the id matches no longer id that contains it."""
    return f'nox -s baseline -- -k "[{case_id}]"'


def refresh_several(chosen: Sequence[str], timed: Collection[str]) -> str:
    """The command that re-measures these of the cases that a run ``timed``: by their ids up to five, by their
    kernels up to three that have few others, otherwise all."""
    if len(chosen) <= _LISTED:
        return f'nox -s baseline -- -k "{" or ".join(f"[{case}]" for case in chosen)}"'
    kernels = dict.fromkeys(CaseId.parse(case).kernel for case in chosen)
    of_them = [case for case in timed if CaseId.parse(case).kernel in kernels]
    if len(kernels) > _KERNELS or len(of_them) == len(timed) or 2 * len(chosen) < len(of_them):
        return "nox -s baseline"
    return f"nox -s baseline -- {' '.join(f'--kernel {name}' for name in kernels)}"


def no_baseline(gpu: str) -> str:
    """The one failure of a run on a GPU that has no baseline."""
    return (
        f"{VerdictKind.NO_BASELINE}: {gpu} has no baseline yet, so no timed case can be judged; measure one: "
        "nox -s baseline"
    )


_UNITS = {machine.CLOCK: "MHz", machine.ARITHMETIC: "GFLOPS", machine.BANDWIDTH: "GB/s"}
_NOTES = 3  # slow cases named one by one
_PASSES = {AS_STORED: "as it was", AS_ITS_MODEL: "as others of its model"}


def machine_lines(verdict: MachineVerdict) -> list[str]:
    """One line for the verdict, one for each finding, and one for single slow cases."""
    own, other = verdict.checked
    state = _PASSES.get(verdict.reason, "unknown, nothing of its model is stored")
    if verdict.failed:
        state = f"{verdict.kind} {verdict.reason}"
    counted = (
        f"{count_text(own, 'unchanged case')} beside this board's own figures, {other} beside other boards'"
    )
    lines = [f"{MACHINE}: {state}; {counted}"]
    if verdict.failed:
        lines += [f"  {finding_text(finding)}" for finding in verdict.findings]
    if slow := verdict.notes:
        named = ", ".join(f"{shift.case} ({percent_text(shift.change)})" for shift in slow[:_NOTES])
        more = f" and {len(slow) - _NOTES} more" if len(slow) > _NOTES else ""
        lines.append(f"  slower by themselves, with the same binary: {named}{more}")
    return lines


def finding_text(finding: machine.MachineFinding) -> str:
    """What is not as it should be, with the likely cause."""
    now, limit = finding.now or 0.0, finding.limit or 0.0
    if finding.code == SHIFTED:
        cause = f"; differs: {', '.join(finding.changed)}" if finding.changed else ""
        longer = f"{100 * now:.2f} ± {100 * (finding.error or 0):.2f} %"
        allowed = f"more than {100 * limit:.1f} % in the median of {finding.cases} cases"
        return f"{finding.subject}: the same binaries take {longer} longer, {allowed}{cause}"
    if finding.code == machine.OTHER_PROCESSES:
        return f"other processes use the GPU: {finding.subject}"
    if finding.code == machine.NOT_MEASURED:
        return f"{finding.subject} could not be measured; at least {limit:g} is known of the model"
    if finding.code == machine.POWER_LIMIT:
        return f"power limit {now:g} W, should be {limit:g} W: nvidia-smi -pl {limit:g}"
    if finding.code in _UNITS:
        return f"{finding.subject} {now:g} {_UNITS[finding.code]}, at least {limit:g} on boards of this model"
    return f"{finding.subject} is {'on' if now else 'off'}, was {'on' if limit else 'off'}"


_WHY = {
    BINARY_NOT_KEPT: "not judged, the baseline has no binary of them",
    BASE_UNUSABLE: "not judged, the baseline's binary does not run here",
    CONTROL_FAILED: "not judged, two identical builds differ here",
    MAYBE_SLOWER: "not judged, too few blocks at full clock",
}


def changed_text(judged: Iterable[Result]) -> str:
    """How many have another binary, how many of them were paired, and which were not judged and why; empty
    without any."""
    changed = {result.case.id: paired for result in judged if (paired := result.evidence.paired)}
    found: dict[str, list[str]] = {}
    for case, p in changed.items():
        what = "timed beside it" if p.change is not None else _WHY.get(p.outcome, "failed")
        found.setdefault(what, []).append(case)
    parts = [
        f"{len(cases)} {what}" + (f" ({some(cases)})" if what in _WHY.values() else "")
        for what, cases in found.items()
    ]
    said = f"{count_text(len(changed), 'case')} with another binary than the baseline's"
    return f"{said}: {'; '.join(parts)}" if changed else ""


def sustained_texts(results: Iterable[Result]) -> list[str]:
    """The throughput of back-to-back launches, next to that of the timed rounds, which is judged; with its
    share of the library's, where that ran the same problem back to back, too."""
    found = [(r.case, s) for r in results if (s := _sustained(r)) is not None]
    library = {_same(case): s for case, s in found if case.kernel.library}
    return [
        _sustained_text(result, s, library.get(_same(result.case)))
        for result in results
        if (s := _sustained(result)) is not None
    ]


def _sustained(result: Result) -> float | None:
    """Seconds a launch."""
    return result.measurement.extra.get("sustained_s") if result.measurement else None


def _same(case: Case) -> tuple[object, ...]:
    return case.kernel.operation, case.dtype, case.problem


def _sustained_text(result: Result, seconds: float, library: float | None) -> str:
    m, case = result.measurement, result.case
    assert m is not None
    clock, power = (m.extra[name] or "?" for name in ("sustained_mhz", "sustained_w"))
    share = "" if library is None or case.kernel.library else f", {100 * library / seconds:.1f} % of cuBLAS"
    return (
        f"sustained, not judged: {case.id}: {gflops_text(case.gflops(seconds))} GFLOPS at {clock} MHz and "
        f"{power} W{share}; in timed rounds {gflops_text(case.gflops(m.median))} at {m.sm_clock_mhz} MHz"
    )


def refresh_lines(before: Baseline | None, measured: Baseline, made: Refresh) -> list[str]:
    """A line for each measured case, then those that were refused, accepted or could not be compared."""
    rows = [("case", "old GFLOPS", "new GFLOPS", "change", "noise")]
    for case, entry in measured.entries.items():
        was = before.entry(case) if before else None
        change = percent_text(entry.gflops / was.gflops - 1 if was else None)
        old = gflops_text(was.gflops if was else None)
        rows.append((case, old, gflops_text(entry.gflops), change, noise_text(entry.noise_floor)))
    lines = aligned(rows)
    for case, paired in made.refused.items():
        lines.append(
            f"refused: {case}: {paired_text(paired)}; make it faster, or store it with "
            f'--accept-slower "{case}" "the reason"'
        )
    for case, paired in made.accepted.items():
        lines.append(f"accepted: {case}: {made.entries[case].accepted}; {paired_text(paired)}")
    lines += [f"not compared with its best binary: {case}: {why}" for case, why in made.unpaired.items()]
    return lines

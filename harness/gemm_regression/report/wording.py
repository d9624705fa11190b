"""Verdicts in words: the numbers, the reason, and the command to run next; and what else is said of a run: of
the machine, changed binaries, a refreshed baseline."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from gemm_regression.baselines import Baseline
from gemm_regression.hints import typed
from gemm_regression.judge import machine, vocabulary
from gemm_regression.judge.evidence import MIN_SAMPLES, Evidence
from gemm_regression.judge.machine import MachineFinding, MachineVerdict
from gemm_regression.judge.vocabulary import (
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    NOT_RED,
    Paired,
    Verdict,
    VerdictKind,
)
from gemm_regression.model import CaseId
from gemm_regression.report.figures import aligned, count_text, gflops_text, noise_text, percent_text
from gemm_regression.run.checked import UNSUPPORTED, Checked
from gemm_regression.run.creep import Refresh
from gemm_regression.run.timed import TimedCase

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
    vocabulary.SLOWER: "more than",
    vocabulary.MAYBE_SLOWER: "which may be more than",
    vocabulary.NOT_SLOWER: "not more than",
    vocabulary.FASTER: "faster by more than",
}
_WITHOUT_PAIR = {
    vocabulary.LIBRARY: "a library call",
    vocabulary.NOT_PAIRED: "another binary than the baseline's, which was not timed beside it",
}


def message(case_id: str, v: Verdict, e: Evidence, unit: str = "GFLOPS") -> str:
    """The message of a verdict: what was found, and the command to run next where there is something to do.
    One line, but for what a compiler or a device said."""
    text = told(case_id, v, e, unit)
    if e.error or v.kind in NOT_RED:
        return text
    what = "; measure it" if _stores(v) else ". Reproduce"
    return f"{text}{what}: {following(case_id, v)}"


def told(case_id: str, v: Verdict, e: Evidence, unit: str = "GFLOPS") -> str:
    """What was found."""
    if e.error:
        return e.error[1]
    said, speed = [], f"{gflops_text(v.gflops)} {unit}"
    if x := v.exceeded:
        limit = f"{x.check.percent:g} %" if x.check.seconds is None else f"{x.check.seconds:g} s"
        values = f"{x.check.field} {x.now:.4g} s, baseline {x.then:.4g} s"
        said.append(f"{values}, more than {limit} slower (--benchmark-compare-fail)")
    if e.seen and v.reason == "IMPOSSIBLE_SAMPLE":
        wrong = f"{min(e.seen.seconds):g} s is not a valid duration"
        said.append(f"{wrong}; the timer is broken, check the driver")
    elif e.seen and v.reason == "TOO_FEW_SAMPLES":
        said.append(f"{len(e.seen.seconds)} valid rounds, {MIN_SAMPLES} are needed")
    elif e.paired:
        said.append(paired_text(e.paired).replace(f"{case_id}: ", ""))
        said += [speed] if e.seen and e.paired.change is not None else []
    elif v.reason == NO_BASELINE_FILE:
        said += [speed, "this GPU has no baseline"]
    elif v.reason == NOT_IN_BASELINE:
        said += [speed, "not in the baseline"]
    elif e.seen:
        said.append(f"{speed}, baseline {gflops_text(v.baseline_gflops)} ({percent_text(v.change, 2)})")
        said.append(_WITHOUT_PAIR.get(v.outcome, "the baseline's own binary"))
    return f"{case_id}: {'; '.join(said)}"


def following(case_id: str, v: Verdict) -> str:
    """The command to run after a verdict."""
    if v.reason == NO_BASELINE_FILE:
        return typed("baseline")
    # In brackets, the id matches no longer id that contains it.
    return typed("baseline" if _stores(v) else "gpu", f'-k "[{case_id}]"')


def _stores(v: Verdict) -> bool:
    """Whether it is the baseline that lacks something."""
    return v.kind is VerdictKind.NO_BASELINE or v.outcome == vocabulary.BASE_UNUSABLE


def paired_text(p: Paired) -> str:
    """The result of a pair."""
    base = p.base
    if base in ("", "unknown") or _COMMIT.fullmatch(base):
        base = "the baseline's binary" + (f" (commit {base[:12]})" if _COMMIT.fullmatch(base) else "")
    if p.change is None or p.interval is None or p.margin is None:
        what = {
            vocabulary.BASE_UNUSABLE: f"{base} does not run here: ",
            vocabulary.BINARY_NOT_KEPT: "",
            vocabulary.CONTROL_FAILED: "not judged, ",
        }
        return f"{what.get(p.outcome, f'beside {base}: ')}{p.detail}"
    change, low, high = (percent_text(each, 2) for each in (p.change, *p.interval))
    second = " in a second process" if p.second else ""
    margin = f"the margin of {100 * (p.needed or p.margin):.3g} %"
    if p.needed:
        margin += f" (its own noise is too much for {100 * p.margin:.3g} %)"
    beside = f"({low.removesuffix(' %')} … {high}) beside {base}{second}"
    return f"its time changes by {change} {beside}, {_BEYOND[p.outcome]} {margin}"


def checked_text(c: Checked) -> str:
    """The result of checking a case, in one line; for wrong results one more line per finding."""
    (kind, reason), said = c.outcome, [*map(str, c.findings), *c.reasons]
    if kind is VerdictKind.WRONG:
        return "\n".join([f"{kind}: {c.name}", *said])
    if kind is VerdictKind.NOT_EMULATED:
        return f"{kind}: {c.kernel.name} needs {', '.join(c.kernel.features)}: {said[0]}"
    text = f"{kind}: {c.name}: {reason}: {'; '.join(said)}"
    if reason != UNSUPPORTED:
        return text
    declared = f'Kernel(name="{c.kernel.name}", …, features=("wgmma",))'
    return f"{text}; if this is intended, declare it: {declared}, and it is checked on a GPU only"


def baseline_text(baseline: Baseline | None, board: str | None) -> str:
    """What a GPU is compared with, and how much of it this board has measured."""
    if baseline is None:
        return "none"
    boards = [entry.board for entry in baseline.entries.values()]
    own = len([one for one in boards if one and one == board])
    return f"{baseline.slug}, {len(boards)} cases, {own} of them measured on this board"


def some(ids: Sequence[str], most: int = _LISTED) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return f"{', '.join(ids[:most])}{more}"


def orphans_text(case_ids: Iterable[str]) -> str:
    """The message of ORPHAN for these cases."""
    ids = list(case_ids)
    said = f"{len(ids)} baseline cases are in no suite any more: {some(ids)}"
    remedy = f"Remove them with `{typed('baseline', 'prune')}`, or pass --allow-orphans"
    return f"{VerdictKind.ORPHAN}: {said}. {remedy}"


def reasons_text(bits: int) -> str:
    """NVML's clock-event reasons as text, or ``none``."""
    words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
        words.append(f"{unknown:#x}")
    return ", ".join(words) or "none"


def refresh_several(chosen: Sequence[str], timed: Collection[str]) -> str:
    """The command that re-measures these of the cases that a run ``timed``: by their ids up to five, by their
    kernels up to three that have few others, otherwise all."""
    if len(chosen) <= _LISTED:
        return typed("baseline", f'-k "{" or ".join(f"[{case}]" for case in chosen)}"')
    kernels = dict.fromkeys(CaseId.parse(case).kernel for case in chosen)
    of_them = [case for case in timed if CaseId.parse(case).kernel in kernels]
    if len(kernels) > _KERNELS or len(of_them) == len(timed) or 2 * len(chosen) < len(of_them):
        return typed("baseline")
    return typed("baseline", " ".join(f"--kernel {name}" for name in kernels))


def no_baseline(gpu: str) -> str:
    """The one failure of a run on a GPU that has no baseline."""
    said = f"{gpu} has no baseline yet, so no timed case can be judged; measure one: {typed('baseline')}"
    return f"{VerdictKind.NO_BASELINE}: {said}"


_NOTES = 3  # slow cases named one by one
_PASSES = {machine.AS_STORED: "as it was", machine.AS_ITS_MODEL: "as others of its model"}
_FOUND = {
    machine.OTHER_PROCESSES: "other processes use the GPU: {subject}",
    machine.NOT_MEASURED: "{subject} could not be measured; at least {limit:g} is known of the model",
    machine.POWER_LIMIT: "power limit {now:g} W, should be {limit:g} W: nvidia-smi -pl {limit:g}",
    machine.CLOCK: "{subject} {now:g} MHz, at least {limit:g} on boards of this model",
    machine.ARITHMETIC: "{subject} {now:g} GFLOPS, at least {limit:g} on boards of this model",
    machine.BANDWIDTH: "{subject} {now:g} GB/s, at least {limit:g} on boards of this model",
}


def machine_lines(verdict: MachineVerdict) -> list[str]:
    """One line for the verdict, one for each finding, and one for single slow cases."""
    own, other = verdict.checked
    state = _PASSES.get(verdict.reason, "unknown, nothing of its model is stored")
    if verdict.failed:
        state = f"{verdict.kind} {verdict.reason}"
    unchanged = count_text(own, "unchanged case")
    counted = f"{unchanged} beside this board's own figures, {other} beside other boards'"
    lines = [f"{machine.MACHINE}: {state}; {counted}"]
    if verdict.failed:
        lines += [f"  {finding_text(finding)}" for finding in verdict.findings]
    if slow := verdict.notes:
        named = some([f"{shift.case} ({percent_text(shift.change)})" for shift in slow], _NOTES)
        lines.append(f"  slower by themselves, with the same binary: {named}")
    return lines


def finding_text(finding: MachineFinding) -> str:
    """What is not as it should be, with the likely cause."""
    now, limit = finding.now or 0.0, finding.limit or 0.0
    if finding.code == machine.SHIFTED:
        cause = f"; differs: {', '.join(finding.changed)}" if finding.changed else ""
        longer = f"{100 * now:.2f} ± {100 * (finding.error or 0):.2f} %"
        allowed = f"more than {100 * limit:.1f} % in the median of {finding.cases} cases"
        return f"{finding.subject}: the same binaries take {longer} longer, {allowed}{cause}"
    if text := _FOUND.get(finding.code):
        return text.format(subject=finding.subject, now=now, limit=limit)
    return f"{finding.subject} is {'on' if now else 'off'}, was {'on' if limit else 'off'}"


_WHY = {
    vocabulary.BINARY_NOT_KEPT: "not judged, the baseline has no binary of them",
    vocabulary.BASE_UNUSABLE: "not judged, the baseline's binary does not run here",
    vocabulary.CONTROL_FAILED: "not judged, two identical builds differ here",
    vocabulary.MAYBE_SLOWER: "not judged, too few blocks at full clock",
}


def changed_text(judged: Iterable[TimedCase]) -> str:
    """How many have another binary, how many of them were paired, and which were not judged and why; empty
    without any."""
    changed = {result.case.id: paired for result in judged if (paired := result.evidence.paired)}
    found: dict[str, list[str]] = {}
    for case, p in changed.items():
        what = "timed beside it" if p.change is not None else _WHY.get(p.outcome, "failed")
        found.setdefault(what, []).append(case)
    named = {what: f" ({some(cases)})" if what in _WHY.values() else "" for what, cases in found.items()}
    parts = [f"{len(cases)} {what}{named[what]}" for what, cases in found.items()]
    said = f"{count_text(len(changed), 'case')} with another binary than the baseline's"
    return f"{said}: {'; '.join(parts)}" if changed else ""


def sustained_texts(results: Iterable[TimedCase]) -> list[str]:
    """The throughput of back-to-back launches, next to that of the timed rounds, which is judged; with its
    share of the library's, where that ran the same problem back to back, too."""
    found = [(r.case, r.measurement) for r in results if r.measurement]
    seconds = {case: s for case, m in found if (s := m.extra.get("sustained_s")) is not None}
    library = {(c.kernel.operation, c.dtype, c.problem): s for c, s in seconds.items() if c.kernel.library}
    lines = []
    for case, m in found:
        if (s := seconds.get(case)) is None:
            continue
        clock, power = (m.extra[name] or "?" for name in ("sustained_mhz", "sustained_w"))
        theirs = library.get((case.kernel.operation, case.dtype, case.problem))
        share = "" if theirs is None or case.kernel.library else f", {100 * theirs / s:.1f} % of cuBLAS"
        speed, rounds = gflops_text(case.gflops(s)), gflops_text(case.gflops(m.median))
        lines.append(
            f"sustained, not judged: {case.id}: {speed} {case.kernel.operation.unit} at {clock} MHz and "
            f"{power} W{share}; in timed rounds {rounds} at {m.sm_clock_mhz} MHz"
        )
    return lines


def refresh_lines(before: Baseline | None, measured: Baseline, made: Refresh) -> list[str]:
    """A line for each measured case, then those that were refused, accepted or could not be compared."""
    rows = [("case", "old GFLOPS", "new GFLOPS", "change", "noise")]
    for case, entry in measured.entries.items():
        was = before.entry(case) if before else None
        change = percent_text(entry.gflops / was.gflops - 1 if was else None)
        speeds = (gflops_text(was.gflops if was else None), gflops_text(entry.gflops))
        rows.append((case, *speeds, change, noise_text(entry.noise_floor)))
    lines = aligned(rows)
    for case, paired in made.refused.items():
        remedy = f'make it faster, or store it with --accept-slower "{case}" "the reason"'
        lines.append(f"refused: {case}: {paired_text(paired)}; {remedy}")
    for case, paired in made.accepted.items():
        lines.append(f"accepted: {case}: {made.entries[case].accepted}; {paired_text(paired)}")
    return lines + [
        f"not compared with its best binary: {case}: {why}" for case, why in made.unpaired.items()
    ]

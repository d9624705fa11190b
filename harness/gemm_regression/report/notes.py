"""What is said of a run besides its verdicts: the machine, changed binaries, sustained clocks, a refresh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemm_regression.baselines import Baseline
from gemm_regression.judge.health import (
    ARITHMETIC,
    BANDWIDTH,
    CLOCK,
    NOT_MEASURED,
    OTHER_PROCESSES,
    POWER_LIMIT,
    MachineFinding,
)
from gemm_regression.judge.machine import AS_ITS_MODEL, AS_STORED, MACHINE, SHIFTED, MachineVerdict, Shift
from gemm_regression.judge.paired import BASE_UNUSABLE, BINARY_NOT_KEPT, CONTROL_FAILED, MAYBE_SLOWER
from gemm_regression.model import Case
from gemm_regression.report.figures import count_text, gflops_text, noise_text, percent_text
from gemm_regression.report.wording import paired_text, some
from gemm_regression.run.creep import Refresh
from gemm_regression.run.timed import Result

_UNITS = {CLOCK: "MHz", ARITHMETIC: "GFLOPS", BANDWIDTH: "GB/s"}
_NOTES = 3  # slow cases named one by one
_PASSES = {AS_STORED: "as it was", AS_ITS_MODEL: "as others of its model"}


def machine_lines(verdict: MachineVerdict) -> list[str]:
    """One line for the verdict, one for each finding, and one for single slow cases."""
    own, other = verdict.checked
    counted = (
        f"{count_text(own, 'unchanged case')} beside this board's own figures, {other} beside other boards'"
    )
    if not verdict.failed:
        state = _PASSES.get(verdict.reason, "unknown, nothing of its model is stored")
        return [f"{MACHINE}: {state}; {counted}", *_notes(verdict.notes)]
    lines = [f"{MACHINE}: {verdict.kind} {verdict.reason}; {counted}"]
    return [*lines, *(f"  {finding_text(finding)}" for finding in verdict.findings), *_notes(verdict.notes)]


def finding_text(finding: MachineFinding) -> str:
    """What is not as it should be, with the likely cause."""
    now, limit = finding.now or 0.0, finding.limit or 0.0
    if finding.code == SHIFTED:
        cause = f"; differs: {', '.join(finding.changed)}" if finding.changed else ""
        longer = f"{100 * now:.2f} ± {100 * (finding.error or 0):.2f} %"
        allowed = f"more than {100 * limit:.1f} % in the median of {finding.cases} cases"
        return f"{finding.subject}: the same binaries take {longer} longer, {allowed}{cause}"
    if finding.code == OTHER_PROCESSES:
        return f"other processes use the GPU: {finding.subject}"
    if finding.code == NOT_MEASURED:
        return f"{finding.subject} could not be measured; at least {limit:g} is known of the model"
    if finding.code == POWER_LIMIT:
        return f"power limit {now:g} W, should be {limit:g} W: nvidia-smi -pl {limit:g}"
    if finding.code in _UNITS:
        return f"{finding.subject} {now:g} {_UNITS[finding.code]}, at least {limit:g} on boards of this model"
    return f"{finding.subject} is {'on' if now else 'off'}, was {'on' if limit else 'off'}"


def _notes(notes: tuple[Shift, ...]) -> list[str]:
    if not notes:
        return []
    named = ", ".join(f"{shift.case} ({percent_text(shift.change)})" for shift in notes[:_NOTES])
    more = f" and {len(notes) - _NOTES} more" if len(notes) > _NOTES else ""
    return [f"  slower by themselves, with the same binary: {named}{more}"]


_WHY = {
    BINARY_NOT_KEPT: "the baseline has no binary of them",
    BASE_UNUSABLE: "the baseline's binary does not run here",
    CONTROL_FAILED: "two identical builds differ here",
    MAYBE_SLOWER: "too few blocks at full clock",
}


def changed_text(judged: Iterable[Result]) -> str:
    """How many have another binary, how many of them were paired, and which were not judged and why; empty
    without any."""
    pairs = {result.case.id: result.evidence.paired for result in judged}
    changed = {case: paired for case, paired in pairs.items() if paired}
    if not changed:
        return ""
    said = f"{count_text(len(changed), 'case')} with another binary than the baseline's"
    left: dict[str, list[str]] = {}
    for case, paired in changed.items():
        if paired.change is None and paired.outcome in _WHY:
            left.setdefault(_WHY[paired.outcome], []).append(case)
    failed = sum(paired.change is None for paired in changed.values()) - sum(map(len, left.values()))
    timed = sum(paired.change is not None for paired in changed.values())
    if timed == len(changed):
        return f"{said}: {'all ' if timed > 1 else ''}timed beside it"
    parts = [f"{timed} timed beside it", *([f"{failed} failed"] if failed else [])]
    parts += [f"{len(cases)} not judged, {why} ({some(cases)})" for why, cases in left.items()]
    return f"{said}: {'; '.join(parts)}"


def sustained_texts(results: Iterable[Result]) -> list[str]:
    """The throughput of back-to-back launches, next to that of the timed rounds, which is judged; with its
    share of the library's, where that ran the same problem back to back, too."""
    found = [(r.case, s) for r in results if (s := _sustained(r)) is not None]
    library = {_problem(case): s for case, s in found if case.kernel.library}
    return [
        _text(result, s, library.get(_problem(result.case)))
        for result in results
        if (s := _sustained(result)) is not None
    ]


def _sustained(result: Result) -> float | None:
    """Seconds a launch."""
    return result.measurement.extra.get("sustained_s") if result.measurement else None


def _problem(case: Case) -> tuple[object, ...]:
    return case.kernel.operation, case.dtype, case.problem


def _text(result: Result, seconds: float, library: float | None) -> str:
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


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns, the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join((row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    ]

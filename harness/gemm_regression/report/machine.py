"""The verdict on the machine, in a few lines."""

from __future__ import annotations

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
from gemm_regression.report.figures import count_text, percent_text

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

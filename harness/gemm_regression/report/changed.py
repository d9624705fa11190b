"""How the cases were judged whose binary is not their baseline's, in one line."""

from __future__ import annotations

from collections.abc import Iterable

from gemm_regression.judge.paired import BASE_UNUSABLE, BINARY_NOT_KEPT, CONTROL_FAILED, MAYBE_SLOWER
from gemm_regression.report.figures import count_text
from gemm_regression.report.wording import some
from gemm_regression.run.timed import Result

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

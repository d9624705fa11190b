"""How the cases were judged whose binary is not their baseline's, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import is_baselines
from harness.verdicts.paired import NO_PAIR

_SHOWN = 3  # reasons


def changed_text(judged: Iterable[Evidence]) -> str:
    """How many were paired with their baseline's commit, and how many, and why, were judged by the baseline
    alone; empty without any. Those that failed to run are not judged."""
    changed = [e for e in judged if _changed(e)]
    if not changed:
        return ""
    alone = Counter(
        e.paired.detail if e.paired else "they could not be judged at all"
        for e in changed
        if e.paired is None or e.paired.outcome == NO_PAIR
    )
    said = f"{len(changed)} cases have another binary than the baseline's"
    paired = len(changed) - alone.total()
    if not alone:
        return f"{said}: all were compared with the baseline's commit"
    why = [f"{count} because {reason}" for reason, count in alone.most_common(_SHOWN)]
    if (rest := alone.total() - sum(count for _, count in alone.most_common(_SHOWN))) > 0:
        why.append(f"{rest} for other reasons")
    of_baseline = f"{alone.total()} judged by the baseline alone ({'; '.join(why)})"
    return f"{said}: {paired} compared with its commit, {of_baseline}"


def _changed(e: Evidence) -> bool:
    return not e.error and bool(e.last and e.reference and not is_baselines(e.last, e.reference))

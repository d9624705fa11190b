"""A comparison as compact JSON, with everything the verdicts are based on; and the verdicts from it again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from harness.gate.compare import Comparison, Row, control_rule
from harness.project.commit import Commit, Tree
from harness.timing.looks import Rule, decide
from harness.verdicts.paired import outcome_of
from harness.verdicts.vocabulary import Outcome, VerdictKind

SCHEMA = 2


def document(
    comparison: Comparison, commit: Commit, tree: Tree, machine: Mapping[str, Any], when: str
) -> dict[str, Any]:
    """The document that ``--json`` writes. No host name, no paths; durations in seconds."""
    rule = comparison.rule
    return {
        "gemm_comparison": SCHEMA,
        "datetime": when,
        "base": {"name": commit.name, "id": commit.sha},
        "new": {"id": tree.sha, "dirty": tree.dirty},
        "machine_info": dict(machine),
        "rule": {"delta": rule.delta, "error": rule.error, "looks": rule.looks, "blocks": rule.blocks},
        "seed": comparison.seed,
        "exit_status": comparison.exit_status,
        "unfit": comparison.unfit,
        "controls": [_record(row) for row in comparison.controls],
        "cases": [_record(row) for row in comparison.rows],
    }


def _record(row: Row) -> dict[str, Any]:
    kind, reason = row.outcome
    record: dict[str, Any] = {
        "case": row.case.id,
        "verdict": str(kind),
        "verdict_reason": reason,
        "red": row.failed,
        "detail": row.detail,
    }
    if row.finding:
        f = row.finding
        record |= {
            "change": _round(f.change),
            "interval": [_round(end) for end in f.interval],
            "miss": f.miss,
            "blocks": f.blocks,
        }
    if row.samples.blocks:
        samples = row.samples
        record |= {
            "base_s": _round(samples.median("a"), 6),
            "new_s": _round(samples.median("b"), 6),
            "cycles_change": cycles_change(row),
            "resolution": samples.resolution,
            "discarded": samples.discarded,
            "clock_event_reasons": samples.reasons,
            "gpu_seconds": _round(samples.gpu_seconds, 3),
            "looks": [list(look.log_ratios) for look in row.looks],
            # The timer's resolution at the end of each interim analysis.
            "resolutions": [seen.resolution for seen in accumulate(row.looks)],
        }
    return record


def cycles_change(row: Row) -> float | None:
    """Relative change in SM cycles, the mean over blocks; None if the clock is unknown."""
    known = [c for block in row.samples.blocks if math.isfinite(c := block.log_cycles)]
    return _round(math.expm1(statistics.fmean(known))) if known else None


def _round(value: float, digits: int = 9) -> float:
    return float(f"{value:.{digits}g}")


Outcomes = dict[str, Outcome]


def verdicts(recorded: Mapping[str, Any]) -> tuple[Outcomes, Outcomes]:
    """The verdicts on the controls and on the timed cases, by case id, from the document alone.

    Raises ValueError for a document of another version.
    """
    if recorded.get("gemm_comparison") != SCHEMA:
        version = recorded.get("gemm_comparison")
        raise ValueError(f"comparison of schema {version!r}, but this version reads {SCHEMA}; compare again")
    rule = Rule(**recorded["rule"])
    return _judged_again(recorded["controls"], control_rule(rule)), _judged_again(recorded["cases"], rule)


def _judged_again(records: Sequence[Mapping[str, Any]], rule: Rule) -> Outcomes:
    timed = {record["case"]: record for record in records if record.get("looks")}

    def more(case: str, look: int) -> tuple[Sequence[float], float] | None:
        record = timed[case]
        if look >= len(record["looks"]):
            return None  # It crashed in this interim analysis.
        return record["looks"][look], record["resolutions"][look]

    found = decide(list(timed), more, rule)
    return {
        case: outcome_of(found[case].kind) if case in found else _recorded(record)
        for case, record in timed.items()
    }


def _recorded(record: Mapping[str, Any]) -> Outcome:
    return Outcome(VerdictKind(record["verdict"]), record["verdict_reason"])

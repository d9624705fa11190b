"""Claims of the course notes, judged by stored speeds, compiler metrics, counters and legality."""

from __future__ import annotations

from typing import Any

from lab.claims import own, rules
from lab.claims.claim import CLAIMS, Claim, Facts, Judged, Seen, Status, together

__all__ = ["CLAIMS", "Claim", "Facts", "Judged", "Seen", "Status", "judge"]


def judge(claim: Claim, facts: Facts) -> Judged:
    """The verdict on a claim. Raises ValueError or AttributeError if it names no rule."""
    asked: list[dict[str, Any]] = claim.judge.get("all", [claim.judge])
    found: list[Seen] = []
    for table in asked:
        if "own" in table:
            found += getattr(own, table["own"])(facts)
        else:
            (name,) = rules.RULES.keys() & table.keys()
            found += rules.RULES[name](facts, **table)
    return together(found, claim.only_if)

"""The line of a run's summary on cases of another binary than the baseline's."""

from __future__ import annotations

from dataclasses import replace

from harness.reports.changed import changed_text
from harness.verdicts.evidence import Evidence
from harness.verdicts.paired import NO_PAIR, WITHIN, Paired
from tests.unit.synthetic import NEW, OLD, case, observed, reference

TILED = case("tiled")
SAME = Evidence(observed(TILED, cubin=OLD), reference(TILED))
CHANGED = Evidence(observed(TILED, cubin=NEW), reference(TILED))


def none(why: str) -> Evidence:
    return replace(CHANGED, paired=Paired(*NO_PAIR, detail=why))


def test_nothing_has_changed() -> None:
    failed = replace(CHANGED, error=("HANG", "no answer"))
    assert changed_text([SAME, failed, Evidence(observed(TILED, cubin=NEW))]) == ""


def test_all_were_paired() -> None:
    paired = replace(CHANGED, paired=Paired(*WITHIN))
    assert changed_text([SAME, paired, paired]) == (
        "2 cases have another binary than the baseline's: all were compared with the baseline's commit"
    )


def test_those_judged_by_the_baseline_alone_are_counted_by_their_reasons() -> None:
    paired = replace(CHANGED, paired=Paired(*WITHIN))
    late = none("the 30 s for pairs were used up (--pair-budget)")
    assert changed_text([paired, late, late, none("no commit 1234 in this repository"), CHANGED]) == (
        "5 cases have another binary than the baseline's: 1 compared with its commit, 4 judged by the "
        "baseline alone (2 because the 30 s for pairs were used up (--pair-budget); "
        "1 because no commit 1234 in this repository; 1 because they could not be judged at all)"
    )
    assert changed_text([none(why) for why in "abcd"]).endswith("; 1 for other reasons)")

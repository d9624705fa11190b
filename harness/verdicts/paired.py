"""Verdicts on a case beside its counterpart in another commit: what `compare` says, and what the gate makes
of it for a suspected regression. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.timing.interval import PairedKind
from harness.verdicts.vocabulary import Outcome, VerdictKind

# What there is nothing to time for.
SAME_BINARY = Outcome(VerdictKind.PASS, "SAME_BINARY")
NOT_IN_BASE = Outcome(VerdictKind.NO_BASELINE, "NOT_IN_BASE")
BASE_UNUSABLE = Outcome(VerdictKind.AMBIGUOUS, "BASE_UNUSABLE")
COMPILE_ERROR = Outcome(VerdictKind.CRASHED, "COMPILE_ERROR")
NO_PAIR = Outcome(VerdictKind.NO_BASELINE, "NO_PAIR")
# What timing came to.
SLOWER = Outcome(VerdictKind.REGRESSED, "SLOWER_PAIRED")
FASTER = Outcome(VerdictKind.IMPROVED, "FASTER_PAIRED")
WITHIN = Outcome(VerdictKind.PASS, "WITHIN_MARGIN")
UNDECIDED = Outcome(VerdictKind.AMBIGUOUS, "PAIR_AMBIGUOUS")
UNFIT = Outcome(VerdictKind.AMBIGUOUS, "MACHINE_UNFIT")
WRONG = Outcome(VerdictKind.WRONG, "OUTPUT")

JUDGED = (SAME_BINARY, SLOWER, FASTER, WITHIN, UNDECIDED)
_CLAIMS = {
    PairedKind.SLOWER: SLOWER,
    PairedKind.FASTER: FASTER,
    PairedKind.SAME: WITHIN,
    PairedKind.AMBIGUOUS: UNDECIDED,
}


def outcome_of(claim: PairedKind) -> Outcome:
    """The verdict on what an interval says against ±delta."""
    return _CLAIMS[claim]


def failed_beside(error: str) -> Outcome:
    """The verdict where a device failed as it timed a pair, by the code of its error."""
    if error.startswith("BASE_"):
        return BASE_UNUSABLE
    return WRONG if error == "WRONG" else Outcome(VerdictKind.CRASHED, error)


def red(outcome: Outcome) -> bool:
    """Whether a comparison with it is red: only what was judged and is fine, or is new, is not."""
    return outcome != NOT_IN_BASE and outcome.kind not in (VerdictKind.PASS, VerdictKind.IMPROVED)


@dataclass(frozen=True)
class Paired:
    """What came of timing a case side by side with the baseline's commit.

    Attributes:
        kind, reason: the verdict on the pair alone; NO_BASELINE NO_PAIR where there was none.
        detail: why, in one line, where there are no figures.
        commit: the full hash of the baseline's commit; empty where it could not be had.
        change: relative change of the time, above 0 where the working tree's is slower.
        interval: of that change.
        delta: the margin, relative.
    """

    kind: VerdictKind
    reason: str
    detail: str = ""
    commit: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    delta: float | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)


# What a regression that a fresh worker confirmed comes to by the pair; by what is not here, it stays.
_SETTLED = {
    WITHIN: Outcome(VerdictKind.DRIFTED, "BASE_AS_SLOW"),
    FASTER: Outcome(VerdictKind.DRIFTED, "BASE_AS_SLOW"),
    SAME_BINARY: Outcome(VerdictKind.DRIFTED, "SAME_CODE_SLOWER"),
    UNDECIDED: UNDECIDED,
    UNFIT: UNFIT,
    WRONG: WRONG,
    SLOWER: SLOWER,
}


def settled(pair: Outcome) -> Outcome | None:
    """What a confirmed regression comes to by the verdict on the pair; None: as it was."""
    if pair.kind is VerdictKind.CRASHED:
        return Outcome(VerdictKind.CRASHED, "PAIR_CRASHED")
    return _SETTLED.get(pair)


# How runs recorded by older versions told it.
_OLDER = {
    **{str(claim): outcome for claim, outcome in _CLAIMS.items()},
    "IDENTICAL": SAME_BINARY,
    "UNFIT": UNFIT,
    "CRASHED": Outcome(VerdictKind.CRASHED, "PAIR_CRASHED"),
    "WRONG": WRONG,
    "IMPOSSIBLE": NO_PAIR,
}


def of_older(word: str) -> Outcome:
    """The outcome that a recorded run told by one word. Raises KeyError for what none ever said."""
    return _OLDER[word]

"""Verdicts of paired comparisons with another commit: those of `compare`, and what the gate concludes from
them for a suspected regression. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.timing.interval import MIN_BLOCKS, Estimate, PairedKind
from harness.verdicts.vocabulary import Outcome, VerdictKind

# Without timing.
SAME_BINARY = Outcome(VerdictKind.PASS, "SAME_BINARY")
NOT_IN_BASE = Outcome(VerdictKind.NO_BASELINE, "NOT_IN_BASE")
BASE_UNUSABLE = Outcome(VerdictKind.AMBIGUOUS, "BASE_UNUSABLE")
COMPILE_ERROR = Outcome(VerdictKind.CRASHED, "COMPILE_ERROR")
NO_PAIR = Outcome(VerdictKind.NO_BASELINE, "NO_PAIR")
# From timing.
SLOWER = Outcome(VerdictKind.REGRESSED, "SLOWER_PAIRED")
FASTER = Outcome(VerdictKind.IMPROVED, "FASTER_PAIRED")
WITHIN = Outcome(VerdictKind.PASS, "WITHIN_MARGIN")
UNDECIDED = Outcome(VerdictKind.AMBIGUOUS, "PAIR_AMBIGUOUS")
UNFIT = Outcome(VerdictKind.AMBIGUOUS, "MACHINE_UNFIT")
WRONG = Outcome(VerdictKind.WRONG, "OUTPUT")

# After these, a case that is slower than its baseline is measured again: the code may not be to blame.
UNSETTLED = (NO_PAIR, SAME_BINARY, WITHIN, FASTER, UNDECIDED)
# Relative: on an H100 two copies of one binary of `stream_k` differed by 1.3 % in a process, by 0.45 % from
# process to process; of other kernels, and on H200s, by 0.1 %.
COPIES = 0.02
JUDGED = (SAME_BINARY, SLOWER, FASTER, WITHIN, UNDECIDED)
_CLAIMS = {
    PairedKind.SLOWER: SLOWER,
    PairedKind.FASTER: FASTER,
    PairedKind.SAME: WITHIN,
    PairedKind.AMBIGUOUS: UNDECIDED,
}


def outcome_of(claim: PairedKind) -> Outcome:
    """The verdict for an interval relative to ±delta."""
    return _CLAIMS[claim]


def failed_beside(error: str) -> Outcome:
    """The verdict if the device failed while timing a pair, by its error code."""
    if error.startswith("BASE_"):
        return BASE_UNUSABLE
    return WRONG if error == "WRONG" else Outcome(VerdictKind.CRASHED, error)


def red(outcome: Outcome) -> bool:
    """Whether a comparison with this verdict fails: all but PASS, IMPROVED and cases new in this commit."""
    return outcome != NOT_IN_BASE and outcome.kind not in (VerdictKind.PASS, VerdictKind.IMPROVED)


@dataclass(frozen=True)
class Paired:
    """The result of timing a case side by side with the baseline's commit.

    Attributes:
        kind, reason: the verdict on the pair alone; NO_BASELINE NO_PAIR if there was none.
        detail: the reason in one line, if there are no numbers.
        commit: the full hash of the baseline's commit; empty if it was not available.
        change: relative change of the time, positive if the working tree is slower.
        interval: the confidence interval of that change.
        delta: the margin, relative.
        log_ratios, resolution, miss: the blocks, the timer's resolution and the case's share of the error
            probability, from which the verdict follows; none in runs of older versions.
        second: the blocks of a second process, for a case that was a little slower in the first.
    """

    kind: VerdictKind
    reason: str
    detail: str = ""
    commit: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    delta: float | None = None
    log_ratios: tuple[float, ...] = ()
    resolution: float = 0.0
    miss: float | None = None
    second: tuple[float, ...] = ()

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)

    @property
    def doubtful(self) -> bool:
        """Whether the case is slower for certain, and by no more than two copies of one binary may differ
        by: where code lies is another place in each process."""
        slower = self.outcome in (SLOWER, UNDECIDED)
        return slower and self.interval is not None and 0 < self.interval[0] < COPIES

    def in_new_process(self, log_ratios: Sequence[float]) -> Paired:
        """With the blocks of a second process: it must be slower for certain there, too."""
        return replace(self, second=tuple(log_ratios)).again()

    def again(self) -> Paired:
        """Judged once more from the blocks, if there are any."""
        if not self.log_ratios or self.miss is None or self.delta is None:
            return self
        estimate = Estimate.of(self.log_ratios, self.resolution)
        clear = estimate.p_value(self.delta) <= self.miss
        kind, reason = outcome_of(estimate.claim(self.delta) if clear else PairedKind.AMBIGUOUS)
        low, high = estimate.interval(self.miss)
        change = estimate.change
        if len(self.second) >= MIN_BLOCKS:
            other = Estimate.of(self.second, self.resolution)
            lowest, highest = other.interval(self.miss)
            if lowest <= 0:
                (kind, reason), change = UNDECIDED, (change + other.change) / 2
                low, high = min(low, lowest), max(high, highest)
        return replace(self, kind=kind, reason=reason, change=change, interval=(low, high))


# The verdict on a confirmed regression, by the verdict on the pair; unchanged for any other.
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
    """The verdict on a confirmed regression, by the verdict on the pair; None: unchanged."""
    if pair.kind is VerdictKind.CRASHED:
        return Outcome(VerdictKind.CRASHED, "PAIR_CRASHED")
    return _SETTLED.get(pair)


# As recorded by older versions.
_OLDER = {
    **{str(claim): outcome for claim, outcome in _CLAIMS.items()},
    "IDENTICAL": SAME_BINARY,
    "UNFIT": UNFIT,
    "CRASHED": Outcome(VerdictKind.CRASHED, "PAIR_CRASHED"),
    "WRONG": WRONG,
    "IMPOSSIBLE": NO_PAIR,
}


def of_older(word: str) -> Outcome:
    """The outcome that an older run recorded as one word. Raises KeyError for an unknown word."""
    return _OLDER[word]

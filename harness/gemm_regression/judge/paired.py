"""Has the code changed its speed? Only a pair says so: the stored binary beside the new one, on one board, in
one process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemm_regression.judge.vocabulary import Outcome, VerdictKind
from gemm_regression.timing.looks import MIN_BLOCKS, Estimate, Finding, PairedKind

# Without timing.
SAME_BINARY = Outcome(VerdictKind.PASS, "SAME_BINARY")
LIBRARY = Outcome(VerdictKind.PASS, "LIBRARY")
NOT_PAIRED = Outcome(VerdictKind.AMBIGUOUS, "NOT_PAIRED")
BINARY_NOT_KEPT = Outcome(VerdictKind.NO_BASELINE, "BINARY_NOT_KEPT")
NOT_IN_BASE = Outcome(VerdictKind.NO_BASELINE, "NOT_IN_BASE")
REMOVED = Outcome(VerdictKind.ORPHAN, "REMOVED")
BASE_UNUSABLE = Outcome(VerdictKind.AMBIGUOUS, "BASE_UNUSABLE")
COMPILE_ERROR = Outcome(VerdictKind.CRASHED, "COMPILE_ERROR")
# From timing.
SLOWER = Outcome(VerdictKind.REGRESSED, "SLOWER")
FASTER = Outcome(VerdictKind.IMPROVED, "FASTER")
NOT_SLOWER = Outcome(VerdictKind.PASS, "NOT_SLOWER")
MAYBE_SLOWER = Outcome(VerdictKind.AMBIGUOUS, "MAYBE_SLOWER")
CONTROL_FAILED = Outcome(VerdictKind.AMBIGUOUS, "CONTROL_FAILED")
WRONG = Outcome(VerdictKind.WRONG, "OUTPUT")

JUDGED = (SAME_BINARY, SLOWER, FASTER, NOT_SLOWER, MAYBE_SLOWER)
_CONCLUDED = {
    PairedKind.SLOWER: SLOWER,
    PairedKind.FASTER: FASTER,
    PairedKind.SAME: NOT_SLOWER,
    PairedKind.AMBIGUOUS: MAYBE_SLOWER,
}


def failed_beside(error: str) -> Outcome:
    """The verdict if the device failed while timing a pair, by its error code."""
    if error.startswith("BASE_"):
        return BASE_UNUSABLE
    return WRONG if error == "WRONG" else Outcome(VerdictKind.CRASHED, error)


def red(outcome: Outcome) -> bool:
    """Whether a comparison with this verdict fails: all but PASS, IMPROVED, and cases that are new in this
    commit or removed by it."""
    fine = outcome.kind in (VerdictKind.PASS, VerdictKind.IMPROVED)
    return not fine and outcome not in (NOT_IN_BASE, REMOVED)


@dataclass(frozen=True)
class Paired:
    """A case beside the stored binary.

    Attributes:
        kind, reason: the verdict.
        detail: why, in one line, where there are no numbers.
        base: what it was timed beside, such as the commit that the binary was stored with.
        change: relative change of the time, positive if the new one is slower.
        interval: the confidence interval of that change.
        margin: the slowdown that counts, relative.
        needed: the margin by which it was judged, where its own noise needed a larger one.
        log_ratios, resolution, miss: the blocks, the timer's resolution and the case's share of the error
            probability, from which the verdict follows.
        second, second_resolution: the blocks of a second process, which then decides.
    """

    kind: VerdictKind
    reason: str
    detail: str = ""
    base: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    margin: float | None = None
    log_ratios: tuple[float, ...] = ()
    resolution: float = 0.0
    miss: float | None = None
    second: tuple[float, ...] = ()
    second_resolution: float = 0.0
    needed: float | None = None

    @classmethod
    def of(cls, f: Finding, log_ratios: Sequence[float], resolution: float, margin: float) -> Paired:
        return cls(
            *_CONCLUDED[f.kind],
            change=f.change,
            interval=f.interval,
            margin=margin,
            log_ratios=tuple(log_ratios),
            resolution=resolution,
            miss=f.miss,
            needed=_needed(f, margin),
        )

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)

    @property
    def doubtful(self) -> bool:
        """Whether a second process decides. Where code lies is another place in each: two copies of one
        binary of `stream_k` once differed by 5 % in a process, on an H200, and by nothing in the next."""
        return self.outcome in (SLOWER, MAYBE_SLOWER) and self.interval is not None and not self.second

    def in_second_process(self, log_ratios: Sequence[float], resolution: float) -> Paired:
        """With the blocks of a second process."""
        return replace(self, second=tuple(log_ratios), second_resolution=resolution).again()

    def again(self) -> Paired:
        """Judged once more from the blocks, if there are any."""
        blocks, resolution = self.log_ratios, self.resolution
        if len(self.second) >= MIN_BLOCKS:
            blocks, resolution = self.second, self.second_resolution
        if len(blocks) < MIN_BLOCKS or self.miss is None or self.margin is None:
            return self
        f = Finding.at_last(Estimate.of(blocks, resolution), self.margin, self.miss)
        kind, reason = _CONCLUDED[f.kind]
        needed = _needed(f, self.margin)
        return replace(self, kind=kind, reason=reason, change=f.change, interval=f.interval, needed=needed)


def _needed(f: Finding, asked: float) -> float | None:
    return f.margin if f.margin > asked else None

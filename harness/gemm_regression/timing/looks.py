"""From the log-ratios of blocks to a verdict on a pair, by a confidence interval and a few interim analyses.
Pure.

Student's t on the log-ratios of the blocks; the blocks are the independent units (W. S. Gosset, "The probable
error of a mean", Biometrika 6, 1908). Chosen from three methods by simulation on recorded H200 samples
(test_paired_statistics.py): with twelve blocks the bootstrap's 99 % interval misses in 3 to 5 % of the cases;
the Hodges-Lehmann interval is accurate but cannot reach error probabilities below 2⁻¹¹, which a run of many
cases needs; t is accurate as far as could be counted, since block medians are nearly normal.

The familywise error rate is controlled. The error probability is divided equally among the interim analyses,
and within an analysis among the cases (Bonferroni's inequality: no assumption on their dependence). A case is
analysed again until it is decided at its share of the error probability. Cases that are undecided after the
last analysis are judged by Holm's step-down procedure (S. Holm, "A simple sequentially rejective multiple
test procedure", Scand. J. Statist. 6, 1979). Slower and not slower exclude each other, so a case needs no
share for each of the two.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gemm_regression.model.kernel import LARGEST_MARGIN

MIN_BLOCKS = 6  # fewer give no reliable estimate of the spread


class PairedKind(StrEnum):
    """Whether B is slower than A by more than the margin. SAME and FASTER are both certainly not; FASTER is
    certainly faster by more than the margin."""

    SLOWER = "SLOWER"
    SAME = "SAME"
    FASTER = "FASTER"
    AMBIGUOUS = "AMBIGUOUS"


@dataclass(frozen=True)
class Estimate:
    """An estimate of the log-ratio of B's time to A's.

    Attributes:
        mean: over the blocks; 0.01 is 1 % slower.
        error: its standard error.
        blocks: the number of blocks.
        resolution: the smallest possible half-width: the timer's resolution, relative.
    """

    mean: float
    error: float
    blocks: int
    resolution: float = 0.0

    @classmethod
    def of(cls, log_ratios: Sequence[float], resolution: float = 0.0) -> Estimate:
        """Raises ValueError for fewer than MIN_BLOCKS blocks, or a ratio that is not finite."""
        n = len(log_ratios)
        if n < MIN_BLOCKS:
            raise ValueError(f"{n} complete blocks, {MIN_BLOCKS} are needed")
        if not all(map(math.isfinite, log_ratios)):
            raise ValueError("a block has no finite ratio")
        return cls(statistics.fmean(log_ratios), statistics.stdev(log_ratios) / math.sqrt(n), n, resolution)

    @property
    def change(self) -> float:
        """Relative change of the time: 0.01 is 1 % slower."""
        return math.expm1(self.mean)

    def half_width(self, miss: float) -> float:
        """Half the width of the two-sided interval that misses the true value with probability ``miss``."""
        return max(float(student().isf(miss / 2, self.blocks - 1)) * self.error, self.resolution)

    def interval(self, miss: float) -> tuple[float, float]:
        """That interval, as relative changes of the time."""
        half = self.half_width(miss)
        return math.expm1(self.mean - half), math.expm1(self.mean + half)

    def p_value(self, margin: float) -> float:
        """The smallest ``miss`` at which the interval still lies on one side of +margin; 1 if none does.

        An interval that contains the true value makes no false claim, so a claim at this level is false with
        at most this probability.
        """
        room = abs(self.mean - math.log1p(margin))
        if room <= self.resolution:
            return 1.0
        if self.error == 0:
            return 0.0
        return min(1.0, 2 * float(student().sf(room / self.error, self.blocks - 1)))

    def least_margin(self, miss: float) -> float:
        """The smallest margin within which the interval of equal builds ends in 98 of 100 cases: their mean
        is less than two standard errors above 0."""
        return math.expm1(self.half_width(miss) + 2 * self.error)

    def conclude(self, margin: float, miss: float) -> PairedKind:
        """Whether B is slower than A by more than the margin, with an interval that misses with probability
        ``miss``."""
        if self.p_value(margin) > miss:
            return PairedKind.AMBIGUOUS
        if self.mean > math.log1p(margin):
            return PairedKind.SLOWER
        faster = self.mean + self.half_width(miss) < -math.log1p(margin)
        return PairedKind.FASTER if faster else PairedKind.SAME

    def differs(self, margin: float, miss: float) -> bool:
        """Whether A and B differ by more than the margin, either way: the question of a control."""
        return abs(self.mean) - self.half_width(miss) > math.log1p(margin)


def student() -> Any:
    """Student's distribution, imported late: it takes a second, and most commands do not need it."""
    from scipy import stats

    return stats.t


@dataclass(frozen=True)
class SequentialTest:
    """The group-sequential test of a run. ``error``: the probability of any false verdict. ``looks``: the
    maximum number of interim analyses. ``blocks``: the number of blocks at the first analysis; each further
    analysis doubles the total.

    Raises ValueError for invalid values.
    """

    error: float = 0.01
    looks: int = 4
    blocks: int = 12

    def __post_init__(self) -> None:
        if not 0 < self.error < 1:
            raise ValueError(f"error {self.error:g}: must be a probability between 0 and 1, such as 0.01")
        if self.looks < 1 or self.blocks < 6 or self.blocks % 2:
            raise ValueError("needs at least one look, and an even number of at least 6 blocks")

    def blocks_of(self, look: int) -> tuple[int, int]:
        """The first block and the number of blocks that look 0, 1, 2 … adds."""
        before = self.blocks * 2 ** (look - 1) if look else 0
        return before, self.blocks * 2**look - before

    def share(self, cases: int) -> float:
        """The error probability of one look at one of so many cases."""
        return self.error / self.looks / max(1, cases)


@dataclass(frozen=True)
class PairFinding:
    """What is concluded of a case.

    Attributes:
        kind: whether it is slower than the margin.
        change: relative change of the time, positive if B is slower.
        interval: of that change; it misses the true value with probability ``miss``.
        miss: the case's share of the error probability.
        blocks: the number of blocks.
        margin: by which it was concluded: the asked one, or what its own noise needs, if that is more.
    """

    kind: PairedKind
    change: float
    interval: tuple[float, float]
    miss: float
    blocks: int
    margin: float

    @classmethod
    def of(cls, e: Estimate, margin: float, miss: float) -> PairFinding:
        return cls(e.conclude(margin, miss), e.change, e.interval(miss), miss, e.blocks, margin)

    @classmethod
    def at_last(cls, e: Estimate, margin: float, miss: float) -> PairFinding:
        """Of all blocks that there will be. Where they are too noisy for the margin, the least one that their
        noise allows may tell, up to LARGEST_MARGIN."""
        found = cls.of(e, margin, miss)
        if found.kind is PairedKind.AMBIGUOUS:
            own = min(LARGEST_MARGIN, e.least_margin(miss))
            if own > margin and e.conclude(own, miss) is not found.kind:
                return cls.of(e, own, miss)
        return found


# The log-ratios of the blocks that a look (0, 1, 2 …) adds, and the resolution so far.
More = Callable[[int], tuple[Sequence[float], float]]


def look_until(more: More, settled: Callable[[Estimate], bool], rule: SequentialTest) -> Estimate | None:
    """Looks at one case until it is ``settled``, at most as often as the rule has it. None without enough
    complete blocks."""
    seen: list[float] = []
    estimate = None
    for look in range(rule.looks):
        added, resolution = more(look)
        seen += added
        if len(seen) >= MIN_BLOCKS:
            estimate = Estimate.of(seen, resolution)
            if settled(estimate):
                break
    return estimate


def conclude(
    estimates: Mapping[str, Estimate], margins: Mapping[str, float], rule: SequentialTest, cases: int
) -> dict[str, PairFinding]:
    """A finding for each case; of a run of so many ``cases``, of which these may be a part."""
    share = rule.share(cases)
    found = {case: PairFinding.of(e, margins[case], share) for case, e in estimates.items()}
    left = [case for case in estimates if found[case].kind is PairedKind.AMBIGUOUS]
    left.sort(key=lambda case: estimates[case].p_value(margins[case]))
    error, miss = share * len(estimates), share
    for rank, case in enumerate(left):
        miss = error / (len(left) - rank)
        found[case] = PairFinding.of(estimates[case], margins[case], miss)
        if found[case].kind is PairedKind.AMBIGUOUS:  # no later one is clearer
            for other in left[rank + 1 :]:
                found[other] = PairFinding.of(estimates[other], margins[other], share)
            break
    return {case: PairFinding.at_last(e, margins[case], found[case].miss) for case, e in estimates.items()}

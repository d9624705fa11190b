"""From the log-ratios of blocks to a confidence interval, and whether it clears a margin. Pure.

Student's t on the log-ratios of the blocks; the blocks are the independent units (W. S. Gosset, "The probable
error of a mean", Biometrika 6, 1908). Chosen from three methods by simulation on recorded H200 samples
(tests/unit/test_paired_statistics.py): with twelve blocks the bootstrap's 99 % interval misses in 3 to 5 % of
the cases; the Hodges-Lehmann interval is accurate but cannot reach error probabilities below 2⁻¹¹, which a
run of many cases needs; t is accurate as far as could be counted, since block medians are nearly normal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
        return max(float(_student().isf(miss / 2, self.blocks - 1)) * self.error, self.resolution)

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
        return min(1.0, 2 * float(_student().sf(room / self.error, self.blocks - 1)))

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


def _student() -> Any:
    from scipy import stats  # imported late: it takes most of a second, and most commands do not need it

    return stats.t

"""Verdicts on many cases in a few interim analyses (looks), with the familywise error controlled. Pure.

The error probability is divided equally among the looks, and within a look among the cases (Bonferroni's
inequality: no assumption on their dependence). A case is looked at until it is clear at its share, one look
after another while its data lie ready; what is still open after the last one is judged by Holm's step-down
procedure (S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979).
Slower and not slower exclude each other, so a case needs no share for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gemm_regression.model.kernel import LARGEST_MARGIN
from gemm_regression.timing.interval import MIN_BLOCKS, Estimate, PairedKind


@dataclass(frozen=True)
class Rule:
    """``error``: the probability of any false verdict in a run; ``looks``: the maximum number of interim
    analyses; ``blocks``: those of the first one; each further one doubles the total.

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
class Finding:
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
    def of(cls, e: Estimate, margin: float, miss: float) -> Finding:
        return cls(e.conclude(margin, miss), e.change, e.interval(miss), miss, e.blocks, margin)

    @classmethod
    def at_last(cls, e: Estimate, margin: float, miss: float) -> Finding:
        """Of all blocks that there will be. Where they are too noisy for the margin, the least one that their
        noise allows may tell, up to LARGEST_MARGIN."""
        found = cls.of(e, margin, miss)
        if found.kind is PairedKind.AMBIGUOUS:
            own = min(LARGEST_MARGIN, e.least_margin(miss))
            if own > margin and e.conclude(own, miss) is not found.kind:
                return cls.of(e, own, miss)
        return found


# The log-ratios of the blocks that a look (0, 1, 2 …) adds, and the resolution so far; None to give up.
More = Callable[[int], tuple[Sequence[float], float] | None]


def look_until(more: More, settled: Callable[[Estimate], bool], rule: Rule) -> Estimate | None:
    """Looks at one case until it is ``settled``, at most as often as the rule has it. None without enough
    complete blocks, or where ``more`` gave up."""
    seen: list[float] = []
    estimate = None
    for look in range(rule.looks):
        added = more(look)
        if added is None:
            return None
        seen += added[0]
        if len(seen) >= MIN_BLOCKS:
            estimate = Estimate.of(seen, added[1])
            if settled(estimate):
                break
    return estimate


def conclude(
    estimates: Mapping[str, Estimate], margins: Mapping[str, float], rule: Rule, cases: int
) -> dict[str, Finding]:
    """A finding for each case; of a run of so many ``cases``, of which these may be a part."""
    share = rule.share(cases)
    found = {case: Finding.of(e, margins[case], share) for case, e in estimates.items()}
    left = [case for case in estimates if found[case].kind is PairedKind.AMBIGUOUS]
    left.sort(key=lambda case: estimates[case].p_value(margins[case]))
    error, miss = share * len(estimates), share
    for rank, case in enumerate(left):
        miss = error / (len(left) - rank)
        found[case] = Finding.of(estimates[case], margins[case], miss)
        if found[case].kind is PairedKind.AMBIGUOUS:  # no later one is clearer
            for other in left[rank + 1 :]:
                found[other] = Finding.of(estimates[other], margins[other], share)
            break
    return {case: Finding.at_last(e, margins[case], found[case].miss) for case, e in estimates.items()}

"""Verdicts on many cases in a few interim analyses (looks), with the familywise error controlled. Pure.

The error probability is divided equally among the looks (Bonferroni's inequality: no assumption on their
dependence), and within a look among the cases by Holm's step-down procedure (S. Holm, "A simple sequentially
rejective multiple test procedure", Scand. J. Statist. 6, 1979). SLOWER, SAME and FASTER exclude each other,
so a case does not need a share for each of the three (Goeman, Solari and Stijnen, "Three-sided hypothesis
testing", Statist. Med. 29, 2010).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.timing.interval import MIN_BLOCKS, Estimate, PairedKind

DEFAULT_DELTA = 0.005


@dataclass(frozen=True)
class Rule:
    """``delta``: the smallest change that matters, relative; ``error``: the probability of any false verdict
    in a run; ``looks``: the maximum number of interim analyses; ``blocks``: those of the first one; each
    further one doubles the total.

    Raises ValueError for invalid values.
    """

    delta: float = DEFAULT_DELTA
    error: float = 0.01
    looks: int = 3
    blocks: int = 12

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(f"delta {self.delta:g}: must be between 0 and 1, such as 0.005")
        if not 0 < self.error < 1:
            raise ValueError(f"error {self.error:g}: must be a probability between 0 and 1, such as 0.01")
        if self.looks < 1 or self.blocks < 6 or self.blocks % 2:
            raise ValueError("needs at least one look, and an even number of at least 6 blocks")

    def blocks_of(self, look: int) -> tuple[int, int]:
        """The first block and the number of blocks that look 0, 1, 2 … adds."""
        before = self.blocks * 2 ** (look - 1) if look else 0
        return before, self.blocks * 2**look - before

    @property
    def error_of_a_look(self) -> float:
        return self.error / self.looks


@dataclass(frozen=True)
class Finding:
    """The result of an interim analysis for a case.

    Attributes:
        kind: where the interval lies relative to the margin.
        change: relative change of the time, positive if B is slower.
        interval: of that change; it misses the true value with probability ``miss``.
        miss: the case's share of the error probability.
        look: 0, 1, 2 …
        blocks: the number of blocks so far.
    """

    kind: PairedKind
    change: float
    interval: tuple[float, float]
    miss: float
    look: int
    blocks: int


def look_at(estimates: Mapping[str, Estimate], rule: Rule, look: int, others: int = 0) -> dict[str, Finding]:
    """A finding for each undecided case; those that stay AMBIGUOUS need the next look.

    ``others``: the number of undecided cases without an estimate.
    """
    ranked = sorted(estimates, key=lambda case: estimates[case].p_value(rule.delta))
    found, stopped, miss = {}, False, 0.0
    for rank, case in enumerate(ranked):
        e = estimates[case]
        if not stopped:
            miss = rule.error_of_a_look / (len(ranked) + others - rank)
            stopped = e.p_value(rule.delta) > miss
        kind = PairedKind.AMBIGUOUS if stopped else e.claim(rule.delta)
        found[case] = Finding(kind, e.change, e.interval(miss), miss, look, e.blocks)
    return {case: found[case] for case in estimates}


# The log-ratios of the blocks that a look adds to a case, and the resolution so far; None to give up.
More = Callable[[str, int], tuple[Sequence[float], float] | None]


def decide(
    cases: Sequence[str], more: More, rule: Rule, late: Callable[[], bool] = lambda: False
) -> dict[str, Finding]:
    """The last finding of each case; none for a case with too few complete blocks. No further interim
    analysis is begun once it is ``late``."""
    found: dict[str, Finding] = {}
    seen: dict[str, list[float]] = {case: [] for case in cases}
    for look in range(rule.looks):
        if look and late():
            break
        pending = [c for c in seen if c not in found or found[c].kind is PairedKind.AMBIGUOUS]
        estimates = {}
        for case in pending:
            added = more(case, look)
            if added is None:
                del seen[case]
                found.pop(case, None)
                continue
            seen[case] += added[0]
            if len(seen[case]) >= MIN_BLOCKS:
                estimates[case] = Estimate.of(seen[case], added[1])
        lacking = sum(case in seen and case not in estimates for case in pending)
        found |= look_at(estimates, rule, look, lacking)
    return found

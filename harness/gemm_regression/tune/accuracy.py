"""How far choices are behind the best at the measured shapes: with the figures of that shape, and without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean

from gemm_regression.model import Problem, stage_name
from gemm_regression.tune.rules import Variant, refusals
from gemm_regression.tune.select import Selector, takes_all
from gemm_regression.tune.table import Figure, choose, key_of, tables


@dataclass(frozen=True)
class Outcome:
    """The choice at a measured shape. Shares are speeds relative to the best measured there, 1 at best.

    Attributes:
        best: the fastest variant measured there.
        chosen, share: the choice.
        row: of the row of choices in the baseline, measured on its own; None if it has none, of another
            choice than today's, or on another board than the fastest: boards differ by some per cent.
        left_out, share_left_out: the choice among the variants measured there, by the figures of the other
            shapes alone; None without other shapes, or if none of them was measured elsewhere.
    """

    best: Figure
    chosen: Variant
    share: float
    row: float | None = None
    left_out: Variant | None = None
    share_left_out: float | None = None

    @property
    def problem(self) -> Problem:
        return self.best.problem

    @property
    def dtype(self) -> str:
        return self.best.variant.dtype.name


@dataclass(frozen=True)
class Summary:
    """Of several shares: how many, the worst and the geometric mean."""

    count: int
    worst: float
    mean: float

    @classmethod
    def of(cls, shares: Iterable[float | None]) -> Summary | None:
        """None without any."""
        known = [share for share in shares if share is not None]
        return cls(len(known), min(known), geometric_mean(known)) if known else None


def outcomes(selector: Selector) -> Iterator[Outcome]:
    """The choice at every measured shape, in the order of the figures, by dtype."""
    by_shape: dict[tuple[str, Problem], dict[Variant, Figure]] = {}
    for figure in selector.figures:
        shape = by_shape.setdefault((figure.variant.dtype.name, figure.problem), {})
        shape.setdefault(figure.variant, figure)
    for (dtype, problem), there in by_shape.items():
        best = max(there.values(), key=lambda figure: figure.gflops)
        chosen = selector.select(problem, best.variant.dtype).variant
        left_out = _left_out(selector, problem, there)
        row = selector.known.rows.get((dtype, problem))
        same = row and (row.choice, row.board) == (stage_name(chosen.kernel, chosen.config), best.board)
        yield Outcome(
            best,
            chosen,
            there[chosen].gflops / best.gflops,
            row.gflops / best.gflops if row and same else None,
            left_out,
            there[left_out].gflops / best.gflops if left_out else None,
        )


def _left_out(selector: Selector, problem: Problem, there: dict[Variant, Figure]) -> Variant | None:
    dtype = next(iter(there)).dtype.name
    others = (f for f in selector.figures if f.problem != problem and f.variant in there)
    table = tables(others, takes_all, selector.known.sms).get(key_of(problem, dtype))
    found = choose(table, problem, partial(_takes, problem)) if table else None
    return found.variant if found else None


def _takes(problem: Problem, variant: Variant) -> bool:
    return not refusals(variant, problem)

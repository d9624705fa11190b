"""Speeds of variants at measured shapes, and the choice by the nearest of them; pure.

Integers only, so that the C++ header (``header.py``), which does the same, gives the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.model import Problem
from harness.tuning.rules import Variant

NEIGHBOURS = 3  # measured shapes that a choice rests on
BEST = 100_000  # the speed of the fastest variant at a shape; those of the others are relative to it
KEPT = 8  # the fastest variants at a shape, of which a table has columns
BITS = 16  # of the fraction of a logarithm: 4096 and 4097 are 23 units apart
WEIGHT = 1 << 24  # of the nearest shape; a shape at twice its distance has a quarter
SHIFT = 12  # bits of a squared distance that do not count for weights, so that all fits in 63

Place = tuple[int, int, int, int]
Key = tuple[str, str, bool]  # dtype, layout, whether there is more than one matrix


@dataclass(frozen=True)
class Row:
    """A measured shape: its ``problem``, its ``place``, and the speed of each of the table's variants there,
    from 1 to BEST, 0 where it was not measured. ``best``: GFLOPS of the fastest."""

    problem: Problem
    place: Place
    speeds: tuple[int, ...]
    best: float


@dataclass(frozen=True)
class Table:
    """The measured shapes of one dtype, layout, and either batches or single matrices; ``variants`` are its
    columns."""

    key: Key
    variants: tuple[Variant, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Found:
    """A choice. ``rows``: the measured shapes that it rests on, nearest first, and their ``distances``, in
    the unit of ``place``, squared; ``ranked``: the variants measured at the nearest, the fastest first, with
    their estimated speed relative to BEST; ``refused``: those of them that do not take the problem."""

    rows: tuple[Row, ...]
    distances: tuple[int, ...]
    ranked: tuple[tuple[Variant, int], ...]
    refused: tuple[Variant, ...] = ()

    @property
    def variant(self) -> Variant:
        return self.ranked[0][0]


@dataclass(frozen=True)
class Figure:
    """A measured speed: GFLOPS of a variant on a problem, the file it is from, and the board it ran on.
    ``choice``: which kernel and config ran, of a kernel that chooses."""

    variant: Variant
    problem: Problem
    gflops: float
    source: str = field(default="", compare=False)
    board: str = field(default="", compare=False)
    choice: str = field(default="", compare=False)


def key_of(problem: Problem, dtype: str) -> Key:
    """The table of a problem."""
    return dtype, problem.layout, problem.batch > 1


def log2_fixed(value: int) -> int:
    """⌊log2(value) · 2^BITS⌋ for 1 ≤ value < 2^32, up to two units less by the rounding of 32-bit squares."""
    whole = value.bit_length() - 1
    x, result = value << (31 - whole), whole
    for _ in range(BITS):
        x = x * x >> 31
        carry = x >> 32
        x >>= carry
        result = result << 1 | carry
    return result


def place_of(problem: Problem) -> Place:
    """Where a problem lies, as logarithms: most by the number of elements of C, on which the number of blocks
    depends, then by K; least by the aspect ratio of C and the number of matrices."""
    m, n, k, batch = (log2_fixed(max(1, getattr(problem, name))) for name in ("m", "n", "k", "batch"))
    return 4 * (m + n), 2 * k, m - n, batch


def distance(one: Place, other: Place) -> int:
    """Squared, in units of 2^-BITS / 4 octaves of the number of elements of C."""
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def tables(figures: Iterable[Figure], always: Callable[[Variant], bool]) -> dict[Key, Table]:
    """The tables of some figures; of two figures of a variant on a problem the first counts. ``always``:
    whether a variant takes every problem; each shape has one of those among its columns, if it has any."""
    sorted_out: dict[Key, dict[Problem, dict[Variant, float]]] = {}
    for figure in figures:
        key = key_of(figure.problem, figure.variant.dtype.name)
        sorted_out.setdefault(key, {}).setdefault(figure.problem, {}).setdefault(
            figure.variant, figure.gflops
        )
    return {key: _table(key, by_problem, always) for key, by_problem in sorted_out.items()}


def _table(
    key: Key, by_problem: Mapping[Problem, Mapping[Variant, float]], always: Callable[[Variant], bool]
) -> Table:
    kept: set[Variant] = set()
    for speeds in by_problem.values():
        ordered = sorted(speeds, key=lambda variant: -speeds[variant])
        kept.update(ordered[:KEPT])
        kept.update(next(([v] for v in ordered if always(v)), []))
    variants = tuple(dict.fromkeys(v for speeds in by_problem.values() for v in speeds if v in kept))
    rows = []
    for problem, speeds in by_problem.items():
        best = max(speeds.values())
        relative = (max(1, round(BEST * speeds[v] / best)) if v in speeds else 0 for v in variants)
        rows.append(Row(problem, place_of(problem), tuple(relative), best))
    return Table(key, variants, tuple(rows))


def choose(table: Table, problem: Problem, takes: Callable[[Variant], bool]) -> Found | None:
    """The variant for a problem, or None if no variant of the table takes it.

    The nearest measured shape says which variants are compared: those measured there, if any of them takes
    the problem, else those of the next nearest. Their speed is the mean over that shape and the two after it,
    of those where the variant was measured, weighted by 1 / distance²; a shape of the same size decides
    alone."""
    place = place_of(problem)
    away = [distance(place, row.place) for row in table.rows]
    order = sorted(range(len(away)), key=lambda at: (away[at], at))
    taking = [takes(variant) for variant in table.variants]
    for first, at in enumerate(order):
        columns = [c for c, speed in enumerate(table.rows[at].speeds) if speed and taking[c]]
        if not columns:
            continue
        near = order[first : first + (NEIGHBOURS if away[at] else 1)]
        rows, distances = [table.rows[i] for i in near], [away[i] for i in near]
        estimates = {c: _estimate(c, rows, distances) for c in columns}
        ranked = sorted(columns, key=lambda c: (-estimates[c], -rows[0].speeds[c], c))
        return Found(
            tuple(rows),
            tuple(distances),
            tuple((table.variants[c], estimates[c]) for c in ranked),
            tuple(v for v, s, ok in zip(table.variants, rows[0].speeds, taking, strict=True) if s and not ok),
        )
    return None


def _estimate(column: int, rows: Sequence[Row], distances: Sequence[int]) -> int:
    total = weights = 0
    nearest = max(1, distances[0] >> SHIFT)
    for row, away in zip(rows, distances, strict=True):
        if row.speeds[column]:
            weight = WEIGHT * nearest // max(1, away >> SHIFT)
            total, weights = total + weight * row.speeds[column], weights + weight
    return total // weights

"""Speeds of variants at measured shapes, and the choice by them; pure.

The choice is made of integers only, so that the C++ header (``header.py``), which does the same, gives the
same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log2

from gemm_regression.model import Problem
from gemm_regression.tune.rules import Variant

BEST = 100_000  # the speed of the fastest variant at a shape; those of the others are relative to it
KEPT = 4  # a table has columns of the fastest variants at each shape, and of the best of each kind of block
SMS = 108  # where the number of SMs is unknown: an A100's
STEPS = 32  # of K: what a block needs besides its own to begin and to store, and one more for each part of K
BLOCK = 8192  # multiply-adds: what any block needs, however small its tile
BITS = 16  # of the fraction of a logarithm: 4096 and 4097 are 23 units apart
WEIGHT = 1 << 24  # of the nearest shape; a shape at twice its distance has a quarter
SHIFT = 12  # bits of a squared distance that do not count for weights, so that all fits in 63
NEAREST = 1 << 14  # the least squared distance that counts, shifted: 0.03 octaves
USUAL = 10 << 2 * (BITS + 2) >> SHIFT  # the squared distance, shifted, that a variant's usual speed counts as
CAUTION = (3 << BITS) // 10  # octaves by which it is expected slower than that far from what was measured
OFFSET = 1 << 22  # added to what may be negative, since C++ rounds that in another direction
MOST = (1 << 31) - 1  # blocks; more are as many
_ROUNDS = 30  # of the fit

Place = tuple[int, int, int, int]
Key = tuple[str, str, bool]  # dtype, layout, whether there is more than one matrix


@dataclass(frozen=True)
class Block:
    """What a block computes: ``rows`` and ``columns`` of C of so many ``matrices`` of a batch, or one of
    ``split`` parts of their K."""

    rows: int
    columns: int
    split: int
    matrices: int

    def turns(self, problem: Problem, sms: int) -> int:
        """How many blocks the busiest of the SMs computes."""
        tiles = -(-problem.m // self.rows) * -(-problem.n // self.columns)
        blocks = min(min(tiles, MOST) * self.split, MOST) * -(-problem.batch // self.matrices)
        return max(1, -(-blocks // sms))

    def work(self, problem: Problem) -> int:
        """Multiply-adds of one block, with what it needs besides."""
        return (
            self.rows * self.columns * self.matrices * (-(-problem.k // self.split) + self.split + STEPS)
            + BLOCK
        )

    def cost(self, problem: Problem, sms: int) -> int:
        """The logarithm of the multiply-adds of the busiest SM."""
        return log2_fixed(self.turns(problem, sms)) + log2_fixed(self.work(problem))


@dataclass(frozen=True)
class Row:
    """A measured shape.

    Attributes:
        problem, place: the shape.
        speeds: of each of the table's variants, from 1 to BEST; 0 where it was not measured.
        best: GFLOPS of the fastest.
        slower: by how much each took longer than `Block.cost` and its usual slowness let expect, and all of
            them at this shape, as a logarithm, plus OFFSET; 0 where it was not measured.
        level: by how much all of them took longer here, as a logarithm of ns.
    """

    problem: Problem
    place: Place
    speeds: tuple[int, ...]
    best: float
    slower: tuple[int, ...]
    level: int


@dataclass(frozen=True)
class Table:
    """The measured shapes of one dtype, layout, and either batches or single matrices.

    Attributes:
        key: which those are.
        variants, blocks: its columns.
        usual: their usual slowness, as a logarithm, plus OFFSET.
        rows: its shapes.
        sms: of the GPU.
    """

    key: Key
    variants: tuple[Variant, ...]
    blocks: tuple[Block, ...]
    usual: tuple[int, ...]
    rows: tuple[Row, ...]
    sms: int


@dataclass(frozen=True)
class Found:
    """A choice.

    Attributes:
        rows, distances: the measured shapes, nearest first, and how far they are, in the unit of ``place``,
            squared.
        ranked: the variants compared, the fastest first, with their speed relative to it, of BEST.
        gflops: the speed of the first; ``measured`` at this very size, or expected.
        refused: those that would be faster and do not take the problem.
    """

    rows: tuple[Row, ...]
    distances: tuple[int, ...]
    ranked: tuple[tuple[Variant, int], ...]
    gflops: float
    measured: bool
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


@cache
def block_of(variant: Variant) -> Block:
    shape = variant.kernel.shape_of(variant.config, variant.dtype)
    return Block(*shape.tile, shape.split, shape.batch)


def log2_fixed(value: int) -> int:
    """⌊log2(value) · 2^BITS⌋ for 1 ≤ value < 2^63, up to two units less by the rounding of 32-bit squares."""
    whole = value.bit_length() - 1
    x, result = value << 31 >> whole, whole
    for _ in range(BITS):
        x = x * x >> 31
        carry = x >> 32
        x >>= carry
        result = result << 1 | carry
    return result


def place_of(problem: Problem) -> Place:
    """Where a problem lies, as logarithms: most by the number of elements of C, then by K; least by the
    aspect ratio of C and the number of matrices."""
    m, n, k, batch = (log2_fixed(max(1, getattr(problem, name))) for name in ("m", "n", "k", "batch"))
    return 4 * (m + n), 2 * k, m - n, batch


def distance(one: Place, other: Place) -> int:
    """Squared, in units of 2^-BITS / 4 octaves of the number of elements of C."""
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def tables(
    figures: Iterable[Figure], always: Callable[[Variant], bool], sms: int | None = None
) -> dict[Key, Table]:
    """The tables of some figures; of two figures of a variant on a problem the first counts. ``always``:
    whether a variant takes every problem; each shape has one of those among its columns, if it has any."""
    sorted_out: dict[Key, dict[Problem, dict[Variant, float]]] = {}
    for figure in figures:
        key = key_of(figure.problem, figure.variant.dtype.name)
        sorted_out.setdefault(key, {}).setdefault(figure.problem, {}).setdefault(
            figure.variant, figure.gflops
        )
    return {key: _table(key, by_problem, always, sms or SMS) for key, by_problem in sorted_out.items()}


def _table(
    key: Key,
    by_problem: Mapping[Problem, Mapping[Variant, float]],
    always: Callable[[Variant], bool],
    sms: int,
) -> Table:
    kept: set[Variant] = set()
    for speeds in by_problem.values():
        ordered = sorted(speeds, key=lambda variant: -speeds[variant])
        kept.update(ordered[:KEPT])
        kept.update(next(([v] for v in ordered if always(v)), []))
    usual, level, rest = _fit(by_problem, sms)
    kept.update({block_of(v): v for v in sorted(usual, key=lambda v: -usual[v])}.values())
    variants = tuple(dict.fromkeys(v for speeds in by_problem.values() for v in speeds if v in kept))
    rows = []
    for problem, speeds in by_problem.items():
        best = max(speeds.values())
        relative = (max(1, round(BEST * speeds[v] / best)) if v in speeds else 0 for v in variants)
        slower = (OFFSET + _fixed(rest[problem, v]) if v in speeds else 0 for v in variants)
        at = _fixed(level[problem])
        rows.append(Row(problem, place_of(problem), tuple(relative), best, tuple(slower), at))
    blocks = tuple(map(block_of, variants))
    return Table(key, variants, blocks, tuple(OFFSET + _fixed(usual[v]) for v in variants), tuple(rows), sms)


def _fixed(value: float) -> int:
    return round(value * (1 << BITS))


def _fit(
    by_problem: Mapping[Problem, Mapping[Variant, float]], sms: int
) -> tuple[dict[Variant, float], dict[Problem, float], dict[tuple[Problem, Variant], float]]:
    """What `Block.cost` leaves of each time, as log2 of ns: the part of the variant, of the shape, and the
    rest, by least squares. So a variant measured at few shapes is compared with the others there."""
    problems, variants = list(by_problem), list(dict.fromkeys(v for of in by_problem.values() for v in of))
    number = {v: i for i, v in enumerate(variants)}  # hashing a variant takes long
    left = {
        (i, number[v]): log2(2.0 * p.m * p.n * p.k * p.batch / speed) - block_of(v).cost(p, sms) / (1 << BITS)
        for i, p in enumerate(problems)
        for v, speed in by_problem[p].items()
    }
    shapes: list[list[int]] = [[] for _ in variants]
    columns: list[list[int]] = [[] for _ in problems]
    for i, v in left:
        shapes[v].append(i)
        columns[i].append(v)
    usual, level = [0.0] * len(variants), [0.0] * len(problems)
    for _ in range(_ROUNDS):
        usual = [sum(left[i, v] - level[i] for i in of) / len(of) for v, of in enumerate(shapes)]
        level = [sum(left[i, v] - usual[v] for v in of) / len(of) for i, of in enumerate(columns)]
    return (
        dict(zip(variants, usual, strict=True)),
        dict(zip(problems, level, strict=True)),
        {(problems[i], variants[v]): value - usual[v] - level[i] for (i, v), value in left.items()},
    )


def choose(table: Table, problem: Problem, takes: Callable[[Variant], bool]) -> Found | None:
    """The variant for a problem, or None if no variant of the table takes it.

    Where this size was measured, the fastest of those measured there that take it. Else the one with the
    shortest expected time: the multiply-adds of the busiest SM (`Block.cost`), its usual slowness, and by how
    much it was slower than that at the measured shapes, as a mean weighted by 1 / distance²."""
    place = place_of(problem)
    away = [distance(place, row.place) for row in table.rows]
    order = sorted(range(len(away)), key=lambda at: (away[at], at))
    rows, distances = tuple(table.rows[at] for at in order), tuple(away[at] for at in order)
    taking = [takes(variant) for variant in table.variants]
    columns = [column for column, ok in enumerate(taking) if ok]
    if not columns:
        return None
    speeds = rows[0].speeds
    if not distances[0] and any(speeds[c] for c in columns):
        ranked = sorted((c for c in columns if speeds[c]), key=lambda c: (-speeds[c], c))
        faster = [v for v, s, ok in zip(table.variants, speeds, taking, strict=True) if s and not ok]
        shown = tuple((table.variants[c], speeds[c]) for c in ranked)
        return Found(rows, distances, shown, rows[0].best * shown[0][1] / BEST, True, tuple(faster))
    times = [_expected(table, c, problem, rows, distances) for c in range(len(table.variants))]
    ranked = sorted(columns, key=lambda c: (times[c], c))
    first = times[ranked[0]]
    return Found(
        rows,
        distances,
        tuple((table.variants[c], round(BEST * 2 ** ((first - times[c]) / (1 << BITS)))) for c in ranked),
        _gflops(problem, first, rows, distances),
        False,
        tuple(
            v for v, time, ok in zip(table.variants, times, taking, strict=True) if time < first and not ok
        ),
    )


def _expected(
    table: Table, column: int, problem: Problem, rows: Sequence[Row], distances: Sequence[int]
) -> int:
    """The expected time, as a logarithm that lacks what is the same for all variants."""
    nearest = max(NEAREST, distances[0] >> SHIFT)
    weights = WEIGHT * nearest // USUAL + 1
    total = weights * (OFFSET + CAUTION)
    for row, away in zip(rows, distances, strict=True):
        if row.slower[column]:
            weight = WEIGHT * nearest // max(NEAREST, away >> SHIFT)
            total, weights = total + weight * row.slower[column], weights + weight
    return table.blocks[column].cost(problem, table.sms) + table.usual[column] + total // weights


def weights_of(distances: Sequence[int]) -> list[float]:
    """Of measured shapes at these distances, nearest first; together 1."""
    each = [1 / max(NEAREST, away >> SHIFT) for away in distances]
    return [weight / sum(each) for weight in each]


def _gflops(problem: Problem, time: int, rows: Sequence[Row], distances: Sequence[int]) -> float:
    """The speed expected of a variant of this expected time."""
    weights = weights_of(distances)
    level = sum(weight * row.level for weight, row in zip(weights, rows, strict=True))
    flop = 2.0 * problem.m * problem.n * problem.k * problem.batch
    return float(flop / 2 ** ((time - 2 * OFFSET + level) / (1 << BITS)))

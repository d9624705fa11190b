"""Which problems a variant takes, the speeds of variants at measured shapes, and the choice by them; pure.

The choice is made of integers only, so that the C++ header (``select.header``), which does the same, gives
the same answers.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal, NamedTuple

import numpy as np

from gemm_regression.model import INT_MAX, Array, Config, DType, Kernel, Problem, variant_name

GRID = (2**31 - 1, 65535, 65535)  # blocks of a launch in x, y and z (CUDA C++ Programming Guide)
SIZES = ("m", "n", "k", "batch")
# Fields of a problem that a rule may be about, in the order of the header's struct.
FIELDS = (*SIZES, "lda", "ldb", "ldc", "start_a", "start_b", "start_c")
# Nothing about it is a special case: what its parameters refuse of it they refuse of most problems.
_GENERAL = Problem(64, 64, 64, alpha=2.0, beta=3.0, lda=128, ldb=128, ldc=128)

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


class Variant(NamedTuple):
    """A kernel with a config and a dtype."""

    kernel: Kernel
    config: Config
    dtype: DType

    @property
    def name(self) -> str:
        return variant_name(*self)

    @property
    def stage(self) -> str:
        """Kernel and config without the dtype, as in a table: ``gemm tile32-pad0``."""
        return f"{self.kernel.name} {self.config.label}".strip()


@dataclass(frozen=True)
class ProblemRule:
    """What must hold of a field of a problem: ``multiple_of`` a number, ``at_least`` or ``at_most`` it; or
    that the problem is ``square``, where field and number mean nothing."""

    kind: Literal["multiple_of", "at_least", "at_most", "square"]
    field: str = "m"
    number: int = 0


def refusals(variant: Variant, problem: Problem) -> tuple[str, ...]:
    """Why a variant cannot compute a problem, one line per reason: what its kernel refuses, and a grid larger
    than a GPU launches."""
    large = (
        f"{name} {getattr(problem, name)} needs more blocks than a launch can have, {size} is the largest"
        for name, size in (_largest(variant).items() if _too_many(variant, problem) else ())
        if getattr(problem, name) > size
    )
    return (*variant.kernel.refusals(variant.config, problem), *large)


def rules(variant: Variant) -> tuple[ProblemRule, ...] | None:
    """What ``refusals`` asks of a problem without a layout, gaps or a batch that its kernel does not know, as
    rules; None where they cannot say it: a declaration with a function of its own
    (``Constraints.unless``), or parameters without alpha, beta or a leading dimension."""
    kernel = variant.kernel
    general = replace(_GENERAL.stored(kernel.operation.layout), batch=2 if kernel.operation.batched else 1)
    if kernel.constraints.unless or kernel.narrowed(general) != general:
        return None
    largest = (ProblemRule("at_most", name, size) for name, size in _largest(variant).items())
    return (*_rules(variant), *largest)


def _rules(variant: Variant) -> Iterator[ProblemRule]:
    """What its kernel asks."""
    kernel, config, takes = variant.kernel, variant.config, variant.kernel.constraints
    for name, unit in takes.multiples.items():
        number = config[unit] if isinstance(unit, str) else unit
        field = f"start_{name.lower()}" if name in ("A", "B", "C") else name
        yield ProblemRule("multiple_of", field, number)
        if name in ("m", "n"):
            yield ProblemRule("at_least", name, 1)
    for name, number in takes.at_least.items():
        yield ProblemRule("at_least", name, number)
    for name, number in takes.at_most.items():
        yield ProblemRule("at_most", name, number)
    if takes.square:
        yield ProblemRule("square")
    for place, matrix in enumerate("abc"):
        a, b, c = (256 * (place == at) for at in range(3))
        moved = Problem(64, 64, 64, layout=kernel.operation.layout, starts=(a, b, c))
        if kernel.narrowed(moved) != moved:  # a tensor map
            yield ProblemRule("at_most", f"start_{matrix}", 0)
    if not kernel.operation.batched:
        yield ProblemRule("at_most", "batch", 1)


def _too_many(variant: Variant, problem: Problem) -> bool:
    """Whether a launch has more blocks than a GPU allows."""
    grid = variant.kernel.launch(variant.config, variant.dtype, problem).grid
    return any(blocks > most for blocks, most in zip(grid, GRID, strict=True))


@cache
def _largest(variant: Variant) -> dict[str, int]:
    """The largest of each size, the others being 1, with which a launch has no more blocks than a GPU allows;
    without those that may be as large as an int."""

    def too_many(name: str, size: int) -> bool:
        sizes = dict.fromkeys(SIZES, 1) | {name: size}
        return _too_many(variant, Problem(sizes["m"], sizes["n"], sizes["k"], batch=sizes["batch"]))

    found = {}
    for name in SIZES:
        largest = bisect(range(1, INT_MAX + 1), False, key=partial(too_many, name))
        if largest < INT_MAX:
            found[name] = largest
    return found


def takes_all(variant: Variant) -> bool:
    """Whether it takes every problem of its kind that fits a launch."""
    of = rules(variant)
    return of is not None and all(
        rule.kind == "at_most" and (rule.field == "batch" or rule.number >= GRID[1]) for rule in of
    )


# Speeds


@dataclass(frozen=True)
class BlockWork:
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


@dataclass(frozen=True, eq=False)
class ShapeTable:
    """The measured shapes of one dtype, layout, and either batches or single matrices; in arrays of integers,
    with a row for each shape and a column for each variant.

    Attributes:
        key: which those are.
        problems, places: the shapes, and where they lie (`place_of`).
        variants, blocks: the columns.
        usual: the usual slowness of each variant, as a logarithm, plus OFFSET.
        speeds: from 1 to BEST; 0 where it was not measured.
        slower: by how much it took longer than `BlockWork.cost` and its usual slowness let expect, and all of
            them at this shape, as a logarithm, plus OFFSET; 0 where it was not measured.
        best: GFLOPS of the fastest at each shape.
        levels: by how much all of them took longer at each shape, as a logarithm of ns.
        sms: of the GPU.
    """

    key: Key
    problems: tuple[Problem, ...]
    places: Array
    variants: tuple[Variant, ...]
    blocks: tuple[BlockWork, ...]
    usual: Array
    speeds: Array
    slower: Array
    best: Array
    levels: Array
    sms: int


@dataclass(frozen=True)
class Found:
    """A choice.

    Attributes:
        problems, distances: the measured shapes, nearest first, and how far they are, in the unit of
            ``place_of``, squared.
        ranked: the variants compared, the fastest first, with their speed relative to it, of BEST.
        gflops: the speed of the first; ``measured`` at this very size, or expected.
        refused: those that would be faster and do not take the problem.
    """

    problems: tuple[Problem, ...]
    distances: tuple[int, ...]
    ranked: tuple[tuple[Variant, int], ...]
    gflops: float
    measured: bool
    refused: tuple[Variant, ...] = ()

    @property
    def variant(self) -> Variant:
        return self.ranked[0][0]


@dataclass(frozen=True)
class Speed:
    """A measured speed: GFLOPS of a variant on a problem, the file it is from, and the board it ran on.
    ``choice``: which kernel and config ran, of a kernel that chooses."""

    variant: Variant
    problem: Problem
    gflops: float
    source: str = field(default="", compare=False)
    board: str = field(default="", compare=False)
    choice: str = field(default="", compare=False)


def plain(problem: Problem) -> Problem:
    """Of its size and layout, as speeds are measured: tight, alpha 1, beta 0."""
    return Problem(problem.m, problem.n, problem.k, batch=problem.batch, layout=problem.layout)


def key_of(problem: Problem, dtype: str) -> Key:
    """The table of a problem."""
    return dtype, problem.layout, problem.batch > 1


@cache
def block_of(variant: Variant) -> BlockWork:
    shape = variant.kernel.shape_of(variant.config, variant.dtype)
    return BlockWork(*shape.tile, shape.split, shape.batch)


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


def tables(figures: Iterable[Speed], sms: int | None = None) -> dict[Key, ShapeTable]:
    """The tables of some figures; of two figures of a variant on a problem the first counts."""
    speeds: dict[Key, dict[Problem, dict[Variant, float]]] = {}
    for f in figures:
        of_key = speeds.setdefault(key_of(f.problem, f.variant.dtype.name), {})
        of_key.setdefault(f.problem, {}).setdefault(f.variant, f.gflops)
    return {key: _table(key, by_problem, sms or SMS) for key, by_problem in speeds.items()}


def _table(key: Key, by_problem: Mapping[Problem, Mapping[Variant, float]], sms: int) -> ShapeTable:
    """Its columns are the fastest variants at each shape, of those that take all problems the fastest there,
    and the best of each kind of block."""
    every = list(dict.fromkeys(v for speeds in by_problem.values() for v in speeds))
    number = {v: i for i, v in enumerate(every)}  # hashing a variant takes long
    gflops = np.full((len(by_problem), len(every)), np.nan)
    cost = np.zeros_like(gflops)
    kept: set[int] = set()
    for row, (problem, speeds) in enumerate(by_problem.items()):
        for variant, speed in speeds.items():
            gflops[row, number[variant]] = speed
            cost[row, number[variant]] = block_of(variant).cost(problem, sms) / (1 << BITS)
        ordered = sorted(speeds, key=lambda variant: -speeds[variant])
        taking_all = next(filter(takes_all, ordered), ordered[0])
        kept.update(number[variant] for variant in (*ordered[:KEPT], taking_all))
    flop = np.array([[2.0 * p.m * p.n * p.k * p.batch] for p in by_problem])
    usual, level, rest = _fit(np.log2(flop / gflops) - cost)
    kept.update({block_of(every[i]): i for i in np.argsort(-usual, kind="stable").tolist()}.values())
    columns = sorted(kept)
    variants = tuple(every[i] for i in columns)
    best, there = np.nanmax(gflops, axis=1), gflops[:, columns] > 0
    relative = np.maximum(1, np.rint(BEST * gflops[:, columns] / best[:, None]))
    return ShapeTable(
        key=key,
        problems=tuple(by_problem),
        places=np.array([place_of(problem) for problem in by_problem]),
        variants=variants,
        blocks=tuple(map(block_of, variants)),
        usual=OFFSET + _fixed(usual[columns]),
        speeds=np.where(there, relative, 0).astype(np.int64),
        slower=np.where(there, OFFSET + _fixed(np.where(there, rest[:, columns], 0)), 0),
        best=best,
        levels=_fixed(level),
        sms=sms,
    )


def _fixed(values: Array) -> Array:
    return np.asarray(np.rint(values * (1 << BITS)), np.int64)


def _fit(left: Array) -> tuple[Array, Array, Array]:
    """What `BlockWork.cost` leaves of each time, as log2 of ns, by shape and variant, NaN where it was not
    measured: the part of the variant, of the shape, and the rest, by least squares. So a variant measured at
    few shapes is compared with the others there."""
    usual, level = np.zeros(left.shape[1]), np.zeros(left.shape[0])
    for _ in range(_ROUNDS):
        usual = np.nanmean(left - level[:, None], axis=0)
        level = np.nanmean(left - usual, axis=1)
    return usual, level, left - usual - level[:, None]


def choose(table: ShapeTable, problem: Problem, takes: Callable[[Variant], bool]) -> Found | None:
    """The variant for a problem, or None if no variant of the table takes it.

    Where this size was measured, the fastest of those measured there that take it. Else the one with the
    shortest expected time: the multiply-adds of the busiest SM (`BlockWork.cost`), its usual slowness, and by
    how much it was slower than that at the measured shapes, as a mean weighted by 1 / distance²."""
    taking = np.array([takes(variant) for variant in table.variants])
    if not taking.any():
        return None
    away = ((table.places - place_of(problem)) ** 2).sum(axis=1)
    near = np.argsort(away, kind="stable")
    speeds = table.speeds[near[0]] * (away[near[0]] == 0)
    measured = bool((speeds * taking).any())
    if measured:
        ranked = np.argsort(-speeds, kind="stable")[: np.count_nonzero(speeds)].tolist()
        gflops = float(table.best[near[0]] * (speeds * taking).max() / BEST)
    else:
        times = _expected(table, problem, away)
        ranked = np.argsort(times, kind="stable").tolist()
        first = times[taking].min()
        speeds = np.rint(BEST * 2.0 ** ((first - times) / (1 << BITS))).astype(np.int64)
        level = np.dot(weights_of(away.tolist()), table.levels)
        gflops = float(problem.flops / 2 ** ((first - 2 * OFFSET + level) / (1 << BITS)))
    able = [column for column in ranked if taking[column]]
    return Found(
        tuple(table.problems[row] for row in near),
        tuple(away[near].tolist()),
        tuple((table.variants[column], int(speeds[column])) for column in able),
        gflops,
        measured,
        tuple(table.variants[column] for column in ranked[: ranked.index(able[0])]),
    )


def _expected(table: ShapeTable, problem: Problem, away: Array) -> Array:
    """The expected time of each variant, as a logarithm that lacks what is the same for all. ``away``: the
    distances of the measured shapes."""
    apart = np.maximum(NEAREST, away >> SHIFT)
    nearest = int(apart.min())
    weights, own = WEIGHT * nearest // apart, WEIGHT * nearest // USUAL + 1
    total = own * (OFFSET + CAUTION) + weights @ table.slower
    cost = np.array([block.cost(problem, table.sms) for block in table.blocks])
    return np.asarray(cost + table.usual + total // (own + weights @ (table.slower > 0)))


def weights_of(distances: Sequence[int]) -> list[float]:
    """Of measured shapes at these distances; together 1."""
    each = [1 / max(NEAREST, away >> SHIFT) for away in distances]
    return [weight / sum(each) for weight in each]

"""Named sets of cases: what is verified, and what is timed; and how a problem is adapted to a kernel:
restricted to what its parameters can express, or refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gemm_regression.model import Case, Config, DType, Kernel, Problem, variant_name
from gemm_regression.model.gpus import GpuLimits, legal_variants, refusals

# Never square, M, N and K all different, since a square problem hides exchanged sizes. Small, because the
# reference is computed on the host. Each shows mistakes that no other does: a size, leading dimension or
# alignment in the place of another (tests/separation.py looks for what none of them shows).
TALL = Problem(2085, 137, 9, beta=-1)  # more than eight of the tallest tiles, a band of rows
WHOLE = Problem(256, 384, 128)  # whole tiles, aligned: fast paths only
DEEP = Problem(
    258, 264, 34, alpha=-1, beta=2, lda=40
)  # several of the largest tiles, aligned rows, every edge
VERIFIED_SMOKE: tuple[Problem, ...] = (
    Problem(1, 1, 1),
    WHOLE,
    # Several tiles and every edge.
    Problem(137, 131, 45, alpha=-1, beta=3, lda=256, ldb=140, ldc=144, starts=(4, 1, 0)),
    Problem(37, 29, 0, beta=2),  # K = 0: C is only scaled
    # Whole along M and K, rows aligned: fast paths along N, where the last tile is not whole.
    Problem(256, 36, 32, alpha=2, lda=40, ldb=48),
    Problem(33, 12, 264, beta=1, lda=266, ldb=16, ldc=24, starts=(0, 0, 4)),  # many steps along K
    Problem(7, 5, 9, alpha=3, beta=-1, lda=11, ldb=7, ldc=9),  # odd leading dimensions
)
VERIFIED: tuple[Problem, ...] = (
    *VERIFIED_SMOKE,
    Problem(0, 7, 5, beta=1),
    Problem(7, 0, 5),
    Problem(3, 2, 7, alpha=0, beta=-1),
    TALL,
    # One size is large, or a leading dimension: guards and tests for whole tiles by the wrong one.
    Problem(256, 10, 5, beta=1, lda=256, ldb=10, ldc=12),
    Problem(256, 12, 9, alpha=2, lda=11, ldb=512, ldc=512, starts=(0, 0, 2)),
    Problem(5, 256, 12, beta=2, lda=20, ldb=257, ldc=512, starts=(4, 0, 1)),
    Problem(33, 256, 9, lda=11, ldb=264, ldc=256, starts=(0, 2, 0)),
    Problem(12, 36, 256, alpha=-1, beta=1, lda=260, ldb=36, ldc=256, starts=(4, 0, 0)),
    Problem(10, 6, 33, alpha=2, lda=512, ldb=7, ldc=7),
    Problem(29, 7, 10, beta=1, lda=512, ldb=12, ldc=256, starts=(2, 0, 0)),
    Problem(10, 6, 2, beta=-1, lda=512, ldb=8, ldc=6),
    Problem(132, 36, 5, lda=5, ldb=48, ldc=42, starts=(4, 4, 0)),
    Problem(127, 37, 1, alpha=3, beta=1, lda=12, ldb=37, ldc=256, starts=(0, 4, 0)),  # one step along K
    Problem(1, 7, 5, lda=8, ldb=256, ldc=16, starts=(1, 2, 0)),  # one row
    Problem(33, 1, 2, beta=1, lda=8, ldb=8, ldc=1, starts=(1, 1, 4)),  # one column
    DEEP,
)

# Rows so far apart that a 32-bit index overflows, within a tile and from one to the next, and matrices of a
# batch; only a device that stores just the rows can run it.
SPARSE = Problem(261, 6, 41, beta=1, lda=2**30 + 4, ldb=2**30 + 8, ldc=2**30 + 12)
SPARSE_BATCHED = replace(SPARSE, m=3, k=5, batch=3)
FAR_APART = (
    SPARSE,
    SPARSE_BATCHED,
    replace(SPARSE, m=3, k=69, batch=2),  # the same from one tile of 64 along K to the next
)

SQUARES = (256, 512, 1024, 2048, 4096, 8192, 1000, 4095, 4097)
TIMED: tuple[Problem, ...] = (
    *(Problem(n, n, n) for n in SQUARES),
    Problem(4096, 64, 4096),
    Problem(16, 8192, 8192),
    Problem(8205, 5921, 2949),
)

DEEP_BATCHED = Problem(67, 69, 70, alpha=-1, beta=1, batch=2)  # several tiles of 64, and every edge
# Additional problems for batched operations: gaps between matrices, odd leading dimensions, many small ones.
VERIFIED_BATCHED: tuple[Problem, ...] = (
    Problem(5, 7, 9, alpha=2, beta=-1, lda=11, ldb=9, ldc=9, batch=3, gap=2),
    Problem(33, 37, 65, beta=1, lda=67, ldb=39, ldc=41, batch=3, gap=2, starts=(1, 2, 3)),
    Problem(64, 48, 32, batch=3),
    Problem(8, 4, 16, alpha=-1, batch=37),
    DEEP_BATCHED,
)
# About 256 MiB of matrices each, as far as the 65 535 blocks along z of a grid allow.
TIMED_BATCHED: tuple[Problem, ...] = tuple(
    Problem(n, n, n, batch=batch)
    for n, batch in ((8, 65535), (16, 65535), (32, 20000), (64, 5000), (33, 20000))
)
TIMED_LARGE_BATCHED = (Problem(256, 256, 256, batch=320), Problem(1024, 1024, 1024, batch=20))
# 1 GiB of A, B and C, which no cache holds; for kernels whose matrices are not counted by z alone.
TIMED_GIBIBYTE: tuple[Problem, ...] = tuple(
    Problem(n, n, n, batch=2**30 // (3 * n * n * 4)) for n in (8, 16, 32, 64)
)
# Products of the largest 8-bit integers, whose sum has more than the 24 bits that FP32 holds.
VERIFIED_INTEGER = (Problem(3, 5, 2113),)

MOST_FLOP = 2**26  # of a substitute for a refused problem: the interpreter needs seconds for it
_LARGE = 2**20  # FLOP
_SMALL = 32  # rows or columns of a tile of which the other batches have several
# Parameters that do not decide which elements a block computes, or in which steps.
_WITHIN_A_TILE = ("PADDING", "STAGES", "THREAD_TILE", "WARP_TILE")
_MIDDLE = 128  # rows or columns of a tile of which the other problems have several


class Fitted(NamedTuple):
    """The problem ``asked`` for, and the ``case`` to run. If there are ``reasons``, the kernel refuses the
    problem; then ``runs`` says whether the case, a similar problem, runs instead."""

    asked: Problem
    case: Case
    reasons: tuple[str, ...] = ()
    runs: bool = True

    @property
    def refusal(self) -> str:
        """The refusal in one line."""
        instead = f"; {self.case.problem.id} runs instead" if self.runs else ""
        return f"{self.case.variant} {self.asked.id}: {'; '.join(self.reasons)}{instead}"


def fitted(
    kernel: Kernel, config: Config, dtype: DType, problems: Iterable[Problem], near: bool
) -> Iterator[Fitted]:
    """The problems restricted to what the kernel's parameters can express, each once; and those it refuses,
    with the reasons. With ``near``, a similar problem that it accepts runs instead of a refused one."""
    seen: set[Problem] = set()
    for asked in problems:
        problem = kernel.narrowed(asked)
        reasons = kernel.refusals(config, problem)
        runs = not reasons
        if reasons and near:
            problem, runs = _near(kernel, config, problem)
        runs = runs and problem not in seen
        if runs:
            seen.add(problem)
        if runs or reasons:
            yield Fitted(asked, Case(kernel, dtype, config, problem), reasons, runs)


def choosable(
    found: Iterable[Fitted], kernels: Sequence[Kernel], limits: GpuLimits, timed: bool
) -> Iterator[Fitted]:
    """The same, but what a kernel that chooses has no candidate for is refused; and what is ``timed`` of it
    is left out where it is too large to time any candidate."""
    for each in found:
        case = each.case
        if not case.kernel.is_dispatcher or each.reasons:
            yield each
            continue
        there = candidates(kernels, case.dtype, case.problem, limits)
        largest = max((kernel.largest_timed for kernel, _ in there), default=None)
        if largest is None:
            yield each._replace(reasons=("no kernel accepts it",), runs=False)
        elif not timed or case.problem.flops <= largest:
            yield each


def candidates(
    kernels: Iterable[Kernel], dtype: DType, problem: Problem, limits: GpuLimits
) -> Iterator[tuple[Kernel, Config]]:
    """What there is to choose from for alpha·A·B + beta·C, in the order of declaration: compiled kernels that
    compute it, with the configs that are legal on such a GPU and accept the problem."""
    for kernel in kernels:
        if kernel.compiled and kernel.operation.plain_product and dtype in kernel.dtypes:
            for config in kernel.declared:
                if not refusals(kernel, config, dtype, limits) and not kernel.refusals(config, problem):
                    yield kernel, config


def _near(kernel: Kernel, config: Config, problem: Problem) -> tuple[Problem, bool]:
    """A substitute for a refused problem, and whether it is usable."""
    try:
        found = kernel.narrowed(kernel.constraints.near(problem, config))
    except ValueError:
        return problem, False
    return found, not kernel.refusals(config, found) and kernel.operation.flop(found) <= MOST_FLOP


def with_rows_as_taken(kernel: Kernel, config: Config, problem: Problem) -> Problem:
    """The problem in the kernel's layout, with leading dimensions, starts and sizes rounded up where it
    refuses them."""
    problem = problem.stored(kernel.operation.layout)
    if not kernel.refusals(config, problem):
        return problem
    found, usable = _near(kernel, config, problem)
    up = all(getattr(found, of) >= getattr(problem, of) for of in ("lda", "ldb", "ldc", "m", "n", "k"))
    return found if usable and up and found.batch == problem.batch else problem


def exactly(kernel: Kernel, config: Config, dtype: DType, problems: Sequence[Problem]) -> Iterator[Fitted]:
    """Exactly these problems, in the kernel's own layout if they do not name one, or why they are refused."""
    for asked in problems:
        problem = asked.stored(kernel.operation.layout) if asked.layout == "NN" else asked
        reasons = kernel.refusals(config, problem)
        yield Fitted(asked, Case(kernel, dtype, config, problem), reasons, runs=not reasons)


class Timed(NamedTuple):
    """The problems that the ``default`` config of a kernel is timed on, and the ``others``."""

    default: tuple[Problem, ...]
    others: tuple[Problem, ...]


@dataclass(frozen=True)
class Suite:
    """A named set of cases.

    Every kernel is verified on ``verified``, and its default config timed on ``timed``. With ``all_configs``,
    every legal config is verified and the others are timed on ``timed_others``. Batched operations are also
    verified on ``verified_batched``, and timed on ``timed_batched`` and ``timed_batched_others`` instead;
    integer ones are also verified on ``verified_integer``. An operation with problems of its own has those
    alone. ``timed_few`` has the kernels, by name, that are
    timed on other problems than the rest; ``largest_timed``, FLOP by kernel name, is the suite's own limit in
    addition to the kernel's. Each problem is restricted to what a kernel can express; if the kernel refuses
    it, a similar one is verified instead, and it is not timed.

    With ``advised``, the advised configs take the place of all others, verified on ``verified`` and timed on
    ``timed``; in the kernel's first dtype, for advice is about shapes.

    ``timed_at`` are the problems of variants that are for a few shapes, timed on those alone, or on none; by
    the variant's name, as in the ids of cases. ``verified_too`` are problems by a kernel's name that show
    what only that kernel does. ``more`` names the suite that times what this one leaves out.
    """

    name: str
    verified: tuple[Problem, ...]
    timed: tuple[Problem, ...]
    all_configs: bool = True
    timed_others: tuple[Problem, ...] = ()
    timed_few: Mapping[str, Timed] = field(default_factory=dict)
    largest_timed: Mapping[str, float] = field(default_factory=dict)
    verified_batched: tuple[Problem, ...] = VERIFIED_BATCHED
    timed_batched: tuple[Problem, ...] = (*TIMED_BATCHED, *TIMED_LARGE_BATCHED)
    timed_batched_others: tuple[Problem, ...] = TIMED_BATCHED[2:4]
    verified_integer: tuple[Problem, ...] = VERIFIED_INTEGER
    advised: bool = False
    timed_at: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    verified_too: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    more: str = ""

    def configs_of(self, kernel: Kernel) -> tuple[Config, ...]:
        """The configs of a kernel that the suite runs, legal or not."""
        if self.advised:
            return kernel.advised
        return kernel.configs if self.all_configs else kernel.configs[:1]

    def variants(self, kernel: Kernel, limits: GpuLimits) -> list[tuple[Config, DType]]:
        """The variants of a kernel that the suite runs on such a GPU."""
        found = legal_variants(kernel, limits, self.configs_of(kernel))
        return [(c, d) for c, d in found if not self.advised or d == kernel.dtypes[0]]

    def verified_of(self, kernel: Kernel, dtype: DType) -> tuple[Problem, ...]:
        """The problems to verify a kernel on, before they are adapted to it."""
        if kernel.operation.problems:
            return kernel.operation.verified
        batched, integer = kernel.operation.batched, dtype.integer
        own = self.verified_too.get(kernel.name, ())
        return (*self.verified, *own, *self.verified_batched * batched, *self.verified_integer * integer)

    def timed_of(self, kernel: Kernel, config: Config, dtype: DType) -> tuple[Problem, ...]:
        """The problems to time a variant on, before they are adapted to it; a choice, on all."""
        if (alone := self.timed_at.get(variant_name(kernel, config, dtype))) is not None:
            return alone
        if kernel.operation.problems or kernel.operation.timed:
            return kernel.operation.clocked
        if kernel.is_dispatcher:
            return (*self.timed, *(self.timed_batched if kernel.operation.batched else ()))
        default = self.advised or config == kernel.configs[0]
        if few := self.timed_few.get(kernel.name):
            return few.default if default else few.others
        if kernel.operation.batched:
            return self.timed_batched if default else self.timed_batched_others
        return self.timed if default else self.timed_others

    def verify(
        self, kernels: Iterable[Kernel], limits: GpuLimits, emulated: bool = False
    ) -> Iterator[Fitted]:
        """What to verify on such a GPU, or ``emulated``, in the order of the kernels; and what is refused."""
        for kernel in kernels:
            variants = self.variants(kernel, limits)
            first = first_of_each_tile(kernel, variants)
            for config, dtype in variants:
                problems: Sequence[Problem] = self.verified_of(kernel, dtype)
                if kernel.operation.problems:
                    yield from fitted(kernel, config, dtype, problems, near=True)
                    continue
                if emulated:
                    problems = _for_an_interpreter(problems, kernel, config, dtype, (config, dtype) in first)
                    if (config, dtype) not in first:
                        few = {*VERIFIED_SMOKE, *self.verified_batched, *self.verified_integer}
                        problems = [p for p in problems if p not in VERIFIED or p in few]
                yield from fitted(kernel, config, dtype, problems, near=True)
                if emulated and (config, dtype) in first:
                    far = [with_rows_as_taken(kernel, config, problem) for problem in FAR_APART]
                    yield from (each for each in exactly(kernel, config, dtype, far) if each.runs)

    def time(self, kernels: Sequence[Kernel], limits: GpuLimits) -> list[Fitted]:
        """What to time on such a GPU, ordered by problem, dtype and kernel, so that data can be reused; and
        what is refused."""
        found: list[Fitted] = []
        for kernel in kernels:
            most = min(kernel.largest_timed, self.largest_timed.get(kernel.name, float("inf")))
            for config, dtype in self.variants(kernel, limits):
                problems = [p for p in self.timed_of(kernel, config, dtype) if p.flops <= most]
                found += fitted(kernel, config, dtype, problems, near=False)
        few = itertools.chain.from_iterable(self.timed_few.values())
        lists = (self.timed, self.timed_others, self.timed_batched, self.timed_batched_others)
        every = [*enumerate(itertools.chain(*lists, *few, *self.timed_at.values()))]
        places = {problem: place for place, problem in reversed(every)}
        for each in found:  # an operation's own problems are behind the suite's
            places.setdefault(each.asked, len(every) + len(places))
        dtypes = list(dict.fromkeys(dtype for kernel in kernels for dtype in kernel.dtypes))
        return sorted(found, key=lambda e: (places[e.asked], dtypes.index(e.case.dtype)))


def first_of_each_tile(kernel: Kernel, variants: Iterable[tuple[Config, DType]]) -> set[tuple[Config, DType]]:
    """Of the variants of a kernel whose blocks compute the same elements in the same steps with as many
    threads, such as those of two paddings or of F16 and BF16, the first: what is in the place of what shows
    in one of them, so that the interpreter gets only some problems of the others."""
    first: dict[object, tuple[Config, DType]] = {}
    for config, dtype in variants:
        shape = kernel.shape_of(config, dtype)
        rest = {name: value for name, value in config.items() if not name.startswith(_WITHIN_A_TILE)}
        same = (shape.tile, shape.threads, shape.batch, dtype.storage.itemsize, *sorted(rest.items()))
        first.setdefault(same, (config, dtype))
    return set(first.values())


def _for_an_interpreter(
    problems: Sequence[Problem], kernel: Kernel, config: Config, dtype: DType, first: bool
) -> list[Problem]:
    """Fewer and smaller problems for the interpreter: WHOLE, TALL and DEEP for the tiles of the variant, TALL
    for the first config only, and DEEP only for tiles that fill the others; for batched operations no large
    problem without a batch; and where blocks share a tile of few rows, eight tiles along M at most."""
    shape = kernel.shape_of(config, dtype)
    rows, columns = shape.tile
    smaller = {
        WHOLE: Problem(rows, columns * (3 if rows == 2 * columns else 2), WHOLE.k // 2),
        TALL: replace(TALL, m=min(TALL.m, 8 * rows + 37), n=min(TALL.n, columns + 9), ldb=0, ldc=0),
        DEEP: replace(DEEP, m=min(DEEP.m, rows + 2), n=min(DEEP.n, columns + 8), ldb=0, ldc=0),
    }
    left_out = {
        TALL: not first or config != kernel.configs[0],
        DEEP: max(rows, columns) <= _MIDDLE,
        DEEP_BATCHED: max(rows, columns) <= _SMALL,
    }
    found = [smaller.get(problem, problem) for problem in problems if not left_out.get(problem)]
    if shape.split > 1 and rows < _SMALL:
        found = [replace(p, m=8 * rows + p.m % rows) if p.m > 9 * rows else p for p in found]
    return [p for p in found if not (kernel.operation.batched and p.batch == 1 and p.flops > _LARGE)]


SMOKE = Suite(
    name="smoke",
    verified=VERIFIED_SMOKE,
    timed=tuple(Problem(n, n, n) for n in (1024, 2048, 4095)),
    all_configs=False,
    timed_batched=TIMED_BATCHED[2:4],
)
FULL = Suite(
    name="full", verified=VERIFIED, timed=TIMED, timed_others=tuple(Problem(n, n, n) for n in (1024, 4096))
)
# What others recommend, or warn of: a few problems verified, all of them timed. For projects that have any.
ADVICE = Suite(
    name="advice",
    verified=(WHOLE, VERIFIED_SMOKE[2], VERIFIED_SMOKE[6]),
    timed=TIMED,
    advised=True,
    verified_batched=VERIFIED_BATCHED[:2],
    timed_batched=TIMED_BATCHED,
)
SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (SMOKE, FULL)}

"""Recommendations of course notes on CUDA GEMM: each chooses a kernel and a config for a problem and a GPU.

Each names its note and section. If a note gives a tile and a number of threads but no kernel, the first
stage of the ladder that has such a config is used: ``tiled`` with one element per thread, ``register`` with
several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gemm_regression.model import CaseId, Problem
from gemm_regression.model.gpus import GpuLimits, suggested_block

TILING = "How tiling speeds up matrix multiplication"
WALL = "The memory wall and tiling"
BLOCKS = "How to choose block and tile sizes"
REGISTERS = "How register tiling works"
FEEDING = "Feeding the GPU by tiling"
NOTES = {"tiling": TILING, "wall": WALL, "blocks": BLOCKS, "registers": REGISTERS, "feeding": FEEDING}

TILED_32, TILED_16, TILED_8 = (f"tiled-f32-tile{size}-pad0" for size in (32, 16, 8))
SQUARE_256, SQUARE_128, SQUARE_64 = (
    f"register-f32-tile32x32x32-thread{t}-pad0" for t in ("2x2", "2x4", "4x4")
)
MIDDLE = "register-f32-tile64x64x8-thread4x8-pad0"
LARGE = "register-f32-tile128x128x8-thread8x8-pad0"
LONG = "register-f32-tile128x64x8-thread8x4-pad0"
DEEP_128, DEEP_64 = (f"register-f32-tile64x64x64-thread{t}-pad0" for t in ("4x8", "8x8"))


@dataclass(frozen=True)
class Target:
    """What a recommendation may depend on: the limits of a GPU, and the registers per thread of each variant
    that is compiled for it, by name."""

    limits: GpuLimits
    registers: Mapping[str, int] = field(default_factory=dict)


Choose = Callable[[Problem, Target], str | None]


@dataclass(frozen=True)
class Advice:
    """A rule that chooses a variant for a problem.

    Attributes:
        name: short, unique.
        note, section: its source; a rule that is not from a note has no section.
        gist: the rule, in one line.
        choose: the variant for a problem on a GPU; None if the rule does not cover the problem.
    """

    name: str
    note: str
    section: str
    gist: str
    choose: Choose

    @property
    def source(self) -> str:
        return f"{self.note}, §{self.section}" if self.section else self.note


def side(problem: Problem) -> int:
    """The size of a problem: the shorter side of C, as the notes' own function has it."""
    return min(problem.m, problem.n)


def _by_size(bounds: Sequence[int], variants: Sequence[str]) -> Choose:
    """The first variant below the first bound; from the second on, up to and including its bound."""

    def choose(problem: Problem, target: Target) -> str:
        size = side(problem)
        for place, bound in enumerate(bounds):
            if size < bound or (place and size == bound):
                return variants[place]
        return variants[len(bounds)]

    return choose


def _always(variant: str) -> Choose:
    return lambda problem, target: variant


SIZES = _by_size((256, 1024, 4096), (TILED_16, SQUARE_256, MIDDLE, LARGE))


def _by_shape(problem: Problem, target: Target) -> str | None:
    longer = max(problem.m, problem.n)
    if longer < 64:
        return TILED_8
    return LONG if longer >= 8 * side(problem) else SIZES(problem, target)


def _by_architecture(problem: Problem, target: Target) -> str:
    major = target.limits.capability[0]
    return SQUARE_256 if major < 8 else MIDDLE if major == 8 else LARGE


def _suggested(problem: Problem, target: Target) -> str | None:
    registers = target.registers.get("naive-f32-block32x32")
    if registers is None:
        return None
    return f"naive-f32-block32x{suggested_block(registers, 0, target.limits) // 32}"


POLICIES: tuple[Advice, ...] = (
    Advice("by size", BLOCKS, "7.1", "four classes of size, each with a tile and a number of threads", SIZES),
    Advice(
        *("by size, first choice", BLOCKS, "4.1"),
        "small 16×16, middle 32×32 with 256 threads, large 128×128×8 with 256",
        _by_size((512, 2048), (TILED_16, SQUARE_256, LARGE)),
    ),
    Advice(
        *("by size, second choice", BLOCKS, "4.1"),
        "small 32×32 with 64 threads of 4×4, middle 64×64 with 64 of 8×8, large 128×128×8 with 256",
        _by_size((512, 2048), (SQUARE_64, DEEP_64, LARGE)),
    ),
    Advice(
        *("by a function of the size", BLOCKS, "5.3"),
        "tile 16, 32 or 64 chosen at compile time, with 256, 256 or 128 threads",
        _by_size((512, 2047), (TILED_16, SQUARE_256, DEEP_128)),
    ),
    Advice(
        *("by shape", BLOCKS, "6.2 and 6.3"),
        "8×8 below 64; 128×64 with 256 threads where C is long and narrow; else by size",
        _by_shape,
    ),
    Advice(
        *("small batches", BLOCKS, "6.2", "many matrices below 64: 8×8 with 64 threads"),
        lambda problem, target: "batched_small-f32-tile8-matrices1" if problem.batch > 1 else None,
    ),
    Advice("by architecture", BLOCKS, "7.3", "the row of the GPU's architecture", _by_architecture),
    Advice("as for Pascal, Volta", BLOCKS, "7.3", "32×32×32 with 128 threads", _always(SQUARE_128)),
    Advice("as for Turing", BLOCKS, "7.3", "32×32×32 with 256 threads", _always(SQUARE_256)),
    Advice("as for Ampere", BLOCKS, "7.3", "64×64×8 with 128 threads", _always(MIDDLE)),
    Advice("as for Hopper", BLOCKS, "7.3", "128×128×8 with 256 threads", _always(LARGE)),
    Advice("tiling", BLOCKS, "7.2", "32×32 with 1 024 threads", _always(TILED_32)),
    Advice("register tiling", BLOCKS, "7.2", "32×32 with 64 threads of 4×4", _always(SQUARE_64)),
    Advice(
        *("double buffering", BLOCKS, "7.2", "64×64 with 256 threads of 4×4"),
        _always("double_buffered-f32-tile64x64x16-thread4x4-pad4-stages2"),
    ),
    Advice(
        *("double buffering, small tile", BLOCKS, "4.2"),
        "32×32 in two stages; here with 64 threads in place of 256, for float4 needs 4×4 per thread",
        _always("double_buffered-f32-tile32x32x32-thread4x4-pad4-stages2"),
    ),
    Advice("starting point", BLOCKS, "summary", "32×32 with 256 threads, to be tuned", _always(SQUARE_256)),
    Advice("tile 16", TILING, "4.2", "16×16, an element per thread", _always(TILED_16)),
    Advice(
        *("rectangular tile", TILING, "5.1", "64×64×8 in place of a square tile"),
        _always("rectangular-f32-tile64x64x8-thread8"),
    ),
    Advice("8×8 per thread", REGISTERS, "3.2", "64×64×64 with 8×8 per thread", _always(DEEP_64)),
    Advice(
        *("largest potential block", BLOCKS, "2.3"),
        "as many threads as cudaOccupancyMaxPotentialBlockSize says, an element each",
        _suggested,
    ),
    Advice(
        *("tensor cores", BLOCKS, "7.2", "128×128 with 256 threads"),
        _always("wmma-f16-tile128x128x32-warp64x32"),
    ),
    Advice(
        *("tensor cores, 64×64 per warp", BLOCKS, "4.1", "128×128×32 with 64×64 per warp"),
        _always("wmma-f16-tile128x128x32-warp64x64"),
    ),
    Advice(
        *("tensor cores, four warps", BLOCKS, "4.2", "64×64 with four warps"),
        _always("wmma-f16-tile64x64x32-warp32x32"),
    ),
)


@dataclass(frozen=True)
class Rank:
    """A recommendation on one problem: the chosen variant and its GFLOPS, and the fastest variant of the same
    dtype and its GFLOPS."""

    problem: str
    variant: str
    gflops: float
    best: str
    best_gflops: float

    @property
    def share(self) -> float:
        """The speed of the chosen variant relative to the fastest, at most 1."""
        return self.gflops / self.best_gflops


Speeds = Mapping[str, Mapping[str, float]]
"""GFLOPS by problem id and variant name, without libraries."""


def stage_of(variant: str) -> tuple[str, str]:
    """Kernel and dtype."""
    of = CaseId.parse(variant)
    return of.kernel, of.dtype


def rank(
    choose: Callable[[Problem], str | None],
    speeds: Speeds,
    problems: Iterable[Problem],
    within: bool = False,
) -> list[Rank]:
    """The ranks of a recommendation on the problems for which its choice was measured; ``within`` its own
    stage, not among all."""
    found = []
    for problem in problems:
        variant, here = choose(problem), speeds.get(problem.id, {})
        if variant is None or variant not in here:
            continue
        own = stage_of(variant)
        alike = [n for n in here if stage_of(n) == own or (not within and stage_of(n)[1] == own[1])]
        best = max(alike, key=lambda name: here[name])
        found.append(Rank(problem.id, variant, here[variant], best, here[best]))
    return found


def best_single(speeds: Speeds, problems: Sequence[Problem], dtype: str = "f32") -> Advice | None:
    """The variant that is fastest on average of those measured on all of the problems; None without any."""
    here = [speeds.get(problem.id, {}) for problem in problems]
    every = here[0] if here else ()
    names = [n for n in every if CaseId.parse(n).dtype == dtype and all(n in of for of in here)]
    if not names:
        return None
    best = max(names, key=lambda name: mean_share(rank(lambda p: name, speeds, problems)) or 0)
    return Advice("one config for all", "measured here", "", f"`{best}`", _always(best))


def mean_share(ranks: Sequence[Rank]) -> float | None:
    """Geometric mean of the shares; None without any."""
    return math.exp(sum(math.log(one.share) for one in ranks) / len(ranks)) if ranks else None

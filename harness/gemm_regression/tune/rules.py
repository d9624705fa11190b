"""Which problems a variant takes: asked of its declaration, and as rules simple enough for a C++ header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from gemm_regression.model import INT_MAX, Config, DType, Kernel, Problem, variant_name

GRID = (2**31 - 1, 65535, 65535)  # blocks of a launch in x, y and z (CUDA C++ Programming Guide)
SIZES = ("m", "n", "k", "batch")
# Fields of a problem that a rule may be about, in the order of the header's struct.
FIELDS = (*SIZES, "lda", "ldb", "ldc", "start_a", "start_b", "start_c")
# Nothing about it is a special case: what its parameters refuse of it they refuse of most problems.
_GENERAL = Problem(64, 64, 64, alpha=2.0, beta=3.0, lda=128, ldb=128, ldc=128)


@dataclass(frozen=True)
class Variant:
    """A kernel with a config and a dtype."""

    kernel: Kernel
    config: Config
    dtype: DType

    @property
    def name(self) -> str:
        return variant_name(self.kernel, self.config, self.dtype)

    @property
    def stage(self) -> str:
        """Kernel and config without the dtype, as in a table: ``tiled tile32-pad0``."""
        return f"{self.kernel.name} {self.config.label}".strip()


@dataclass(frozen=True)
class Rule:
    """What must hold of a field of a problem: ``multiple_of`` a number, ``at_least`` or ``at_most`` it; or
    that the problem is ``square``, where field and number mean nothing."""

    kind: Literal["multiple_of", "at_least", "at_most", "square"]
    field: str = "m"
    number: int = 0

    def holds(self, problem: Problem) -> bool:
        if self.kind == "square":
            return problem.m == problem.n == problem.k
        value = field_of(problem, self.field)
        if self.kind == "multiple_of":
            return value % self.number == 0
        return value >= self.number if self.kind == "at_least" else value <= self.number


def field_of(problem: Problem, name: str) -> int:
    """One of ``FIELDS``."""
    head, _, matrix = name.partition("_")
    return problem.start(matrix.upper()) if head == "start" else int(getattr(problem, name))


def refusals(variant: Variant, problem: Problem) -> tuple[str, ...]:
    """Why a variant cannot compute a problem, one line per reason: what its kernel refuses, and a grid larger
    than a GPU launches."""
    most = _largest(variant)
    large = (
        f"{name} {getattr(problem, name)} needs more blocks than a launch can have, {size} is the largest"
        for name, size in most.items()
        if getattr(problem, name) > size
    )
    return (*variant.kernel.refusals(variant.config, problem), *large)


def rules(variant: Variant) -> tuple[Rule, ...] | None:
    """What ``refusals`` asks of a problem without a layout, gaps or a batch that its kernel does not know, as
    rules; None where they cannot say it: a declaration with a function of its own
    (``Constraints.unless``), or parameters without alpha, beta or a leading dimension."""
    kernel = variant.kernel
    general = replace(_GENERAL.stored(kernel.operation.layout), batch=2 if kernel.operation.batched else 1)
    if kernel.constraints.unless or kernel.narrowed(general) != general:
        return None
    return tuple(_rules(variant))


def _rules(variant: Variant) -> Iterator[Rule]:
    kernel, config, takes = variant.kernel, variant.config, variant.kernel.constraints
    for name, unit in takes.multiples.items():
        number = config[unit] if isinstance(unit, str) else unit
        field = f"start_{name.lower()}" if name in ("A", "B", "C") else name
        yield Rule("multiple_of", field, number)
        if name in ("m", "n"):
            yield Rule("at_least", name, 1)
    for name, number in takes.at_least.items():
        yield Rule("at_least", name, number)
    for name, number in takes.at_most.items():
        yield Rule("at_most", name, number)
    if takes.square:
        yield Rule("square")
    for place, matrix in enumerate("abc"):
        a, b, c = (256 * (place == at) for at in range(3))
        moved = Problem(64, 64, 64, layout=kernel.operation.layout, starts=(a, b, c))
        if kernel.narrowed(moved) != moved:  # a tensor map
            yield Rule("at_most", f"start_{matrix}", 0)
    if not kernel.operation.batched:
        yield Rule("at_most", "batch", 1)
    for name, size in _largest(variant).items():
        yield Rule("at_most", name, size)


@cache
def _largest(variant: Variant) -> dict[str, int]:
    """The largest of each size, the others being 1, with which a launch has no more blocks than a GPU allows;
    without those that may be as large as an int."""

    def fits(name: str, size: int) -> bool:
        sizes = {"m": 1, "n": 1, "k": 1, "batch": 1, name: size}
        problem = Problem(sizes["m"], sizes["n"], sizes["k"], batch=sizes["batch"])
        grid = variant.kernel.launch(variant.config, variant.dtype, problem).grid
        return all(blocks <= most for blocks, most in zip(grid, GRID, strict=True))

    found = {}
    for name in SIZES:
        low, high = 1, INT_MAX
        while low < high:  # the largest that fits
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(name, middle) else (low, middle - 1)
        if low < INT_MAX:
            found[name] = low
    return found

"""Which problems a kernel accepts; all others are refused, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gemm_regression.model.config import Config
from gemm_regression.model.operation import Operation
from gemm_regression.model.parameters import Parameter
from gemm_regression.model.problem import Problem

_MATRICES = ("A", "B", "C")


@dataclass(frozen=True)
class Constraints:
    """What a kernel requires of a problem, besides what its parameters can express.

    ``multiples`` of sizes and leading dimensions, by name (``m``, ``n``, ``k``, ``lda`` …): a number, or a
    parameter of the config, ``{"m": "TILE_M"}``; of ``A``, ``B`` and ``C``: the elements from a 256-byte
    boundary to the start of the matrix, since any element of a larger one may be its first. ``at_least`` and
    ``at_most`` by name; ``square``: m, n and k must be equal; ``unless`` returns a reason against a problem,
    or None. ``finite_c``: the kernel reads C even if beta is 0, as ``alpha * sum + beta * C`` does; C is then
    filled with finite numbers. ``on_grid``: it multiplies TF32 without rounding A and B to it, which already
    hold such numbers."""

    multiples: Mapping[str, int | str] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    square: bool = False
    unless: Callable[[Problem, Config], str | None] | None = None
    finite_c: bool = False
    on_grid: bool = False

    def __hash__(self) -> int:
        return id(self)

    def refusals(self, problem: Problem, config: Config) -> Iterator[str]:
        """Why this problem is not accepted, one line per reason."""
        for name, unit, size in self._units(config):
            what = f"{unit} = {size}" if isinstance(unit, str) else str(size)
            if name in _MATRICES:
                if problem.start(name) % size:
                    yield f"{name} starts at element {problem.start(name)}, not at a multiple of {what}"
            elif getattr(problem, name) % size:
                yield f"{name} {getattr(problem, name)} is not a multiple of {what}"
            elif name in ("m", "n") and not getattr(problem, name):
                yield f"{name} 0 is below {what}, and a launch has at least one block"
        for name, least in self.at_least.items():
            if getattr(problem, name) < least:
                yield f"{name} {getattr(problem, name)} is below {least}"
        for name, most in self.at_most.items():
            if getattr(problem, name) > most:
                yield f"{name} {getattr(problem, name)} is above {most}"
        if self.square and not problem.m == problem.n == problem.k:
            yield f"{problem.m}x{problem.n}x{problem.k} is not square"
        if self.unless and (reason := self.unless(problem, config)):
            yield reason

    def _units(self, config: Config) -> Iterator[tuple[str, int | str, int]]:
        for name, unit in self.multiples.items():
            yield name, unit, config[unit] if isinstance(unit, str) else unit

    def near(self, problem: Problem, config: Config) -> Problem:
        """A similar problem that satisfies these requirements as far as possible: sizes rounded up to
        multiples, within the limits, square; leading dimensions with the same padding, and starts,
        rounded up to multiples."""
        units = {name: size for name, _, size in self._units(config)}
        sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
        if self.square:
            sizes = dict.fromkeys(sizes, min(max(sizes.values()), 256))
        for name, size in sizes.items():
            size = max(size, self.at_least.get(name, 0))
            size = min(size, self.at_most.get(name, size))
            unit = units.get(name, 1)
            up = max(-(-size // unit), unit > 1 and name != "k") * unit
            sizes[name] = up if up <= self.at_most.get(name, up) else size // unit * unit
        a, b, c = (-(-problem.start(x) // units.get(x, 1)) * units.get(x, 1) for x in _MATRICES)
        tight = replace(problem, lda=0, ldb=0, ldc=0, **sizes, starts=(a, b, c))
        rows = {name: getattr(tight, name) + more for name, more in problem.beyond.items()}
        return tight.with_leading({n: -(-ld // units.get(n, 1)) * units.get(n, 1) for n, ld in rows.items()})


ANY = Constraints()


def signature_refusals(
    parameters: tuple[Parameter, ...], operation: Operation, problem: Problem
) -> Iterator[str]:
    """What of a problem these parameters or the operation cannot express, one line per reason."""
    narrowed = narrow(parameters, operation, problem)
    if narrowed.layout != problem.layout:
        yield f"{operation.name} has layout {operation.layout}, not {problem.layout}"
        problem = problem.stored(operation.layout)
    if narrowed.batch != problem.batch:
        yield f"{operation.name} is not batched"
    for name in ("alpha", "beta"):
        if getattr(narrowed, name) != getattr(problem, name):
            yield f"it has no parameter {name}, so {name} is {getattr(narrowed, name):g}"
    if (narrowed.lda, narrowed.ldb, narrowed.ldc) != (problem.lda, problem.ldb, problem.ldc):
        yield "it has no parameter for a leading dimension, so matrices are densely packed"
    elif narrowed.gap != problem.gap and narrowed.batch == problem.batch:
        yield "it has no parameter for a stride, so batches are densely packed"
    if narrowed.starts != problem.starts:
        yield "it has a tensor map, so the matrix starts at a 16-byte boundary"


def narrow(parameters: tuple[Parameter, ...], operation: Operation, problem: Problem) -> Problem:
    """The problem restricted to what these parameters can express: in the operation's layout, without a batch
    if it is not batched, densely packed without leading dimensions or strides, alpha 1 and beta 0 if they are
    not parameters, a matrix with a tensor map at a boundary."""
    means = {parameter.means for parameter in parameters}
    problem = problem.stored(operation.layout)
    if not operation.batched and problem.batch != 1:
        problem = replace(problem, batch=1, gap=0)
    if "alpha" not in means and problem.alpha != 1.0:
        problem = replace(problem, alpha=1.0)
    if "beta" not in means and problem.beta != 0.0:
        problem = replace(problem, beta=0.0)
    matrices = [operand.name for operand in operation.operands if operand.like]
    # A tensor map contains the leading dimension, too.
    without = [o.like for o in operation.operands if not {f"ld{o.name}", f"map{o.name}"} & means]
    if without and not problem.tight:
        problem = problem.with_leading({f"ld{like.lower()}": 0 for like in without if like})
    if problem.gap and not all(f"stride{name}" in means for name in matrices):
        problem = replace(problem, gap=0)
    mapped = [o.like for o in operation.operands if f"map{o.name}" in means]
    if mapped and any(problem.starts):  # a tensor map needs 16-byte boundaries
        a, b, c = (0 if name in mapped else problem.start(name) for name in _MATRICES)
        problem = replace(problem, starts=(a, b, c))
    return problem

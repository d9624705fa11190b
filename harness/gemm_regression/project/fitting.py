"""Adapts the problems of a suite to a kernel: restricted to what its parameters can express, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from gemm_regression.model import Case, Config, DType, Kernel, Problem
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.legality import refusals

MOST_FLOP = 2**26  # of a substitute for a refused problem: the interpreter needs seconds for it


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
        c = self.case
        instead = f"; {c.problem.id} runs instead" if self.runs else ""
        return f"{c.variant} {self.asked.id}: {'; '.join(self.reasons)}{instead}"


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
    """The problem, with leading dimensions and starts rounded up where the kernel refuses them alone."""
    if not kernel.refusals(config, problem):
        return problem
    found, usable = _near(kernel, config, problem)
    sizes, rows = attrgetter("m", "n", "k", "batch"), attrgetter("lda", "ldb", "ldc")
    up = all(there >= here for there, here in zip(rows(found), rows(problem), strict=True))
    return found if usable and up and sizes(found) == sizes(problem) else problem


def exactly(kernel: Kernel, config: Config, dtype: DType, problems: Sequence[Problem]) -> Iterator[Fitted]:
    """Exactly these problems, in the kernel's own layout if they do not name one, or why they are refused."""
    for asked in problems:
        problem = asked.stored(kernel.operation.layout) if asked.layout == "NN" else asked
        reasons = kernel.refusals(config, problem)
        yield Fitted(asked, Case(kernel, dtype, config, problem), reasons, runs=not reasons)

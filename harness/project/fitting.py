"""The problems of a suite, made to fit a kernel: narrowed to what it can say, refused where it takes none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from harness.model import Case, Config, DType, Kernel, Problem

MOST_FLOP = 2**26  # of a problem in place of a refused one: an interpreter needs seconds for it


class Fitted(NamedTuple):
    """A problem ``asked`` for, and ``case`` as it is to run. Where there are ``reasons`` the kernel refuses
    the problem; then ``runs`` says whether another one, the case's, is to run in its place."""

    asked: Problem
    case: Case
    reasons: tuple[str, ...] = ()
    runs: bool = True

    @property
    def told(self) -> str:
        """The refusal in one line."""
        c = self.case
        instead = f"; {c.problem.id} in its place" if self.runs else ""
        return f"{c.variant} {self.asked.id}: {'; '.join(self.reasons)}{instead}"


def fitted(
    kernel: Kernel, config: Config, dtype: DType, problems: Iterable[Problem], near: bool
) -> Iterator[Fitted]:
    """The problems narrowed to what the kernel's parameters can say, each once; and what it refuses, with
    the reasons. With ``near`` a problem that it takes stands in for one of other sizes."""
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


def _near(kernel: Kernel, config: Config, problem: Problem) -> tuple[Problem, bool]:
    """A problem in place of a refused one, and whether it will do."""
    try:
        found = kernel.narrowed(kernel.takes.near(problem, config))
    except ValueError:
        return problem, False
    return found, not kernel.refusals(config, found) and kernel.operation.flop(found) <= MOST_FLOP


def exactly(kernel: Kernel, config: Config, dtype: DType, problems: Sequence[Problem]) -> Iterator[Fitted]:
    """The very problems, in the kernel's own layout where they name none, or why they are refused."""
    for asked in problems:
        problem = asked.stored(kernel.operation.layout) if asked.layout == "NN" else asked
        reasons = kernel.refusals(config, problem)
        yield Fitted(asked, Case(kernel, dtype, config, problem), reasons, runs=not reasons)

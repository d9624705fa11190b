"""Which kernel and config to use for C = alpha·A·B + beta·C on a GPU.

>>> from gemm_regression.tune.select import select
>>> chosen = select("4096x64x4096", gpu="nvidia-h200")
>>> chosen.variant.kernel.name, dict(chosen.variant.config)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import geometric_mean

from gemm_regression.model import (
    F32,
    Case,
    Config,
    DType,
    Kernel,
    Problem,
    find_dtype,
    find_problem,
    stage_name,
)
from gemm_regression.model.legality import refusals as illegal
from gemm_regression.project.fitting import candidates
from gemm_regression.project.loader import Project, find, load
from gemm_regression.tune import rules
from gemm_regression.tune.figures import Known, SelectError, known
from gemm_regression.tune.rules import Variant, refusals
from gemm_regression.tune.table import SMS, Figure, Found, Key, Table, choose, key_of, tables

__all__ = ["SelectError", "Selected", "Selector", "select"]


@dataclass(frozen=True)
class Selected:
    """A choice and what it rests on.

    Attributes:
        problem, dtype, gpu: what was asked for.
        variant: kernel, config and dtype.
        found: the measured shapes and speeds behind it; None if there were none, and the
            first declared was taken.
        figures: those of the same dtype on the same problem, the fastest first.
        library_gflops: of the library on the same problem; None if it was not measured.
        sms: of the GPU, as assumed where unknown.
    """

    problem: Problem
    dtype: DType
    gpu: str
    variant: Variant
    found: Found | None = None
    figures: tuple[Figure, ...] = ()
    library_gflops: float | None = None
    sms: int = SMS

    @property
    def kernel(self) -> Kernel:
        return self.variant.kernel

    @property
    def config(self) -> Config:
        return self.variant.config

    @property
    def measured(self) -> bool:
        """Whether it was chosen by figures of this very problem size."""
        return self.found is not None and self.found.measured

    @property
    def gflops(self) -> float | None:
        """The speed measured at this size, else the expected one, GFLOPS; None without figures."""
        return self.found.gflops if self.found else None


class Selector:
    """Chooses for one GPU, with its figures loaded once."""

    def __init__(self, kernels: Sequence[Kernel], known: Known) -> None:
        self.kernels = tuple(kernel for kernel in kernels if kernel.compiled)
        self.known = known

    @classmethod
    def of(cls, project: Project, gpu: str, capability: tuple[int, int] | None = None) -> Selector:
        """Raises SelectError and BaselineError as `figures.known`."""
        return cls(project.kernels, known(project, gpu, capability))

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """The speeds of variants that are legal on the GPU."""
        limits = self.known.limits
        variants = {f.variant for f in self.known.figures}
        legal = {v for v in variants if not illegal(v.kernel, v.config, v.dtype, limits)}
        return tuple(figure for figure in self.known.figures if figure.variant in legal)

    @cached_property
    def tables(self) -> dict[Key, Table]:
        """Speeds by dtype, layout, and single matrices or batches."""
        return tables(self.figures, takes_all, self.known.sms)

    @cached_property
    def _at(self) -> dict[tuple[str | int, ...], list[Figure]]:
        """The figures by dtype and size."""
        found: dict[tuple[str | int, ...], list[Figure]] = {}
        for figure in self.figures:
            found.setdefault((figure.variant.dtype.name, *_size(figure.problem)), []).append(figure)
        return found

    def variants(self, problem: Problem, dtype: DType) -> list[Variant]:
        """The declared variants that are legal on the GPU and take the problem. Raises SelectError, with the
        reason, if there is none."""
        limits = self.known.limits
        found = [Variant(k, c, dtype) for k, c in candidates(self.kernels, dtype, problem, limits)]
        if taking := [variant for variant in found if not rules.refusals(variant, problem)]:
            return taking
        own = [kernel for kernel in self.kernels if kernel.operation.plain_product]
        every = [Variant(k, config, dtype) for k in own if dtype in k.dtypes for config in k.declared]
        if not every:
            there = dict.fromkeys(d.name for kernel in own for d in kernel.dtypes)
            raise SelectError(f"no kernel takes {dtype}; there are kernels for {', '.join(there) or 'none'}")
        reasons = [illegal(v.kernel, v.config, v.dtype, limits) for v in every]
        if all(reasons):
            raise SelectError(f"no {dtype} kernel can run on {self.known.gpu}: {reasons[0][0]}")
        last = next(v for v, reason in zip(reversed(every), reversed(reasons), strict=True) if not reason)
        refused = rules.refusals(last, problem)[0]
        raise SelectError(f"no {dtype} kernel takes {problem.id}: {last.kernel.name}: {refused}")

    def select(self, problem: Problem, dtype: DType = F32) -> Selected:
        """The variant for a problem: by figures, where there are any of its dtype, layout, and kind (a batch
        or a single matrix), else the first that is declared and legal. Raises SelectError if no
        kernel takes it."""
        table = self.tables.get(key_of(problem, dtype.name))
        found = choose(table, problem, lambda v: not rules.refusals(v, problem)) if table else None
        if found is None:
            return Selected(problem, dtype, self.known.gpu, self.variants(problem, dtype)[0])
        size = _size(problem)
        here = self._at.get((dtype.name, *size), [])
        best = {f.variant: f for f in reversed(here)}.values()  # of two figures the first counts
        return Selected(
            problem,
            dtype,
            self.known.gpu,
            found.variant,
            found,
            figures=tuple(sorted(best, key=lambda f: -f.gflops)),
            library_gflops=self.known.library.get((dtype.name, Problem(*size[:3], batch=size[3]))),
            sms=self.known.sms or SMS,
        )

    def resolved(self, case: Case) -> Case:
        """A case of a kernel that chooses as the case of its choice; any other as it is. Raises as
        ``select``."""
        if not case.kernel.is_dispatcher:
            return case
        chosen = self.select(case.problem, case.dtype)
        return Case(chosen.kernel, case.dtype, chosen.config, case.problem, chosen_for=case)


def _size(problem: Problem) -> tuple[int, int, int, int]:
    return problem.m, problem.n, problem.k, problem.batch


def takes_all(variant: Variant) -> bool:
    """Whether it takes every problem of its kind that fits a launch."""
    of = rules.rules(variant)
    return of is not None and all(
        rule.kind == "at_most" and (rule.field == "batch" or rule.number >= rules.GRID[1]) for rule in of
    )


def select(
    problem: Problem | str,
    gpu: str,
    dtype: DType | str = F32,
    project: Project | Path | None = None,
) -> Selected:
    """The kernel and config to use for a problem, such as ``"4096x64x4096"``, on a GPU, such as
    ``"nvidia-h200"`` or, without measurements, ``"sm_90"``. ``project``: loaded, or its folder; default: the
    nearest one above the working directory.

    Raises SelectError for an unknown GPU or a problem or dtype that no kernel takes, ValueError for a
    malformed problem or unknown dtype, BaselineError for stored figures that cannot be trusted, ProjectError
    for a project that cannot be loaded."""
    asked = find_problem(problem) if isinstance(problem, str) else problem
    of = find_dtype(dtype) if isinstance(dtype, str) else dtype
    loaded = project if isinstance(project, Project) else load(find(project or Path.cwd()))
    return Selector.of(loaded, gpu).select(asked, of)


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

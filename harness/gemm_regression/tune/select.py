"""Recommends a kernel and config for C = alpha·A·B + beta·C on a GPU, from measurements.

>>> from gemm_regression.tune.select import select
>>> chosen = select("4096x64x4096", gpu="nvidia-h200")
>>> chosen.variant.kernel.name, dict(chosen.variant.config)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from gemm_regression.baselines import Baseline
from gemm_regression.hints import typed
from gemm_regression.model import F32, Case, DType, Kernel, Problem, find_dtype, find_problem, stage_name
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.gpus import refusals as illegal
from gemm_regression.project.loader import Project, find, load
from gemm_regression.project.suites import candidates
from gemm_regression.timing.bounds import sms_of
from gemm_regression.tune import table as numbers
from gemm_regression.tune.figures import SelectError, capability_of, gpus, measured
from gemm_regression.tune.table import (
    FIELDS,
    SMS,
    Found,
    Key,
    ShapeTable,
    Speed,
    Variant,
    choose,
    key_of,
    plain,
    refusals,
    rules,
    tables,
)

__all__ = ["SelectError", "Selected", "Selector", "select"]

_ARCH = re.compile(r"sm_(\d+)(\d)a?")


@dataclass(frozen=True)
class Selected:
    """A recommendation and the measurements behind it.

    Attributes:
        problem, dtype, gpu: the request.
        variant: the kernel, config and dtype to use.
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
    figures: tuple[Speed, ...] = ()
    library_gflops: float | None = None
    sms: int = SMS

    @property
    def measured(self) -> bool:
        """Whether it was chosen by figures of this very problem size."""
        return self.found is not None and self.found.measured

    @property
    def gflops(self) -> float | None:
        """The speed measured at this size, else the expected one, GFLOPS; None without figures."""
        return self.found.gflops if self.found else None


@dataclass(frozen=True)
class Selector:
    """Chooses for one GPU, by what is known of it.

    Attributes:
        kernels: to choose among; those that are compiled are.
        gpu: its folder, ``nvidia-h200``, or an architecture, ``sm_90``.
        limits: of its compute capability.
        measured: speeds of declared kernels on plain problems, legal or not (`figures.measured`).
        library: GFLOPS of the library, by dtype and problem.
        rows: choices measured as a row of the baseline, by dtype and problem.
        sms: how many SMs it has; None if no file says what they can do.
    """

    kernels: tuple[Kernel, ...]
    gpu: str
    limits: GpuLimits
    measured: tuple[Speed, ...] = ()
    library: Mapping[tuple[str, Problem], float] = field(default_factory=dict)
    rows: Mapping[tuple[str, Problem], Speed] = field(default_factory=dict)
    sms: int | None = None

    @classmethod
    def of(
        cls,
        project: Project,
        gpu: str,
        capability: tuple[int, int] | None = None,
        newest: Baseline | None = None,
    ) -> Selector:
        """For a GPU model, by its folder, or an architecture such as ``sm_90``. With its ``capability``, a
        model without measurements is known by that. ``newest``: a measurement that is not stored yet.

        Raises SelectError for an unknown GPU or architecture, BaselineError for a file that cannot be
        trusted."""
        there = gpus(project)
        known = newest or gpu in there
        found, machines = measured(project, gpu, newest) if known else ([], [])
        if machines:
            capability = capability_of(machines[0])
        elif match := _ARCH.fullmatch(gpu):
            capability = int(match[1]), int(match[2])
        if capability is None:
            raise SelectError(
                f"unknown GPU {gpu!r}: measured are {', '.join(there) or 'none'}; `{typed('baseline')}` "
                "measures this machine's, and --gpu sm_90 asks for an architecture without measurements"
            )
        try:
            limits = GpuLimits.of(capability)
        except ValueError as error:
            raise SelectError(f"--gpu {gpu}: {error}") from None
        return cls(
            project.kernels,
            gpu,
            limits,
            tuple(figure for figure in found if figure.variant.kernel.compiled),
            {(f.variant.dtype.name, f.problem): f.gflops for f in found if f.variant.kernel.library},
            {(f.variant.dtype.name, f.problem): f for f in found if f.variant.kernel.is_dispatcher},
            next(filter(None, map(sms_of, machines)), None),
        )

    @cached_property
    def figures(self) -> tuple[Speed, ...]:
        """The speeds of variants that are legal on the GPU."""
        variants = {f.variant for f in self.measured}
        legal = {v for v in variants if not illegal(*v, self.limits)}
        return tuple(figure for figure in self.measured if figure.variant in legal)

    @cached_property
    def tables(self) -> dict[Key, ShapeTable]:
        """Speeds by dtype, layout, and single matrices or batches."""
        return tables(self.figures, self.sms)

    @cached_property
    def shapes(self) -> dict[tuple[str, Problem], dict[Variant, Speed]]:
        """The figures by dtype and problem; of two of a variant the first counts."""
        found: dict[tuple[str, Problem], dict[Variant, Speed]] = {}
        for figure in self.figures:
            shape = found.setdefault((figure.variant.dtype.name, figure.problem), {})
            shape.setdefault(figure.variant, figure)
        return found

    def variants(self, problem: Problem, dtype: DType) -> list[Variant]:
        """The declared variants that are legal on the GPU and take the problem. Raises SelectError, with the
        reason, if there is none."""
        found = [Variant(k, c, dtype) for k, c in candidates(self.kernels, dtype, problem, self.limits)]
        if taking := [variant for variant in found if not refusals(variant, problem)]:
            return taking
        own = [kernel for kernel in self.kernels if kernel.compiled and kernel.operation.plain_product]
        every = [Variant(k, config, dtype) for k in own if dtype in k.dtypes for config in k.declared]
        if not every:
            there = dict.fromkeys(d.name for kernel in own for d in kernel.dtypes)
            raise SelectError(f"no kernel takes {dtype}; there are kernels for {', '.join(there) or 'none'}")
        reasons = [illegal(*v, self.limits) for v in every]
        if all(reasons):
            raise SelectError(f"no {dtype} kernel can run on {self.gpu}: {reasons[0][0]}")
        last = [v for v, reason in zip(every, reasons, strict=True) if not reason][-1]
        why = refusals(last, problem)[0]
        raise SelectError(f"no {dtype} kernel takes {problem.id}: {last.kernel.name}: {why}")

    def select(self, problem: Problem, dtype: DType = F32) -> Selected:
        """The variant for a problem: by figures, where there are any of its dtype, layout, and kind (a batch
        or a single matrix), else the first that is declared and legal. Raises SelectError if no
        kernel takes it."""
        gpu, table = self.gpu, self.tables.get(key_of(problem, dtype.name))
        found = choose(table, problem, partial(_takes, problem)) if table else None
        if found is None:
            return Selected(problem, dtype, gpu, self.variants(problem, dtype)[0])
        here = (dtype.name, plain(problem))
        figures = sorted(self.shapes.get(here, {}).values(), key=lambda f: -f.gflops)
        return Selected(
            problem, dtype, gpu, found.variant, found, tuple(figures), self.library.get(here), self.sms or SMS
        )

    def resolved(self, case: Case) -> Case:
        """A case of a kernel that chooses as the case of its choice; any other as it is. Raises as
        ``select``."""
        if not case.kernel.is_dispatcher:
            return case
        chosen = self.select(case.problem, case.dtype)
        v = chosen.variant
        return Case(v.kernel, v.dtype, v.config, case.problem, chosen_for=case)


def _takes(problem: Problem, variant: Variant) -> bool:
    return not refusals(variant, problem)


def select(
    problem: Problem | str, gpu: str, dtype: DType | str = F32, project: Project | Path | None = None
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
class SelectionCheck:
    """The choice at a measured shape. Shares are speeds relative to the best measured there, 1 at best.

    Attributes:
        best: the fastest variant measured there.
        chosen, share: the choice.
        row: of the row of choices in the baseline, measured on its own; None if it has none, of another
            choice than today's, or on another board than the fastest: boards differ by some per cent.
        left_out, share_left_out: the choice among the variants measured there, by the figures of the other
            shapes alone; None without other shapes, or if none of them was measured elsewhere.
    """

    best: Speed
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


class Summary(NamedTuple):
    """The worst of several shares, and their geometric mean."""

    worst: float
    mean: float

    @classmethod
    def of(cls, shares: Iterable[float | None]) -> Summary | None:
        """None without any."""
        known = [share for share in shares if share is not None]
        return cls(min(known), geometric_mean(known)) if known else None


def outcomes(selector: Selector) -> Iterator[SelectionCheck]:
    """The choice at every measured shape, in the order of the figures, by dtype."""
    for (dtype, problem), there in selector.shapes.items():
        best = max(there.values(), key=lambda figure: figure.gflops)
        chosen = selector.select(problem, best.variant.dtype).variant
        others = (f for f in selector.figures if f.problem != problem and f.variant in there)
        table = tables(others, selector.sms).get(key_of(problem, dtype))
        found = choose(table, problem, partial(_takes, problem)) if table else None
        left_out = found.variant if found else None
        row = selector.rows.get((dtype, problem))
        same = row and (row.choice, row.board) == (stage_name(chosen.kernel, chosen.config), best.board)
        yield SelectionCheck(
            best,
            chosen,
            there[chosen].gflops / best.gflops,
            row.gflops / best.gflops if row and same else None,
            left_out,
            there[left_out].gflops / best.gflops if left_out else None,
        )


# The choice as a C++17 header: the tables of a GPU and the function that reads them, for programs without
# Python. It gives the answers of `table.choose`, by the same integer arithmetic.

_KINDS = ("multiple_of", "at_least", "at_most", "square")
_NUMBERS = ("BITS", "WEIGHT", "SHIFT", "USUAL", "NEAREST", "MOST", "STEPS", "BLOCK")


def exported(selector: Selector) -> Selector:
    """The selector of what a header can hold: row-major problems, and kernels whose requirements are rules.
    Raises SelectError for a GPU without such figures."""
    kept = tuple(f for f in selector.figures if f.problem.layout == "NN" and rules(f.variant) is not None)
    if not kept:
        raise SelectError(
            f"{selector.gpu}: no figures for a header; measure them with `{typed('baseline')}`, or name a "
            "measured GPU"
        )
    return replace(selector, measured=kept)


def header(selector: Selector) -> str:
    """The text of the header for a GPU. Raises SelectError if there is nothing to put in it."""
    held = exported(selector)
    tables = list(held.tables.values())
    variants = list(dict.fromkeys(v for table in tables for v in table.variants))
    out = sorted({f.variant.kernel.name for f in selector.figures} - {v.kernel.name for v in variants})
    own_rules, choices = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for variant in variants:
        own = rules(variant) or ()
        choices.append((*_choice(variant), len(own_rules), len(own)))
        own_rules += [(_KINDS.index(rule.kind), FIELDS.index(rule.field), rule.number) for rule in own]
    index, columns = list[tuple[object, ...]](), list[tuple[object, ...]]()
    places, speeds, written = list[str](), list[str](), 0
    for t in tables:
        which = f"DType::{t.key[0]}", str(t.key[2]).lower()
        index.append((*which, len(places), len(t.problems), len(columns), len(t.variants), written))
        columns += [(variants.index(v), usual) for v, usual in zip(t.variants, t.usual, strict=True)]
        places += [f"{_rows([tuple(at)])}  // {p.id}" for p, at in zip(t.problems, t.places, strict=True)]
        for row in zip(t.speeds, t.slower, strict=True):
            speeds.append(" ".join(f"{_literal(pair)}," for pair in zip(*row, strict=True)))
        written += t.speeds.size
    text = {
        "gpu": selector.gpu,
        "namespace": re.sub(r"\W", "_", selector.gpu),
        "sources": ", ".join(dict.fromkeys(f.source for f in held.figures)),
        "left_out": f"\n// Without {', '.join(out)}, which no rule below describes." if out else "",
        "dtypes": ", ".join(dict.fromkeys(table.key[0] for table in tables)),
        **{name.lower(): str(getattr(numbers, name)) for name in _NUMBERS},
        "unmeasured": str(numbers.OFFSET + numbers.CAUTION),
        "sms": str(tables[0].sms),
        "most_rows": str(max(len(table.problems) for table in tables)),
        "rules": _rows(own_rules) or "  {3, 0, 0},",
        "choices": _rows(choices),
        "columns": _rows(columns),
        "rows": "\n".join(places),
        "speeds": "\n".join(speeds),
        "tables": _rows(index),
    }
    template = (files("gemm_regression.tune") / "header.template").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: text[match[1]], template)


def _rows(rows: Iterable[object]) -> str:
    """Initializers of structs, a line each."""
    return "\n".join(f"  {_literal(row)}," for row in rows)


def _literal(value: object) -> str:
    return f"{{{', '.join(map(_literal, value))}}}" if isinstance(value, tuple) else str(value)


def _choice(v: Variant) -> tuple[object, ...]:
    shape = v.kernel.shape_of(v.config, v.dtype)
    macros = (*v.dtype.macros, *(f"{name}={value}" for name, value in v.config.items()))
    source = Path(v.kernel.source).name if v.kernel.source else ""
    words = (v.kernel.name, v.config.label, v.dtype.name, source, v.kernel.entry_of(v.config, v.dtype))
    quoted = (f'"{word}"' for word in (*words, " ".join(f"-D{macro}" for macro in macros)))
    return (*quoted, shape.block, shape.tile, shape.split, shape.batch, shape.dynamic_bytes)

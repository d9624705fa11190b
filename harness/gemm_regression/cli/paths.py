"""``gemm-regression paths``: kernels on the combinations of their conditions that no problem of the suite
reaches, without a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from gemm_regression.cli.common import command, project_of
from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices import DeviceError, open_emulated
from gemm_regression.devices.emulated import parameter
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import verify
from gemm_regression.project import selection
from gemm_regression.project.loader import load
from gemm_regression.project.suites import fitted
from gemm_regression.report.failures import of_error
from ptxsan.conditions import Conditions
from ptxsan.frontend import PtxError
from ptxsan.frontend.parser import parse

ARCH, CAPABILITY = "sm_90a", (9, 0)
TRIED = 3000  # problems of each variant
MOST = 24  # combinations of a variant that are run, those of most problems first
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 24, 31, 32, 33, 35, 36, 40, 48, 63, 64, 65, 67, 72, 96, 100)
_LARGER = (127, 128, 129, 132, 136, 160, 192, 200, 255, 256, 257, 260, 264, 272, 320, 384, 385, 512, 520)
_GAPS, _STARTS = (0, 0, 0, 0, 1, 2, 4, 8), (0, 0, 0, 0, 1, 2, 4)


class Paths(NamedTuple):
    """Of a variant: its conditions, the combinations that the suite reaches, and the smallest problem of each
    other one, with how many of the tried problems reach it."""

    conditions: int
    reached: int
    others: list[tuple[int, Case]]


@cache
def tried(seed: int = 0) -> list[Problem]:
    """Problems of random sizes, leading dimensions and starts: whole, ragged, aligned and not, in any
    conjunction."""
    random, found = np.random.default_rng(seed), dict[Problem, None]()
    while len(found) < TRIED:
        m, n, k = (int(size) for size in random.choice((*_SIZES, *_LARGER), 3))
        k *= bool(random.random() < 0.9)
        a, b, c = (int(gap) for gap in random.choice(_GAPS, 3))
        x, y, z = (int(start) for start in random.choice(_STARTS, 3))
        alpha, beta = float(random.choice((1, 2, 0), p=(0.6, 0.3, 0.1))), float(random.integers(2))
        rows: Any = {"lda": max(k, 1) + a, "ldb": max(n, 1) + b, "ldc": max(n, 1) + c}
        found[Problem(m, n, k, alpha=alpha, beta=beta, **rows, starts=(x, y, z))] = None
    return list(found)


def paths(cases: Sequence[Case], problems: Iterable[Problem]) -> Paths:
    """Of one variant: the suite's cases, and problems to try."""
    kernel, config, dtype = cases[0].kernel, cases[0].config, cases[0].dtype
    ptx = compile_ptx(kernel, config, dtype, ARCH)
    conditions = Conditions(parse(ptx, entry_symbol(kernel, config, dtype, ptx), ""))
    fit = [f.case for f in fitted(kernel, config, dtype, problems, near=False) if f.runs]
    # Conditions that are equal everywhere are one.
    rows = np.unique(conditions.of([_parameters(case) for case in (*cases, *fit)]), axis=1)
    keys = [row.tobytes() for row in rows]
    reached, found, many = set(keys[: len(cases)]), dict[bytes, Case](), dict[bytes, int]()
    for key, case in zip(keys[len(cases) :], fit, strict=True):
        if key not in reached:
            many[key] = many.get(key, 0) + 1
            if key not in found or _work(case) < _work(found[key]):
                found[key] = case
    others = sorted(((many[key], case) for key, case in found.items()), key=lambda one: -one[0])
    return Paths(rows.shape[1], len(reached), others)


def _work(case: Case) -> int:
    p = case.problem
    return (p.m + 8) * (p.n + 8) * (p.k + 8)


def _parameters(case: Case) -> list[Any]:
    """As for a launch, with pointers that are aligned as those of a launch are."""
    starts = {name: s.start * s.dtype.itemsize for name, s in case.storages.items()}
    names = dict.fromkeys(argument.buffer for argument in case.arguments if argument.buffer)
    at = {name: ((i + 1) << 50) + starts.get(name, 0) for i, name in enumerate(names)}
    buffers: Any = {name: SimpleNamespace(address=lambda launch, to=to: to) for name, to in at.items()}
    return [parameter(case, argument, buffers, 0) for argument in case.arguments]


@cache
def _variants(root: Path) -> dict[str, list[Case]]:
    """The suite's cases by variant; of each process, since declarations are no modules to import."""
    found: dict[str, list[Case]] = {}
    for case in selection.select(load(root), selection.Choice(suite="full"), CAPABILITY).verify:
        if case.kernel.compiled:
            found.setdefault(case.variant, []).append(case)
    return found


def _examine(root: Path, variant: str) -> tuple[str, list[str]]:
    """A line about a variant, and one for each problem on which it is wrong."""
    device, wrong = open_emulated(ARCH), []
    try:
        found = paths(_variants(root)[variant], tried())
        chosen = found.others[:MOST]
        for _, case in chosen:
            wrong += [f"{case.id}: {finding}" for finding in verify(device, case)[:1]]
    except (CompileError, DeviceError, PtxError) as error:
        why = of_error(str(error), "")
        return f"{variant:76} not examined", [f"{why.title}: {why.problem or why.message}".partition("\n")[0]]
    numbers = found.conditions, found.reached, len(found.others), len(chosen), len(wrong)
    return f"{variant:76}" + "".join(f"{number:11}" for number in numbers), wrong


@command("paths", "--project", "--kernel")
def main(given: argparse.Namespace) -> int:
    """Runs kernels without a GPU on combinations of conditions that no problem of the suite reaches.

    A condition is a comparison that the parameters alone decide: whether a size is a multiple of the tile, or
    the rows are aligned. Of each combination that one of 3,000 random problems reaches, the smallest problem
    runs, at most 24 of a variant. Exit status: 0, 1 if a kernel is wrong on one of them.
    """
    root = project_of(given).root
    variants = _variants(root)
    names = {cases[0].kernel.name for cases in variants.values()}
    if unknown := set(given.kernel or ()) - names:
        raise ValueError(f"there is no kernel {min(unknown)}; there are: {', '.join(sorted(names))}")
    chosen = [v for v, of in variants.items() if not given.kernel or of[0].kernel.name in given.kernel]
    print(f"{'variant':76} conditions    reached     others        run      wrong")
    every: list[str] = []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for line, wrong in pool.map(_examine, [root] * len(chosen), chosen):
            print("\n  ".join([line, *wrong]), flush=True)
            every += wrong
    print(f"{len(every)} problems on which a kernel is wrong")
    return int(bool(every))

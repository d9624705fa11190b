"""Problems for the paths of a kernel on which the suite's problems never bring it, without a GPU.

Mistakes hide where conditions meet; one, two or three of them decide most (D. R. Kuhn, D. R. Wallace and
A. M. Gallo, "Software Fault Interactions and Implications for Software Testing", IEEE TSE 30:6, 2004). A
condition is a comparison that a launch's parameters alone decide: whether a size is a multiple of the tile,
or the rows are aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from gemm_regression.compiler.nvcc import Variant
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Array, Case, Problem
from gemm_regression.project.suites import fitted

TRIED = 1000  # problems of each variant; 3,000 meet no more of the ladder's combinations
TOGETHER = 3  # conditions
_MOST = 1 << 28  # combinations to look at, of all problems; fewer conditions together where there are more
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 24, 31, 32, 33, 35, 36, 40, 48, 63, 64, 65, 67, 72, 96, 100)
_LARGER = (127, 128, 129, 132, 136, 160, 192, 200, 255, 256, 257, 260, 264, 272, 320, 384, 385, 512, 520)
_GAPS, _STARTS, _BATCHES = (0, 0, 0, 0, 1, 2, 4, 8), (0, 0, 0, 0, 1, 2, 4), (1, 1, 1, 2, 3, 9)


class PathsEntry(NamedTuple):
    """A variant ``name``, and the ``cases`` that the suite has of it."""

    name: str
    cases: tuple[Case, ...]

    def __str__(self) -> str:
        return f"{self.name}-paths"

    @property
    def variant(self) -> Variant:
        first = self.cases[0]
        return first.kernel, first.config, first.dtype


class Paths(NamedTuple):
    """How many ``conditions`` a variant has; how many combinations of three of them ``known`` problems meet,
    and ``others`` more; the ``cases`` that meet all of these, small ones first."""

    conditions: int
    known: int
    others: int
    cases: tuple[Case, ...]


def entries(cases: Iterable[Case]) -> list[PathsEntry]:
    """Of each compiled variant of these cases."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.kernel.compiled:
            found.setdefault(case.variant, []).append(case)
    return [PathsEntry(name, tuple(of)) for name, of in found.items()]


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
        rows: Any = {"lda": max(k, 1) + a, "ldb": max(n, 1) + b, "ldc": max(n, 1) + c, "starts": (x, y, z)}
        batch, gap = int(random.choice(_BATCHES)), int(random.integers(3))
        found[Problem(m, n, k, alpha=alpha, beta=beta, batch=batch, gap=gap * (batch > 1), **rows)] = None
    return list(found)


def paths(device: EmulatedDevice, known: Sequence[Case]) -> Paths:
    """Of the variant of these cases. Raises DeviceError where it cannot be run, PtxError where its conditions
    cannot be evaluated."""
    kernel, config, dtype = known[0].kernel, known[0].config, known[0].dtype
    others = [f.case for f in fitted(kernel, config, dtype, tried(), near=False) if f.runs]
    others.sort(key=_work)
    rows = device.conditions([*known, *others])
    rows = np.unique(rows, axis=1)  # conditions that are equal everywhere are one
    _, first = np.unique(rows[len(known) :], axis=0, return_index=True)
    first.sort()
    met = _met(np.concatenate([rows[: len(known)], rows[len(known) :][first]]))
    reached = met[: len(known)].any(axis=0)
    left = met[len(known) :] & ~reached
    new, chosen = int(left.any(axis=0).sum()), list[Case]()
    while left.any():  # greedily the problem that meets most, of equal ones the smallest
        best = int(left.sum(axis=1).argmax())
        chosen.append(others[first[best]])
        left &= ~left[best]
    return Paths(rows.shape[1], int(reached.sum()), new, tuple(sorted(chosen, key=_work)))


def _met(rows: Array) -> Array:
    """Which combinations of values of three conditions, or of all where there are fewer, each row has:
    (rows, combinations) bool."""
    count = rows.shape[1]
    together = min(TOGETHER, count)
    while len(rows) * count**together << together > _MOST and together > 1:
        together -= 1
    which = np.array([*combinations(range(count), together)], dtype=int)
    values = sum((rows[:, of].astype(int) << bit for bit, of in enumerate(which.T)), np.zeros(1, int))
    met = np.zeros((len(rows), len(which), 1 << together), bool)
    np.put_along_axis(met, np.broadcast_to(values, (len(rows), len(which)))[..., None], True, axis=2)
    return met.reshape(len(rows), -1)


def _work(case: Case) -> int:
    p = case.problem
    return (p.m + 8) * (p.n + 8) * (p.k + 8)

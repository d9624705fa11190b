"""Problems for the paths of a kernel on which the suite's problems never bring it, without a GPU.

Mistakes hide where conditions meet; one, two or three of them decide most (D. R. Kuhn, D. R. Wallace and
A. M. Gallo, "Software Fault Interactions and Implications for Software Testing", IEEE TSE 30:6, 2004). A
condition is a comparison that a launch's parameters alone decide: whether a size is a multiple of the tile,
or the rows are aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from gemm_regression.compiler.nvcc import Variant
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Array, Case, Problem
from gemm_regression.project.suites import fitted

TRIED = 1000  # problems of each variant; 3,000 meet no more of the ladder's combinations
_MOST = 1 << 28  # combinations to look at, of all problems; fewer conditions together where there are more
_WIDEST = 16  # bytes of the widest access; elements along K of the longest fragment of 16 bits
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
    """How many ``conditions`` there are for a variant; how many combinations the ``known`` problems meet, and
    ``others`` more; the ``cases`` that meet all of these, small ones first. A combination is one of three
    conditions of the kernel, or of two of these and of its layout."""

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
    asked = [*_nearly_whole(known[0]), *tried()]
    others = [f.case for f in fitted(kernel, config, dtype, asked, near=False) if f.runs]
    others.sort(key=_work)
    every = [*known, *others]
    own = np.unique(device.conditions(every), axis=1)  # conditions that are equal everywhere are one
    layout = np.array([_of_layout(case) for case in every])
    both = np.concatenate([own, layout], axis=1)
    _, first = np.unique(both[len(known) :], axis=0, return_index=True)
    different = sorted(first)
    kept = [*range(len(known)), *(len(known) + place for place in different)]
    met = np.concatenate([_met(own[kept], 3), _met(both[kept], 2), _but_one(layout[kept])], axis=1)
    reached = met[: len(known)].any(axis=0)
    left = met[len(known) :] & ~reached
    new, chosen = int(left.any(axis=0).sum()), list[Case]()
    effort = np.cbrt([_work(others[place]) for place in different])
    while left.any():  # greedily the problem that meets most for its size
        best = int((left.sum(axis=1) / effort).argmax())
        chosen.append(others[different[best]])
        left &= ~left[best]
    return Paths(both.shape[1], int(reached.sum()), new, tuple(sorted(chosen, key=_work)))


def _of_layout(case: Case) -> list[bool]:
    """What a kernel may have to ask, though it does not: are the rows of each operand aligned, the tiles
    whole?"""
    rows, columns = case.kernel.shape_of(case.config, case.dtype).tile
    aligned = [
        s.ld * s.dtype.itemsize % _WIDEST == 0 and s.start * s.dtype.itemsize % _WIDEST == 0
        for s in case.storages.values()
    ]
    p = case.problem
    return [*aligned, p.m % rows == 0, p.n % columns == 0, p.k % _WIDEST == 0]


def _but_one(layout: Array) -> Array:
    """Of each condition whether it alone does not hold: (rows, conditions) bool. Where all of them decide
    together, such as whether a fast path is taken, this shows that each is asked for (modified condition and
    decision coverage: J. J. Chilenski and S. P. Miller, Software Engineering Journal 9:5, 1994)."""
    return np.asarray(~layout & (layout.sum(axis=1, keepdims=True) == layout.shape[1] - 1))


def _nearly_whole(case: Case) -> list[Problem]:
    """A whole tile of aligned rows, but for one size, leading dimension or start."""
    m, n = case.kernel.shape_of(case.config, case.dtype).tile
    k = 4 * _WIDEST
    rows: Any = {"lda": 2 * k, "ldb": n + k, "ldc": n + k}
    whole = Problem(m, n, k, **rows)
    off: Any = [{name: getattr(whole, name) + 1} for name in ("m", "n", "k", *rows)]
    return [
        replace(whole, **of) for of in (*off, *({"starts": at} for at in ((1, 0, 0), (0, 1, 0), (0, 0, 1))))
    ]


def _met(rows: Array, together: int) -> Array:
    """Which combinations of values of so many conditions, or of all where there are fewer, each row has:
    (rows, combinations) bool."""
    count = rows.shape[1]
    together = min(together, count)
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

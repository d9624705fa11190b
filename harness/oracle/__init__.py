"""Right or wrong: inputs, references, error bounds, the first mismatch. Pure NumPy.

Each check launches the kernel on inputs made for one kind of mistake; `verify` runs them all on a case.
γₙ = n·u/(1 − n·u) is that of Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), §3.1; the
bound of an inner product §3.5; the truncating adder of tensor cores is measured in Fasi, Higham, Mikaitis
and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330 (2021).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from harness.devices import Array, BatchDevice, Device, Inputs, Outputs, run_all
from harness.model import F32, TF32, Case, DType, Problem

_FLOAT32_INTEGERS = 2**24  # integers below are exact in FP32, and so is every partial sum
# alpha and beta of the exact check: each value once in each place, and the pairs that shortcuts get wrong.
SCALES = ((1.0, 0.0), (2.0, 3.0), (-1.0, 1.0), (0.0, 2.0), (3.0, -1.0), (0.0, 0.0))
_OLD = 77.0  # what C holds before the second launch: a number, for a kernel that writes over NaN only
_LITTLE = 1000  # multiply-adds of a problem that costs nothing anywhere

# A matrix with a leading dimension above this is held without the columns past its rows.
SPARSE = 2**24


@dataclass(frozen=True)
class Finding:
    """What a check saw. ``check`` is a stable name, ``message`` one line."""

    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


def gamma(n: int, u: float) -> float:
    """γₙ = n·u/(1 − n·u). Raises ValueError where n·u is 1 or more and no bound holds."""
    if n * u >= 1:
        raise ValueError(f"gamma({n}, {u}): n·u must be below 1")
    return n * u / (1 - n * u)


def round_to(dtype: DType, values: Array) -> Array:
    """Float32 values on the grid of the dtype's multiplicands, in its storage dtype.

    TF32 keeps 10 explicit significand bits; ties go away from zero as in the PTX instruction cvt.rna.tf32.
    """
    values = np.asarray(values, np.float32)
    if dtype is not TF32:
        return values.astype(dtype.storage)
    bits = values.view(np.uint32)
    rounded = ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), rounded, values)


def _seed(problem: Problem, dtype: DType, kind: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{kind}/{dtype}/{problem.id}".encode()))


def _integer_limit(problem: Problem, dtype: DType) -> int:
    """Largest |a| and |b| for which alpha·Σab + beta·c stays exact with |alpha|, |beta| ≤ 3."""
    room = (_FLOAT32_INTEGERS // 4 - 64) // max(1, problem.k)
    return int(max(1, min(15, room**0.5, 2**dtype.integer_bits - 1)))


def make_inputs(problem: Problem, dtype: DType, kind: str) -> Inputs:
    """Buffers (m, lda), (k, ldb), (m, ldc) of a ``kind``: exact, normal or probe.

    ``exact``: small integers. ``normal``: standard normal on the dtype's grid. ``probe``: A odd integers of
    13 bits (fewer where the dtype holds fewer), B in {0, ±1}: exact in FP32 and in the dtype, wrong in any
    lower precision. Columns past the row are NaN in A and B, where reading them would show, and 77 in C;
    with a leading dimension above SPARSE there are none.
    """
    return _make_inputs(replace(problem, alpha=1.0, beta=0.0), dtype, kind)


@lru_cache(maxsize=64)
def _make_inputs(p: Problem, dtype: DType, kind: str) -> Inputs:
    rng = _seed(p, dtype, kind)
    shape_a, shape_b, shape_c = (p.m, p.k), (p.k, p.n), (p.m, p.n)
    if kind == "exact":
        limit = _integer_limit(p, dtype)
        a, b = (rng.integers(-limit, limit + 1, s).astype(np.float32) for s in (shape_a, shape_b))
        c = rng.integers(-15, 16, shape_c).astype(np.float32)
    elif kind == "normal":
        a, b, c = (rng.standard_normal(s, np.float32) for s in (shape_a, shape_b, shape_c))
    else:
        half = 1 << (min(13, dtype.integer_bits) - 1)
        density = min(0.9, 1024 / max(1, p.k))
        a = (2 * rng.integers(-half, half, shape_a) + 1).astype(np.float32)
        b = rng.choice([-1.0, 0.0, 1.0], shape_b, p=[density / 2, 1 - density, density / 2]).astype(
            np.float32
        )
        c = np.zeros(shape_c, np.float32)
    out = Inputs(
        _padded(round_to(dtype, a), p.lda, np.nan),
        _padded(round_to(dtype, b), p.ldb, np.nan),
        _padded(c, p.ldc, 77.0),
    )
    for array in (out.a, out.b, out.c):
        array.setflags(write=False)
    return out


def _padded(rows: Array, ld: int, fill: float) -> Array:
    if ld > SPARSE:
        return rows
    out = np.full((rows.shape[0], ld), fill, rows.dtype)
    out[:, : rows.shape[1]] = rows
    return out


@lru_cache(maxsize=64)
def _products(p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    """A·B and |A|·|B| in float64, (m, n) each, of the inputs of that kind."""
    inputs = _make_inputs(p, dtype, kind)
    a, b = inputs.a[:, : p.k].astype(np.float64), inputs.b[:, : p.n].astype(np.float64)
    return a @ b, np.abs(a) @ np.abs(b)


def reference(problem: Problem, dtype: DType, kind: str) -> Array:
    """alpha·A·B + beta·C in float64, (m, n)."""
    p = problem
    product, _ = _products(replace(p, alpha=1.0, beta=0.0), dtype, kind)
    c = make_inputs(p, dtype, kind).c[:, : p.n].astype(np.float64)
    return p.alpha * product + (p.beta * c if p.beta else 0.0)


def error_bound(problem: Problem, dtype: DType, kind: str) -> Array:
    """Elementwise bound of |computed − exact|, (m, n).

    γ_{K+2}·S with S = |alpha|·|A|·|B| + |beta|·|C|; for tensor cores with the roundoff of their adder, plus
    the rounding of the result.
    """
    p = problem
    _, magnitude = _products(replace(p, alpha=1.0, beta=0.0), dtype, kind)
    s = abs(p.alpha) * magnitude
    if p.beta:
        s = s + abs(p.beta) * np.abs(make_inputs(p, dtype, kind).c[:, : p.n].astype(np.float64))
    bound = gamma(p.k + 2, dtype.accumulate_roundoff) * s
    if dtype is not F32:
        bound = bound + F32.unit_roundoff * np.abs(reference(p, dtype, kind))
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    return np.asarray(bound + smallest)


def verify(device: Device, case: Case) -> list[Finding]:
    """All that is wrong with a kernel variant on the problem of the case, empty where it is right.

    The problem's own alpha and beta are checked and those of SCALES. A DeviceError passes through: a
    kernel that crashes has no output to look at.
    """
    return _Examination(device, case).findings


@dataclass(frozen=True)
class _Launch:
    """One launch of a case, and what is looked at in its output (and in those of the launches before it)."""

    problem: Problem
    inputs: Inputs
    check: Callable[[Problem, list[Array]], None]


class _Examination:
    """The launches of one case; stops at the first one that shows a mistake."""

    def __init__(self, device: Device, case: Case) -> None:
        self._case = case
        self.findings: list[Finding] = []
        few = isinstance(device, BatchDevice)
        launches = [*(self._few() if few else self._all())]
        cases = [replace(case, problem=launch.problem) for launch in launches]
        outputs = run_all(device, cases, [launch.inputs for launch in launches])
        seen: list[Array] = []
        for launch, output in zip(launches, outputs, strict=True):
            seen.append(output.c)
            self._look(launch, output, seen)
            if self.findings:
                break

    def _all(self) -> Iterator[_Launch]:
        p = self._case.problem
        yield from self._exact([(p.alpha, p.beta), *SCALES])
        yield self._precision()
        yield self._bound()
        yield self._again()
        if p.m and p.n and p.k:
            yield self._nan_row()

    def _few(self) -> Iterator[_Launch]:
        """Each kind of input once, over numbers in C once: what is stale shows as wrong. All of SCALES on
        little problems only; the others have each an alpha and beta of their own."""
        p = self._case.problem
        yield from self._exact([(p.alpha, p.beta), *(SCALES if p.m * p.n * p.k <= _LITTLE else ())])
        yield self._bound()
        if p.m > 1 and p.n and p.k:
            yield self._precision(_OLD, nan_row=True)
        else:
            yield self._precision(_OLD)
            if p.m and p.n and p.k:
                yield self._nan_row()

    def _look(self, launch: _Launch, output: Outputs, seen: list[Array]) -> None:
        problem = launch.problem
        for violation in output.violations:
            self._add(violation.check, problem, violation.message)
        if not output.complete:
            return
        columns = output.c[:, problem.n :]
        changed = np.argwhere(columns.view(np.uint32) != launch.inputs.c[:, problem.n :].view(np.uint32))
        if changed.size:
            row, column = changed[0]
            self._add(
                "padding",
                problem,
                f"C({row}, {problem.n + column}) past the row was written, {len(changed)} in all",
            )
        launch.check(problem, seen)

    def _add(self, check: str, problem: Problem, text: str) -> None:
        self.findings.append(Finding(check, f"{text} [{_scales(problem)}]"))

    def _inputs(self, problem: Problem, kind: str, before: float = np.nan) -> Inputs:
        """C is ``before`` where beta is 0: NaN, so reading it, or not writing it, shows."""
        inputs = make_inputs(problem, self._case.dtype, kind)
        if problem.beta == 0:
            c = inputs.c.copy()
            c[:, : problem.n] = before
            inputs = replace(inputs, c=c)
        return inputs

    def _compare(self, check: str, problem: Problem, got: Array, want: Array, bound: Array | float) -> None:
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(got.astype(np.float64) - want) <= bound)
        if not wrong.any():
            return
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        limit = float(np.broadcast_to(bound, wrong.shape)[row, column])
        value, expected, count = got[row, column], want[row, column], int(wrong.sum())
        text = (
            f"C({row}, {column}) is {value:.9g}, expected {expected:.9g} ± {limit:.3g}; "
            f"{count} of {wrong.size} elements are wrong"
        )
        if problem.beta == 0 and np.isnan(value):
            check, text = "unwritten", text + " (C was NaN before: not written, or read although beta is 0)"
        self._add(check, problem, text)

    def _exact(self, scales: Sequence[tuple[float, float]]) -> Iterator[_Launch]:
        def check(problem: Problem, seen: list[Array]) -> None:
            want = reference(problem, self._case.dtype, "exact")
            self._compare("exact", problem, seen[-1][:, : problem.n], want, 0.0)

        for alpha, beta in dict.fromkeys(scales):
            problem = replace(self._case.problem, alpha=alpha, beta=beta)
            yield _Launch(problem, self._inputs(problem, "exact"), check)

    def _precision(self, before: float = np.nan, nan_row: bool = False) -> _Launch:
        """Probes that a lower precision gets wrong. With ``nan_row`` one row of A has a NaN, and only the
        others are probes."""
        problem = replace(self._case.problem, alpha=1.0, beta=0.0)
        inputs = self._inputs(problem, "probe", before)

        def check(problem: Problem, seen: list[Array]) -> None:
            c, want = seen[-1][:, : problem.n], reference(problem, self._case.dtype, "probe")
            if nan_row:
                self._check_nan_row(problem, c)
                # What is wrong there has been said.
                c = c.copy()
                c[problem.m // 2] = want[problem.m // 2]
            self._compare("precision", problem, c, want, 0.0)

        return _Launch(problem, _with_nan(problem, inputs) if nan_row else inputs, check)

    def _bound(self) -> _Launch:
        """Real data within the bound."""

        def check(problem: Problem, seen: list[Array]) -> None:
            dtype = self._case.dtype
            want, bound = reference(problem, dtype, "normal"), error_bound(problem, dtype, "normal")
            self._compare("bound", problem, seen[-1][:, : problem.n], want, bound)

        problem = self._case.problem
        return _Launch(problem, self._inputs(problem, "normal"), check)

    def _again(self) -> _Launch:
        """The launch before, to the same bits; where beta is 0, whatever C held before."""

        def check(problem: Problem, seen: list[Array]) -> None:
            first, second = seen[-2], seen[-1]
            changed = first.view(np.uint32) != second.view(np.uint32)
            differ, kept = np.argwhere(changed), np.argwhere(changed & (second == _OLD))
            if problem.beta == 0 and kept.size:
                row, column = kept[0]
                text = (
                    f"C({row}, {column}) kept the {_OLD:g} it held before, and was {first[row, column]:.9g} "
                    f"when written over NaN; {len(kept)} elements"
                )
                self._add("stale", problem, text)
            elif differ.size:
                row, column = differ[0]
                one, other = first[row, column], second[row, column]
                text = (
                    f"C({row}, {column}) was {one:.9g}, then {other:.9g} on the same input; "
                    f"{len(differ)} differ"
                )
                self._add("repeat", problem, text)

        problem = self._case.problem
        return _Launch(problem, self._inputs(problem, "normal", before=_OLD), check)

    def _nan_row(self) -> _Launch:
        """One NaN in A makes its row of C NaN, all of it, and no other element."""
        problem = replace(self._case.problem, alpha=1.0, beta=0.0)

        def check(problem: Problem, seen: list[Array]) -> None:
            self._check_nan_row(problem, seen[-1][:, : problem.n])

        return _Launch(problem, _with_nan(problem, self._inputs(problem, "exact")), check)

    def _check_nan_row(self, problem: Problem, c: Array) -> None:
        row = problem.m // 2
        want = np.zeros(c.shape, bool)
        want[row] = True
        wrong = np.argwhere(np.isnan(c) != want)
        if wrong.size:
            at = (int(wrong[0][0]), int(wrong[0][1]))
            what = "is not NaN" if want[at] else "is NaN"
            text = f"with a NaN in row {row} of A, C{at} {what}; {len(wrong)} of {c.size} elements are wrong"
            self._add("nan_row", problem, text)


def _with_nan(problem: Problem, inputs: Inputs) -> Inputs:
    a = inputs.a.copy()
    a[problem.m // 2, problem.k // 2] = np.nan
    return replace(inputs, a=a)


def _scales(problem: Problem) -> str:
    return f"{problem.id}, alpha {problem.alpha:g}, beta {problem.beta:g}"

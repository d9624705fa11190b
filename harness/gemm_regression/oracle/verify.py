"""Correctness: the checks of a kernel variant for a problem, and the first mismatch.

Each check launches the kernel with inputs that reveal one kind of error; `verify` runs them all for a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gemm_regression.compiler.sources import closure
from gemm_regression.devices import BatchDevice, Device, Inputs, Outputs, run_all
from gemm_regression.model import Array, Case, Finding, Operation, Problem, Waiver
from gemm_regression.oracle.numbers import OperationError
from gemm_regression.oracle.reference import (
    error_bound,
    exact_result,
    exactly_computed,
    make_inputs,
    planted_product,
    planted_text,
    reference,
    shown,
    takes_nan,
    with_planted,
)

# alpha and beta of the exact check: each value once in each place, and pairs that shortcuts get wrong.
SCALES = ((1.0, 0.0), (2.0, 3.0), (-1.0, 1.0), (0.0, 2.0), (3.0, -1.0), (0.0, 0.0))
_FINITE = 55.0  # the initial value of C for a kernel that needs finite numbers there
_OLD = 77.0  # its value before the second launch: finite, to reveal a kernel that only overwrites NaN
_UNLIKELY = 10_000  # that the largest of so many, or the like, is the first everywhere
_LITTLE = 1000  # multiply-adds of a problem that is cheap everywhere


@dataclass(frozen=True)
class Examined:
    """``findings``: all that is wrong; ``notes``: what the device remarks on, which is no error; ``waived``:
    the waivers of the declaration by which something is accepted that would be wrong."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()
    waived: tuple[Waiver, ...] = ()


def verify(device: Device, case: Case) -> list[Finding]:
    """Everything that is wrong with a kernel variant for the problem of the case; empty if it is correct.
    Raises what ``examine`` raises."""
    return list(examine(device, case).findings)


def examine(device: Device, case: Case) -> Examined:
    """What is wrong with a kernel variant for the problem of the case, and what the device notes of it.

    The problem's own alpha and beta are checked and those of SCALES that the kernel takes. A DeviceError
    passes through: a kernel that crashes has no output to look at. Raises ValueError for a problem that the
    kernel does not take.
    """
    if case.refusals:
        raise ValueError(f"{case.id}: {'; '.join(case.refusals)}")
    done = list[_Examination]()
    for view in case.kernel.operation.views:
        looked_at = replace(case, kernel=replace(case.kernel, operation=view)) if view.looks_at else case
        try:
            done.append(_Examination(device, looked_at))
        except OperationError as error:
            return Examined((Finding("operation", str(error)),))
        if done[-1].findings:
            break
    notes = dict.fromkeys(note for each in done for note in each.notes)
    waived = dict.fromkeys(waiver for each in done for waiver in each.waived)
    return Examined(tuple(done[-1].findings), tuple(notes), tuple(waived))


class _Launch(NamedTuple):
    """One launch of a case, and the check of its result, (batch, m, n), and those of earlier launches."""

    problem: Problem
    inputs: Inputs
    check: Callable[[list[Array]], None]


def _told(operation: Operation, problem: Problem) -> str:
    named = operation.told(problem)
    return named or f"{problem.id}, alpha {problem.alpha:g}, beta {problem.beta:g}"


class _Examination:
    """The launches of one case; stops at the first one with a finding. A further output does not depend on
    the result before the launch."""

    def __init__(self, device: Device, case: Case) -> None:
        self._operation, self._dtype = case.kernel.operation, case.dtype
        problem = replace(case.problem, beta=0.0) if self._operation.looks_at else case.problem
        self._case, self._problem = replace(case, problem=problem), problem
        self._result = self._operation.result.name
        self._storage = self._operation.result.storage(case.problem, case.dtype)
        integers = self._storage.dtype.kind in "iu" and not self._dtype.integer
        self._places = bool(self._operation.looks_at) and integers
        activation = self._operation.activation
        self._exact_sums = (activation is None or activation.exact) and self._operation.error is None
        self._probes = self._exact_sums and not self._operation.own
        self._nan = takes_nan(self._operation, self._dtype) and not self._places
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.waived: list[Waiver] = []
        launches = [*(self._few() if isinstance(device, BatchDevice) else self._all())]
        cases = [replace(case, problem=launch.problem) for launch in launches]
        outputs = run_all(device, cases, [launch.inputs for launch in launches])
        seen: list[Array] = []
        for launch, output in zip(launches, outputs, strict=True):
            seen.append(self._storage.matrices(output.result))
            self._look(launch, output, seen)
            if self.findings:
                break

    def _all(self) -> Iterator[_Launch]:
        p = self._problem
        yield from self._scaled([(p.alpha, p.beta), *SCALES])
        if self._probes:
            yield self._precision()
        yield self._bound(p)
        yield self._again()
        yield from self._of_equals()
        if p.m and p.n and p.k:
            yield from self._not_finite()

    def _few(self) -> Iterator[_Launch]:
        """Each kind of input once, one of them with finite numbers in C, so that stale values show. All of
        SCALES only for small problems; other problems have one alpha and beta each. The same launch twice if
        blocks share a workspace."""
        p = self._problem
        yield from self._scaled([(p.alpha, p.beta), *(SCALES if p.m * p.n * p.k <= _LITTLE else ())])
        yield self._bound(p)
        if self._case.kernel.workspace:
            yield self._again()  # with the blocks in another order
        yield from self._of_equals()
        whole = bool(p.m and p.n and p.k)
        if not self._probes:
            yield self._bound(replace(p, beta=0.0), _OLD)
        elif not (self._nan and whole and max(p.m, p.n) > 1):
            yield self._precision(_OLD)
        if whole:
            yield from self._not_finite(_OLD)

    def _of_equals(self) -> Iterator[_Launch]:
        """An output of integers, such as a place, of small integers, many of which are equal."""
        if self._places:
            yield self._bound(self._problem, kind="exact")

    def _not_finite(self, before: float = np.nan) -> Iterator[_Launch]:
        """NaN and infinities: among probes, but in a single element, or where the epilogue rounds."""
        if self._nan and self._probes and max(self._problem.m, self._problem.n) > 1:
            yield self._planted("probe", before)
        elif self._nan:
            yield self._planted("exact")

    def _look(self, launch: _Launch, output: Outputs, seen: list[Array]) -> None:
        problem = launch.problem
        for violation in output.violations:
            if output.complete and (waiver := self._waiver(violation, output.sources)) is not None:
                self.waived.append(waiver)
                continue
            text = (
                f"{violation.message}{_remedy(violation.check, problem)} [{_told(self._operation, problem)}]"
            )
            self.findings.append(replace(violation, message=text))
        self.notes += output.notes
        if not output.complete:
            return
        changed = _bits(output.result) != _bits(launch.inputs[self._result])
        self._storage.elements(changed)[:] = False
        if changed.any():
            row, column = (int(i) for i in np.argwhere(changed)[0])
            place = f"{self._result}{self._storage.place(row, column)}"
            text = f"{place}, past the end of its row, was written; {int(changed.sum())} in total"
            self._add("padding", problem, text)
        launch.check(seen)

    def _waiver(self, violation: Finding, others: tuple[Path, ...]) -> Waiver | None:
        """What of the declaration accepts this violation, by the text of its line, which may be of one of the
        ``others``."""
        kernel = self._case.kernel
        if not kernel.waived or kernel.source is None or not violation.file:
            return None
        own = violation.file == kernel.source.name
        for path in [kernel.source] if own else [*closure(kernel), *others]:
            there = path.name == violation.file and path.is_file()
            lines = path.read_text(encoding="utf-8").splitlines() if there else []
            text = lines[violation.line - 1] if violation.line <= len(lines) else ""
            if found := [waiver for waiver in kernel.waived if waiver.matches(violation.check, text)]:
                return found[0]
        return None

    def _add(self, check: str, problem: Problem, text: str) -> None:
        self.findings.append(Finding(check, f"{text} [{_told(self._operation, problem)}]"))

    def _inputs(self, problem: Problem, kind: str, before: float = np.nan) -> Inputs:
        """Where beta is 0 the result is ``before``: NaN, so reading it, or not writing it, shows. For a
        kernel that says it reads it, a number."""
        if before != before and self._case.kernel.constraints.finite_c:
            before = _FINITE
        inputs = make_inputs(self._operation, problem, self._dtype, kind)
        if problem.beta == 0:
            c = inputs[self._result].copy()
            self._storage.elements(c)[:] = before if before == before else _unwritten(c)
            inputs = {**inputs, self._result: c}
        return inputs

    def _name(self, at: tuple[int, ...]) -> str:
        return f"{self._result}{self._storage.element(*at)}"

    def _compare(self, check: str, problem: Problem, got: Array, want: Array, bound: Array | float) -> None:
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(got.astype(np.float64) - want) <= bound)
        if not wrong.any():
            return
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        value, limit = float(got[at]), float(np.broadcast_to(bound, wrong.shape)[at])
        text = (
            f"{self._name(at)} is {value:.9g}, expected {want[at]:.9g} ± {limit:.3g}; "
            f"{int(wrong.sum())} of {wrong.size} elements are wrong"
        )
        unwritten = _unwritten(got)
        if problem.beta == 0 and (value == unwritten or (value != value and unwritten != unwritten)):
            check = "unwritten"
            text += (
                f" ({self._result} was {shown(value)} before: not written, or read although beta is 0; if "
                "this is intended: constraints=Constraints(finite_c=True))"
            )
        self._add(check, problem, text)

    def _scaled(self, scales: Sequence[tuple[float, float]]) -> Iterator[_Launch]:
        """Exact sums of integers; if the epilogue rounds, real data within the error bound."""
        kernel, kind = self._case.kernel, "exact"
        if self._dtype.converts and not (kernel.library or kernel.constraints.on_grid):
            kind = "off grid"
        for alpha, beta in dict.fromkeys(scales[:1] if self._operation.looks_at else scales):
            problem = replace(self._problem, alpha=alpha, beta=beta)
            if replace(self._case, problem=problem).refusals:
                continue
            exact = self._exact_sums and exactly_computed(self._operation, problem, self._dtype, kind)
            yield self._exact(problem, kind) if exact else self._bound(problem)

    def _exact(self, problem: Problem, kind: str) -> _Launch:
        def check(seen: list[Array]) -> None:
            want = exact_result(self._operation, problem, self._dtype, kind)
            self._compare("exact", problem, seen[-1], want, 0.0)

        return _Launch(problem, self._inputs(problem, kind), check)

    def _precision(self, before: float = np.nan) -> _Launch:
        """Probes that a lower precision gets wrong."""
        problem = replace(self._problem, alpha=1.0, beta=0.0)

        def check(seen: list[Array]) -> None:
            want = exact_result(self._operation, problem, self._dtype, "probe")
            self._compare("precision", problem, seen[-1], want, 0.0)

        return _Launch(problem, self._inputs(problem, "probe", before), check)

    def _planted(self, kind: str, before: float = np.nan) -> _Launch:
        """Probes among NaN and infinities in A and B, where the elements that these do not reach are probes;
        else one NaN in A, which must reach exactly one row of C, all of it."""
        problem, probes = replace(self._problem, alpha=1.0, beta=0.0), kind == "probe"
        inputs = self._inputs(problem, kind, before)
        given = with_planted(self._operation, problem, self._dtype, inputs, everything=probes)

        def check(seen: list[Array]) -> None:
            reached = self._check_planted(problem, kind, given, seen[-1])
            if probes:
                want = exact_result(self._operation, problem, self._dtype, kind)
                # errors there have been reported already
                c = np.where(reached, want.astype(seen[-1].dtype), seen[-1])
                self._compare("precision", problem, c, want, 0.0)

        return _Launch(problem, given, check)

    def _bound(self, problem: Problem, before: float = np.nan, kind: str = "normal") -> _Launch:
        """Real data within the error bound; for integers any data, exactly, unless an error is declared."""

        def check(seen: list[Array]) -> None:
            of = self._operation, problem, self._dtype, kind
            exact = self._dtype.integer and self._operation.error is None
            bound = 0.0 if exact else error_bound(*of)
            want = reference(*of)
            self._compare("bound", problem, seen[-1], want, bound)
            depth = self._operation.depth_of(problem)
            told = want.size > 1 and problem.alpha and depth
            if self._places:  # else all may well be the first
                told = depth ** min(want.size, 20) > _UNLIKELY
            if self._operation.own and told and (np.abs(want) <= bound).all():
                text = "zeros would pass: the error bound is above every result; declare a smaller error="
                self._add("vacuous", problem, text)

        return _Launch(problem, self._inputs(problem, kind, before), check)

    def _again(self) -> _Launch:
        """Repeats the launch of the bound check, which must give the same bits; if beta is 0, for any old
        C."""
        problem = self._problem

        def check(seen: list[Array]) -> None:
            first, second = seen[-2:]
            changed = _bits(first) != _bits(second)
            differ, kept = np.argwhere(changed), np.argwhere(changed & (second == _OLD))
            if problem.beta == 0 and kept.size:
                at = tuple(int(i) for i in kept[0])
                text = (
                    f"{self._name(at)} kept its old value {_OLD:g}, but was {first[at]:.9g} "
                    f"when written over {shown(_unwritten(first))}; {len(kept)} elements"
                )
                self._add("stale", problem, text)
            elif differ.size:
                at = tuple(int(i) for i in differ[0])
                values = f"{float(first[at]):.9g}, then {float(second[at]):.9g}"
                text = f"{self._name(at)} was {values} for the same input; {len(differ)} differ"
                self._add("repeat", problem, text)

        return _Launch(problem, self._inputs(problem, "normal", before=_OLD), check)

    def _check_planted(self, problem: Problem, kind: str, given: Inputs, c: Array) -> Array:
        """Which elements NaN and infinities reach, or should, by IEEE arithmetic in any order of a sum."""
        want = planted_product(self._operation, problem, self._dtype, kind, given)
        got, reached = c.astype(np.float64), ~np.isfinite(want)
        wrong = (np.isnan(got) != np.isnan(want)) | (np.isinf(want) & (got != want))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            text = (
                f"with {planted_text(self._operation, problem, self._dtype, given)}, "
                f"{self._name(at)} is {shown(got[at])}, "
                f"expected {shown(want[at]) if reached[at] else 'a number'}; "
                f"{int(wrong.sum())} of {c.size} elements are wrong"
            )
            if self._operation.own:
                text += "; if it need not pass a NaN on: Operation(keeps_nan=False)"
            self._add("nan_inf", problem, text)
        return np.asarray(reached | wrong)


def _bits(values: Array) -> Array:
    """The bit patterns, for every type of output."""
    return values.view(f"u{values.dtype.itemsize}")


def _unwritten(c: Array) -> float:
    """The initial value of an output, which must be overwritten: NaN, for integers the smallest one."""
    return float(np.iinfo(c.dtype).min) if c.dtype.kind == "i" else float("nan")


def _remedy(check: str, problem: Problem) -> str:
    """What to declare if a kernel is not meant for matrices that start anywhere."""
    off = [name for name in "ABC" if problem.start(name) % 4]
    if check != "misaligned" or not off:
        return ""
    starts = ", ".join(f"{name} at element {problem.start(name)}" for name in off)
    declared = ", ".join(f'"{name}": 4' for name in off)
    return f" ({starts}; if that is not to be taken: constraints=Constraints(multiples={{{declared}}}))"

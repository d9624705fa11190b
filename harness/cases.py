"""Which cases a run is about: a suite, narrowed by the names a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.legality import GpuLimits, refusals
from harness.model import Case, Problem
from harness.suites import SUITES, find_config, find_kernel, find_problem, find_suite, illegal


@dataclass(frozen=True)
class Selection:
    """Cases to verify and cases to time, in ladder order within a problem."""

    verify: tuple[Case, ...] = ()
    timed: tuple[Case, ...] = ()


def select(
    suite: str,
    kernels: Sequence[str],
    configs: Sequence[str],
    shapes: Sequence[str],
    capability: tuple[int, int],
) -> Selection:
    """The cases of a suite, of these kernels and configs only, on these shapes in place of the suite's.

    Raises ValueError, in one line, for a name that does not exist or a config that is illegal on a GPU
    of this compute capability.
    """
    limits = GpuLimits.of(capability)
    chosen = find_suite(suite)
    names = {find_kernel(name).name for name in kernels}
    _check_configs(names, configs, limits)
    problems = [find_problem(text) for text in shapes]

    def keep(case: Case) -> bool:
        return (not names or case.kernel.name in names) and (not configs or case.config.label in configs)

    verify = [case for case in chosen.verify_cases(limits) if keep(case)]
    timed = [case for case in chosen.timed_cases(limits) if keep(case)]
    if problems:
        verify, timed = _on(verify, problems), _on(timed, problems)
    return Selection(tuple(verify), tuple(timed))


def _on(cases: Sequence[Case], problems: Sequence[Problem]) -> list[Case]:
    """The same variants on other problems."""
    variants = {case.variant: case for case in cases}.values()
    return [Case(c.kernel, c.dtype, c.config, p) for p in problems for c in variants]


def _check_configs(names: set[str], labels: Sequence[str], limits: GpuLimits) -> None:
    searched = [find_kernel(n) for n in names] or list(
        {c.kernel.name: c.kernel for c in SUITES["full"].verify_cases(limits)}.values()
    )
    for label in labels:
        owners = [k for k in searched if any(c.label == label for c in k.configs)]
        if not owners:
            known = sorted({c.label for k in searched for c in k.configs})
            raise ValueError(f"unknown config {label!r}; known: {', '.join(known)}")
        reasons = [r for k in owners for d in k.dtypes for r in refusals(k, find_config(k, label), d, limits)]
        if len(reasons) and all(refusals(k, find_config(k, label), k.dtypes[0], limits) for k in owners):
            raise ValueError(f"config {label!r} is illegal here: {reasons[0]}")


def listing(selection: Selection, capability: tuple[int, int]) -> list[str]:
    """What would run, and what is declared but illegal here, with the reason; a line each."""
    lines = ["verified variants:"]
    lines += [f"  {variant}" for variant in dict.fromkeys(case.variant for case in selection.verify)]
    lines += ["timed cases:", *(f"  {case.id}" for case in selection.timed)]
    refused = illegal(GpuLimits.of(capability))
    lines += [f"illegal for compute capability {'.'.join(map(str, capability))}:"]
    lines += [f"  {variant}: {'; '.join(reasons)}" for variant, reasons in refused] or ["  none"]
    return lines


def find_case(text: str, capability: tuple[int, int]) -> Case:
    """The case with this id; its problem need not be one of the suite's.

    Raises ValueError in one line where the id names no variant that is legal here.
    """
    variant, _, shape = text.rpartition("-")
    for case in SUITES["full"].verify_cases(GpuLimits.of(capability)):
        if case.variant == variant:
            return Case(case.kernel, case.dtype, case.config, find_problem(shape))
    raise ValueError(f"unknown case {text!r}: `pytest --list-cases` lists the variants; add -MxNxK")

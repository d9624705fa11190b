"""Which cases a run is about: a suite, narrowed by the names a user gives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from harness.model import Case, Kernel, Problem, find_problem
from harness.model.legality import GpuLimits, refusals
from harness.project.suites import SPARSE, SUITES, TALL, WHOLE, find_config, find_kernel, find_suite, illegal
from kernels import LADDER


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

    Raises ValueError, in one line, for a name that does not exist, that the suite has no case of, or that
    is illegal on a GPU of this compute capability.
    """
    limits = GpuLimits.of(capability)
    chosen = find_suite(suite)
    searched = [find_kernel(name) for name in dict.fromkeys(kernels)] or list(LADDER)
    for label in configs:
        _check_config(label, searched, limits)
    problems = list(dict.fromkeys(find_problem(text) for text in shapes))
    verify = [case for case in chosen.verify_cases(limits) if case.kernel in searched]
    timed = [case for case in chosen.timed_cases(limits) if case.kernel in searched]
    _check_all_there("kernel", kernels, {case.kernel.name for case in verify}, suite)
    _check_all_there("config", configs, {case.config.label for case in verify}, suite)
    if configs:
        verify = [case for case in verify if case.config.label in configs]
        timed = [case for case in timed if case.config.label in configs]
    if problems:
        # A problem without a single operation has a result to verify, but no speed.
        verify, timed = _on(verify, problems), _on(timed, [p for p in problems if p.flops])
    return Selection(tuple(verify), tuple(timed))


def emulated(selection: Selection, more: bool) -> Selection:
    """What of a selection an interpreter can verify: not a library call, which has no PTX. With ``more`` each
    variant also where 32 bits do not hold an index, of a stage's configs only the first on TALL, which would
    take a sixth of the time, and WHOLE with half its sums."""
    verify = [case for case in selection.verify if not case.kernel.library]
    if more:
        verify = [case for case in verify if case.problem != TALL or case.config == case.kernel.configs[0]]
        half = replace(WHOLE, k=WHOLE.k // 2)
        verify = [replace(case, problem=half) if case.problem == WHOLE else case for case in verify]
    return Selection((*verify, *(_on(verify, [SPARSE]) if more else ())), selection.timed)


def _on(cases: Sequence[Case], problems: Sequence[Problem]) -> list[Case]:
    """The same variants on other problems."""
    variants = {case.variant: case for case in cases}.values()
    return [Case(c.kernel, c.dtype, c.config, p) for p in problems for c in variants]


def _check_config(label: str, searched: Sequence[Kernel], limits: GpuLimits) -> None:
    """Raises ValueError for a label that none of these kernels declares, or that is illegal for them all."""
    owners = [kernel for kernel in searched if any(config.label == label for config in kernel.configs)]
    if not owners:
        known = sorted({config.label for kernel in searched for config in kernel.configs} - {""})
        raise ValueError(f"unknown config {label!r}; known: {', '.join(known) or 'none'}")
    refused = [refusals(k, find_config(k, label), dtype, limits) for k in owners for dtype in k.dtypes]
    if all(refused):
        raise ValueError(f"config {label!r} is illegal here: {refused[0][0]}")


def _check_all_there(what: str, asked: Sequence[str], there: Collection[str], suite: str) -> None:
    """Raises ValueError for a name without a case: a run of nothing would pass."""
    for name in asked:
        if name not in there:
            raise ValueError(
                f"suite {suite!r} has no case of {what} {name!r} here; "
                "`pytest --list-cases --suite full` shows what there is and what is illegal"
            )


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
    for case in SUITES["full"].verify_cases(GpuLimits.of(capability)):
        shape = text.removeprefix(f"{case.variant}-")
        if shape != text:
            return Case(case.kernel, case.dtype, case.config, find_problem(shape))
    raise ValueError(f"unknown case {text!r}: `pytest --list-cases` lists the variants; add -MxNxK")

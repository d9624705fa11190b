"""Which cases are counted: those given by id, or those selected by kernel, config and problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemm_regression.counters.counts import counted
from gemm_regression.model import Case
from gemm_regression.project.loader import Project
from gemm_regression.project.names import nothing_fits
from gemm_regression.project.selection import Choice, find_case, fitting, select, variants


def chosen(
    project: Project, choice: Choice, capability: tuple[int, int], ids: Sequence[str] = ()
) -> list[Case]:
    """The cases with these ids; without ids those of the selected variants that match the expression, for the
    selected problems or the ones that are counted by default. Without an expression or configs, only the
    default config of each kernel. Raises ValueError for an unknown id, and if nothing is selected."""
    if ids:
        found = [find_case(project, text, capability) for text in ids]
    else:
        every = variants(project, choice, capability)
        if not (choice.expression or choice.configs):
            every = [
                (kernel, config, dtype) for kernel, config, dtype in every if config == kernel.configs[0]
            ]
        if choice.shapes:
            names = {(kernel.name, dtype, config) for kernel, config, dtype in every}
            selected = select(project, replace(choice, expression=""), capability, emulated=True).verify
            found = [c for c in selected if (c.kernel.name, c.dtype, c.config) in names]
        else:
            found = [case for v in every if v[0].compiled or choice.kernels for case in counted(v)]
        fits = fitting(choice.expression)
        found = [case for case in found if fits(case.id)]
    if bare := next((case for case in found if not case.kernel.compiled), None):
        what = "a library" if bare.kernel.library else "a choice among kernels"
        raise ValueError(f"{bare.id}: {what} has no PTX to count")
    if not found:
        raise ValueError(nothing_fits(choice.expression, project.kernels))
    return found

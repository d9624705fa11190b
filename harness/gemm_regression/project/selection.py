"""Which cases a run is about: a suite, filtered by the user's options; the same for all commands."""

from __future__ import annotations

import contextlib
import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

from gemm_regression.hints import typed
from gemm_regression.model import Case, CaseId, Config, DType, Kernel, Problem, find_problem, variant_name
from gemm_regression.model.gpus import GpuLimits, legal_variants, refusals
from gemm_regression.project.loader import Project
from gemm_regression.project.suites import Fitted, Suite, choosable, exactly

_SHOWN = 5
Variant = tuple[Kernel, Config, DType]
Found = TypeVar("Found")


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """One line: the name, the most similar known names or the first few, and how many more there are."""
    names = [each for each in dict.fromkeys(known) if each]
    near = difflib.get_close_matches(name, names, _SHOWN)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = names if len(names) <= _SHOWN else near or names[:_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ValueError(f"unknown {what} {name!r}{hint}; known: {', '.join(shown) or 'none'}{more}")


def _found(what: str, name: str, known: Mapping[str, Found]) -> Found:
    if name not in known:
        raise unknown(what, name, known)
    return known[name]


def find_kernel(kernels: Iterable[Kernel], name: str) -> Kernel:
    """The kernel with this name. Raises ValueError, which lists known names."""
    return _found("kernel", name, {kernel.name: kernel for kernel in kernels})


def find_config(kernel: Kernel, label: str) -> Config:
    """The declared config of a kernel with this label. Raises ValueError, which lists known labels."""
    return _found(f"config of {kernel.name}", label, {config.label: config for config in kernel.declared})


def nothing_fits(expression: str) -> str:
    """One line: that -k matches no case."""
    return f"-k {expression!r} matches no case; `{typed('check', '--list-cases')}` lists them"


@dataclass(frozen=True)
class Choice:
    """The user's selection: a ``suite``; only these ``kernels`` and ``configs``; these ``shapes`` instead of
    the suite's problems; of those, the ones that match ``expression``, pytest's ``-k``."""

    suite: str = "full"
    kernels: Sequence[str] = ()
    configs: Sequence[str] = ()
    shapes: Sequence[str] = ()
    expression: str = ""

    @classmethod
    def of(cls, given: Any) -> Choice:
        """From parsed options, argparse's or pytest's; pytest applies its own ``-k`` itself."""
        return cls(given.suite, given.kernel, given.config, given.shape, getattr(given, "k", ""))


@dataclass(frozen=True)
class Selection:
    """Cases to ``verify`` and cases to time (``timed``), in the order of the kernels within a problem; and
    the problems that kernels refuse (``refused``)."""

    verify: tuple[Case, ...] = ()
    timed: tuple[Case, ...] = ()
    refused: tuple[Fitted, ...] = field(default=(), compare=False)

    @property
    def refused_text(self) -> str:
        """How many problems are refused, in one line; empty if none."""
        pairs = {(each.case.kernel.name, each.asked.id) for each in self.refused}
        kernels = len({name for name, _ in pairs})
        of = "1 kernel" if kernels == 1 else f"{kernels} kernels"
        return f"{len(pairs)} problems of {of}; --list-cases shows the reasons" if pairs else ""


def select(
    project: Project, choice: Choice, capability: tuple[int, int], emulated: bool = False
) -> Selection:
    """The selected cases, for a GPU with this compute capability, or ``emulated``: without library calls and
    choices, and each variant also with indices that need more than 32 bits.

    Raises ValueError, in one line, for a name that does not exist, has no case in the suite or is illegal on
    such a GPU, for a problem that no selected kernel accepts, and if nothing matches the expression.
    """
    limits = GpuLimits.of(capability)
    names = {variant_name(*variant) for variant in variants(project, choice, capability)}
    suite, kernels = project.suites[choice.suite], _chosen(project, choice)
    executed = [kernel for kernel in kernels if kernel.compiled or not emulated]
    problems = list(dict.fromkeys(find_problem(text) for text in choice.shapes))
    verify = list(suite.verify(executed, limits, emulated and not problems))
    timed = suite.time(kernels, limits)
    if problems:
        # A problem with zero FLOP has a result to verify, but no speed.
        verify, timed = _on(verify, problems), _on(timed, [p for p in problems if p.flops])
    verify = list(choosable(verify, project.kernels, limits, timed=False))
    timed = list(choosable(timed, project.kernels, limits, timed=True))
    if problems:
        _check_sizes(each.case for each in verify if each.runs)
    else:
        _check_each_is_verified(verify, suite)
    verify, timed = ([each for each in found if each.case.variant in names] for found in (verify, timed))
    if problems and verify and not any(each.runs for each in verify):
        reasons = list(dict.fromkeys(each.refusal for each in verify))
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        raise ValueError(f"no selected kernel accepts this shape: {'. '.join(reasons[:3])}{more}")
    fits = fitting(choice.expression)
    refused = {
        (each.case.variant, each.asked): each
        for each in (*verify, *timed)
        if each.reasons and fits(str(replace(each.case.parts, problem=each.asked.id)))
    }
    found = Selection(
        tuple(each.case for each in verify if each.runs and fits(each.case.id)),
        tuple(each.case for each in timed if each.runs and fits(each.case.id)),
        tuple(refused.values()),
    )
    if choice.expression and not (found.verify or found.timed):
        raise ValueError(nothing_fits(choice.expression))
    return found


def timed_by_any(project: Project, capability: tuple[int, int]) -> set[str]:
    """The ids of the cases that any of the suites times on such a GPU: a baseline's others are orphans."""
    found = set[str]()
    for suite in project.suites:
        with contextlib.suppress(
            ValueError
        ):  # a kernel that takes none of its problems; whoever runs it is told
            found |= {case.id for case in select(project, Choice(suite), capability).timed}
    return found


def variants(project: Project, choice: Choice, capability: tuple[int, int]) -> list[Variant]:
    """What of the kernels a choice of suite, kernels and configs leaves on such a GPU. Raises ValueError as
    ``select`` does."""
    limits = GpuLimits.of(capability)
    suite, kernels = _found("suite", choice.suite, project.suites), _chosen(project, choice)
    for label in choice.configs:
        _check_config(label, kernels, limits)
    found = [(kernel, *of) for kernel in kernels for of in suite.variants(kernel, limits)]
    kernels_there, configs_there = {k.name for k, _, _ in found}, {config.label for _, config, _ in found}
    missing = [("kernel", name) for name in choice.kernels if name not in kernels_there]
    missing += [("config", label) for label in choice.configs if label not in configs_there]
    for what, name in missing:  # an empty run would pass
        raise ValueError(
            f"suite {suite.name!r} has no case of {what} {name!r} here; "
            "`pytest --list-cases --suite full` lists all cases, and which are illegal"
        )
    return [each for each in found if not choice.configs or each[1].label in choice.configs]


def _chosen(project: Project, choice: Choice) -> list[Kernel]:
    """The kernels of these names, or all. Raises ValueError."""
    names = dict.fromkeys(choice.kernels)
    return [find_kernel(project.kernels, name) for name in names] or list(project.kernels)


def fitting(expression: str) -> Callable[[str], bool]:
    """Whether an id fits an expression, as for pytest's ``-k``: words, and, or, not, brackets; a word fits
    where the id in square brackets has it, in whatever case. Raises ValueError for a malformed one."""
    if not expression.strip():
        return lambda text: True
    from _pytest.mark.expression import Expression  # what pytest's own -k is made of; late, for it is large

    try:
        compiled = Expression.compile(expression)
    except SyntaxError as error:
        raise ValueError(f"-k {expression!r}: {error.msg}") from None

    def fits(text: str) -> bool:
        def has(word: str, /, **_: Any) -> bool:
            return word.lower() in f"[{text}]".lower()

        return bool(compiled.evaluate(has))

    return fits


def _on(found: Iterable[Fitted], problems: Sequence[Problem]) -> list[Fitted]:
    """The same variants with exactly these problems."""
    cases = {each.case.variant: each.case for each in found}.values()
    return [each for p, c in product(problems, cases) for each in exactly(c.kernel, c.config, c.dtype, [p])]


def _check_config(label: str, searched: Sequence[Kernel], limits: GpuLimits) -> None:
    """Raises ValueError for a label that none of these kernels declares, or that is illegal for all of
    them."""
    owners = [kernel for kernel in searched if any(config.label == label for config in kernel.declared)]
    if not owners:
        raise unknown("config", label, sorted({c.label for kernel in searched for c in kernel.declared}))
    refused = [refusals(k, find_config(k, label), dtype, limits) for k in owners for dtype in k.dtypes]
    if all(refused):
        raise ValueError(f"config {label!r} is illegal here: {refused[0][0]}")


_COPIES = 8  # inputs and results of the launches of a case, and what is expected, in FP64


def _check_sizes(cases: Iterable[Case]) -> None:
    """Raises ValueError for a problem whose matrices do not fit into the memory of this machine, where the
    expected values are computed."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for case in cases:
        needed = sum(math.prod(of.shape) * of.dtype.itemsize for of in case.storages.values())
        if _COPIES * needed > there:
            raise ValueError(
                f"{case.problem.id} is too large: its matrices have {needed / 2**30:,.0f} GiB, of which the "
                f"check holds {_COPIES} copies, and this machine has {there / 2**30:,.0f} GiB of memory"
            )


def _check_each_is_verified(found: Iterable[Fitted], suite: Suite) -> None:
    """Raises ValueError for a kernel that accepts no problem of the suite, since it would pass unchecked."""
    found = list(found)
    verified = {each.case.kernel.name for each in found if each.runs}
    for each in found:
        if each.case.kernel.name not in verified:
            raise ValueError(
                f"{each.case.kernel.name} accepts no problem of suite {suite.name!r}, so it would not be "
                f"verified: {each.refusal}; declare SUITES with problems it accepts, or correct constraints="
            )


def illegal(kernels: Iterable[Kernel], limits: GpuLimits) -> list[tuple[str, tuple[str, ...]]]:
    """The declared variants that cannot run on such a GPU, with the reasons, in the order of the kernels."""
    every = ((k, config, dtype) for k in kernels for dtype in k.dtypes for config in k.declared)
    return [(variant_name(*each), said) for each in every if (said := refusals(*each, limits))]


def left_out(project: Project, suite: str, capability: tuple[int, int]) -> list[str]:
    """What a suite does not time and another one does, in a line, if anything."""
    limits, more = GpuLimits.of(capability), project.suites[suite].more
    if not more:
        return []
    own, all_ = (
        {each.case.id for each in choosable(found, project.kernels, limits, timed=True) if each.runs}
        for found in (project.suites[name].time(project.kernels, limits) for name in (suite, more))
    )
    return [f"LEFT OUT: {len(all_ - own)} timed cases, which --suite {more} has"] if all_ - own else []


def listing(project: Project, selection: Selection, capability: tuple[int, int]) -> list[str]:
    """What would run, what is declared but illegal here, and what kernels refuse, with the reasons; one line
    each."""
    lines = ["verified variants:"]
    lines += [f"  {variant}" for variant in dict.fromkeys(case.variant for case in selection.verify)]
    lines += ["timed cases:", *(f"  {case.id}" for case in selection.timed)]
    if selection.refused:
        lines += ["refused problems:", *(f"  {each.refusal}" for each in selection.refused)]
    refused = illegal(project.kernels, GpuLimits.of(capability))
    lines += [f"illegal for compute capability {'.'.join(map(str, capability))}:"]
    lines += [f"  {variant}: {'; '.join(reasons)}" for variant, reasons in refused] or ["  none"]
    return lines


def find_case(project: Project, text: str, capability: tuple[int, int]) -> Case:
    """The case with this id; its problem need not be in a suite.

    Raises ValueError, in one line, if the id names no variant that is legal here, or a problem that its
    kernel refuses."""
    limits, wanted = GpuLimits.of(capability), CaseId.parse(text)
    every = ((k, *of) for k in project.kernels for of in legal_variants(k, limits, k.declared))
    named = {variant_name(*variant): variant for variant in every}
    for name, variant in named.items():
        shape = text.removeprefix(f"{name}-")
        if shape != text and shape[:1].isdigit():
            (found,) = exactly(*variant, [find_problem(shape)])
            if found.reasons:
                raise ValueError(f"{wanted.kernel} does not accept it: {found.refusal}")
            return found.case
    near = difflib.get_close_matches(wanted.variant, named, 1)
    hint = f" (did you mean '{near[0]}-{wanted.problem or 'MxNxK'}'?)" if near else ""
    raise ValueError(f"unknown case {text!r}{hint}: `pytest --list-cases` lists the variants; add -MxNxK")

"""Which selected cases differ from those of a base, and which of them can be timed beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gemm_regression.compiler.nvcc import TENSOR_CORES, Binary, Variant, compile_all, compile_ptx, core_of
from gemm_regression.compiler.objects import mismatch
from gemm_regression.compiler.tools import CompileError, Nvcc, arch
from gemm_regression.devices.stored import StoredBinary, launch_document, launch_id
from gemm_regression.devices.work import Work
from gemm_regression.judge.paired import (
    BASE_UNUSABLE,
    COMPILE_ERROR,
    NOT_IN_BASE,
    REMOVED,
    SAME_BINARY,
    Paired,
    failed_beside,
)
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, Outcome
from gemm_regression.model import Case
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.legality import refusals
from gemm_regression.project.commit import Commit
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, fitting, select
from gemm_regression.run.compare import Row
from gemm_regression.run.pairing import Pair

_FLOPS = {True: 2e14, False: 2e13}  # of tensor cores or CUDA cores, a second; for the size of controls only


@dataclass(frozen=True)
class Side:
    """What is compared with: the kernels of a ``commit``, compiled with the present ``nvcc`` or another."""

    commit: Commit
    nvcc: Nvcc | None = None

    @property
    def label(self) -> str:
        return self.commit.label + (f" with nvcc {self.nvcc.version}" if self.nvcc else "")


Built = Binary | CompileError
Compiled = Callable[[list[Variant], str, Nvcc | None], list[Built]]


def _compile(variants: list[Variant], sm: str, nvcc: Nvcc | None) -> list[Built]:
    return compile_all(variants, sm, nvcc=nvcc)


def pairs_of(
    cases: Sequence[Case],
    side: Side,
    capability: tuple[int, int],
    margin: float | None = None,
    compiled: Compiled = _compile,
) -> list[Pair | Row]:
    """A pair for each case that is compiled from source and has changed, a row for every other one; in the
    same order. Both sides are compiled, by ``compiled``. ``margin``: None: as the base declares it.

    Raises ToolchainError without a compiler.
    """
    ours = [case for case in cases if case.kernel.compiled]
    bases = [side.commit.counterpart(case) for case in ours]
    matching = _Matching(side, capability, margin)
    there = [base for base in bases if isinstance(base, Case)]
    new = _all_built(ours, lambda variants: compiled(variants, matching.arch, None))
    old = _all_built(there, lambda variants: compiled(variants, matching.arch, side.nvcc))
    both = [
        (case, new[_variant(case)], base, None if isinstance(base, str) else old[_variant(base)])
        for case, base in zip(ours, bases, strict=True)
    ]
    matching.look_ahead(both)
    return [matching.of(*each) for each in both]


def removed(
    project: Project, side: Side, choice: Choice, capability: tuple[int, int], pairs: Sequence[Pair | Row]
) -> list[Row]:
    """The cases that the base would time for the same choice, and that the working tree has no more; but for
    those of configs that edited ones are timed beside."""
    beside = {pair.label if isinstance(pair, Pair) else pair.paired.base for pair in pairs}
    here = {pair.case.id for pair in pairs}
    fits, rows = fitting(choice.expression), []
    asked = replace(choice, kernels=(), configs=(), expression="")
    for kernel in side.commit.kernels:
        if not kernel.compiled or (choice.kernels and kernel.name not in choice.kernels):
            continue
        alone = replace(project, kernels=(kernel,), suites={**project.suites, **side.commit.suites})
        timed: Iterable[Case] = ()
        with contextlib.suppress(ValueError):  # it accepts none of these problems
            timed = select(alone, asked, capability).timed
        for case in timed:
            if case.id in here or edited_label(case, side) in beside or not fits(case.id):
                continue
            if not choice.configs or case.config.label in choice.configs:
                detail = f"{side.label} has it, the working tree does not"
                rows.append(Row(case, Paired(*REMOVED, detail=detail)))
    return rows


def edited_label(base: Case, side: Side) -> str:
    """What another config of the base is called where a case is timed beside it."""
    return f"{base.variant} of {side.label}"


def stored(case: Case, built: Binary, name: str) -> StoredBinary:
    """What was compiled, ready to be launched."""
    return StoredBinary(name, built.cubin, built.symbol, Work.of(case))


def same(a: StoredBinary, b: StoredBinary) -> bool:
    """Whether two binaries are one, launched in the same way."""
    return key_of(a) == key_of(b)


def key_of(binary: StoredBinary) -> tuple[str, str]:
    """The cubin, and how it is launched."""
    return binary.sha256, launch_id(launch_document(binary.symbol, binary.work))


def unlike(case: Case, built: Binary, sm: str, nvcc: Nvcc | None = None) -> str:
    """Why a compiled kernel does not take what its declaration hands over, in one line, or empty."""
    return mismatch(compile_ptx(*_variant(case), sm, nvcc=nvcc), built.symbol, case.arguments) or ""


def seconds_of(case: Case, core: str) -> float:
    """How long a launch takes, about."""
    return case.flop / _FLOPS[core == TENSOR_CORES]


def first_line(error: CompileError) -> str:
    """What does not compile, and the first line that contains an error."""
    said = next((line.strip() for line in error.log.splitlines() if "error" in line.lower()), "")
    return f"{error.message}{': ' if said else ''}{said}"


def _variant(case: Case) -> Variant:
    return case.kernel, case.config, case.dtype


def _all_built(
    cases: Iterable[Case], compiled: Callable[[list[Variant]], list[Built]]
) -> dict[Variant, Built]:
    variants = list(dict.fromkeys(map(_variant, cases)))
    return dict(zip(variants, compiled(variants), strict=True))


_Both = tuple[Case, Built, Case | str, Built | None]


class _Matching:
    """What is to be said of a case and its base without timing, or the pair to time."""

    def __init__(self, side: Side, capability: tuple[int, int], margin: float | None) -> None:
        self.side, self.margin = side, margin
        self.arch, self.limits = arch(capability), GpuLimits.of(capability)

    def look_ahead(self, both: Iterable[_Both]) -> None:
        """Compiles the PTX of what differs into the cache, all at once."""
        wanted: dict[tuple[Variant, Nvcc | None], None] = {}
        for case, new, base, old in both:
            if isinstance(base, str) or not isinstance(new, Binary) or not isinstance(old, Binary):
                continue
            if new.cubin != old.cubin:
                wanted |= {(_variant(case), None): None, (_variant(base), self.side.nvcc): None}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for variant, nvcc in wanted:
                pool.submit(compile_ptx, *variant, self.arch, nvcc=nvcc)

    def of(self, case: Case, new: Built, base: Case | str, old: Built | None) -> Pair | Row:
        side = self.side
        if isinstance(new, CompileError):
            return _row(case, COMPILE_ERROR, first_line(new))
        if isinstance(base, str) or old is None:
            return _row(case, NOT_IN_BASE, str(base))
        edited = dict(base.config) != dict(case.config)
        label = edited_label(base, side) if edited else side.label
        if isinstance(old, CompileError):
            return _row(case, BASE_UNUSABLE, f"at {side.label}, {first_line(old)}", label)
        ours = stored(case, new, case.variant)
        try:
            if reasons := base.refusals:
                said = f"{base.variant} of {side.label} does not accept the problem: {'; '.join(reasons)}"
                return _row(case, NOT_IN_BASE, said)
            theirs = stored(base, old, f"{base.variant} at {side.label}")
            illegal = "; ".join(refusals(base.kernel, base.config, base.dtype, self.limits))
        except Exception as error:  # A declaration of another commit may do anything.
            text = f"at {side.label}, its declaration fails ({type(error).__name__}: {error})"
            return _row(case, BASE_UNUSABLE, text, label)
        if same(ours, theirs):
            return _row(case, SAME_BINARY, "same cubin, same launch", label)
        if reason := unlike(base, old, self.arch, side.nvcc) or illegal:
            return _row(case, BASE_UNUSABLE, f"at {side.label}, {reason}", label)
        if reason := unlike(case, new, self.arch):
            return _row(case, failed_beside("SIGNATURE"), reason, label)
        core = core_of(*_variant(case), self.arch)
        # The base's margin: one that is raised in the commit under test does not judge it.
        margin = self.margin or base.kernel.margin or DEFAULT_MARGIN
        return Pair(case, theirs, margin, core, seconds_of(case, core), label, ours)


def _row(case: Case, outcome: Outcome, detail: str, base: str = "") -> Row:
    return Row(case, Paired(*outcome, detail=detail, base=base))

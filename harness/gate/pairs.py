"""Which selected cases differ from another commit, and which of them can be timed as a pair."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness.compiler.errors import CompileError
from harness.compiler.nvcc import Binary, Variant, compile_all, compile_ptx
from harness.compiler.signature import mismatch
from harness.compiler.tools import arch
from harness.model import Case
from harness.model.legality import GpuLimits, refusals
from harness.project.commit import Commit
from harness.verdicts.paired import BASE_UNUSABLE, COMPILE_ERROR, NOT_IN_BASE, SAME_BINARY
from harness.verdicts.vocabulary import Outcome


@dataclass(frozen=True)
class Pair:
    """A case of the working tree and its counterpart.

    Attributes:
        case: the working tree's.
        base: the commit's; None if it has none.
        outcome: the verdict if nothing needs to be timed; None if the pair has to be timed.
        detail: why, in one line.
    """

    case: Case
    base: Case | None = None
    outcome: Outcome | None = None
    detail: str = ""


Compiled = Callable[[list[Variant], str], list[Binary | CompileError]]


def pairs_of(
    cases: Sequence[Case], commit: Commit, capability: tuple[int, int], compiled: Compiled = compile_all
) -> list[Pair]:
    """A pair for each case that is compiled from source, in the same order; both sides compiled, by
    ``compiled``.

    Raises ToolchainError without a compiler.
    """
    ours = [case for case in cases if case.kernel.compiled]
    bases = [commit.counterpart(case) for case in ours]
    both = dict.fromkeys(_variant(case) for case in (*ours, *bases) if isinstance(case, Case))
    built = dict(zip(both, compiled(list(both), arch(capability)), strict=True))
    limits = GpuLimits.of(capability)
    differing = {
        _variant(base): None
        for case, base in zip(ours, bases, strict=True)
        if isinstance(base, Case) and _cubin(built[_variant(base)]) != _cubin(built[_variant(case)])
    }
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # into the cache, all at once
        for variant in differing:
            pool.submit(compile_ptx, *variant, arch(capability))
    return [_pair(case, base, built, commit, limits) for case, base in zip(ours, bases, strict=True)]


def _cubin(built: Binary | CompileError) -> bytes | None:
    return built.cubin if isinstance(built, Binary) else None


def _variant(case: Case) -> Variant:
    return case.kernel, case.config, case.dtype


def _pair(
    case: Case,
    base: Case | str,
    built: dict[Variant, Binary | CompileError],
    commit: Commit,
    limits: GpuLimits,
) -> Pair:
    new = built[_variant(case)]
    if isinstance(new, CompileError):
        return Pair(case, None, COMPILE_ERROR, _first_line(new))
    if isinstance(base, str):
        return Pair(case, None, NOT_IN_BASE, base)
    old = built[_variant(base)]
    if isinstance(old, CompileError):
        return Pair(case, base, BASE_UNUSABLE, f"at {commit.label}, {_first_line(old)}")
    try:
        same = base.launch == case.launch and old.cubin == new.cubin
        reasons, handed = refusals(base.kernel, base.config, base.dtype, limits), base.arguments
    except Exception as error:  # A declaration of another commit may do anything.
        text = f"at {commit.label}, its declaration fails ({type(error).__name__}: {error})"
        return Pair(case, base, BASE_UNUSABLE, text)
    if same:
        return Pair(case, base, SAME_BINARY, "same cubin, same launch")
    ptx = compile_ptx(*_variant(base), arch(limits.capability))
    if reason := mismatch(ptx, old.symbol, handed) or "; ".join(reasons):
        return Pair(case, base, BASE_UNUSABLE, f"at {commit.label}, {reason}")
    return Pair(case, base)


def _first_line(error: CompileError) -> str:
    """What does not compile, and the first line that contains an error."""
    said = next((line.strip() for line in error.log.splitlines() if "error" in line.lower()), "")
    return f"{error.message}{': ' if said else ''}{said}"

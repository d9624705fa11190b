"""Which cases of a selection have changed against a commit, and which of them two can be timed as a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.compiler.signature import mismatch
from harness.compiler.toolchain import Binary, CompileError, Variant, arch, compile_all, compile_ptx
from harness.model import Case
from harness.model.legality import GpuLimits, refusals
from harness.project.commit import Commit


class PairState(StrEnum):
    """CHANGED is to be timed. IDENTICAL has the same cubin and launch on both sides. NEW has no counterpart
    in the commit, BASE_UNUSABLE one that cannot be run here, BROKEN does not compile in the working tree."""

    CHANGED = "CHANGED"
    IDENTICAL = "IDENTICAL"
    NEW = "NEW"
    BASE_UNUSABLE = "BASE_UNUSABLE"
    BROKEN = "BROKEN"


@dataclass(frozen=True)
class Pair:
    """A case of the working tree and its counterpart; ``reason`` one line where it is not to be timed."""

    case: Case
    state: PairState
    base: Case | None = None
    reason: str = ""


def pairs_of(cases: Sequence[Case], commit: Commit, capability: tuple[int, int]) -> list[Pair]:
    """A pair for each case that has code of ours, in their order; both sides compiled.

    Raises ToolchainError without a compiler.
    """
    ours = [case for case in cases if not case.kernel.library]
    bases = [commit.counterpart(case) for case in ours]
    both = dict.fromkeys(_variant(case) for case in (*ours, *bases) if isinstance(case, Case))
    built = dict(zip(both, compile_all(list(both), arch(capability)), strict=True))
    limits = GpuLimits.of(capability)
    return [_pair(case, base, built, commit, limits) for case, base in zip(ours, bases, strict=True)]


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
        return Pair(case, PairState.BROKEN, reason=_first_line(new))
    if isinstance(base, str):
        return Pair(case, PairState.NEW, reason=base)
    old = built[_variant(base)]
    if isinstance(old, CompileError):
        return Pair(case, PairState.BASE_UNUSABLE, base, f"at {commit.label}, {_first_line(old)}")
    try:
        same = base.launch == case.launch and old.cubin == new.cubin
        reasons = refusals(base.kernel, base.config, base.dtype, limits)
    except Exception as error:  # A declaration of another time may do anything.
        text = f"at {commit.label}, its declaration fails ({type(error).__name__}: {error})"
        return Pair(case, PairState.BASE_UNUSABLE, base, text)
    if same:
        return Pair(case, PairState.IDENTICAL, base, "same cubin, same launch")
    ptx = compile_ptx(*_variant(base), arch(limits.capability))
    if reason := mismatch(ptx, base.kernel.entry) or "; ".join(reasons):
        return Pair(case, PairState.BASE_UNUSABLE, base, f"at {commit.label}, {reason}")
    return Pair(case, PairState.CHANGED, base)


def _first_line(error: CompileError) -> str:
    """What does not compile, and the first line with an error in it."""
    said = next((line.strip() for line in error.log.splitlines() if "error" in line.lower()), "")
    return f"{error.message}{': ' if said else ''}{said}"

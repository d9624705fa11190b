"""Why no problem shows a mutant: probes in the kernel's own text that say what its instruction does there."""

from __future__ import annotations

from collections.abc import Iterator

from tests.generated.rules import Mutation, Statement
from tests.generated.targets import SAME, Target

ALWAYS = "its guard lets every thread through"
NOT_EXECUTED = "its guard lets no thread through"
NOT_AT_EDGE = "its two sides are equal in no problem"
ZERO = "the register is zero there already"
_BITS = {"f32": "b32", "u32": "b32", "s32": "b32", "f64": "b64", "u64": "b64", "s64": "b64"}


def _probes(rule: str, s: Statement) -> Iterator[tuple[str, str]]:
    """What stands before the instruction, and what it means if that never traps."""
    if s.guard:
        other = s.guard[1:] if s.guard[0] == "!" else f"!{s.guard}"
        yield f"@{s.guard} trap; ", NOT_EXECUTED
        yield f"@{other} trap; ", ALWAYS
    kind = s.op.rsplit(".", 1)[-1]
    if rule == "comparison off by one":
        equal = f"setp.eq.{kind} mutated, {s.operands[1]}, {s.operands[2]};"
        yield f"{{ .reg .pred mutated; {equal} @mutated trap; }} ", NOT_AT_EDGE
    if rule == "zeroing dropped":
        other = f"setp.ne.{_BITS.get(kind, kind)} mutated, {s.operands[0]}, 0;"
        yield f"{{ .reg .pred mutated; {other} @mutated trap; }} ", ZERO


def reason(target: Target, mutation: Mutation) -> str:
    """The first probe that no problem sets off, "" if each is."""
    s = mutation.of
    for probe, means in _probes(mutation.rule, s):
        if (means == ALWAYS) != (mutation.rule == "guard dropped") and means in (ALWAYS, NOT_EXECUTED):
            continue
        text = target.ptx[: s.start] + probe + target.ptx[s.start :]
        if target.examine(text, s.line).by == SAME:
            return means
    return ""

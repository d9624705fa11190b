"""Why no problem shows a mutant: probes in the kernel's own text that say what its instruction does there."""

from __future__ import annotations

from collections.abc import Iterator

from tests.generated.rules import Mutation, Statement
from tests.generated.targets import SAME, Target

ALWAYS = "its guard lets every thread through"
NOT_EXECUTED = "its guard lets no thread through"
NOT_AT_EDGE = "its two sides are equal in no problem"
UNREAD = "no result depends on what it leaves in its register"
POISON = 0x7FC01234  # a NaN, an index out of all bounds
ZERO = "the register is zero there already"
_BITS = {"f32": "b32", "u32": "b32", "s32": "b32", "f64": "b64", "u64": "b64", "s64": "b64"}


def _probes(rule: str, s: Statement) -> Iterator[tuple[str, str]]:
    """What stands in the place of the instruction, and what it means that no problem shows it."""
    old = s.text()
    if s.guard and rule == "guard dropped":
        yield f"@{s.guard[1:] if s.guard[0] == '!' else '!' + s.guard} trap; {old}", ALWAYS
    elif s.guard:
        yield f"@{s.guard} trap; {old}", NOT_EXECUTED
    kind = s.op.rsplit(".", 1)[-1]
    if rule == "comparison off by one":
        equal = f"setp.eq.{kind} mutated, {s.operands[1]}, {s.operands[2]};"
        yield f"{{ .reg .pred mutated; {equal} @mutated trap; }} {old}", NOT_AT_EDGE
    if rule == "zeroing dropped":
        bits = _BITS.get(kind, kind)
        yield (
            f"{{ .reg .pred mutated; setp.ne.{bits} mutated, {s.operands[0]}, 0; @mutated trap; }} {old}",
            ZERO,
        )
    if rule in ("zeroing dropped", "load dropped") and kind in _BITS:
        poison = "".join(
            f"mov.{_BITS[kind]} {one.strip('{} ')}, {POISON};" for one in s.operands[0].split(",")
        )
        yield poison, UNREAD


def reason(target: Target, mutation: Mutation) -> str:
    """The first probe that no problem shows, "" if each is."""
    s = mutation.of
    for probe, means in _probes(mutation.rule, s):
        text = target.ptx[: s.start] + probe + target.ptx[s.end :]
        if target.examine(text, s.line).by == SAME:
            return means
    return ""

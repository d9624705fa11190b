"""Vector loads that nvcc left in two, joined as ptxas joins them.

nvcc (13.0.88) may load the second half of a vector by an instruction of its own, right after one for the
whole vector of which only the first half is read. Whether it does so depends, in a large kernel, on where its
tables lie in memory, and so on the lengths of paths; ptxas makes one load of both, and the same binary.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, compress

from ptxsan.frontend.syntax import (
    Address,
    Entry,
    Instruction,
    Number,
    Operand,
    Register,
    Vector,
    register_names,
    size_of,
)

_AS_WRITTEN = {"volatile", "mmio", "relaxed", "acquire"}  # loads that others can observe
_ADDS = {"add.s32", "add.u32", "add.s64", "add.u64"}


@dataclass(frozen=True)
class _Load:
    """A load: its place in the code, all that must be the same of two, the bytes from there to its first
    element, and what it fills."""

    at: int
    same: tuple[object, ...]
    offset: int
    width: int
    items: tuple[Operand, ...]


def join_halves(entry: Entry) -> None:
    """Joins a load to the one before it, if that reads the same bytes into registers that stand nowhere else
    in the entry, and nothing but additions of constants stands between the two."""
    code, starts = entry.code, set(entry.labels.values())
    standing = Counter(name for instruction in code for name in register_names(instruction.operands))
    bases, kept = _Bases(), [True] * len(code)
    before: _Load | None = None
    between: set[str] = set()
    for at, instruction in enumerate(code):
        if at in starts:
            before, bases = None, _Bases()
        load = bases.load(at, instruction)
        items = _joined(before, load, standing) if before and load else ()
        if before and items and between.isdisjoint(register_names(items)):
            operands = (Vector(items), *code[before.at].operands[1:])
            code[before.at] = replace(code[before.at], operands=operands)
            before, kept[at] = replace(before, items=items), False
        elif _sum(instruction):
            between.update(register_names(instruction.operands))
        else:
            before, between = load, set()
        bases.write(instruction)
    moved = [0, *accumulate(kept)]
    entry.labels.update({name: moved[at] for name, at in entry.labels.items()})
    code[:] = compress(code, kept)


def _joined(whole: _Load, part: _Load, standing: Counter[str]) -> tuple[Operand, ...]:
    """What one load has to fill to do the work of both; () where it would have to fill two registers by the
    same bytes, or read others."""
    first, rest = divmod(part.offset - whole.offset, whole.width)
    end = first + len(part.items)
    if whole.same != part.same or rest or first < 0 or end > len(whole.items):
        return ()
    unread = all(standing[name] == 1 for name in register_names(whole.items[first:end]))
    return (*whole.items[:first], *part.items, *whole.items[end:]) if unread else ()


class _Bases:
    """What the addresses in registers are, in straight-line code: another register's value plus a constant,
    where one was added."""

    def __init__(self) -> None:
        self._writes: Counter[str] = Counter()  # a register that is written again has another value
        self._sums: dict[str, tuple[tuple[str, int], int]] = {}

    def load(self, at: int, instruction: Instruction) -> _Load | None:
        base, *modifiers = instruction.op.split(".")
        if base != "ld" or _AS_WRITTEN.intersection(modifiers) or len(instruction.operands) < 2:
            return None
        target, address, *policy = instruction.operands
        if not isinstance(address, Address) or not isinstance(address.base, Register):
            return None
        value, offset = self._value(address.base.name)
        guard = instruction.guard and (*instruction.guard, self._writes[instruction.guard[0]])
        what = tuple(m for m in modifiers if m not in ("v2", "v4", "v8"))
        width = size_of(instruction.op.rsplit(".", 1)[-1], instruction.line)
        items = target.items if isinstance(target, Vector) else (target,)
        return _Load(at, (what, value, guard, *policy), address.offset + offset, width, items)

    def write(self, instruction: Instruction) -> None:
        """Follows what an instruction writes, which is its first operand if anything is."""
        found = None
        if added := _sum(instruction):
            value, offset = self._value(added[0])
            found = value, offset + added[1]
        for name in register_names(instruction.operands[:1]):
            self._writes[name] += 1
            self._sums.pop(name, None)
            if found:
                self._sums[name] = found

    def _value(self, name: str) -> tuple[tuple[str, int], int]:
        return self._sums.get(name, ((name, self._writes[name]), 0))


def _sum(instruction: Instruction) -> tuple[str, int] | None:
    """The register and the constant that an instruction adds, in all lanes; nothing of another one."""
    if instruction.op not in _ADDS or instruction.guard is not None or len(instruction.operands) != 3:
        return None
    _, source, added = instruction.operands
    if not isinstance(source, Register) or not isinstance(added, Number):
        return None
    return source.name, int(added.value)

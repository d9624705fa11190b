"""Plain loads whose value is a guess: what an atomicCAS of the same place expects there, and nothing else.

So begins ``old = *p; do { assumed = old; old = atomicCAS(p, assumed, f(assumed)); } while (old != assumed)``.
If another thread changes the place in between, the CAS stores nothing, and the loop goes on with what that
found. The load is no race with atomics, but one with plain stores, as the CAS is.

A load is followed over the paths of the kernel, for its value and what is made of it. A value may only be
computed with, be what a CAS expects, go with that into the CAS, and be compared with what the CAS found. Past
the CAS, or where the address changes, nothing may be made of it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ptxsan.frontend import Address, Instruction, Name, Operand, Register, registers_in
from ptxsan.machine.sampling import registers
from ptxsan.machine.table import traits
from ptxsan.machine.turns import STRONG, Step

_COMPUTES = {"mov", "add", "sub", "mul", "mad", "fma", "and", "or", "xor", "not", "shl", "shr", "cvt", "setp"}
_COMPUTES |= {"selp", "min", "max", "neg", "abs", "bfe", "bfi", "lop3", "prmt", "div", "rcp", "sqrt", "rem"}
_NO_RESULT = {"st", "red", "bra", "bar", "barrier"}

# Of a register: it holds the value, something made of it, either of them too late, or what the CAS found.
_COPY, _MADE, _LATE, _FOUND = "copy", "made", "late", "found"
_Held = frozenset[tuple[Register, str]]
_Written = defaultdict[Register, list[Instruction]]
_Place = tuple[Register | Name | None, int]


def guesses(blocks: Sequence[Step]) -> set[int]:
    """The loads that are guesses, by the id of the instruction."""
    code = [i for block in blocks for i in block.code]
    if not any(map(_is_cas, code)):
        return set()
    written: _Written = defaultdict(list)
    for i in code:
        for register in _results(i):
            written[register].append(i)
    targets = {_place(i.operands[1], written) for i in code if _is_cas(i)}
    loads = [i for i in code if _is_plain(i) and _place(i.operands[1], written) in targets]
    return {id(load) for load in loads if _Trace(load, written).holds(blocks)}


class _Trace:
    """What becomes of the value of one load."""

    def __init__(self, load: Instruction, written: _Written) -> None:
        self._load, self._written = load, written
        self._at = _place(load.operands[1], written)

    def holds(self, blocks: Sequence[Step]) -> bool:
        """Whether it is a guess on every path."""
        before: dict[int, _Held] = {n: frozenset() for n in range(len(blocks) + 1)}
        left = [n for n, block in enumerate(blocks) if any(i is self._load for i in block.code)]
        while left:
            n = left.pop()
            held: _Held | None = before[n]
            for i in blocks[n].code:
                held = held if held is None else self._after(i, held)
            if held is None:
                return False
            for following in blocks[n].after:
                if following < len(blocks) and not held <= before[following]:
                    before[following] |= held
                    left.append(following)
        return True

    def _after(self, i: Instruction, held: _Held) -> _Held | None:
        """What registers hold after an instruction; None where it takes more than a guess."""
        kinds: dict[Register, set[str]] = defaultdict(set)
        for register, kind in held:
            kinds[register].add(kind)
        taken = {register for register in _reads(i) if kinds[register] - {_FOUND}}
        late = any(_LATE in kinds[register] for register in taken)
        made: set[str] = set()
        if _is_cas(i):
            expected, new = ({*registers(operand)} for operand in i.operands[2:4])
            copies = all(_COPY in kinds[register] for register in expected)
            if taken and (late or not copies or not taken <= expected | new):
                return None
            if _place(i.operands[1], self._written) == self._at:
                made = {_FOUND}
            elif taken:
                return None
            held = _late(held)
        elif (source := _copied(i)) is not None:
            made = kinds[source]
        elif taken and not self._compares(i, kinds):
            if late or i.guard or traits(i.op).base not in _COMPUTES:
                return None
            made = {_MADE}
        if i is self._load:
            made = {_COPY}
        results = {*_results(i)}
        if self._at[0] in results:
            held = _late(held)
        if not i.guard:
            held = frozenset(each for each in held if each[0] not in results)
        return held | {(register, kind) for register in results for kind in made}

    @staticmethod
    def _compares(i: Instruction, kinds: Mapping[Register, set[str]]) -> bool:
        """Whether it asks if the CAS found what it expected."""
        words = traits(i.op).words
        both = [kinds.get(r, set()) for o in i.operands[1:] for r in registers(o)]
        return words[0] == "setp" and words[1] in ("eq", "ne") and len(both) == 2 and {_FOUND} in both


def _late(held: _Held) -> _Held:
    return frozenset((register, kind if kind == _FOUND else _LATE) for register, kind in held)


def _is_cas(i: Instruction) -> bool:
    return traits(i.op).base == "atom" and "cas" in traits(i.op).words


def _is_plain(i: Instruction) -> bool:
    words = traits(i.op).words
    elsewhere = any(word.startswith(("param", "local", "const", "nc")) for word in words)
    return (
        words[0] == "ld"
        and STRONG.isdisjoint(words)
        and not elsewhere
        and isinstance(i.operands[0], Register)
    )


def _reads(i: Instruction) -> list[Register]:
    inputs = i.operands if traits(i.op).base in _NO_RESULT else i.operands[1:]
    return [*registers_in(inputs), *([Register(i.guard[0])] if i.guard else [])]


def _results(i: Instruction) -> Iterable[Register]:
    return () if traits(i.op).base in _NO_RESULT or not i.operands else registers(i.operands[0])


def _copied(i: Instruction) -> Register | None:
    """What an instruction copies whole."""
    if traits(i.op).base != "mov" or i.guard or not isinstance(i.operands[0], Register):
        return None
    return i.operands[1] if isinstance(i.operands[1], Register) else None


def _place(operand: Operand, written: _Written) -> _Place:
    """An address by what its register is a copy of."""
    assert isinstance(operand, Address)
    base = operand.base
    while isinstance(base, Register) and len(written[base]) == 1:
        made = written[base][0]
        source = made.operands[1] if traits(made.op).base in ("mov", "cvta") and not made.guard else None
        if not isinstance(source, Name) and not (isinstance(source, Register) and len(written[source]) == 1):
            break
        base = source
    return base, operand.offset

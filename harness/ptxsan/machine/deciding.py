"""What decides, where some values are undefined: comparisons, and the ends of blocks of code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.checks.liveness import Step
from ptxsan.frontend.syntax import Address, Instruction, Operand, Register, Vector
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine.builder import SEEN, STORED, Builder
from ptxsan.machine.common import FLOATS, NARROW
from ptxsan.machine.sampling import spread


def registers(operand: Operand) -> Iterator[Register]:
    """Those whose values an operand is."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers(item)


def addresses(operand: Operand) -> Iterator[Register]:
    """Those that an address is made of."""
    if isinstance(operand, Address) and isinstance(operand.base, Register):
        yield operand.base
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from addresses(item)


def unsigned(kind: str) -> Any:
    """How the undefined bits of a register are held."""
    stored = STORED[kind]
    return stored if stored.kind == "b" else np.dtype(f"u{stored.itemsize}")


def ones(kind: str) -> Any:
    dtype = unsigned(kind)
    return np.bool_(True) if dtype.kind == "b" else ~dtype.type(0)


def active(bits: Array, mask: Mask | None) -> Array:
    return bits if mask is None else np.where(mask.bits, bits, bits.dtype.type(0))


class Compared:
    """Where a comparison of undefined values is undefined: unless bits that are defined make two values
    unequal, or its logic with a predicate does not depend on it."""

    def __init__(self, b: Builder, i: Instruction) -> None:
        words = i.op.split(".")
        kind = words[-1]
        self._equality = words[1] in ("eq", "ne") and kind not in FLOATS | NARROW and kind in SEEN
        self._slots = [[b.slot(r) for r in registers(operand)] for operand in i.operands[1:3]]
        self._values = []
        if self._equality:
            self._values = [b.read(o, f"u{8 * SEEN[kind].itemsize}") for o in i.operands[1:3]]
        self._logic = next((word for word in words[2:-1] if word in ("and", "or", "xor")), "")
        third = i.operands[3] if len(i.operands) > 3 else None
        self._third = b.read(third, "pred") if third is not None else None
        self._third_slots = [b.slot(r) for r in registers(third)] if third is not None else []

    def unclear(self, bits: dict[int, Array], lanes: int) -> Array:
        held = [bits[slot] for slots in self._slots for slot in slots if slot in bits]
        result = np.zeros(lanes, bool)
        for each in held:
            result = result | (each != 0)
        if self._equality and held:
            one, two = (full(read(), lanes) for read in self._values)
            differ = one ^ two
            for each in held:
                differ = differ & ~each.astype(differ.dtype)
            result &= differ == 0
        third = np.zeros(lanes, bool)
        for slot in self._third_slots:
            third = third | bits.get(slot, third)
        if self._third is not None and self._logic in ("and", "or"):
            settled = full(self._third(), lanes) == (self._logic == "or")
            result &= ~(settled & ~third)
        return np.asarray(result | third)


class Ending:
    """The last instruction of a block of code: a branch, a barrier, an exit."""

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self._state, self._site = b.state, site
        self._branch = i.op.startswith("bra") or i.op in ("ret", "exit")
        self._guard = b.slot(Register(i.guard[0])) if i.guard else None
        reduces = ".red." in f"{i.op}." and i.op.startswith("bar")
        writes = reduces or i.op.startswith("mbarrier")
        self._target = b.slot(next(registers(i.operands[0]))) if writes else None
        operands = [] if self._branch else list(i.operands)[int(writes) :]
        source = operands.pop() if reduces else None
        self._source = [b.slot(r) for r in registers(source)] if source is not None else []
        self._operands = [
            b.slot(r) for operand in operands for r in (*registers(operand), *addresses(operand))
        ]
        reads = [*self._operands, *self._source, *([] if self._guard is None else [self._guard])]
        certain = [] if self._target is None or i.guard is not None else [self._target]
        self.step = Step(frozenset(reads), frozenset(certain))

    def check(self, mask: Mask | None) -> None:
        """Before these lanes go on from here, while some registers are undefined."""
        undefined = self._state.undefined
        held = undefined.registers
        how = "branches on" if self._branch else "is at a barrier under"
        decides = [(f"{how} an undefined predicate", [self._guard] if self._guard is not None else [])]
        decides.append(("is at a barrier with an undefined operand", self._operands))
        for what, slots in decides:
            for slot in slots:
                if slot in held and (bad := active(held[slot][0] != 0, mask)).any():
                    undefined.read_first(self._site, [slot])
                    undefined.matters(what, self._site, bad, held[slot][1])
        if self._target is not None:
            held.pop(self._target, None)
            for slot in self._source:
                if slot in held and active(held[slot][0] != 0, mask).any():
                    # What a barrier makes of an undefined predicate, for the whole block.
                    kind = self._state.registers[self._target]
                    bits = (
                        np.ones(self._state.lanes, bool)
                        if kind.dtype == bool
                        else np.full(self._state.lanes, 0xFFFFFFFF, np.uint32)
                    )
                    held[self._target] = bits, spread(held[slot][1], np.ones(self._state.lanes, bool))

"""An instruction executed again, with its undefined bits set one way and another: bits of its results that
then differ are undefined.

What is read from memory comes with its undefined bits set, too, and what is stored is collected. So this
needs to know nothing of what an instruction does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.undefined import ORIGIN, Effect, Shadow
from ptxsan.frontend import Address, Instruction, Operand, Register, Vector
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import FLOATS, NARROW, SEEN, STORED, Builder
from ptxsan.machine.memory import gather, unsigned
from ptxsan.machine.table import traits

Fill = dict[int, int]  # by operand the byte that its undefined bits are taken from

# Of all bits: for FP values 0, NaN, a large value. Integers: 0, −1, near the largest and the smallest.
ZERO, ONES, LARGE, SMALL = 0x00, 0xFF, 0x7B, 0x80


def fills(operands: Sequence[int], how: str) -> list[Fill]:
    """What to set undefined operands to. ``how``: "move" where each bit of a result is one of an operand,
    "logic" where it depends on few of them, "float" where NaN always shows, else "any"."""
    alike = [ZERO, ONES] if how == "move" else [ZERO, ONES, LARGE]
    if how in ("move", "float"):
        return [dict.fromkeys(operands, byte) for byte in alike]
    found = [
        {operand: chosen[i % 3] for i, operand in enumerate(operands)}
        for chosen in product((ZERO, ONES), repeat=min(3, len(operands)))
    ]
    if how == "any":
        for one, other in ((LARGE, SMALL), (SMALL, LARGE)):
            found.append({operand: other if i % 2 else one for i, operand in enumerate(operands)})
    return found


@dataclass
class _Store:
    memory: Any
    where: tuple[Any, Any, int, Mask | None]  # site, address, width, mask
    values: Array
    bits: Array | None = None  # those that differ between two fills


class Sampling:
    """The accesses of an instruction while it is executed with undefined bits set."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._byte = ZERO
        self._loaded: list[tuple[Array, Array]] = []  # data and undefined bits of each load, in order
        self._stored: list[_Store] = []
        self._at_load, self._at_store = 0, 0
        self.origins = np.zeros(lanes, ORIGIN)  # of what was loaded, by lane
        self.unborn = np.zeros(lanes, bool)  # lanes that loaded what nobody wrote
        self.updates: list[tuple[Any, tuple[Any, Any, int, Mask | None]]] = []

    def start(self, byte: int) -> None:
        self._byte, self._at_load, self._at_store = byte, 0, 0

    def load(self, memory: Any, site: Any, address: Any, width: int, mask: Mask | None) -> Array:
        if self._at_load == len(self._loaded):
            self._loaded.append(self._look(memory, site, address, width, mask))
        data, bits = self._loaded[self._at_load]
        self._at_load += 1
        return np.asarray((data & ~bits) | (bits & word(self._byte, data.dtype)))

    def _look(
        self, memory: Any, site: Any, address: Any, width: int, mask: Mask | None
    ) -> tuple[Array, Array]:
        lanes = np.arange(self._lanes) if mask is None else mask.index
        data = np.zeros((len(lanes), width), np.uint8)
        bits = np.zeros_like(data)
        for at, shadow, offsets in memory.places(site, address, width, mask):
            data[at] = (
                gather(shadow.data, offsets // width, width).reshape(-1, 1).view(np.uint8).reshape(-1, width)
            )
            bits[at], origins = shadow.read(offsets, width)
            of = lanes[at]
            self.origins[of] = np.maximum(self.origins[of], origins)
            self.unborn[of] |= bits[at].any(axis=1) & (origins == 0)
        return as_memory(data, width), as_memory(bits, width)

    def store(
        self, memory: Any, site: Any, address: Any, width: int, values: Array, mask: Mask | None
    ) -> None:
        if self._at_store == len(self._stored):
            self._stored.append(_Store(memory, (site, address, width, mask), values))
        else:
            held = self._stored[self._at_store]
            differ = held.values ^ values
            held.bits = differ if held.bits is None else held.bits | differ
        self._at_store += 1

    def peek(self, shadow: Shadow, offsets: Array) -> Array:
        """Single bytes of a memory, of which every lane may have read."""
        bits, origins = shadow.read(offsets.ravel(), 1)
        if bits.any():
            self.origins = np.maximum(self.origins, origins.max())
            self.unborn |= bool((bits[:, 0][origins == 0] != 0).any())
        bits = bits.reshape(offsets.shape)
        return np.asarray((shadow.data[offsets] & ~bits) | (bits & np.uint8(self._byte)))

    def update(self, memory: Any, site: Any, address: Any, width: int, mask: Mask | None) -> Array:
        """An atomic, which is not executed again: where it is."""
        self.updates.append((memory, (site, address, width, mask)))
        return np.zeros(self._lanes if mask is None else len(mask.index), unsigned(width))

    def absent(self, values: Array, lanes: Array) -> Array:
        """Values that come from nowhere in these lanes, (lanes,) bool."""
        self.unborn |= lanes
        return np.where(lanes, word(self._byte, values.dtype), values)

    def stored(self) -> list[tuple[Shadow, Array, Array, Array]]:
        """Of each store with undefined bits: shadow, offsets (n,), bits (n, width) uint8, lanes (n,)."""
        found = []
        for each in self._stored:
            if each.bits is None or not each.bits.any():
                continue
            site, address, width, mask = each.where
            lanes = np.arange(self._lanes) if mask is None else mask.index
            bits = np.ascontiguousarray(each.bits).reshape(len(lanes), -1).view(np.uint8)
            for at, shadow, offsets in each.memory.places(site, address, width, mask):
                found.append((shadow, offsets, bits[at], lanes[at]))
        return found


_ONES = {1: 1, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


def word(byte: int, dtype: Any) -> Any:
    """A byte in all bytes of an unsigned type."""
    return dtype.type(byte * _ONES[dtype.itemsize])


def as_memory(data: Array, width: int) -> Array:
    """Bytes (n, width) as memory gives them: (n,) of up to 4 bytes, or (n, words)."""
    if width <= 4:
        return np.asarray(np.ascontiguousarray(data).view(f"u{width}")[:, 0])
    return np.asarray(np.ascontiguousarray(data).view(np.uint32))


def smear(bits: Array, how: str) -> Array:
    """Undefined bits of a result, of which samples found some: "left", all above the lowest; "half", all of a
    16-bit half; "whole"; "bits", none but those."""
    if bits.dtype == bool or how == "bits":
        return bits
    if how == "left":
        return np.asarray(bits | (~bits + bits.dtype.type(1)))
    if how == "half" and bits.dtype.itemsize >= 2:
        halves = np.ascontiguousarray(bits).view(np.uint16)
        return np.asarray(np.where(halves != 0, np.uint16(0xFFFF), np.uint16(0)).view(bits.dtype))
    return np.asarray(np.where(bits != 0, ~bits.dtype.type(0), bits.dtype.type(0)))


def spread(origins: Array, undefined: Array) -> Array:
    """Origins of undefined lanes; of one that has none of its own, that of its warp, or of any lane."""
    found = np.where(undefined, origins, ORIGIN(0))
    if (undefined & (found == 0)).any():
        of_warp = np.repeat(origins.reshape(-1, WARP).max(axis=1), WARP)
        found = np.where(undefined & (found == 0), of_warp, found)
        found = np.where(undefined & (found == 0), origins.max(), found)
    return found


# What decides, where some values are undefined: comparisons, and the ends of basic blocks.
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


def shade_dtype(kind: str) -> Any:
    """How the undefined bits of a register are held."""
    stored = STORED[kind]
    return stored if stored.kind == "b" else np.dtype(f"u{stored.itemsize}")


def ones(kind: str) -> Any:
    dtype = shade_dtype(kind)
    return np.bool_(True) if dtype.kind == "b" else ~dtype.type(0)


def active(bits: Array, mask: Mask | None) -> Array:
    return bits if mask is None else np.where(mask.bits, bits, bits.dtype.type(0))


class ComparisonRule:
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
    """The last instruction of a basic block: a branch, a barrier, an exit."""

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self._state, self._site = b.state, site
        of = traits(i.op)
        self._branch = of.base == "bra" or of.leaves
        self._guard = b.slot(Register(i.guard[0])) if i.guard else None
        reduces = of.barrier == "red"
        writes = reduces or of.base == "mbarrier"
        self._target = b.slot(next(registers(i.operands[0]))) if writes else None
        operands = [] if self._branch else list(i.operands)[int(writes) :]
        source = operands.pop() if reduces else None
        self._source = [b.slot(r) for r in registers(source)] if source is not None else []
        self._operands = [
            b.slot(r) for operand in operands for r in (*registers(operand), *addresses(operand))
        ]
        reads = [*self._operands, *self._source, *([] if self._guard is None else [self._guard])]
        certain = [] if self._target is None or i.guard is not None else [self._target]
        self.step = Effect(frozenset(reads), frozenset(certain))

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
                    every = np.ones(self._state.lanes, bool)
                    is_flag = self._state.registers[self._target].dtype == bool
                    bits = every if is_flag else np.full(self._state.lanes, 0xFFFFFFFF, np.uint32)
                    held[self._target] = bits, spread(held[slot][1], every)

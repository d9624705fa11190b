"""Instructions while some values are undefined: executed as ever, then for their results' undefined bits.

Most are executed again with their undefined bits set in several ways (``sampling.py``). By rules of their
own: comparisons, since few values tell two apart; atomics, which must not be executed twice; and instructions
with effects that are in no register and no memory, all of whose results are undefined if an operand is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.undefined import ORIGIN, Effect, Switch
from ptxsan.frontend import Instruction, Register, Vector
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import STORED, Builder, Run
from ptxsan.machine.sampling import (
    ComparisonRule,
    Sampling,
    active,
    addresses,
    fills,
    ones,
    registers,
    shade_dtype,
    smear,
    spread,
    word,
)
from ptxsan.machine.table import traits


class Tracked:
    """One instruction of a basic block, the ``number``-th. ``run`` executes it in given lanes, ``whole`` in
    those that its guard lets through; ``writes`` of its first operands are results."""

    def __init__(
        self, b: Builder, i: Instruction, site: Site, number: int, writes: int, run: Run, whole: Run
    ) -> None:
        self._b, self._state, self._site, self._number = b, b.state, site, number
        self._run, self.whole = run, whole
        self._traits = of = traits(i.op)
        multiplies = of.words[:2] == ("wgmma", "mma_async")
        # The accumulators of wgmma are read, too.
        sources = list(enumerate(i.operands))[0 if multiplies else writes :]
        self._members: list[int] = []
        self._adds: Callable[[], Any] | None = None  # whether a wgmma adds to D
        if of.members:
            self._members = [b.slot(r) for r in registers(sources.pop()[1])]
        self._addresses = [b.slot(r) for operand in i.operands for r in addresses(operand)]
        if multiplies:  # those of descriptors
            self._addresses += [b.slot(o) for o in i.operands[1:3] if isinstance(o, Register)]
            sources = [(n, o) for n, o in sources if n not in (1, 2) or isinstance(o, Vector)]
            self._scale_d = 5 if "sp" in of.words else 3  # behind the metadata of a sparse A
            self._adds = b.read(i.operands[self._scale_d], "pred") if len(i.operands) > 3 else None
        if of.base == "tcgen05":  # descriptors, addresses and counts
            named = [(n, o) for n, o in sources if isinstance(o, Register) and b.kind(o) != "pred"]
            self._addresses += [b.slot(o) for _, o in named]
            sources = [each for each in sources if each not in named]
        if of.words[:2] in (("wmma", "load"), ("wmma", "store")) and len(i.operands) > 2:
            self._addresses += [b.slot(r) for r in registers(sources.pop()[1])]
        if of.base in ("tex", "tld4", "suld", "sust", "sured"):
            self._addresses += [b.slot(r) for r in registers(sources.pop(0)[1])]  # coordinates
        followed = [(r, n) for n, o in sources for r in registers(o)]
        results = [r for o in i.operands[:writes] for r in registers(o)]
        self._targets = {b.slot(r): r for r in results}
        # Sizes, counts and coordinates of what happens beside the registers.
        copies = of.words[:2] in (("cp", "async"), ("st", "bulk"))
        stores = of.words[:2] in (("st", "async"), ("red", "async"))  # a value, which may be undefined
        does = copies or ("once" in of.row and "clocks" in of.row and not stores)
        self._operands = [b.slot(r) for r, _ in followed] if does else []
        if copies and "once" not in of.row:
            followed = []  # how many bytes it copies has no way to be undefined
        self._sources = {b.slot(r): n for r, n in followed}
        self._kinds = {b.slot(r): b.kind(r) for r, _ in followed}
        self._guard = (b.slot(Register(i.guard[0])), i.guard[1]) if i.guard else None
        reads = [
            *self._sources,
            *self._operands,
            *self._addresses,
            *self._members,
            *([self._guard[0]] if self._guard else []),
        ]
        self.step = Effect(frozenset(reads), frozenset(() if i.guard else self._targets))
        self.involved = frozenset({*reads, *self._targets})
        self.reads_memory = "memory" in of.row
        self._restores = bool(self._targets.keys() & set(reads))
        self._wide = "warp" in of.row
        self._beyond = self._wide and "whole" not in of.row  # looks at lanes that may not execute it
        # Not bound to this, which would then be freed by the garbage collector alone.
        self._shade: Callable[[Tracked, Mask | None, dict[int, Any]], None] = Tracked._sample
        if "atomic" in of.row:
            self._shade = Tracked._atomic
        elif "once" in of.row:
            self._shade = Tracked._opaque
        elif (of.how, of.smeared) == ("float", "whole") and not self._wide:
            self._shade = Tracked._arithmetic
        elif "compares" in of.row:
            self._shade, self._compared = Tracked._compare, ComparisonRule(b, i)

    def plain(self, mask: Mask | None) -> None:
        """Where nothing is undefined so far. Raises Switch where this instruction reads what is."""
        undefined = self._state.undefined
        before = self._values() if self._restores else {}
        undefined.late = False
        self.whole(mask)
        if undefined.fresh is not None:
            self._follow(mask, before)
            raise Switch(self._number + 1)
        if undefined.late:
            raise Switch(self._number + 1)

    def __call__(self, mask: Mask | None) -> None:
        """Where some registers are undefined."""
        undefined = self._state.undefined
        if undefined.registers.keys().isdisjoint(self.involved):
            before = self._values() if self._restores and self.reads_memory else {}
            self.whole(mask)
            if undefined.fresh is not None:
                self._follow(mask, before)
            return
        before = self._values()
        self._check(mask)
        self.whole(mask)
        self._follow(mask, before)

    def _values(self) -> dict[int, Any]:
        return {slot: self._state.registers[slot] for slot in self.involved}

    def _follow(self, mask: Mask | None, before: dict[int, Any]) -> None:
        """After the instruction was executed: what of its results is undefined. ``before``: the registers as
        they were, where the instruction or an undefined value changes them."""
        undefined = self._state.undefined
        if self._guard is not None and (mask := self._through(mask, before)) is None:
            return
        if undefined.unplaced:
            undefined.read_first(self._site, self._shaded(mask))
        self._shade(self, mask, before)
        undefined.fresh = None

    def _through(self, mask: Mask | None, before: dict[int, Any]) -> Mask | None:
        """The lanes that the guard lets through; None for none of them."""
        assert self._guard is not None
        slot, negated = self._guard
        value = before[slot] if slot in before else self._state.registers[slot]
        taken = full(~value if negated else value, self._state.lanes)
        taken = taken if mask is None else taken & mask.bits
        return Mask(taken) if taken.any() else None

    def _check(self, mask: Mask | None) -> None:
        """Before the instruction is executed: undefined values that decide what it does."""
        if self._guard is not None:
            self._decides("is executed under an undefined predicate", [self._guard[0]], mask)
            if (mask := self._through(mask, {})) is None:
                return
        self._decides("accesses memory at an undefined address", self._addresses, mask)
        self._decides("has an undefined operand", self._operands, mask)
        self._decides("has an undefined mask of the warp's members", self._members, mask)

    def _decides(self, how: str, slots: list[int], mask: Mask | None) -> None:
        for slot in slots:
            if (shade := self._state.undefined.registers.get(slot)) is not None:
                bad = active(shade[0] != 0, mask)
                if bad.any():
                    self._state.undefined.read_first(self._site, [slot])
                    self._state.undefined.matters(how, self._site, bad, shade[1])

    def _shaded(self, mask: Mask | None) -> list[int]:
        """Sources that are undefined in lanes that this instruction looks at."""
        held = self._state.undefined.registers
        found = [slot for slot in self._sources if slot in held]
        if self._adds is not None and not self._adds_up(found, mask):
            found = [slot for slot in found if self._sources[slot] != 0]
        if self._beyond or mask is None:
            return found
        return [slot for slot in found if self._state.undefined.holds(slot, mask)]

    def _adds_up(self, found: list[int], mask: Mask | None) -> bool:
        """Whether a wgmma may add to D, by a predicate that may be among the undefined sources."""
        assert self._adds is not None
        return self._scale_d in {self._sources[slot] for slot in found} or bool(
            active(self._adds(), mask).any()
        )

    # Results

    def _set(self, slot: int, bits: Array, origins: Array, mask: Mask | None) -> None:
        self._state.undefined.set(slot, bits, origins, mask)

    def _clear(self, mask: Mask | None) -> None:
        self._state.undefined.clear(self._targets, mask)

    def _all(self, lanes: Array, origins: Array, mask: Mask | None) -> None:
        """The results of these lanes are undefined, each bit of them."""
        for slot, register in self._targets.items():
            bits = np.where(lanes, ones(self._b.kind(register)), shade_dtype(self._b.kind(register)).type(0))
            self._set(slot, bits, spread(origins, lanes), mask)

    def _origins(self, shaded: list[int]) -> Array:
        """Of each lane's undefined sources, and of what was read just now."""
        undefined = self._state.undefined
        origins = np.zeros(self._state.lanes, ORIGIN)
        for slot in shaded:
            bits, of = undefined.registers[slot]
            origins = np.maximum(origins, np.where(bits != 0, of, ORIGIN(0)))
        return origins

    def _sample(self, mask: Mask | None, before: dict[int, Any]) -> None:
        state, undefined, shaded = self._state, self._state.undefined, self._shaded(mask)
        if not shaded and undefined.fresh is None:
            self._clear(mask)
            return
        origins, memory = self._origins(shaded), -1
        operands = sorted({self._sources[slot] for slot in shaded})
        operands += [memory] if undefined.fresh is not None else []
        after = {slot: state.registers[slot] for slot in self._targets}
        found: dict[int, Array] = {}
        first: dict[int, Array] = {}
        undefined.sampling = sampling = Sampling(state.lanes)
        for fill in fills(operands, self._traits.how):
            self._restore(before)
            for slot in shaded:
                self._put(slot, fill[self._sources[slot]])
            sampling.start(fill.get(memory, 0))
            self._run(mask)
            for slot in self._targets:
                value = self._raw(slot)
                found[slot] = found[slot] | (value ^ first[slot]) if slot in found else np.zeros_like(value)
                first.setdefault(slot, value)
        undefined.sampling = None
        self._restore(before)
        self._restore(after)
        if undefined.fresh is not None:
            born = undefined.born(undefined.fresh) if sampling.unborn.any() else 0
            read = np.where(sampling.unborn, ORIGIN(born), sampling.origins)
            origins = np.maximum(origins, read)
        for slot, bits in found.items():
            bits = smear(bits, self._traits.smeared)
            self._set(slot, bits, spread(origins, bits != 0), mask)
        for shadow, offsets, bits, lanes in sampling.stored():
            of = np.where(bits.any(axis=1), spread(origins, np.ones(state.lanes, bool))[lanes], ORIGIN(0))
            shadow.write(offsets, bits, undefined.stored(self._site, shadow, offsets, of, lanes))

    def _restore(self, values: dict[int, Any]) -> None:
        for slot, value in values.items():
            self._state.registers[slot] = value

    def _raw(self, slot: int) -> Array:
        """A register's bits over all lanes, unsigned, or bool."""
        value = full(self._state.registers[slot], self._state.lanes)
        return value if value.dtype == bool else value.view(f"u{value.dtype.itemsize}")

    def _put(self, slot: int, byte: int) -> None:
        """Set the undefined bits of a register."""
        bits, value = self._state.undefined.registers[slot][0], self._raw(slot)
        if value.dtype == bool:
            filled = np.where(bits, byte > 0x7F or byte == 0x7B, value) if byte else value & ~bits
        else:
            filled = ((value & ~bits) | (bits & word(byte, value.dtype))).view(STORED[self._kinds[slot]])
        self._state.registers[slot] = filled

    # By rules of their own

    def _arithmetic(self, mask: Mask | None, before: dict[int, Any]) -> None:
        """Of FP numbers, a lane for itself: undefined where an operand is, which may be NaN."""
        origins = self._origins(self._shaded(mask))
        self._all(origins != 0, origins, mask)

    def _compare(self, mask: Mask | None, before: dict[int, Any]) -> None:
        shaded = self._shaded(mask)
        bits = {slot: self._state.undefined.registers[slot][0] for slot in shaded}
        after = {slot: self._state.registers[slot] for slot in self._targets}
        self._restore(before)
        unclear = self._compared.unclear(bits, self._state.lanes)
        self._restore(after)
        self._all(unclear, self._origins(shaded), mask)

    def _atomic(self, mask: Mask | None, before: dict[int, Any]) -> None:
        state, undefined, shaded = self._state, self._state.undefined, self._shaded(mask)
        if not shaded and undefined.fresh is None:
            self._clear(mask)
            return
        after = {slot: state.registers[slot] for slot in self._targets}
        undefined.sampling = sampling = Sampling(state.lanes)
        self._restore(before)
        self._run(mask)
        undefined.sampling = None
        self._restore(after)
        origins = self._origins(shaded)
        bad = origins != 0
        if undefined.fresh is not None:
            bad = bad | undefined.fresh.lanes
            origins = np.where(origins == 0, ORIGIN(undefined.born(undefined.fresh)), origins)
        results = bad.copy()
        for memory, (site, address, width, part) in sampling.updates:
            lanes = np.arange(state.lanes) if part is None else part.index
            for at, shadow, offsets in memory.places(site, address, width, part):
                of = lanes[at]
                hit = np.isin(offsets, offsets[bad[of]])
                results[of] |= hit
                if "exch" not in self._traits.words or shaded:
                    whole = np.full((int(hit.sum()), width), 0xFF, np.uint8)
                    every = spread(np.where(bad, origins, ORIGIN(0)), np.ones(state.lanes, bool))
                    stored = undefined.stored(self._site, shadow, offsets[hit], every[of[hit]], of[hit])
                    shadow.write(offsets[hit], whole, stored)
        self._all(results, np.where(bad, origins, ORIGIN(0)), mask)

    def _opaque(self, mask: Mask | None, before: dict[int, Any]) -> None:
        undefined, shaded = self._state.undefined, self._shaded(mask)
        if not shaded and undefined.fresh is None:
            self._clear(mask)
            return
        origins = self._origins(shaded)
        bad = origins != 0
        if undefined.fresh is not None:
            bad = np.ones(self._state.lanes, bool)
            origins = np.where(origins == 0, ORIGIN(undefined.born(undefined.fresh)), origins)
        elif self._wide:
            bad = np.repeat(bad.reshape(-1, WARP).any(axis=1), WARP)
        self._all(bad, origins, mask)


def needs(steps: Iterable[Tracked | Later]) -> tuple[frozenset[int], frozenset[int]]:
    """Of instructions one after another: the registers of which they read, or write in some lanes alone, what
    was there before; and those that they write for certain."""
    before: set[int] = set()
    written: set[int] = set()
    for each in steps:
        before |= (each.involved - each.step.writes | each.step.reads) - written
        written |= each.step.writes
    return frozenset(before), frozenset(written)


class Later:
    """An instruction that is certainly known, made ready when it first runs on its own: most never do where C
    runs them."""

    def __init__(self, make: Callable[[], Tracked], step: Effect, reads_memory: bool) -> None:
        self._make = make
        self.step, self.reads_memory, self.involved = step, reads_memory, step.reads | step.writes

    @cached_property
    def _made(self) -> Tracked:
        return self._make()

    def plain(self, mask: Mask | None) -> None:
        self._made.plain(mask)

    def whole(self, mask: Mask | None) -> None:
        self._made.whole(mask)

    def __call__(self, mask: Mask | None) -> None:
        self._made(mask)

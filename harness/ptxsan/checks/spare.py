"""Loads from shared memory of whose value nothing may come: those of the step past the last one.

A kernel that loads its operands one step ahead loads once more than it uses. A write that nothing orders
after such a read changes no result: a note. The value counts as used if an instruction reads its registers
before that write; from then on it is followed as an undefined one (checks/undefined.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.clocks import Clocks
from ptxsan.checks.races import ClockTags, Pattern, Tags
from ptxsan.checks.undefined import Effect, accesses, before, bits, joined
from ptxsan.lanes import WARP, Array, Geometry, Mask

Held = dict[int, tuple[Any, Array]]  # by slot all undefined bits, and the lanes (lanes,) bool
Place = tuple[int, int]  # the number of a basic block, and of an instruction in it


@dataclass(frozen=True)
class SpareLoad:
    """A load that sets registers, of which there are ways on that read none: their slots, and all undefined
    bits of each. ``whole``: a lane's value depends on addresses of other lanes of its warp."""

    place: Place
    slots: Mapping[int, Any]
    whole: bool


class Uses:
    """Of the registers of a kernel: which are read before they are written, on every way on from a place, or
    on some ("very busy" and "live", Aho et al., "Compilers", §9.2). ``following``: by basic block the numbers
    of those that may come next; a number past the last one is the end."""

    def __init__(self, blocks: Sequence[Sequence[Effect]], following: Sequence[Sequence[int]]) -> None:
        self._blocks, self._following = blocks, following
        reads, writes = accesses(blocks)
        every = reduce(or_, [*reads, *writes], 0)
        self._sure = before(reads, writes, following, every)
        self._some = before(reads, writes, following)
        self._found: dict[int, list[tuple[int, int]]] = {}  # by block; most are never asked for

    @property
    def unset(self) -> list[int]:
        """The registers live at the start of the first block: those that may be read before anything is
        written to them (§9.2.5)."""
        return [slot for slot, bit in enumerate(reversed(f"{self._some[0]:b}")) if bit == "1"]

    def is_spare(self, place: Place, slots: Collection[int]) -> bool:
        """Whether some ways on read one of the slots, and others none. What no way on reads was loaded on
        purpose, such as by volatile."""
        (at, index), asked = place, bits(slots)
        sure, some = self._after(at)[index]
        return bool(some & asked) and not sure & asked

    def _after(self, at: int) -> list[tuple[int, int]]:
        """By instruction of a block, what is read on every way on from it, and on some."""
        if (found := self._found.get(at)) is None:
            following = self._following[at]
            sure, some = joined(self._sure, following, True), joined(self._some, following, False)
            found = self._found[at] = []
            for step in reversed(self._blocks[at]):
                found.append((sure, some))
                reads, writes = step.bits
                sure, some = (sure & ~writes) | reads, (some & ~writes) | reads
            found.reverse()
        return found


class Trace:
    """Which basic blocks the lanes of a chunk have executed since a barrier of all of them.

    ``loads`` by the instruction's id; ``places`` of all instructions, by id; ``steps`` by basic block."""

    def __init__(
        self,
        loads: Mapping[int, SpareLoad],
        places: Mapping[int, Place],
        steps: Sequence[Sequence[Effect]],
        lanes: int,
    ) -> None:
        self._loads, self._places, self._steps, self._lanes = loads, places, steps, lanes
        self._ran: list[tuple[int, Mask | None]] = []

    def __len__(self) -> int:
        return len(self._ran)

    def enter(self, block: int, mask: Mask | None) -> None:
        """These lanes execute a basic block now."""
        self._ran.append((block, mask))

    def clear(self) -> None:
        self._ran.clear()

    def load(self, instruction: object) -> SpareLoad | None:
        return self._loads.get(id(instruction))

    def unread(self, load: SpareLoad, since: int, lanes: Array, now: object) -> dict[int, Array] | None:
        """Which lanes still hold the value, by slot, that the load gave these lanes (n,) while the basic
        block before the position ``since`` ran; ``now`` is the instruction that runs. None if a lane has
        read it."""
        given = np.zeros(self._lanes, bool)
        given[lanes] = True
        if load.whole:
            given = np.repeat(given.reshape(-1, WARP).any(axis=1), WARP)
        held = {slot: given.copy() for slot in load.slots}
        for i, (block, mask) in enumerate(self._ran[since - 1 :], since - 1):
            steps = self._steps[block]
            if i == len(self._ran) - 1:
                steps = steps[: self._places[id(now)][1] + 1]
            if i == since - 1:
                steps = steps[load.place[1] + 1 :]
            if not _pass(steps, mask, held):
                return None
            if not any(lanes.any() for lanes in held.values()):
                break
        return held


def _pass(steps: Sequence[Effect], mask: Mask | None, held: dict[int, Array]) -> bool:
    """Instructions run in the active lanes; False where they read a value that is held."""
    for step in steps:
        for slot in step.reads & held.keys():
            if (held[slot] if mask is None else held[slot] & mask.bits).any():
                return False
        for slot in step.writes & held.keys():
            held[slot] &= False if mask is None else ~mask.bits
    return True


class AccessLog:
    """The accesses to shared memory of the blocks that run together, since a barrier of all of them: whether
    it writes, the pattern, the steps of the warps or the time of the clocks, the epochs of the blocks, how
    many basic blocks had begun."""

    def __init__(self, geometry: Geometry, clocks: Clocks | None) -> None:
        self._geometry, self._clocks = geometry, clocks
        self._entries: list[tuple[bool, Pattern, Any, Array, int]] = []
        self._applied = 0
        self.trace: Trace | None = None  # for kernels that have spare loads

    @property
    def unapplied(self) -> int:
        return len(self._entries) - self._applied

    def add(self, write: bool, patterns: Iterable[Pattern], step: Any, epoch: Array) -> None:
        begun = 0 if self.trace is None else len(self.trace)
        self._entries += [(write, pattern, step, epoch, begun) for pattern in patterns]

    def clear(self) -> None:
        self._entries.clear()
        self._applied = 0
        if self.trace is not None:
            self.trace.clear()

    def apply(self, tags: Tags | ClockTags) -> None:
        """What came since the last call, in its order."""
        for write, pattern, step, epoch, _ in self._entries[self._applied :]:
            tags.set(write, pattern, epoch, step)
        self._applied = len(self._entries)

    def before(self, cell: int, lane: int, write: bool) -> Site | None:
        """What read or wrote a cell last, by another lane; None where that is not known."""
        for wrote, pattern, *_ in reversed(self._entries):
            if wrote == write:
                cells, lanes = pattern.cells
                if np.any(lanes[cells == cell] != lane):
                    site: Site = pattern.site
                    return site
        return None

    def unread(self, write: Pattern, epoch: Array, steps: Array) -> list[tuple[Site, Held]] | None:
        """Of the reads that nothing orders before a write now: what lanes still hold of their values, which
        nothing has used so far; None where one may have been used."""
        if self.trace is None:
            return None
        found: list[tuple[Site, Held]] = []
        for wrote, read, step, of_epoch, begun in self._entries:
            if wrote or not read.bits & write.bits:
                continue
            raced = self._raced(write, read, (step, of_epoch), (steps, epoch))
            if not len(raced):
                continue
            load = self.trace.load(read.site.instruction)
            if (
                load is None
                or (held := self.trace.unread(load, begun, raced, write.site.instruction)) is None
            ):
                return None
            found.append((read.site, {slot: (load.slots[slot], lanes) for slot, lanes in held.items()}))
        return found or None

    def _raced(
        self, write: Pattern, read: Pattern, then: tuple[Any, Array], now: tuple[Array, Array]
    ) -> Array:
        """The lanes of a read whose cells other lanes write now, and nothing orders."""
        (written, by), (cells, lanes), (step, of_epoch) = write.cells, read.cells, then
        order = np.argsort(written, kind="stable")
        at = np.minimum(np.searchsorted(written[order], cells), len(written) - 1)
        last = np.maximum(np.searchsorted(written[order], cells, side="right") - 1, 0)
        writer = np.where(by[order][at] == lanes, by[order][last], by[order][at])
        bad = (written[order][at] == cells) & (writer != lanes)
        if self._clocks is not None:
            bad[bad] = ~self._clocks.knows(writer[bad], lanes[bad], np.full(np.count_nonzero(bad), step))
        else:
            row, warp, (steps, epoch) = lanes // self._geometry.threads, lanes // WARP, now
            bad &= of_epoch[row] == epoch[row]
            bad &= (warp != writer // WARP) | (step[warp] >= steps[warp])
        return np.unique(lanes[bad])

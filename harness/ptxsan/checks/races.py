"""Which bytes of shared memory an instruction accesses: in a loop the same ones come again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import numpy as np

from ptxsan.checks import SharedAccess, Site
from ptxsan.checks.clocks import Clocks
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.native import CLibrary, library

Reading = tuple[Array, Array]  # storage, and each lane's element of the width in it, (lanes,) int32
_PATTERNS = 32  # kept an instruction
SEVERAL_IN_WARP, SEVERAL = -1, -2  # in place of a thread, where there were several
SAME = ", with the same value"  # whichever of two such writes is the last one: a note
Same = Callable[[], Array]  # (n,) bool: of each lane whether it writes what its element holds already
Clash = tuple[int, int, int, bool, bool]  # cell, lane, the other thread, whether it wrote, and the same value


@dataclass(eq=False)
class Pattern:
    """Which bytes the active lanes of an instruction access. ``element`` (n,) storage elements of ``width``
    bytes, ``lane`` (n,) whose each is; ``ends`` the first and last of all lanes' addresses; ``per`` the cells
    of an access; ``bits`` has a bit for each granule of a block's shared memory: whether any lane accesses it
    in any block. ``index`` (lanes,) int32 is the element of each lane, 0 of those that are not active, where
    that was asked for. ``native`` does in C what it can."""

    address: Any
    ends: tuple[int, int]
    mask: Mask | None
    width: int
    element: Array
    lane: Array
    index: Array | None
    per: int
    bits: int
    threads: int
    row_size: int  # bytes of storage of a block
    site: Site
    native: CLibrary | None = None
    known: bool = False
    access: SharedAccess | None = None  # where counters are kept
    atomic: bool = False
    clash: tuple[int, int] | None = field(default=None)
    by_warp: list[tuple[int, Array, Array]] | None = None  # see ``warps_of``

    @property
    def offset(self) -> Array:
        """Of each access, (n,), from the start of shared memory."""
        return self.element * self.width % self.row_size

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """Storage cells of one granule and the lanes that touch them, a lane once a cell."""
        cell = (self.element[:, None] * self.per + np.arange(self.per)).ravel()
        return cell, np.repeat(self.lane, self.per)

    def all_of(self, cells: Array) -> bool:
        """Whether all its cells are set, of all (cells,) bool."""
        if self.native is not None:
            return bool(self.native.all_set(cells, self.element, self.per))
        return bool(cells[self.cells[0]].all())

    def set_in(self, cells: Array) -> None:
        if self.native is not None:
            self.native.set_all(cells, self.element, self.per)
        else:
            cells[self.cells[0]] = True

    def alone(self, last: Array) -> bool:
        """Whether C knows that each cell is of one lane alone; ``last`` (cells,) int32 is overwritten."""
        return self.native is not None and bool(self.native.apart(self.element, self.lane, self.per, last))

    @cached_property
    def readers(self) -> tuple[Array, Array, Array]:
        """Each cell once; its thread, or that there are several; the warp of the first one."""
        cell, lane = self.cells
        thread = lane % self.threads
        order = np.argsort(cell, kind="stable")
        cell, thread = cell[order], thread[order]
        start = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
        low, high = np.minimum.reduceat(thread, start), np.maximum.reduceat(thread, start)
        who = np.where(low == high, low, np.where(low // WARP == high // WARP, SEVERAL_IN_WARP, SEVERAL))
        return cell[start], who, low // WARP


@dataclass(slots=True)
class PreparedRead:
    """A load from a SharedMemory that may happen, when it is called."""

    memory: Any
    pattern: Pattern

    def __call__(self) -> Reading:
        pattern = self.pattern
        self.memory.note_read(pattern.site, pattern)
        if pattern.index is None:
            pattern.index = over_lanes(pattern.element, pattern.mask)
        return self.memory.storage, pattern.index


@dataclass(slots=True)
class Repeated:
    """Loads that come again together: their patterns, and all that they touch, as bits; ``doubts`` as they
    were when all was known to be written."""

    memory: Any
    patterns: list[Pattern]
    bits: int
    doubts: int

    @classmethod
    def of(cls, memory: Any, patterns: list[Pattern], doubts: int) -> Repeated | None:
        """None where a load reads what nobody wrote, or expects to race with atomics."""
        if not all(pattern.known and not pattern.site.guesses for pattern in patterns):
            return None
        return cls(memory, patterns, reduce(or_, [pattern.bits for pattern in patterns]), doubts)


def over_lanes(element: Array, mask: Mask | None) -> Array:
    """Elements of the active lanes as those of all, int32, with 0 for the others."""
    if mask is None:
        return element.astype(np.int32)
    index = np.zeros(len(mask.bits), np.int32)
    index[mask.index] = element
    return index


def bits_of(offset: Array, granule: int, per: int) -> int:
    """A bit for each granule that accesses from these offsets (n,) on have, ``per`` each."""
    first, held = offset // granule, np.zeros(int(offset.max()) // granule + per, bool)
    for j in range(per):
        held[first + j] = True
    return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")


def remember(site: Site, pattern: Pattern) -> Pattern:
    """Keeps a pattern as the last one of its instruction, with some of those before."""
    patterns: list[Pattern] = site.patterns
    if not patterns:
        site.remembering.append(site)
    elif pattern in patterns:
        patterns.remove(pattern)
    patterns.insert(0, pattern)
    del patterns[_PATTERNS:]
    return pattern


def same_mask(one: Mask | None, other: Mask | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or not np.count_nonzero(one.bits != other.bits)


# Who touched each cell of shared memory last, and whether anything orders two accesses.
class _Marks:
    """For each cell the last access of a kind: its epoch, 0 for none, thread or that there were several, the
    warp of the last one and its step; side by side, as they are looked at together."""

    def __init__(self, cells: int) -> None:
        self.all = np.zeros((cells, 4), np.int32)
        self.epoch, self.who, self.warp, self.step = self.all.T

    def put(self, cell: Array, epoch: Array, who: Array, warp: Array, step: Array) -> None:
        self.epoch[cell], self.who[cell], self.warp[cell], self.step[cell] = epoch, who, warp, step

    def unordered(self, cell: Array, epoch: Array, thread: Array, now: Array) -> Array:
        """Where another thread was in this epoch, and no step of the warp lies between."""
        who = self.who[cell]
        ordered = (who != SEVERAL) & (self.warp[cell] == thread // WARP) & (self.step[cell] < now)
        return np.asarray((self.epoch[cell] == epoch) & (who != thread) & ~ordered)


class Tags:
    """For each cell who wrote it last, and who was at it by atomics and by reads. An access belongs to the
    ``epoch`` of its block, (blocks,), and the ``step`` of its warp, (warps,)."""

    def __init__(self, cells: int, geometry: Geometry, native: CLibrary | None) -> None:
        self.writes, self.reads = _Marks(cells), _Marks(cells)
        self.atomics: _Marks | None = None  # few kernels have any
        self._native, self._cells, self._geometry = native, cells, geometry

    def set(self, write: bool, pattern: Pattern, epoch: Array, step: Array) -> None:
        if pattern.atomic and self.atomics is None:
            self.atomics = _Marks(self._cells)
        marks = (self.atomics if pattern.atomic else self.writes) if write else self.reads
        assert marks is not None
        several = marks is not self.writes
        if self._native is not None:
            self._native.tag(marks.all, *self._places(pattern), epoch, step, several)
        elif several:
            self._add(marks, pattern, epoch, step)
        else:
            cell, lane = pattern.cells
            thread = lane % self._geometry.threads
            self.writes.put(cell, epoch[self._row(cell)], thread, thread // WARP, step[lane // WARP])

    def clash(
        self, pattern: Pattern, writes: bool, epoch: Array, step: Array, same: Same | None = None
    ) -> Clash | None:
        """The first race, or None; of those between writes one of another value, if there is any."""
        checked = [self.writes]
        checked += [self.atomics] if self.atomics is not None and not pattern.atomic else []
        harmless: Clash | None = None
        for marks in [*checked, self.reads] if writes else checked:
            i = self._first(marks, pattern, epoch, step)
            if i >= 0 and same is not None and marks is self.writes:
                harmless = self._told(marks, pattern, i, True)
                i = self._first(marks, pattern, epoch, step, same())
            if i >= 0:
                return self._told(marks, pattern, i, False)
        return harmless

    def _told(self, marks: _Marks, pattern: Pattern, i: int, same: bool) -> Clash:
        cell, lane = pattern.cells
        return int(cell[i]), int(lane[i]), int(marks.who[cell[i]]), marks is not self.reads, same

    def _first(
        self, marks: _Marks, pattern: Pattern, epoch: Array, step: Array, same: Array | None = None
    ) -> int:
        """The first of a pattern's cells with a race, or −1; none of the lanes that write the ``same``."""
        if self._native is not None and same is None:
            return int(self._native.unordered(marks.all, *self._places(pattern), epoch, step))
        cell, lane = pattern.cells
        bad = marks.unordered(cell, epoch[self._row(cell)], lane % self._geometry.threads, step[lane // WARP])
        if same is not None:
            bad &= ~np.repeat(same, pattern.per)
        return int(np.argmax(bad)) if bad.any() else -1

    def _add(self, marks: _Marks, pattern: Pattern, epoch: Array, step: Array) -> None:
        """More of a kind that may be several."""
        cell, who, warp = pattern.readers
        rows = self._row(cell)
        again = marks.epoch[cell] == epoch[rows]
        old, old_warp = marks.who[cell], marks.warp[cell]
        same = (old == who) & (who >= 0)
        in_warp = (old != SEVERAL) & (who != SEVERAL) & (old_warp == warp)
        merged = np.where(same, who, np.where(in_warp, SEVERAL_IN_WARP, SEVERAL))
        steps = step[rows * (self._geometry.threads // WARP) + warp]
        # Those of its warp before a step are ordered before whatever comes after this one.
        joins = again & ~(in_warp & (marks.step[cell] < steps))
        marks.put(cell, epoch[rows], np.where(joins, merged, who), warp, steps)

    def _row(self, cell: Array) -> Array:
        """The block of each cell."""
        return cell // (self._cells // self._geometry.count)

    def _places(self, pattern: Pattern) -> tuple[Array, Array, int, int]:
        return pattern.element, pattern.lane, pattern.per, self._geometry.threads


# Who touched each cell of shared memory last, and when, for kernels whose order vector clocks keep.
#
# Of writes the last one is kept, of reads and of atomics the last one of each warp, with its lanes.
class _Planes:
    """By warp of the cluster and cell: the time of the warp's last accesses, and a bit for each lane then."""

    def __init__(self, cells: int, clocks: Clocks, native: CLibrary | None) -> None:
        self._cells, self._clocks, self._native = cells, clocks, native
        # By warp; None of those without an access.
        self._when: list[Array | None] = [None] * (clocks.group // WARP)
        self._bits = list(self._when)

    def put(self, pattern: Pattern, time: int) -> None:
        while self._native is not None:
            of = pattern.element, pattern.lane, pattern.per, self._clocks.group, time
            if not (missing := self._native.note_cells(self._when, self._bits, *of)):
                return
            self._add(missing - 1)
        for warp, cell, bits in warps_of(pattern, self._clocks.group):
            if self._when[warp] is None:
                self._add(warp)
            when, lanes = self._when[warp], self._bits[warp]
            assert when is not None
            assert lanes is not None
            lanes[cell] = bits | np.where(when[cell] == time, lanes[cell], np.uint32(0))
            when[cell] = time

    def _add(self, warp: int) -> None:
        self._when[warp], self._bits[warp] = np.zeros(self._cells, np.int32), np.zeros(self._cells, np.uint32)

    def ordered(self, element: Array, lane: Array, per: int) -> bool:
        """Whether C finds that all accesses to these cells come before one by each ``lane`` (n,), or (1,),
        now."""
        if self._native is None:
            return False
        of, clocks = (self._when, self._bits, element, lane, per), self._clocks
        return not self._native.accessed_unordered(*of, clocks.known, clocks.floor, clocks.group)

    def unordered(self, cell: Array, lane: Array) -> tuple[int, int]:
        """Place among the cells and the other lane of the first access that nothing orders before one by
        ``lane`` now; (−1, 0) for none."""
        group = lane // self._clocks.group * self._clocks.group
        floor = self._clocks.floor[lane // self._clocks.group]
        for warp, (when, bits) in enumerate(zip(self._when, self._bits, strict=True)):
            if when is None or bits is None or not len(at := np.flatnonzero(when[cell] > floor)):
                continue
            others = (group[at] + warp * WARP)[:, None] + np.arange(WARP)
            there = (bits[cell[at]][:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(bool)
            bad = there & ~self._clocks.knows(lane[at, None], others, when[cell[at]][:, None])
            if bad.any():
                i, j = divmod(int(np.argmax(bad)), WARP)
                return int(at[i]), int(others[i, j])
        return -1, 0


class ClockTags:
    """The interface of Tags; times are those of the clocks."""

    def __init__(self, cells: int, clocks: Clocks) -> None:
        self._clocks, self._native = clocks, library()
        self.who, self.when = np.zeros(cells, np.int32), np.zeros(cells, np.int32)
        self.copied = np.zeros(cells, bool)  # by cp.async
        self.reads, self.atomics = (_Planes(cells, clocks, self._native) for _ in range(2))

    def set(self, write: bool, pattern: Pattern, epoch: Any, time: Any) -> None:
        if pattern.atomic:
            self.atomics.put(pattern, time)
        elif write:
            copies = pattern.site.instruction.op.startswith("cp.async")
            if self._native is not None:
                of = pattern.element, pattern.lane, pattern.per, time, copies
                self._native.write_cells(self.who, self.when, self.copied, *of)
                return
            cell, lane = pattern.cells
            self.who[cell], self.when[cell] = lane, time
            self.copied[cell] = copies
        else:
            self.reads.put(pattern, time)

    def clash(
        self, pattern: Pattern, writes: bool, epoch: Any, time: Any, same: Same | None = None
    ) -> Clash | None:
        """As of Tags; the other lane in place of the other thread."""
        checked = [] if pattern.atomic else [(self.atomics, True)]
        checked += [(self.reads, False)] if writes else []
        of = pattern.element, pattern.lane, pattern.per
        if self.written_before(*of) and all(planes.ordered(*of) for planes, _ in checked):
            return None
        cell, lane = pattern.cells
        bad = (self.when[cell] > 0) & ~self._clocks.knows(lane, self.who[cell], self.when[cell])
        harmless: Clash | None = None
        if bad.any():
            alike = np.zeros(len(cell), bool) if same is None else np.repeat(same(), pattern.per)
            worse = bad & ~alike
            i = int(np.argmax(worse if worse.any() else bad))
            found = int(cell[i]), int(lane[i]), int(self.who[cell[i]]), True, bool(alike[i])
            if worse.any():
                return found
            harmless = found
        for planes, was_write in checked:
            i, other = planes.unordered(cell, lane)
            if i >= 0:
                return int(cell[i]), int(lane[i]), other, was_write, False
        return harmless

    def written_before(self, element: Array, lane: Array, per: int) -> bool:
        """Whether C finds that the last write to each of these cells comes before what each lane does now."""
        if self._native is None:
            return False
        of, clocks = (self.who, self.when, element, lane, per), self._clocks
        return not self._native.wrote_unordered(*of, clocks.known, clocks.floor, clocks.group)


def warps_of(pattern: Pattern, group: int) -> list[tuple[int, Array, Array]]:
    """By warp of the cluster: the cells that its lanes access, each once, and a bit for each of the lanes."""
    if pattern.by_warp is None:
        cell, lane = pattern.cells
        warp = lane % group // WARP
        key = warp.astype(np.int64) * (int(cell.max(initial=0)) + 1) + cell
        order = np.argsort(key, kind="stable")  # of parts that mostly are in order
        cell, lane, warp = cell[order], lane[order], warp[order]
        first = np.flatnonzero(np.r_[True, (cell[1:] != cell[:-1]) | (warp[1:] != warp[:-1])])
        bits = np.bitwise_or.reduceat(np.uint32(1) << (lane % WARP).astype(np.uint32), first)
        cell, warp = cell[first], warp[first]
        starts = np.flatnonzero(np.r_[True, warp[1:] != warp[:-1]]).tolist()
        parts = pairwise([*starts, len(warp)])
        pattern.by_warp = [(int(warp[at]), cell[at:end], bits[at:end]) for at, end in parts]
    return pattern.by_warp

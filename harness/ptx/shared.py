"""Shared memory: values, bounds of the very variable, races between threads that no barrier orders.

An epoch of a block is what lies between two of its barriers. Two accesses to a byte in one epoch, one of
them a write, by two threads, are a race, unless both are atomic, or both threads are of one warp and a
warp-level synchronisation lies between. An asynchronous copy is a write that is pending from its issue
until its thread has waited for it, and then a write of that thread at that moment.

Each instruction's accesses are kept as patterns: in a loop they come again, and nearly all of what is
checked depends on nothing else. Accesses of an epoch are logged; only where the bytes of a write overlap
those of another access is it looked at thread by thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from harness.ptx.counters import SharedAccess
from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import WARP, Array, Geometry, Mask, full
from harness.ptx.memory import SLOT, Change, gather, scatter, update
from harness.ptx.parser import Variable

_SEVERAL_IN_WARP, _SEVERAL = -1, -2
_PATTERNS = 32  # kept an instruction


@dataclass
class Pattern:
    """Which bytes the active lanes of an instruction access. ``element`` (n,) storage elements of ``width``
    bytes, ``lane`` (n,) whose each is, ``offset`` (n,) from the start of shared memory."""

    address: Any
    mask: Mask | None
    width: int
    element: Array
    lane: Array
    offset: Array
    low: int
    high: int
    granule: int
    threads: int
    name: str
    known: bool = False
    access: SharedAccess | None = None  # where counters are kept
    atomic: bool = False
    clash: tuple[int, int] | None = field(default=None)

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """Storage cells of one granule and the lanes that touch them, a lane once a cell."""
        n = max(1, self.width // self.granule)
        cell = (self.element[:, None] * n + np.arange(n)).ravel()
        return cell, np.repeat(self.lane, n)

    @cached_property
    def readers(self) -> tuple[Array, Array, Array]:
        """Each cell once; its thread, or that there are several; the warp of the first one."""
        cell, lane = self.cells
        thread = lane % self.threads
        order = np.argsort(cell, kind="stable")
        cell, thread = cell[order], thread[order]
        start = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
        low, high = np.minimum.reduceat(thread, start), np.maximum.reduceat(thread, start)
        who = np.where(low == high, low, np.where(low // WARP == high // WARP, _SEVERAL_IN_WARP, _SEVERAL))
        return cell[start], who, low // WARP


class SharedMemory:
    """The shared memory of the blocks that run together."""

    def __init__(self, variables: Sequence[Variable], dynamic: int, geometry: Geometry, granule: int) -> None:
        self._geometry, self._granule = geometry, granule
        self._variables = list(variables)
        self._sizes = np.array([v.size or dynamic for v in variables] or [0], np.int64)
        self._starts = np.zeros(len(self._sizes), np.int64)
        at = 0
        for i, variable in enumerate(variables):
            at = -(-at // max(variable.align, 16)) * max(variable.align, 16)
            self._starts[i] = at
            at += int(self._sizes[i])
        self._row_size = -(-max(at, 16) // 16) * 16
        self._bytes = np.zeros(self._row_size * geometry.count, np.uint8)
        cells = len(self._bytes) // granule
        self._written = np.zeros(cells, bool)
        self._pending = np.zeros(cells, np.int32)  # thread + 1 of a copy in flight
        self._epoch = np.zeros(geometry.count, np.int32)
        self._warp_step = np.zeros(geometry.lanes // WARP, np.int32)
        self._tags: _Tags | None = None
        self._log: list[tuple[bool, Pattern, Array]] = []
        self._applied = 0
        self._reads: list[tuple[int, int]] = []
        self._writes: list[tuple[int, int]] = []
        self._copies = _Copies(geometry.lanes)
        self.report: Any = None  # (check, text, site, lane) -> None, set by the machine

    # Accesses

    def load(self, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        pattern = self._pattern(site, address, width, mask)
        site.count_shared("load", pattern)
        self.check_read(site, pattern)
        return gather(self._bytes, pattern.element, width)

    def store(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        pattern = self._pattern(site, address, width, mask)
        site.count_shared("store", pattern)
        self.check_write(site, pattern)
        scatter(self._bytes, pattern.element, width, values)

    def update(self, site: Site, address: Any, mask: Mask | None, change: Change) -> Array:
        """Atomic: each lane's word of 32 bits, one after another; what was there before, (n,) uint32."""
        pattern = self._pattern(site, address, 4, mask)
        pattern.atomic = True
        site.count_shared("store", pattern)
        if not pattern.known:
            self._check_known(site, pattern)
        self.check_write(site, pattern)
        return update(self._bytes, pattern.element, change)

    def check_read(self, site: Site, pattern: Pattern) -> None:
        if not pattern.known:
            self._check_known(site, pattern)
        if self._copies.pending:
            self._check_pending(site, pattern, "reads")
        if _overlaps(self._writes, pattern):
            self._compare(site, pattern, writes=False)
        self._note(False, pattern)
        _extend(self._reads, pattern)

    def check_write(self, site: Site, pattern: Pattern) -> None:
        if not pattern.atomic:
            self._check_clash(site, pattern)
        if self._copies.pending:
            self._check_pending(site, pattern, "writes")
        if _overlaps(self._writes, pattern) or _overlaps(self._reads, pattern):
            self._compare(site, pattern, writes=True)
        self._note(True, pattern)
        _extend(self._writes, pattern)
        self._written[pattern.cells[0]] = True

    def copy(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        """cp.async: the bytes arrive at some time between now and the wait."""
        pattern = self._pattern(site, address, width, mask)
        site.count_shared("copy", pattern)
        self._check_clash(site, pattern)
        if self._copies.pending:
            self._check_pending(site, pattern, "copies to")
        if _overlaps(self._writes, pattern) or _overlaps(self._reads, pattern):
            self._compare(site, pattern, writes=True)
        cell, lane = pattern.cells
        self._pending[cell] = lane % self._geometry.threads + 1
        self._written[cell] = True
        self._copies.issue(pattern)
        scatter(self._bytes, pattern.element, width, values)

    def commit(self, mask: Mask | None) -> None:
        self._copies.commit(mask)

    def wait(self, groups: int, mask: Mask | None) -> None:
        """Until at most so many groups of each lane are in flight: what is done counts as written now."""
        for pattern, done in self._copies.wait(groups, mask):
            cell, lane = pattern.cells
            if done is not None:
                keep = done[lane]
                cell, lane = cell[keep], lane[keep]
            self._pending[cell] = 0
            self._note(True, pattern)
            _extend(self._writes, pattern)

    # Order

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met."""
        everywhere = bool(blocks.all())
        if not everywhere:
            self._apply()  # what was logged belongs to the epoch that ends here
        self._epoch = self._epoch + blocks
        if everywhere:
            self._log.clear()
            self._applied = 0
            self._reads.clear()
            self._writes.clear()

    def warp_barrier(self, mask: Mask | None) -> None:
        """__syncwarp, or a shuffle: the lanes of a warp have met."""
        if mask is None:
            self._warp_step = self._warp_step + 1
        else:
            self._warp_step = self._warp_step + mask.bits.reshape(-1, WARP).any(axis=1)

    # Checks

    def _note(self, write: bool, pattern: Pattern) -> None:
        self._log.append((write, pattern, self._warp_step))
        if len(self._log) - self._applied > 4096:
            self._apply()

    def _apply(self) -> None:
        """Bring the tags up to the end of the log, in its order."""
        if self._tags is None:
            self._tags = _Tags(len(self._written))
        for write, pattern, step in self._log[self._applied :]:
            self._tags.set(write, pattern, self._epoch_of, step, self._geometry)
        self._applied = len(self._log)

    def _epoch_of(self, cell: Array) -> Array:
        return np.asarray(self._epoch[cell // (self._row_size // self._granule)])

    def _compare(self, site: Site, pattern: Pattern, writes: bool) -> None:
        self._apply()
        assert self._tags is not None
        clash = self._tags.clash(pattern, writes, self._epoch_of, self._warp_step, self._geometry)
        if clash is None:
            return
        cell, lane, other, was_write = clash
        verb, before = "writes" if writes else "reads", "wrote" if was_write else "read"
        who = f"thread {other}" if other >= 0 else "other threads"
        place = self._place(cell * self._granule)
        self.report("race", f"{verb} {place}, which {who} {before} with no barrier between", site, lane)

    def _check_known(self, site: Site, pattern: Pattern) -> None:
        cell, lane = pattern.cells
        known = self._written[cell]
        if known.all():
            pattern.known = True
            return
        i = int(np.argmin(known))
        what = f"reads {self._place(int(cell[i]) * self._granule)}, which no thread wrote"
        self.report("uninit", what, site, int(lane[i]))

    def _check_pending(self, site: Site, pattern: Pattern, verb: str) -> None:
        if not self._copies.overlap(pattern):
            return
        cell, lane = pattern.cells
        pending = self._pending[cell]
        if pending.any():
            i = int(np.argmax(pending != 0))
            who = f"thread {int(pending[i]) - 1}"
            place = self._place(int(cell[i]) * self._granule)
            what = f"{verb} {place}, where an asynchronous copy of {who} is in flight"
            self.report("race", what, site, int(lane[i]))

    def _check_clash(self, site: Site, pattern: Pattern) -> None:
        """Two threads that write one byte with one instruction."""
        if pattern.clash is None:
            cell, lane = pattern.cells
            last = np.empty(len(self._written), np.int64)
            last[cell] = lane
            bad = last[cell] != lane
            pattern.clash = (int(np.argmax(bad)), int(last[cell[np.argmax(bad)]])) if bad.any() else (-1, -1)
        i, other = pattern.clash
        if i >= 0:
            cell, lane = pattern.cells
            t = int(self._geometry.thread[other])
            place = self._place(int(cell[i]) * self._granule)
            what = f"writes {place}, as thread {t} does with the same instruction"
            self.report("race", what, site, int(lane[i]))

    def _place(self, storage: int) -> str:
        offset = storage % self._row_size
        i = int(np.searchsorted(self._starts, offset, side="right")) - 1
        return f"shared memory {_readable(self._variables[i].name)}+{offset - int(self._starts[i])}"

    # Patterns

    def _pattern(self, site: Site, address: Any, width: int, mask: Mask | None) -> Pattern:
        patterns: list[Pattern] = site.patterns
        for pattern in patterns:
            if pattern.address is address and pattern.mask is mask:
                return pattern
        address = full(address, self._geometry.lanes)
        for pattern in patterns:
            if _same_mask(pattern.mask, mask) and np.array_equal(pattern.address, address):
                pattern.address, pattern.mask = address, mask
                return self._remember(site, pattern)
        if mask is None:
            active, lane = address, np.arange(self._geometry.lanes)
        else:
            active, lane = address[mask.index], mask.index
        return self._remember(site, self._build(site, address, mask, width, active, lane))

    @staticmethod
    def _remember(site: Site, pattern: Pattern) -> Pattern:
        site.patterns[:] = [pattern, *(p for p in site.patterns if p is not pattern)][:_PATTERNS]
        return pattern

    def _build(
        self, site: Site, address: Any, mask: Mask | None, width: int, active: Array, lane: Array
    ) -> Pattern:
        active = active.astype(np.int64) & 0xFFFFFFFF
        slot, offset = (active >> SLOT) - 1, active & ((1 << SLOT) - 1)
        inside = (slot >= 0) & (slot < len(self._variables))
        slot = np.where(inside, slot, 0)
        inside &= offset + width <= self._sizes[slot]
        if not inside.all():
            self._out_of_bounds(site, int(active[np.argmin(inside)]), width, int(lane[np.argmin(inside)]))
        if width > 1 and (offset & (width - 1)).any():
            i = int(np.argmax((offset & (width - 1)) != 0))
            name = _readable(self._variables[int(slot[i])].name)
            place = f"shared memory {name}+{int(offset[i])}"
            what = f"{width}-byte access at {place} is not aligned to {width} bytes"
            raise Trap("misaligned", what, site, int(lane[i]))
        offset = offset + self._starts[slot]
        element = (self._geometry.row[lane] * self._row_size + offset) >> (width.bit_length() - 1)
        return Pattern(
            address=address,
            mask=mask,
            width=width,
            element=element,
            lane=lane,
            offset=offset,
            low=int(offset.min()),
            high=int(offset.max()) + width,
            granule=self._granule,
            threads=self._geometry.threads,
            name=site.instruction.op,
        )

    def _out_of_bounds(self, site: Site, address: int, width: int, lane: int) -> None:
        # An index past either end of a variable of slot s lands within half a slot of it.
        slot = (address + (1 << (SLOT - 1))) >> SLOT
        offset = address - (slot << SLOT)
        if 1 <= slot <= len(self._variables):
            name, size = _readable(self._variables[slot - 1].name), int(self._sizes[slot - 1])
            if offset < 0:
                where = f"{-offset} bytes before the start of {name}"
            else:
                where = f"{max(0, offset - size)} bytes past the end of {name} ({size} bytes)"
        else:
            where = f"shared address 0x{address:x} is of no variable"
        raise Trap("bounds", f"accesses {width} bytes of shared memory, {where}", site, lane)


class _Marks:
    """For each cell the last access of a kind: its epoch, thread or that there were several, the warp of the
    last one and its step."""

    def __init__(self, cells: int) -> None:
        self.epoch, self.who = np.full(cells, -1, np.int32), np.zeros(cells, np.int32)
        self.warp, self.step = np.zeros(cells, np.int32), np.zeros(cells, np.int32)

    def put(self, cell: Array, epoch: Array, who: Array, warp: Array, step: Array) -> None:
        self.epoch[cell], self.who[cell], self.warp[cell], self.step[cell] = epoch, who, warp, step

    def add(self, pattern: Pattern, epoch_of: Any, step: Array, geometry: Geometry) -> tuple[Array, Array]:
        """More of a kind that may be several. The cells, and for which this is not the first of the epoch."""
        cell, who, warp = pattern.readers
        epoch = epoch_of(cell)
        again = self.epoch[cell] == epoch
        old, old_warp = self.who[cell], self.warp[cell]
        same = (old == who) & (who >= 0)
        in_warp = (old != _SEVERAL) & (who != _SEVERAL) & (old_warp == warp)
        merged = np.where(same, who, np.where(in_warp, _SEVERAL_IN_WARP, _SEVERAL))
        rows = cell // (len(self.who) // geometry.count)
        steps = step[rows * (geometry.threads // WARP) + warp]
        self.put(cell, epoch, np.where(again, merged, who), warp, steps)
        return cell, again

    def unordered(self, cell: Array, epoch: Array, thread: Array, now: Array) -> Array:
        """Where another thread was in this epoch, and no step of the warp lies between."""
        who = self.who[cell]
        ordered = (who != _SEVERAL) & (self.warp[cell] == thread // WARP) & (self.step[cell] < now)
        return np.asarray((self.epoch[cell] == epoch) & (who != thread) & ~ordered)


class _Tags:
    """For each cell who wrote it last and who read it since."""

    def __init__(self, cells: int) -> None:
        self.writes, self.reads = _Marks(cells), _Marks(cells)
        self.atomic = np.zeros(cells, bool)  # whether all that the writes stand for was

    def set(self, write: bool, pattern: Pattern, epoch_of: Any, step: Array, geometry: Geometry) -> None:
        if not write:
            self.reads.add(pattern, epoch_of, step, geometry)
        elif pattern.atomic:
            cell, again = self.writes.add(pattern, epoch_of, step, geometry)
            self.atomic[cell] |= ~again
        else:
            cell, lane = pattern.cells
            thread = lane % geometry.threads
            self.writes.put(cell, epoch_of(cell), thread, thread // WARP, step[lane // WARP])
            self.atomic[cell] = False

    def clash(
        self, pattern: Pattern, writes: bool, epoch_of: Any, step: Array, geometry: Geometry
    ) -> tuple[int, int, int, bool] | None:
        """(cell, lane, other thread, whether that one wrote) of the first race, or None."""
        cell, lane = pattern.cells
        thread, now, epoch = lane % geometry.threads, step[lane // WARP], epoch_of(cell)
        for marks in (self.writes, self.reads) if writes else (self.writes,):
            bad = marks.unordered(cell, epoch, thread, now)
            if pattern.atomic and marks is self.writes:
                bad &= ~self.atomic[cell]
            if bad.any():
                i = int(np.argmax(bad))
                return int(cell[i]), int(lane[i]), int(marks.who[cell[i]]), marks is self.writes
        return None


class _Copies:
    """Asynchronous copies in flight, in the groups that each thread has committed."""

    def __init__(self, lanes: int) -> None:
        self._committed: Any = 0  # groups, one number while all lanes commit alike
        self._lanes = lanes
        self.pending: list[tuple[Pattern, Any]] = []

    def issue(self, pattern: Pattern) -> None:
        self.pending.append((pattern, self._committed))

    def overlap(self, pattern: Pattern) -> bool:
        return any(p.low < pattern.high and pattern.low < p.high for p, _ in self.pending)

    def commit(self, mask: Mask | None) -> None:
        self._committed = self._committed + (1 if mask is None else mask.bits.astype(np.int64))

    def wait(self, groups: int, mask: Mask | None) -> list[tuple[Pattern, Array | None]]:
        """What this completes, in order: patterns, and for which lanes where not for all."""
        done: list[tuple[Pattern, Array | None]] = []
        left: list[tuple[Pattern, Any]] = []
        for pattern, group in self.pending:
            complete = np.asarray(group < self._committed - groups)
            if mask is not None:
                complete = complete & mask.bits
            of_lanes = complete[pattern.lane] if complete.ndim else complete
            if of_lanes.all():
                done.append((pattern, None))
                continue
            if of_lanes.any():
                done.append((pattern, complete))
                # A lane that is done must not be done again: its group moves out of reach.
                group = np.where(complete, np.iinfo(np.int64).max, group)
            left.append((pattern, group))
        self.pending = left
        return done


def _same_mask(one: Mask | None, other: Mask | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or bool((one.bits == other.bits).all())


def _overlaps(ranges: list[tuple[int, int]], pattern: Pattern) -> bool:
    return any(low < pattern.high and pattern.low < high for low, high in ranges)


def _extend(ranges: list[tuple[int, int]], pattern: Pattern) -> None:
    """Add a pattern's range of offsets; ranges that touch become one."""
    low, high = pattern.low, pattern.high
    for i, (start, end) in enumerate(ranges):
        if low >= start and high <= end:
            return
        if low <= end and start <= high:
            ranges[i] = (min(low, start), max(high, end))
            return
    ranges.append((low, high))


def _readable(name: str) -> str:
    """A variable as the .cu file has it: _ZZ10gemm_tiledE2As is As."""
    import re

    match = re.fullmatch(r"_ZZ\d+\w+?E(\d+)(\w+)", name)
    return match[2][: int(match[1])] if match else name

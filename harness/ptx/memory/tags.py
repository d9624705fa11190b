"""Who touched each cell of shared memory last, and whether anything orders two accesses."""

from __future__ import annotations

import numpy as np

from harness.ptx.lanes import WARP, Array, Geometry
from harness.ptx.memory.pattern import SEVERAL, SEVERAL_IN_WARP, Pattern
from harness.ptx.native.build import Library


class _Marks:
    """For each cell the last access of a kind: its epoch, thread or that there were several, the warp of the
    last one and its step."""

    def __init__(self, cells: int) -> None:
        self.all = np.zeros((4, cells), np.int32)
        self.epoch, self.who, self.warp, self.step = self.all
        self.epoch[:] = -1

    def put(self, cell: Array, epoch: Array, who: Array, warp: Array, step: Array) -> None:
        self.epoch[cell], self.who[cell], self.warp[cell], self.step[cell] = epoch, who, warp, step

    def unordered(self, cell: Array, epoch: Array, thread: Array, now: Array) -> Array:
        """Where another thread was in this epoch, and no step of the warp lies between."""
        who = self.who[cell]
        ordered = (who != SEVERAL) & (self.warp[cell] == thread // WARP) & (self.step[cell] < now)
        return np.asarray((self.epoch[cell] == epoch) & (who != thread) & ~ordered)


class Tags:
    """For each cell who wrote it last and who read it since. An access belongs to the ``epoch`` of its block,
    (blocks,), and the ``step`` of its warp, (warps,)."""

    def __init__(self, cells: int, geometry: Geometry, native: Library | None) -> None:
        self.writes, self.reads = _Marks(cells), _Marks(cells)
        self.atomic = np.zeros(cells, bool)  # whether all that the writes stand for was
        self._has_atomics = False
        self._native, self._cells, self._geometry = native, cells, geometry

    def set(self, write: bool, pattern: Pattern, epoch: Array, step: Array) -> None:
        if write and pattern.atomic:
            cell, again = self._add(self.writes, pattern, epoch, step)
            self.atomic[cell] |= ~again
            self._has_atomics = True
            return
        if self._native is not None:
            marks = self.writes if write else self.reads
            self._native.tag(marks.all, *self._places(pattern), epoch, step, not write)
        elif not write:
            self._add(self.reads, pattern, epoch, step)
        else:
            cell, lane = pattern.cells
            thread = lane % self._geometry.threads
            self.writes.put(cell, epoch[self._row(cell)], thread, thread // WARP, step[lane // WARP])
        if write and self._has_atomics:
            self.atomic[pattern.cells[0]] = False

    def clash(
        self, pattern: Pattern, writes: bool, epoch: Array, step: Array
    ) -> tuple[int, int, int, bool] | None:
        """(cell, lane, other thread, whether that one wrote) of the first race, or None."""
        for marks in (self.writes, self.reads) if writes else (self.writes,):
            i = self._first(marks, pattern, epoch, step)
            if i >= 0:
                cell, lane = pattern.cells
                return int(cell[i]), int(lane[i]), int(marks.who[cell[i]]), marks is self.writes
        return None

    def _first(self, marks: _Marks, pattern: Pattern, epoch: Array, step: Array) -> int:
        """The first of a pattern's cells with a race, or −1."""
        if self._native is not None and not pattern.atomic:
            return int(self._native.unordered(marks.all, *self._places(pattern), epoch, step))
        cell, lane = pattern.cells
        bad = marks.unordered(cell, epoch[self._row(cell)], lane % self._geometry.threads, step[lane // WARP])
        if pattern.atomic and marks is self.writes:
            bad &= ~self.atomic[cell]
        return int(np.argmax(bad)) if bad.any() else -1

    def _add(self, marks: _Marks, pattern: Pattern, epoch: Array, step: Array) -> tuple[Array, Array]:
        """More of a kind that may be several. The cells, and for which this is not the first of the epoch."""
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
        return cell, again

    def _row(self, cell: Array) -> Array:
        """The block of each cell."""
        return cell // (self._cells // self._geometry.count)

    def _places(self, pattern: Pattern) -> tuple[Array, Array, int, int]:
        return pattern.element, pattern.lane, pattern.per, self._geometry.threads

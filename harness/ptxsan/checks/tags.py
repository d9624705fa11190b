"""Who touched each cell of shared memory last, and whether anything orders two accesses."""

from __future__ import annotations

import numpy as np

from ptxsan.checks.pattern import SEVERAL, SEVERAL_IN_WARP, Pattern
from ptxsan.lanes import WARP, Array, Geometry
from ptxsan.native.build import Library


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
    """For each cell who wrote it last, and who was at it by atomics and by reads. An access belongs to the
    ``epoch`` of its block, (blocks,), and the ``step`` of its warp, (warps,)."""

    def __init__(self, cells: int, geometry: Geometry, native: Library | None) -> None:
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
        self, pattern: Pattern, writes: bool, epoch: Array, step: Array
    ) -> tuple[int, int, int, bool] | None:
        """(cell, lane, other thread, whether that one wrote) of the first race, or None."""
        checked = [self.writes]
        checked += [self.atomics] if self.atomics is not None and not pattern.atomic else []
        for marks in [*checked, self.reads] if writes else checked:
            i = self._first(marks, pattern, epoch, step)
            if i >= 0:
                cell, lane = pattern.cells
                return int(cell[i]), int(lane[i]), int(marks.who[cell[i]]), marks is not self.reads
        return None

    def _first(self, marks: _Marks, pattern: Pattern, epoch: Array, step: Array) -> int:
        """The first of a pattern's cells with a race, or −1."""
        if self._native is not None:
            return int(self._native.unordered(marks.all, *self._places(pattern), epoch, step))
        cell, lane = pattern.cells
        bad = marks.unordered(cell, epoch[self._row(cell)], lane % self._geometry.threads, step[lane // WARP])
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

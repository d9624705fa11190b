"""Who touched each cell of shared memory last, and whether anything orders two accesses."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.lanes import WARP, Array, Geometry
from harness.ptx.memory.pattern import SEVERAL, SEVERAL_IN_WARP, Pattern


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
        in_warp = (old != SEVERAL) & (who != SEVERAL) & (old_warp == warp)
        merged = np.where(same, who, np.where(in_warp, SEVERAL_IN_WARP, SEVERAL))
        rows = cell // (len(self.who) // geometry.count)
        steps = step[rows * (geometry.threads // WARP) + warp]
        self.put(cell, epoch, np.where(again, merged, who), warp, steps)
        return cell, again

    def unordered(self, cell: Array, epoch: Array, thread: Array, now: Array) -> Array:
        """Where another thread was in this epoch, and no step of the warp lies between."""
        who = self.who[cell]
        ordered = (who != SEVERAL) & (self.warp[cell] == thread // WARP) & (self.step[cell] < now)
        return np.asarray((self.epoch[cell] == epoch) & (who != thread) & ~ordered)


class Tags:
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

"""Who touched each cell of shared memory last, and when: tags.py for kernels whose order vector clocks keep.

Of writes the last one is kept, of reads and of atomics the last one of each warp, with its lanes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ptxsan.checks.clocks import Clocks
from ptxsan.checks.pattern import Pattern
from ptxsan.lanes import WARP, Array


class _Planes:
    """By warp of the cluster and cell: the time of the warp's last access, and a bit for each lane in it."""

    def __init__(self, cells: int, clocks: Clocks) -> None:
        self._cells, self._clocks = cells, clocks
        self._of_warp: dict[int, tuple[Array, Array]] = {}

    def put(self, pattern: Pattern, time: int) -> None:
        for warp, cell, bits in warps_of(pattern, self._clocks.group):
            if warp not in self._of_warp:
                self._of_warp[warp] = np.zeros(self._cells, np.int32), np.zeros(self._cells, np.uint32)
            when, lanes = self._of_warp[warp]
            when[cell], lanes[cell] = time, bits

    def unordered(self, cell: Array, lane: Array) -> tuple[int, int]:
        """Place among the cells and the other lane of the first access that nothing orders before one by
        ``lane`` now; (−1, 0) for none."""
        group = lane // self._clocks.group * self._clocks.group
        floor = self._clocks.floor[lane // self._clocks.group]
        for warp, (when, bits) in self._of_warp.items():
            at = np.flatnonzero(when[cell] > floor)
            if len(at):  # mostly all lanes know of the whole warp
                at = at[when[cell[at]] > self._clocks.least(warp)[lane[at]]]
            if not len(at):
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
        self._clocks = clocks
        self.who, self.when = np.zeros(cells, np.int32), np.zeros(cells, np.int32)
        self.copied = np.zeros(cells, bool)  # by cp.async
        self.reads, self.atomics = _Planes(cells, clocks), _Planes(cells, clocks)

    def set(self, write: bool, pattern: Pattern, epoch: Any, time: Any) -> None:
        if pattern.atomic:
            self.atomics.put(pattern, time)
        elif write:
            cell, lane = pattern.cells
            self.who[cell], self.when[cell] = lane, time
            self.copied[cell] = pattern.site.instruction.op.startswith("cp.async")
        else:
            self.reads.put(pattern, time)

    def clash(
        self, pattern: Pattern, writes: bool, epoch: Any, time: Any
    ) -> tuple[int, int, int, bool] | None:
        """(cell, lane, other lane, whether that one wrote) of the first race, or None."""
        cell, lane = pattern.cells
        bad = (self.when[cell] > 0) & ~self._clocks.knows(lane, self.who[cell], self.when[cell])
        if bad.any():
            i = int(np.argmax(bad))
            return int(cell[i]), int(lane[i]), int(self.who[cell[i]]), True
        checked = [] if pattern.atomic else [(self.atomics, True)]
        for planes, was_write in [*checked, *([(self.reads, False)] if writes else [])]:
            i, other = planes.unordered(cell, lane)
            if i >= 0:
                return int(cell[i]), int(lane[i]), other, was_write
        return None


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

"""From when until when a block's shared memory is there for others: those of its cluster, and copies to it.

Another block may use it once something has shown that the block runs, and the block must not exit before it
knows that the last use is over (PTX ISA §5.1.7); nor while a copy to it is in flight, whoever asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptxsan.checks.clocks import Clocks
from ptxsan.checks.hazards import Site, Tell
from ptxsan.lanes import Array, Geometry


@dataclass
class _Visit:
    """The last use of a block's shared memory by a lane of another one."""

    when: int
    site: Site


class Lifetimes:
    """Of the shared memory of the blocks that run together; ``met``: whether the cluster of a block has."""

    def __init__(self, clocks: Clocks, geometry: Geometry, report: Tell, met: Callable[[int], bool]) -> None:
        self._clocks, self._geometry, self._report, self._met = clocks, geometry, report, met
        self._left = np.full(geometry.count, geometry.size, np.int64)  # threads that have not exited
        self._visits: list[dict[int, _Visit]] = [{} for _ in range(geometry.count)]
        self._copies: list[dict[int, tuple[int, int, Site]]] = [{} for _ in range(geometry.count)]

    def visit(self, site: Site, lanes: Array, rows: Array, lasts: bool = True) -> None:
        """These lanes (n,) use the shared memory of these blocks (n,); a copy's end is told otherwise."""
        abroad = np.flatnonzero(rows != lanes // self._geometry.threads)
        for lane, row in zip(lanes[abroad].tolist(), rows[abroad].tolist(), strict=True):
            there = self._threads(row)
            if not self._left[row]:
                what = f"uses the shared memory of {self._name(row)}, which has exited"
                self._report("race", what, site, lane)
            elif not (self._met(row) or self._clocks.knows(np.array(lane), there, np.array(1)).any()):
                what = f"uses the shared memory of {self._name(row)} with nothing that shows that it runs"
                self._report("race", f"{what}: no barrier of the cluster before", site, lane)
            if lasts:
                self._visits[row][lane] = _Visit(self._clocks.now, site)

    def copy(self, site: Site, lane: int, row: int, number: int, phase: int) -> None:
        """A copy to a block's shared memory, of which a phase of the mbarrier of this number tells."""
        self._copies[row][number] = phase, lane, site

    def exit(self, lanes: Array) -> None:
        """These lanes (n,) have exited."""
        rows, counts = np.unique(lanes // self._geometry.threads, return_counts=True)
        self._left[rows] -= counts
        for row in rows[self._left[rows] == 0].tolist():
            threads = self._threads(row)
            for lane, visit in self._visits[row].items():
                if not self._clocks.knows(threads, np.array(lane), np.array(visit.when)).any():
                    what = f"uses the shared memory of {self._name(row)}, which may have exited by then"
                    self._report("race", f"{what}: no barrier of the cluster after", visit.site, lane)
            for number, (phase, lane, site) in self._copies[row].items():
                if not self._clocks.completed(threads, np.array(number), np.array(phase)).any():
                    what = (
                        f"copies to the shared memory of {self._name(row)}, which exits without a wait for it"
                    )
                    # Tiles past the end of K, which NVIDIA's own tutorials ask for and do not wait for.
                    self._report("race", what, site, lane, note=True)

    def _threads(self, row: int) -> Array:
        return np.arange(row * self._geometry.threads, (row + 1) * self._geometry.threads)

    def _name(self, row: int) -> str:
        return f"block {tuple(int(v) for v in self._geometry.blocks[row])}"

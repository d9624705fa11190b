"""Who has exited, and whether they had gone past a barrier or a shuffle that others of their warp wait at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxsan.lanes import Array, Geometry


class Exits:
    """Of the blocks that run together. ``after``: for each block of code those that may come next."""

    def __init__(self, geometry: Geometry, after: Sequence[Sequence[int]]) -> None:
        self.living = np.ones(geometry.lanes, bool) if geometry.living is None else geometry.living
        self.alive = self.living
        self._at = np.full(geometry.lanes, -1)
        self._after = after
        self._reached: dict[int, Array] = {}

    def add(self, lanes: Array | None, at: int) -> None:
        """These (None for all) exit at the end of a block of code; −1 for one with nothing else in it, as an
        early return is."""
        self._at[slice(None) if lanes is None else lanes] = at
        self.alive = np.zeros_like(self.alive) if lanes is None else self.alive & ~lanes

    def past(self, at: int) -> Array:
        """The lanes, (lanes,) bool, that have exited at the end of code which comes after the block of code
        ``at``: without its last instruction, they went past it."""
        if at not in self._reached:
            self._reached[at] = self._reach(at)
        return np.asarray(~self.alive & self._reached[at][self._at])

    def _reach(self, at: int) -> Array:
        found: set[int] = set()
        left = list(self._after[at])
        while left:
            if (one := left.pop()) not in found and one < len(self._after):
                found.add(one)
                left += self._after[one]
        reached = np.zeros(len(self._after) + 1, bool)  # the last for -1
        reached[list(found)] = True
        return reached

"""Asynchronous copies to shared memory that are in flight."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks.pattern import Pattern
from ptxsan.lanes import Array, Mask


class Copies:
    """Asynchronous copies in flight, in the groups that each thread has committed."""

    def __init__(self, lanes: int) -> None:
        self._committed: Any = 0  # groups, one number while all lanes commit alike
        self._lanes = lanes
        self.pending: list[tuple[Pattern, Any]] = []
        self._bits = 0  # of the patterns that are pending

    def issue(self, pattern: Pattern) -> None:
        self.pending.append((pattern, self._committed))
        self._bits |= pattern.bits

    def overlap(self, pattern: Pattern) -> bool:
        return bool(self._bits & pattern.bits)

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
        self.pending, self._bits = left, 0
        for pattern, _ in left:
            self._bits |= pattern.bits
        return done

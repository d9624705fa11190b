"""Instructions at which a thread waits for others: those of mbarriers, and of the barrier of a cluster.

A lane that would wait goes on where what it waits for has happened, or where nothing else can: a test of an
mbarrier then says no, which it may at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.lanes import Array, full
from ptxsan.machine.barrier import Free
from ptxsan.machine.state import State

_ROUNDS = 64  # in which nothing happens but tests that say no


class Wait(Protocol):
    """An instruction that may wait. ``polls``: it may also say no."""

    polls: bool

    def ready(self, lanes: Array) -> Array:
        """Which of these lanes (n,) need wait no longer."""

    def proceed(self, lanes: Array, said: bool) -> None:
        """These lanes (n,) go on, with this answer."""

    def describe(self, lane: int) -> str:
        """What a lane waits for."""


class Waits:
    """Who waits, by the block of code that ends in the wait."""

    def __init__(self, state: State, waits: Sequence[Wait | None], sites: Sequence[Site | None]) -> None:
        self._state, self._places, self._sites = state, waits, sites
        self._at: dict[int, Array] = {}
        self._version = -1  # of what they wait for, when they were last looked at
        self._rounds = 0

    def add(self, at: int, lanes: Array | None) -> None:
        """These (None for all) come to the wait at a place; ``wake`` tells whether they go on."""
        lanes = full(True, self._state.lanes) if lanes is None else lanes
        self._at[at] = self._at.get(at, np.zeros_like(lanes)) | lanes
        self._version = -1

    def exit(self, lanes: Array | None) -> None:
        if self._state.asynchronous is not None:
            every = self._state.geometry.every
            self._state.asynchronous.exit(every if lanes is None else np.flatnonzero(lanes))

    def wake(self) -> Free:
        """Who goes on now, from which place."""
        if not self._at or self._state.asynchronous is None:
            return []
        if self._version == self._state.asynchronous.version:
            return []
        self._version = self._state.asynchronous.version
        free: Free = []
        for at in sorted(self._at):
            index = np.flatnonzero(self._at[at])
            ready = index[self._place(at).ready(index)]
            if len(ready):
                self._rounds = 0
                free.append(self._let_go(at, ready, True))
        return free

    def refuse(self) -> Free:
        """Nothing else can go on: those that ask go on with a no. Traps where that has led nowhere."""
        if not self._at:
            return []
        self._rounds += 1
        asking = [at for at in self._at if self._place(at).polls]
        if not asking or self._rounds > _ROUNDS:
            at = min(asking or self._at)
            lane = int(np.argmax(self._at[at]))
            others = sum(int(lanes.sum()) for lanes in self._at.values()) - 1
            what = f"waits for ever for {self._place(at).describe(lane)}"
            more = f"; {others} other threads wait, too" if others else ""
            raise Trap("hang", what + more, self._sites[at], lane)
        return [self._let_go(at, np.flatnonzero(self._at[at]), False) for at in asking]

    def _let_go(self, at: int, lanes: Array, said: bool) -> tuple[int, Array | None]:
        self._place(at).proceed(lanes, said)
        gone = np.zeros_like(self._at[at])
        gone[lanes] = True
        self._at[at] = self._at[at] & ~gone
        if not self._at[at].any():
            del self._at[at]
        return at, None if gone.all() else gone

    def _place(self, at: int) -> Wait:
        wait = self._places[at]
        assert wait is not None
        return wait


def everywhere(value: Any, lanes: int, index: Array) -> Array:
    """The values of these lanes."""
    return np.asarray(full(value, lanes)[index])

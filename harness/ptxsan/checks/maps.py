"""Tensor maps that a launch changes: what is written to one, copies see by a proxy of their own.

Whoever writes a map, or a thread that comes after it, releases it (fence.proxy.tensormap::generic.release, or
tensormap.cp_fenceproxy); whoever copies by it, or a thread before it, acquires that map (PTX ISA §9.7.13.4).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ptxsan.checks.order import Order
from ptxsan.lanes import Array

Writes = tuple[Array, Array]  # of a map's cells: the number of the thread that wrote last, 0 for none; when


class _Release(NamedTuple):
    """``known``: up to which time its thread knew of the accesses of others, by their numbers."""

    thread: int
    when: int
    block: int
    wide: bool
    known: dict[int, int]


class MapFences:
    """Of one batch of launches."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._released: dict[int, list[_Release]] = defaultdict(list)  # by launch
        self._acquired: dict[int, list[tuple[int, int]]] = defaultdict(list)  # thread and time, by address
        self._seen: dict[tuple[int, int], int] = {}  # by thread and address, the last write that it may use

    def release(self, lanes: Array, wide: bool) -> None:
        """What these lanes (n,) wrote, and know that others did, is released; ``wide``: to other blocks."""
        self._order.tick()
        for lane in lanes.tolist():
            thread, launch, block, known = self._order.position(lane)
            self._released[launch].append(_Release(thread, self._order.clock, block, wide, known))
        self._order.tick()

    def acquire(self, lanes: Array, addresses: Array, writes: list[Writes]) -> None:
        """These lanes (n,) acquire the maps at these addresses (n,), each of which was written so."""
        self._order.tick()
        for lane, address, of in zip(lanes.tolist(), addresses.tolist(), writes, strict=True):
            if of[0].any() and not self._unseen(lane, of) and not self._unreleased(lane, of):
                thread, _, _, _ = self._order.position(lane)
                self._acquired[address].append((thread, self._order.clock))
        self._order.tick()

    def missing(self, lane: int, address: int, writes: Writes) -> str:
        """What a copy of this lane by the map lacks; "" for nothing."""
        threads, when = writes
        if not threads.any():
            return ""
        mine, last = int(self._order.numbers(np.array([lane]))[0]), int(when[threads != 0].max())
        if self._seen.get((mine, address)) == last:  # by an earlier copy
            return ""
        if self._unreleased(lane, writes):
            return "with no fence.proxy.tensormap release after"
        for thread, time in reversed(self._acquired[address]):
            there = np.array([thread]), np.array([time])
            if time > last and (thread == mine or not self._unseen(lane, there)):
                self._seen[mine, address] = last
                return ""
        return "with no fence.proxy.tensormap acquire of it before"

    def _unseen(self, lane: int, writes: Writes) -> bool:
        """Whether one of these writes is not ordered before what the lane does now."""
        threads, when = writes
        return bool(self._order.unordered(np.full(len(threads), lane), threads, when).any())

    def _unreleased(self, lane: int, writes: Writes) -> bool:
        """Whether one of these writes was not released to the lane."""
        _, launch, block, _ = self._order.position(lane)
        released = [each for each in self._released[launch] if each.wide or each.block == block]

        def is_released(thread: int, when: int) -> bool:
            return any(
                each.when > when if each.thread == thread else each.known.get(thread, 0) >= when
                for each in reversed(released)
            )

        pairs = {(t, w) for t, w in zip(*(each.tolist() for each in writes), strict=True) if t}
        return not all(is_released(*pair) for pair in pairs)

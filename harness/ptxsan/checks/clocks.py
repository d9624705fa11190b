"""What each thread knows of the others: vector clocks, where mbarriers, clusters or the async proxy order.

``known[v, u]`` is the time up to which the accesses of thread u of the cluster come before what thread v does
now; ``fenced[v, u]`` those of them that a fence.proxy.async on the way has made visible to the async proxy as
well (PTX ISA §8, "Proxy-preserved base causality order"). The columns after the threads are of the mbarriers
of the cluster: how many of its phases v has seen complete, and with them the copies that they stand for.

A thread's own accesses are always before what it does next. Time moves on with each release.

Of kernels with tensor memory two more planes tell how tcgen05 instructions are ordered (PTX ISA §9.7.16.6.3):
those of u that v's come ``after``, and those that a tcgen05.fence::before_thread_sync on the way has
``passed`` on, which count for v from its next tcgen05.fence::after_thread_sync.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.lanes import WARP, Array, Geometry, Mask, longest
from ptxsan.native import library

EVER = np.iinfo(np.int32).max  # later than any time
Handed = tuple[Array, ...]  # known and fenced, of kernels with tensor memory passed, too


class Clocks:
    """Of the blocks that run together; ``group`` threads of a cluster know of each other."""

    def __init__(self, geometry: Geometry, proxies: bool = True, tensor: bool = False) -> None:
        self.now = 1
        # Where nothing but threads is to be ordered, a block that meets is told by its floor alone.
        self._by_floor = not proxies and geometry.cluster_size == 1
        self.group = geometry.threads * geometry.cluster_size
        self._step = 16 * geometry.cluster_size  # mbarriers for which columns are made at once
        self._lanes, self._threads, self._columns = geometry.lanes, geometry.threads, self.group
        shape = self._lanes, self.group + (0 if self._by_floor else self._step)
        # Both by `zeros`: only what is written takes memory.
        self.known, self.fenced = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self._tensor = tensor
        self.after, self.passed = np.zeros((2, *(self.known.shape if tensor else (0, 0))), np.int32)
        self._own = np.arange(self._lanes), np.arange(self._lanes) % self.group
        self.known[self._own] = EVER
        self._native = library()
        self._handed: dict[tuple[int, int], Handed] = {}  # by lanes beside one another, while nothing changes
        self._covered: Array | None = None  # by fences, (lanes, group)
        self._fence = np.zeros(self._lanes, np.int32)  # the last one of each lane
        self.floor = np.zeros(self._lanes // self.group, np.int32)  # what all of a cluster know of all

    def grow(self, mbarriers: int) -> None:
        """Columns for so many mbarriers."""
        more = self.group + mbarriers - self.known.shape[1]
        if more > 0:
            self._handed.clear()
            wider = np.zeros((self._lanes, max(more, self._step)), np.int32)
            self.known = np.hstack([self.known, wider])
            self.fenced = np.hstack([self.fenced, wider])
            if self._tensor:
                self.after, self.passed = (np.hstack([held, wider]) for held in (self.after, self.passed))

    # What orders

    def released(self, lanes: Array) -> Handed:
        """What these lanes (n,) of one cluster hand on together."""
        known, fenced = self._largest(self.known, lanes), self._largest(self.fenced, lanes)
        known[: self.group] = np.maximum(known[: self.group], self.floor[lanes[0] // self.group])
        known[self._own[1][lanes]] = self.now
        return (known, fenced, self._largest(self.passed, lanes)) if self._tensor else (known, fenced)

    def released_by(self, first: int, count: int) -> Handed:
        """``released`` by so many lanes from the first on, found once while nothing changes, since the
        instructions of a warpgroup mostly follow one another."""
        key = first, count
        if key not in self._handed:
            self._handed[key] = self.released(np.arange(first, first + count))
        return self._handed[key]

    def passed_by(self, lanes: Array) -> Handed | None:
        """What a relaxed arrival hands on: what a before_thread_sync has passed; None for nothing."""
        if not self._tensor:
            return None
        nothing = np.zeros(1, np.int32)
        return nothing, nothing, self._largest(self.passed, lanes)

    def complete(self, mbarrier: int, phase: int) -> Handed:
        """What the completion of a phase of an mbarrier hands on: itself."""
        columns = np.zeros(self.group + mbarrier + 1, np.int32)
        columns[-1] = phase
        return (columns, np.zeros(1, np.int32), *([columns] if self._tensor else []))

    def _largest(self, held: Array, lanes: Array) -> Array:
        """The largest of the rows of these lanes (n,), by column."""
        if self._native is None:
            return np.asarray(held[lanes].max(axis=0))
        found = np.empty(held.shape[1], np.int32)
        self._native.largest_of(held, np.ascontiguousarray(lanes, np.int64), found)
        return found

    def _raise(self, held: Array, lanes: Array, least: Array) -> None:
        """The rows of these lanes (n,) become at least these times (m,), the first of the columns."""
        self._handed.clear()
        if self._native is None:
            held[lanes, : len(least)] = np.maximum(held[lanes, : len(least)], least)
        else:
            self._native.raise_to(held, np.ascontiguousarray(lanes, np.int64), least)

    def acquire(self, lanes: Array, *handed: Array) -> None:
        """These lanes (n,) of one cluster come after what was handed on."""
        for held, new in zip((self.known, self.fenced, self.passed), handed, strict=False):
            if new.any():
                self._raise(held, lanes, new)
        self.known[lanes, self._own[1][lanes]] = EVER

    def before_thread_sync(self, lanes: Array) -> None:
        """What the tcgen05 instructions of these lanes (n,) come after, and they themselves, is passed on."""
        self._handed.clear()
        self.passed[lanes] = np.maximum(self.passed[lanes], self.after[lanes])
        self.passed[lanes, self._own[1][lanes]] = self.now

    def after_thread_sync(self, lanes: Array) -> None:
        """What was passed to these lanes (n,) is before their next tcgen05 instructions."""
        self._handed.clear()
        self.after[lanes] = np.maximum(self.after[lanes], self.passed[lanes])
        phases = self.after[lanes, self.group :]
        self.known[lanes, self.group :] = np.maximum(self.known[lanes, self.group :], phases)

    def observe(self, lanes: Array, handed: Handed, acquires: bool) -> None:
        """These lanes (n,) have seen a phase of an mbarrier complete. A relaxed wait learns nothing but what
        the next after_thread_sync makes of it."""
        if acquires:
            self.acquire(lanes, *handed)
        elif self._tensor:
            self._handed.clear()
            passed = handed[2]
            self.passed[lanes, : len(passed)] = np.maximum(self.passed[lanes, : len(passed)], passed)

    def see(self, lanes: Array, mbarrier: int, phase: int) -> None:
        """The tcgen05 instructions of these lanes (n,), which waited for it, come after this phase."""
        if self._tensor:
            self.after[lanes, self.group + mbarrier] = phase

    def meet(self, lanes: Array) -> None:
        """These lanes (n,) of one cluster meet: each comes after what the others did."""
        self.acquire(lanes, *self.released(lanes))

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met, each block for itself."""
        for block in np.flatnonzero(blocks):
            start = int(block) * self._threads
            if self._by_floor:
                self.floor[block] = self.now
                continue
            self.meet(np.arange(start, start + self._threads))
            if self.group == self._threads:
                self.floor[block] = self.now
        self.tick()

    def warp_barrier(self, mask: Mask | None) -> None:
        warps = np.arange(self._lanes // WARP) if mask is None else np.flatnonzero(mask.warps)
        if mask is None or len(mask.index) == len(warps) * WARP:
            self._meet_warps(warps)
        else:
            for warp in warps:
                lanes = np.arange(warp * WARP, (warp + 1) * WARP)
                self.meet(lanes[mask.bits[lanes]])
        self.tick()

    def _meet_warps(self, warps: Array) -> None:
        """``meet`` of all lanes of each of these warps (n,), at once."""
        lanes = warps[:, None] * WARP + np.arange(WARP)
        for held in (self.known, self.fenced, *([self.passed] if self._tensor else [])):
            if self._native is not None:
                times = self.group, self.now, held is self.known, EVER
                self._native.meet_warps(held, warps, self.floor, *times)
                continue
            part = held.reshape(-1, WARP, held.shape[1])
            met = part[warps].max(axis=1)
            if held is self.known:
                floor = self.floor[lanes[:, 0] // self.group, None]
                met[:, : self.group] = np.maximum(met[:, : self.group], floor)
                met[np.arange(len(warps))[:, None], self._own[1][lanes]] = self.now
            part[warps] = met[:, None]
        self.known[lanes, self._own[1][lanes]] = EVER

    def fence_proxy(self, mask: Mask | None) -> None:
        """fence.proxy.async: what these lanes know of, the async proxy sees from now on."""
        lanes = np.arange(self._lanes) if mask is None else mask.index
        if self._native is not None:
            of = np.ascontiguousarray(lanes, np.int64)
            self._native.show_known(self.known, of, self.fenced, self.group, self.now)
        else:
            self.fenced[lanes] = np.maximum(self.fenced[lanes], self.known[lanes])
            self.fenced[lanes, self._own[1][lanes]] = self.now
        self.tick()

    def show(self, lane: int) -> None:
        """The async proxy sees from now on what this lane has written."""
        self.fenced[lane, lane % self.group] = self.now
        self.tick()

    def fence(self, mask: Mask | None) -> None:
        """A fence of these lanes: what they know of, their next strong stores hand on."""
        if self._covered is None:
            self._covered = np.zeros((self._lanes, self.group), np.int32)
        lanes = np.arange(self._lanes) if mask is None else mask.index
        known = np.maximum(self.known[lanes, : self.group], self.floor[lanes // self.group, None])
        known[np.arange(len(lanes)), self._own[1][lanes]] = self.now
        self._covered[lanes] = np.maximum(self._covered[lanes], known)
        self._fence[lanes] = self.now
        self.tick()

    def published(self, lane: int, releases: bool) -> Array | None:
        """What a strong store of a lane hands on, (group,): all that it knows of where it ``releases``, else
        what a fence covers, its own or one that it knows of; None for nothing."""
        known = self.known_of(lane)
        if releases:
            known[self._own[1][lane]] = self.now
            return np.asarray(known)
        if self._covered is None:
            return None
        start = lane // self.group * self.group
        of_others = np.minimum(known, self._fence[start : start + self.group])
        return np.asarray(np.maximum(self._covered[lane], of_others))

    def tick(self) -> None:
        self.now += 1
        self._handed.clear()

    # What is asked

    def knows(self, lanes: Array, others: Array, when: Array) -> Array:
        """Whether accesses of the lanes ``others`` at these times come before what ``lanes`` do now; all of
        one shape, or such as broadcast to one."""
        floor = self.floor[lanes // self.group]
        return np.asarray((self.known[lanes, others % self.group] >= when) | (floor >= when))

    def known_of(self, lane: int) -> Array:
        """Up to which time a lane knows of the accesses of those of its cluster, (group,)."""
        return np.asarray(np.maximum(self.known[lane, : self.group], self.floor[lane // self.group]))

    def sees(self, lanes: Array, others: Array, when: Array) -> Array:
        """The same of writes of the generic proxy, to the async proxy."""
        return np.asarray(self.fenced[lanes, others % self.group] >= when)

    def of_block(self, lane: int) -> Array:
        """The time before which what each thread of the lane's block did comes before what the lane does now,
        (threads,); 0 for the lane itself."""
        start = lane % self.group // self._threads * self._threads
        known = self.known[lane, start : start + self._threads]
        known = np.maximum(known, self.floor[lane // self.group]).astype(np.int64) + 1
        known[lane % self._threads] = 0
        return np.where(known > 1, known, 0)

    def completed(self, lanes: Array, mbarrier: Any, phase: Any) -> Array:
        """Whether these lanes have seen the phase of the mbarrier complete."""
        return np.asarray(self.known[lanes, self.group + mbarrier] > phase)


def merge(one: Handed, other: Handed | None) -> Handed:
    """What was handed on one way or the other."""
    if other is None:
        return one
    return tuple(longest(a, b) for a, b in zip(one, other, strict=True))

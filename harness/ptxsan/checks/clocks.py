"""What each thread knows of the others: vector clocks, where mbarriers, clusters or the async proxy order.

``known[v, u]`` is the time up to which the accesses of thread u of the cluster come before what thread v does
now; ``fenced[v, u]`` those of them that a fence.proxy.async on the way has made visible to the async proxy as
well (PTX ISA §8, "Proxy-preserved base causality order"). The columns after the threads are of the mbarriers
of the cluster: how many of its phases v has seen complete, and with them the copies that they stand for.

A thread's own accesses are always before what it does next. Time moves on with each release.
"""

from __future__ import annotations

import numpy as np

from ptxsan.lanes import WARP, Array, Geometry, Mask

EVER = np.iinfo(np.int32).max  # later than any time


class Clocks:
    """Of the blocks that run together; ``group`` threads of a cluster know of each other."""

    def __init__(self, geometry: Geometry) -> None:
        self.now = 1
        self.group = geometry.threads * geometry.cluster_size
        self._lanes, self._threads, self._columns = geometry.lanes, geometry.threads, self.group
        self.known = np.zeros((self._lanes, self.group), np.int32)
        self.fenced = np.zeros_like(self.known)
        self._own = np.arange(self._lanes), np.arange(self._lanes) % self.group
        self.known[self._own] = EVER
        self.floor = np.zeros(self._lanes // self.group, np.int32)  # what all of a cluster know of all

    def grow(self, mbarriers: int) -> None:
        """Columns for so many mbarriers."""
        more = self.group + mbarriers - self.known.shape[1]
        if more > 0:
            wider = np.zeros((self._lanes, max(more, 16)), np.int32)
            self.known = np.hstack([self.known, wider])
            self.fenced = np.hstack([self.fenced, wider])

    # What orders

    def released(self, lanes: Array) -> tuple[Array, Array]:
        """What these lanes (n,) of one cluster hand on together: (known, fenced)."""
        known = self.known[lanes].max(axis=0)
        fenced = self.fenced[lanes].max(axis=0)
        known[self._own[1][lanes]] = self.now
        return known, fenced

    def acquire(self, lanes: Array, known: Array, fenced: Array) -> None:
        """These lanes (n,) of one cluster come after what was handed on."""
        k, f = known.shape[-1], fenced.shape[-1]
        self.known[lanes, :k] = np.maximum(self.known[lanes, :k], known)
        self.fenced[lanes, :f] = np.maximum(self.fenced[lanes, :f], fenced)
        self.known[lanes, self._own[1][lanes]] = EVER

    def meet(self, lanes: Array) -> None:
        """These lanes (n,) of one cluster meet: each comes after what the others did."""
        self.acquire(lanes, *self.released(lanes))

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met, each block for itself."""
        for block in np.flatnonzero(blocks):
            start = int(block) * self._threads
            self.meet(np.arange(start, start + self._threads))
            if self.group == self._threads:
                self.floor[block] = self.now
        self.tick()

    def cluster(self, cluster: int) -> None:
        self.meet(np.arange(cluster * self.group, (cluster + 1) * self.group))
        self.floor[cluster] = self.now

    def warp_barrier(self, mask: Mask | None) -> None:
        warps = np.arange(self._lanes // WARP) if mask is None else np.flatnonzero(mask.warps)
        for warp in warps:
            lanes = np.arange(warp * WARP, (warp + 1) * WARP)
            self.meet(lanes if mask is None else lanes[mask.bits[lanes]])
        self.tick()

    def fence_proxy(self, mask: Mask | None) -> None:
        """fence.proxy.async: what these lanes know of, the async proxy sees from now on."""
        lanes = np.arange(self._lanes) if mask is None else mask.index
        known = self.known[lanes]
        known[np.arange(len(lanes)), self._own[1][lanes]] = self.now
        self.fenced[lanes] = np.maximum(self.fenced[lanes], known)
        self.tick()

    def tick(self) -> None:
        self.now += 1

    # What is asked

    def knows(self, lanes: Array, others: Array, when: Array) -> Array:
        """Whether accesses of the lanes ``others`` at these times come before what ``lanes`` do now; all of
        one shape, or such as broadcast to one."""
        return np.asarray(self.known[lanes, others % self.group] >= when)

    def least(self, warp: int) -> Array:
        """Up to which time each lane knows the accesses of all lanes of this warp of its cluster."""
        return np.asarray(self.known[:, warp * WARP : (warp + 1) * WARP].min(axis=1))

    def sees(self, lanes: Array, others: Array, when: Array) -> Array:
        """The same of writes of the generic proxy, to the async proxy."""
        return np.asarray(self.fenced[lanes, others % self.group] >= when)

    def of_block(self, lane: int) -> Array:
        """The time before which what each thread of the lane's block did comes before what the lane does now,
        (threads,); 0 for the lane itself."""
        start = lane % self.group // self._threads * self._threads
        known = self.known[lane, start : start + self._threads].astype(np.int64) + 1
        known[lane % self._threads] = 0
        return np.where(known > 1, known, 0)

    def completed(self, lanes: Array, mbarrier: Array, phase: Array) -> Array:
        """Whether these lanes have seen the phase of the mbarrier complete."""
        return np.asarray(self.known[lanes, self.group + mbarrier] > phase)

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

EVER = np.iinfo(np.int32).max  # later than any time
_UNKNOWN = np.int32(-1)
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
        self._least: dict[int, Array] = {}  # by warp of the cluster, of each lane; _UNKNOWN after it learnt
        self._covered: Array | None = None  # by fences, (lanes, group)
        self._fence = np.zeros(self._lanes, np.int32)  # the last one of each lane
        self.floor = np.zeros(self._lanes // self.group, np.int32)  # what all of a cluster know of all

    def grow(self, mbarriers: int) -> None:
        """Columns for so many mbarriers."""
        more = self.group + mbarriers - self.known.shape[1]
        if more > 0:
            wider = np.zeros((self._lanes, max(more, self._step)), np.int32)
            self.known = np.hstack([self.known, wider])
            self.fenced = np.hstack([self.fenced, wider])
            if self._tensor:
                self.after, self.passed = (np.hstack([held, wider]) for held in (self.after, self.passed))

    # What orders

    def released(self, lanes: Array) -> Handed:
        """What these lanes (n,) of one cluster hand on together."""
        rows = self._rows(lanes)
        known, fenced = self.known[rows].max(axis=0), self.fenced[rows].max(axis=0)
        known[: self.group] = np.maximum(known[: self.group], self.floor[lanes[0] // self.group])
        known[self._own[1][lanes]] = self.now
        return (known, fenced, self.passed[rows].max(axis=0)) if self._tensor else (known, fenced)

    def passed_by(self, lanes: Array) -> Handed | None:
        """What a relaxed arrival hands on: what a before_thread_sync has passed; None for nothing."""
        if not self._tensor:
            return None
        nothing = np.zeros(1, np.int32)
        return nothing, nothing, self.passed[self._rows(lanes)].max(axis=0)

    def complete(self, mbarrier: int, phase: int) -> Handed:
        """What the completion of a phase of an mbarrier hands on: itself."""
        columns = np.zeros(self.group + mbarrier + 1, np.int32)
        columns[-1] = phase
        return (columns, np.zeros(1, np.int32), *([columns] if self._tensor else []))

    @staticmethod
    def _rows(lanes: Array) -> Any:
        """Of these lanes (n,): a slice where they are neighbours, as mostly, which copies nothing."""
        alike = len(lanes) > 1 and bool((np.diff(lanes) == 1).all())
        return slice(int(lanes[0]), int(lanes[-1]) + 1) if alike else lanes

    def acquire(self, lanes: Array, *handed: Array) -> None:
        """These lanes (n,) of one cluster come after what was handed on."""
        rows = self._rows(lanes)
        self._forget(rows)
        for held, new in zip((self.known, self.fenced, self.passed), handed, strict=False):
            if new.any():
                part = held[rows, : new.shape[-1]]
                held[rows, : new.shape[-1]] = np.maximum(part, new, out=part)
        self.known[lanes, self._own[1][lanes]] = EVER

    def before_thread_sync(self, lanes: Array) -> None:
        """What the tcgen05 instructions of these lanes (n,) come after, and they themselves, is passed on."""
        self.passed[lanes] = np.maximum(self.passed[lanes], self.after[lanes])
        self.passed[lanes, self._own[1][lanes]] = self.now

    def after_thread_sync(self, lanes: Array) -> None:
        """What was passed to these lanes (n,) is before their next tcgen05 instructions."""
        self.after[lanes] = np.maximum(self.after[lanes], self.passed[lanes])
        phases = self.after[lanes, self.group :]
        self.known[lanes, self.group :] = np.maximum(self.known[lanes, self.group :], phases)

    def observe(self, lanes: Array, handed: Handed, acquires: bool) -> None:
        """These lanes (n,) have seen a phase of an mbarrier complete. A relaxed wait learns nothing but what
        the next after_thread_sync makes of it."""
        if acquires:
            self.acquire(lanes, *handed)
        elif self._tensor:
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
        self._forget(lanes)
        rows = self._rows(warps)
        for held in (self.known, self.fenced, *([self.passed] if self._tensor else [])):
            part = held.reshape(-1, WARP, held.shape[1])
            met = part[rows].max(axis=1)
            if held is self.known:
                floor = self.floor[lanes[:, 0] // self.group, None]
                met[:, : self.group] = np.maximum(met[:, : self.group], floor)
                met[np.arange(len(warps))[:, None], self._own[1][lanes]] = self.now
            part[rows] = met[:, None]
        self.known[lanes, self._own[1][lanes]] = EVER

    def fence_proxy(self, mask: Mask | None) -> None:
        """fence.proxy.async: what these lanes know of, the async proxy sees from now on."""
        lanes = np.arange(self._lanes) if mask is None else mask.index
        known = self.known[lanes]
        known[np.arange(len(lanes)), self._own[1][lanes]] = self.now
        self.fenced[lanes] = np.maximum(self.fenced[lanes], known)
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

    # What is asked

    def knows(self, lanes: Array, others: Array, when: Array) -> Array:
        """Whether accesses of the lanes ``others`` at these times come before what ``lanes`` do now; all of
        one shape, or such as broadcast to one."""
        floor = self.floor[lanes // self.group]
        return np.asarray((self.known[lanes, others % self.group] >= when) | (floor >= when))

    def known_of(self, lane: int) -> Array:
        """Up to which time a lane knows of the accesses of those of its cluster, (group,)."""
        return np.asarray(np.maximum(self.known[lane, : self.group], self.floor[lane // self.group]))

    def least(self, warp: int, lanes: Array) -> Array:
        """Up to which time each of these lanes (n,) knows the accesses of all of this warp of its cluster,
        apart from the floor."""
        if warp not in self._least:
            self._least[warp] = np.full(self._lanes, _UNKNOWN)
        least = self._least[warp]
        if (unknown := least[lanes] == _UNKNOWN).any():
            asked = np.unique(lanes[unknown])
            least[asked] = self.known[asked, warp * WARP : (warp + 1) * WARP].min(axis=1)
        return np.asarray(least[lanes])

    def _forget(self, rows: Any) -> None:
        for least in self._least.values():
            least[rows] = _UNKNOWN

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

    def completed(self, lanes: Array, mbarrier: Array, phase: Array) -> Array:
        """Whether these lanes have seen the phase of the mbarrier complete."""
        return np.asarray(self.known[lanes, self.group + mbarrier] > phase)


def merge(one: Handed, other: Handed | None) -> Handed:
    """What was handed on one way or the other."""
    if other is None:
        return one
    return tuple(longest(a, b) for a, b in zip(one, other, strict=True))


# Which accesses to global memory are ordered: barriers within a block, fences and atomics between blocks.
#
# A write counts as before another thread's access where (PTX ISA, §8, "Memory Consistency Model",
# simplified) - both threads are of one block, and a barrier (or of one warp, and a warp-level one) lies
# between; or - a fence of GPU scope (__threadfence) covers the write: one of its own thread after it, or
# one of a thread of its block with a barrier between; then, by that thread or past a barrier, an atomic or
# a strong store (volatile, relaxed, release) on some location; and an atomic or a strong load of that
# location by the other thread, or by one of its block with a barrier between, that sees it. An atomic with
# .release is a fence too.
#
# More lenient than the ISA in three places, so that NVIDIA's own examples are clean: the reading side needs
# no fence of its own; a fence may be another thread's than the atomic's where a barrier lies between; a
# location hands on all that was ever released there. Reads before a write (write after read) are asked of in
# the same way (checks/readers.py).
#
# Times are those of one clock: blocks run one after another or in step, so every write has one.


# What was released: by block of the grid, for each of its threads the time before which its writes count.
Released = dict[int, Array]
_Location = tuple[int, int]  # buffer, offset in its storage


class Order:
    """Of one batch of launches; ``clock`` is the time that a write is noted with."""

    OF_BLOCKS: tuple[str, ...] = ("_clocks", "_geometry", "_fenced", "_covered", "_met", "_warp_met", "_own")
    OF_BLOCKS += ("_of_warp", "_of_block", "_public", "_acquired", "_known", "_merged")

    def __init__(self) -> None:
        self._clock = 1
        self._clocks: Clocks | None = None
        self._released: dict[_Location, list[Released]] = {}
        self._shown: dict[int, int] = {}  # when a block last executed a fence.proxy.async of global memory

    @property
    def clock(self) -> int:
        return self._clock if self._clocks is None else self._clocks.now

    def tick(self) -> None:
        """Time goes on."""
        if self._clocks is None:
            self._clock += 1
        else:
            self._clocks.tick()

    def enter(self, geometry: Geometry, clocks: Clocks | None = None) -> None:
        """These blocks run from now on; what they knew of each other before is in the locations. ``clocks``
        where barriers order a part of the threads of a block."""
        self._clock, self._clocks = self.clock + 1, clocks
        if clocks is not None:
            clocks.now = self._clock
        self._geometry, self._fenced = geometry, False
        self._covered: dict[int, Array] = {}  # by a lane's fence, of each thread of its block, with clocks
        self._met = np.zeros(geometry.count, np.int64)  # the last barrier
        self._warp_met = np.zeros(geometry.lanes // WARP, np.int64)
        # Before which times writes are covered by fences: of a lane by its own, of its warp and its block by
        # those of this lane, of this lane by those before the last barrier.
        self._own, self._of_warp, self._of_block, self._public = np.zeros((4, geometry.lanes), np.int64)
        self._acquired: list[list[tuple[int, int, list[Released], int]]] = [[] for _ in range(geometry.count)]
        self._known: list[Released] = [{} for _ in range(geometry.count)]
        self._merged = [0] * geometry.count

    def pause(self) -> None:
        """Other blocks run: time goes on for all."""
        self._clock = self.clock + 1

    def resume(self) -> None:
        """Blocks that were there before go on."""
        if self._clocks is not None:
            self._clocks.now = max(self._clocks.now, self._clock)

    # What orders

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met."""
        self.tick()
        self._met[blocks] = self.clock
        if self._fenced:
            of_block = self._of_block.reshape(len(blocks), -1).max(axis=1)
            of_warp = np.repeat(self._of_warp.reshape(-1, WARP).max(axis=1), WARP)
            now = np.maximum(np.maximum(self._own, of_warp), np.repeat(of_block, self._geometry.threads))
            np.copyto(self._public, now, where=np.repeat(blocks, self._geometry.threads))

    def publish(self, lanes: Array) -> None:
        """These lanes (n,), some of a block, met others: what their fences cover counts for all of it."""
        self._public[lanes] = np.maximum(self._public[lanes], self._own[lanes])

    def warp_barrier(self, mask: Mask | None) -> None:
        self.tick()
        self._warp_met[slice(None) if mask is None else mask.warps] = self.clock

    def fence(self, mask: Mask | None) -> None:
        """A fence of GPU or system scope."""
        self.tick()
        self._fenced = True
        lanes = np.arange(self._geometry.lanes) if mask is None else mask.index
        self._own[lanes] = self.clock
        self._of_warp[lanes] = self._warp_met[lanes // WARP]
        self._of_block[lanes] = self._met[lanes // self._geometry.threads]
        if self._clocks is not None:
            for lane in lanes.tolist():
                self._covered[lane] = self._clocks.of_block(lane)

    def fence_proxy(self, mask: Mask | None) -> None:
        """fence.proxy.async of global memory."""
        self.tick()
        lanes = np.arange(self._geometry.lanes) if mask is None else mask.index
        for lane in lanes[:: self._geometry.threads].tolist() if mask is None else lanes.tolist():
            self._shown[self._block(lane)] = self.clock

    def shown(self, lanes: Array, writer: Array, when: Array) -> Array:
        """Whether the async proxy of ``lanes`` sees writes at these times of threads of the number
        ``writer``, all of one shape: by a fence since of some thread of either block."""
        mine, threads = self._geometry.writer[lanes], self._geometry.threads
        since = np.zeros(when.shape, np.int64)
        for block in self._shown:
            is_one = ((writer - 1) // threads == block) | ((mine - 1) // threads == block)
            since = np.maximum(since, np.where(is_one, self._shown[block], 0))
        return np.asarray(since > when)

    def synchronise(self, buffer: int, at: Array, lanes: Array, acquires: bool, releases: bool) -> Array:
        """Strong accesses of these lanes (n,), one after another, to the locations ``at`` (n,); for which
        of them there was something to release."""
        self.tick()
        handed = np.zeros(len(lanes), bool)
        if not (self._released or (releases and self._fenced)):
            return handed
        for i, (offset, lane) in enumerate(zip(at.tolist(), lanes.tolist(), strict=True)):
            location = (buffer, offset)
            held = self._released.get(location, [])
            if acquires and held:
                row = lane // self._geometry.threads
                self._acquired[row].append((self.clock, lane, held, len(held)))
            if releases and (event := self._release(lane)):
                self._released.setdefault(location, held).append(event)
                handed[i] = True
        return handed

    def _release(self, lane: int) -> Released | None:
        row, thread = divmod(lane, self._geometry.threads)
        start, warp = row * self._geometry.threads, thread // WARP * WARP
        covered = np.maximum(self._public[start : start + self._geometry.threads], self._of_block[lane])
        beside = self._own[start + warp : start + warp + WARP]
        met = self._warp_met[lane // WARP]
        # Fences of the warp's other lanes count where the warp has met since.
        beside = np.maximum(np.where(beside < met, beside, 0), self._of_warp[lane])
        covered[warp : warp + WARP] = np.maximum(covered[warp : warp + WARP], beside)
        if lane in self._covered:
            covered = np.maximum(covered, self._covered[lane])
        covered[thread] = max(covered[thread], self._own[lane])
        if not covered.any():
            return None
        return {**self._knowledge(lane), self._block(lane): covered}

    def _block(self, lane: int) -> int:
        return (int(self._geometry.writer[lane]) - 1) // self._geometry.threads

    def _knowledge(self, lane: int) -> Released:
        """What has been handed to a lane: by way of its block, of its warp, or to itself."""
        row = lane // self._geometry.threads
        acquired, known = self._acquired[row], self._known[row]
        seen = {(id(held), n) for _, _, held, n in acquired[: self._merged[row]]}
        while self._merged[row] < len(acquired) and acquired[self._merged[row]][0] < self._met[row]:
            _, _, held, n = acquired[self._merged[row]]
            if (id(held), n) not in seen:
                _merge(known, held[:n])
                seen.add((id(held), n))
            self._merged[row] += 1
        warp_met = self._warp_met[lane // WARP]
        rest = [
            held[:n]
            for when, other, held, n in acquired[self._merged[row] :]
            if other == lane
            or (other // WARP == lane // WARP and when < warp_met)
            or (
                self._clocks is not None
                and self._clocks.knows(np.array(lane), np.array(other), np.array(when))
            )
        ]
        if rest:
            known = dict(known)
            for events in rest:
                _merge(known, events)
        return known

    # What is asked

    def numbers(self, lanes: Array) -> Array:
        """The threads of these lanes."""
        return self._geometry.writer if lanes is self._geometry.every else self._geometry.writer[lanes]

    def position(self, lane: int) -> tuple[int, int, int, dict[int, int]]:
        """Of a lane: the number of its thread, its launch, its block, and up to which time it knows of the
        accesses of the other threads that it runs with, by their numbers, where clocks tell."""
        of, known = self._geometry, dict[int, int]()
        if self._clocks is not None:
            first = lane // self._clocks.group * self._clocks.group
            numbers = of.writer[first : first + self._clocks.group]
            known = dict(zip(numbers.tolist(), self._clocks.known_of(lane).tolist(), strict=True))
        return int(of.writer[lane]), int(of.launch[lane]), self._block(lane), known

    def unordered(self, lanes: Array, writer: Array, when: Array) -> Array:
        """For which of these lanes (n,) the last write of what they access, by the thread of the number
        ``writer`` (n,), 0 for none, at the time ``when``, is not ordered before now; bool (n,)."""
        threads, mine = self._geometry.threads, self._geometry.writer[lanes]
        other = (writer != 0) & (writer != mine)
        if not other.any():
            return np.asarray(other)
        block, thread = np.divmod(writer - 1, threads)
        same_block = block == (mine - 1) // threads
        same_warp = same_block & (thread // WARP == (mine - 1) % threads // WARP)
        met = same_block & (when < self._met[lanes // threads])
        met |= same_warp & (when < self._warp_met[lanes // WARP])
        bad = np.asarray(other & ~met)
        if self._clocks is not None and (rest := np.flatnonzero(bad & same_block)).size:
            others = lanes[rest] // threads * threads + thread[rest]
            bad[rest] = ~self._clocks.knows(lanes[rest], others, when[rest])
        abroad = np.flatnonzero(bad & ~same_block)
        if len(abroad) and self._released:
            bad[abroad] = ~self._handed(lanes[abroad], block[abroad], thread[abroad], when[abroad])
        return bad

    def _handed(self, lanes: Array, block: Array, thread: Array, when: Array) -> Array:
        threads, acquired, merged = self._geometry.threads, self._acquired, self._merged
        rows = lanes // threads
        # Nearly always all lanes of a block know the same.
        by_lane = any(len(acquired[row]) > merged[row] for row in set(rows.tolist()))
        size = 1 if by_lane else threads  # lanes that know the same
        blocks = int(block.max()) + 1
        pairs, pair = np.unique(lanes // size * blocks + block, return_inverse=True)
        covered = np.zeros((len(pairs), threads), np.int64)
        known: dict[int, Released] = {}
        for i, (one, b) in enumerate(divmod(number, blocks) for number in pairs.tolist()):
            if one not in known:
                known[one] = self._knowledge(one * size)
            if (of_block := known[one].get(b)) is not None:
                covered[i] = of_block
        return np.asarray(when < covered[pair, thread])


def _merge(known: Released, events: list[Released]) -> None:
    for event in events:
        for block, covered in event.items():
            known[block] = np.maximum(known[block], covered) if block in known else covered

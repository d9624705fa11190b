"""Which accesses to global memory are ordered: barriers within a block, fences and atomics between blocks.

A write counts as before another thread's access where (PTX ISA, §8, "Memory Consistency Model",
simplified) - both threads are of one block, and a barrier (or of one warp, and a warp-level one) lies
between; or - a fence of GPU scope (__threadfence) covers the write: one of its own thread after it, or
one of a thread of its block with a barrier between; then, by that thread or past a barrier, an atomic or
a strong store (volatile, relaxed, release) on some location; and an atomic or a strong load of that
location by the other thread, or by one of its block with a barrier between, that sees it. An atomic with
.release is a fence too.

More lenient than the ISA in three places, so that NVIDIA's own examples are clean: the reading side needs
no fence of its own; a fence may be another thread's than the atomic's where a barrier lies between; a
location hands on all that was ever released there. Reads before a write (write after read) are asked of in
the same way (checks/readers.py).

Times are those of one clock: blocks run one after another or in step, so every write has one.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from ptxsan.checks import SITE_BITS
from ptxsan.checks.clocks import Clocks
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.native import library

# What was released: by block of the grid, for each of its threads the time before which its writes count.
Released = dict[int, Array]
_Location = tuple[int, int]  # buffer, offset in its storage


class Order:
    """Of one batch of launches; ``clock`` is the time that a write is noted with."""

    OF_BLOCKS: tuple[str, ...] = ("_clocks", "_geometry", "_fenced", "_covered", "_met", "_warp_met", "_own")
    OF_BLOCKS += (
        "_of_warp",
        "_of_block",
        "_public",
        "_acquired",
        "_known",
        "_merged",
        "_open",
        "_tabled",
        "_seen",
    )

    def __init__(self) -> None:
        self._clock = 1
        self._clocks: Clocks | None = None
        self._released: dict[_Location, Released] = {}  # all of it together; never changed in place
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
        # By block: the time, the lane, and what it got; of what all of the block know, no more.
        self._acquired: list[list[tuple[int, int, Released]]] = [[] for _ in range(geometry.count)]
        self._known: list[Released] = [{} for _ in range(geometry.count)]
        self._merged = [0] * geometry.count
        self._open: set[int] = set()  # blocks of which lanes may know more than others
        self._tabled: tuple[list[int], Array, Array] | None = None  # as of so many merged; see ``_table``
        self._seen: dict[_Location, dict[int, int]] = {}  # when each lane last read it by a strong load

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
        if acquires and not releases:
            for offset, lane in zip(at.tolist(), lanes.tolist(), strict=True):
                self._seen.setdefault((buffer, offset), {})[lane] = self.clock
        handed = np.zeros(len(lanes), bool)
        if not (self._released or (releases and self._fenced)):
            return handed
        for i, (offset, lane) in enumerate(zip(at.tolist(), lanes.tolist(), strict=True)):
            location = (buffer, offset)
            held = self._released.get(location, {})
            if acquires and held:
                row = lane // self._geometry.threads
                self._acquired[row].append((self.clock, lane, held))
                self._open.add(row)
            if releases and (event := self._release(lane)):
                self._released[location] = _together(held, event)
                handed[i] = True
        return handed

    def observed(self, buffer: int, at: Array, lanes: Array, when: Array) -> Array:
        """Whether a strong load of these lanes (n,), or one of their block before its last barrier, has read
        what an atomic wrote last to the locations ``at`` (n,), at the time ``when``: what is observed comes
        before all that follows (PTX ISA §8.9.5, causality order)."""
        found, threads = np.zeros(len(lanes), bool), self._geometry.threads
        for i, (offset, lane) in enumerate(zip(at.tolist(), lanes.tolist(), strict=True)):
            for other, seen in self._seen.get((buffer, offset), {}).items():
                met = other // threads == lane // threads and seen < self._met[lane // threads]
                found[i] |= seen > when[i] and (other == lane or met)
        return found

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
        if not self._waits(row):
            return self._known[row]
        known, warp_met = self._known[row], self._warp_met[lane // WARP]
        rest = [
            held
            for when, other, held in self._acquired[row]
            if other == lane
            or (other // WARP == lane // WARP and when < warp_met)
            or (
                self._clocks is not None
                and self._clocks.knows(np.array(lane), np.array(other), np.array(when))
            )
        ]
        return reduce(_together, {id(held): held for held in rest}.values(), known)

    def _waits(self, row: int) -> bool:
        """Whether lanes of a block have acquired what the others do not know yet. What they have since met
        with, all know."""
        acquired, met = self._acquired[row], self._met[row]
        if acquired and acquired[0][0] < met:
            common = [held for when, _, held in acquired if when < met]
            self._known[row] = reduce(
                _together, {id(held): held for held in common}.values(), self._known[row]
            )
            self._merged[row] += len(common)
            del acquired[: len(common)]
        return bool(acquired)

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
        if self._is_ordered(lanes, writer, when):
            return np.zeros(len(lanes), bool)
        threads, mine = self._geometry.threads, self._geometry.writer[lanes]
        other = (writer != 0) & (writer != mine)
        if not other.any():
            return np.asarray(other)
        block, thread = np.divmod(writer - 1, threads)
        same_block = block == (mine - 1) // threads
        bad = np.asarray(other)
        if same_block.any():
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

    def _is_ordered(self, lanes: Array, writer: Array, when: Array) -> bool:
        """Whether C finds that none is unordered; where clocks tell, it does not ask them."""
        if (native := library()) is None:
            return False
        of = (np.ascontiguousarray(each, np.int64) for each in (lanes, writer, when))
        return not native.maybe_unordered(*of, *self._in_c)

    def follows(
        self, writer: Array, when: Array, element: Array, lanes: Array, per: int, strong: bool
    ) -> bool:
        """Whether C finds that all writes to ``per`` cells of each element (n,) come before what these lanes
        (n,) do now, but for those of atomics where this is ``strong``. ``when``: stamps, of all cells."""
        if (native := library()) is None:
            return False
        of = writer, when, element, np.ascontiguousarray(lanes, np.int64)
        return not native.maybe_disordered(*of, per, int(strong), SITE_BITS, *self._in_c)

    @property
    def _in_c(self) -> tuple[Array, Array, Array, int, Array, Array]:
        """What orders, as the functions of global.c take it."""
        of = self._geometry
        return of.writer, self._met, self._warp_met, of.threads, *self._table

    def _handed(self, lanes: Array, block: Array, thread: Array, when: Array) -> Array:
        threads = self._geometry.threads
        index, covered = self._table
        known = index[lanes // threads, np.minimum(block, index.shape[1] - 1)]
        found = np.asarray(when < covered[known, thread])
        if not self._open:  # nearly always: all lanes of a block know the same
            return found
        rest = np.flatnonzero(~found & np.isin(lanes // threads, list(self._open)))
        of_lane = {lane: self._knowledge(lane) for lane in set(lanes[rest].tolist())}
        for i in rest:
            of_block = of_lane[int(lanes[i])].get(int(block[i]))
            found[i] = of_block is not None and when[i] < of_block[thread[i]]
        return found

    @property
    def _table(self) -> tuple[Array, Array]:
        """What all lanes of each block here know of each block: the row, (blocks here, blocks), of the times
        before which its threads' writes are covered, and those rows, (n, threads); the first is of none."""
        self._open = set(filter(self._waits, self._open))
        if self._tabled is None or self._tabled[0] != self._merged:
            last = max((max(known, default=0) for known in self._known), default=0)
            index = np.zeros((len(self._known), last + 2), np.int64)
            each = {id(covered): covered for known in self._known for covered in known.values()}
            number = {key: i for i, key in enumerate(each, 1)}
            for row, known in enumerate(self._known):
                index[row, list(known)] = [number[id(covered)] for covered in known.values()]
            nothing = np.zeros(self._geometry.threads, np.int64)
            self._tabled = self._merged.copy(), index, np.stack([nothing, *each.values()])
        return self._tabled[1:]


def _together(one: Released, other: Released) -> Released:
    """The later of both; of those that are alike the same array, so that it is seen to be."""
    found = dict(one)
    for block, covered in other.items():
        held = found.setdefault(block, covered)
        if held is not covered and (later := covered > held).any():
            found[block] = covered if (covered >= held).all() else np.where(later, covered, held)
    return found

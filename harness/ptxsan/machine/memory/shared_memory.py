"""Shared memory: values, bounds of the very variable, races between threads that no barrier orders.

An epoch of a block is what lies between two of its barriers. Two accesses to a byte in one epoch, one of
them a write, by two threads, are a race, unless both are atomic, or both threads are of one warp and a
bar.warp.sync lies between. An asynchronous copy is a write that is pending from its issue
until its thread has waited for it, and then a write of that thread at that moment.

Each instruction's accesses are kept as patterns: in a loop they come again, and nearly all of what is
checked depends on nothing else. Accesses of an epoch are logged; only where a write and another access have a
byte of some block in common is it looked at thread by thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.clocks import Clocks
from ptxsan.checks.proxy import AsyncProxy
from ptxsan.checks.races import SAME, ClockTags, Pattern, PreparedRead, Repeated, Tags
from ptxsan.checks.spare import AccessLog
from ptxsan.checks.undefined import Shadow
from ptxsan.frontend import Variable
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.machine.memory import (
    Change,
    Copies,
    SharedLayout,
    agreed,
    changed,
    gather,
    rewrites,
    scatter,
    update,
)
from ptxsan.machine.memory.ordered import PLAIN, RELAXED, Flags, Strength
from ptxsan.machine.memory.patterns import Patterns
from ptxsan.native import library

_LOGGED = 4096  # accesses, until tags are brought up to date


class SharedMemory:
    """The shared memory of the blocks that run together."""

    def __init__(
        self,
        variables: Sequence[Variable],
        dynamic: int,
        geometry: Geometry,
        granule: int,
        reserved: int = 0,
        clocks: Clocks | None = None,
        asynchronous: bool = False,
        has_flags: bool = False,
    ) -> None:
        me = weakref.proxy(self)  # so that a launch's memory is free at once, not when garbage is collected
        self._geometry, self.granule, self._clocks = geometry, granule, clocks
        self.layout = SharedLayout(variables, dynamic, geometry, reserved, asynchronous)
        self.storage = np.zeros(self.layout.row_size * geometry.count, np.uint8)
        cells = len(self.storage) // granule
        self._written = np.zeros(cells, bool)
        self._patterns = Patterns(self.layout, geometry, granule, self._written)
        self.pattern = self._patterns.find
        self._pending = np.zeros(cells, np.int32)  # thread + 1 of a copy in flight
        self._epoch = np.ones(geometry.count, np.int32)
        self._warp_step = np.zeros(geometry.lanes // WARP, np.int32)
        self._native = library()
        self._last: Array | None = None
        self._tags: Tags | ClockTags | None = None
        self._flags = Flags(clocks) if has_flags else None
        self.proxy: AsyncProxy | None = None
        if clocks is not None:
            self._tags = tags = ClockTags(cells, clocks)
            if asynchronous:
                self.proxy = AsyncProxy(cells, clocks, tags, geometry)
                self.proxy.place = lambda cell: str(me.layout.describe(cell * granule))
                self.proxy.report = lambda *said: me.report(*said)
        self.log = AccessLog(geometry, clocks)
        self._reads = self._writes = 0  # bits of the patterns of the epoch
        self.changes = self._doubts = 0  # how often what was written became undefined again
        self._copies = Copies(geometry.lanes)
        self.visit: Any = None  # (site, lanes, rows) -> None, told of accesses where there are clusters
        self.report: Any = None  # (check, text, site, lane) -> None, set by the machine
        self.undefined: Any = None  # the undefined values of the launch, set by the machine
        self.shadow = Shadow(self.storage, lambda: me._written, lambda: me.granule, lambda: me._doubt())

    # Accesses

    def load(self, site: Site, address: Any, width: int, mask: Mask | None, how: Strength = PLAIN) -> Array:
        if (sampling := self.undefined.sampling) is not None:
            return np.asarray(sampling.load(self, site, address, width, mask))
        if how.sees(site) and self._flags is not None:
            return self._see(self._flags, site, address, width, mask)
        return gather(self.storage, self._read(site, address, width, mask).element, width)

    def prepare(self, site: Site, address: Any, width: int, mask: Mask | None) -> PreparedRead:
        """A load in two parts: what may stop it, and the rest, which happens when it is called."""
        pattern = self.pattern(site, address, width, mask, reads=True)
        if not pattern.known:
            self._check_known(site, pattern)
        return PreparedRead(self, pattern)

    def repeat(self, reads: Repeated) -> bool:
        """Loads that were checked before happen again; False, and nothing happens, where they have to be
        looked at one by one."""
        known = reads.memory is self and reads.doubts == self._doubts
        if not known or self._copies.pending or self._writes & reads.bits:
            return False
        for pattern in reads.patterns:
            pattern.site.count_shared("load", pattern)
        self.log.add(False, reads.patterns, self._warp_step, self._epoch)
        if self.log.unapplied > _LOGGED:
            self.apply()
        self._reads |= reads.bits
        return True

    def repeated(self, patterns: list[Pattern]) -> Repeated | None:
        """Loads of these patterns, for ``repeat``; None where order is kept by more than epochs."""
        plain = self._clocks is None and self.visit is None
        return Repeated.of(self, patterns, self._doubts) if plain else None

    def _read(self, site: Site, address: Any, width: int, mask: Mask | None) -> Pattern:
        pattern = self.pattern(site, address, width, mask)
        if not pattern.known:
            self._check_known(site, pattern)
        self.note_read(site, pattern)
        return pattern

    def _see(self, flags: Flags, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        """A strong load: it races with plain writes alone, and takes what was handed on with its value."""
        pattern = self.pattern(site, address, width, mask)
        pattern.atomic = True
        site.count_shared("load", pattern)
        if not pattern.known:
            self._check_known(site, pattern)
        if self._copies.pending:
            self._check_pending(site, pattern, "reads")
        if self._writes & pattern.bits:
            self._compare(site, pattern, writes=False)
        if self.proxy is not None:
            self.proxy.check_generic(site, pattern, writes=False)
        flags.acquire(pattern.element * width, pattern.lane)
        return gather(self.storage, pattern.element, width)

    def store(
        self, site: Site, address: Any, width: int, values: Array, mask: Mask | None, how: Strength = PLAIN
    ) -> None:
        if (sampling := self.undefined.sampling) is not None:
            sampling.store(self, site, address, width, values, mask)
            return
        pattern = self.pattern(site, address, width, mask)
        site.count_shared("store", pattern)
        pattern.atomic = how.strong and self._flags is not None
        self.check_write(site, pattern, values)
        if self._flags is not None and how.strong:
            self._flags.release(pattern.element * width, pattern.lane, how.releases)
        self.changes += 1
        scatter(self.storage, pattern.element, width, values)

    def update(
        self,
        site: Site,
        address: Any,
        width: int,
        mask: Mask | None,
        change: Change,
        how: Strength = RELAXED,
    ) -> Array:
        """Atomic: each lane's word, one after another; what was there before, (n,) unsigned."""
        if (sampling := self.undefined.sampling) is not None:
            return np.asarray(sampling.update(self, site, address, width, mask))
        pattern = self.pattern(site, address, width, mask)
        pattern.atomic = True
        site.count_shared("store", pattern)
        if not pattern.known:
            self._check_known(site, pattern)
        self.check_write(site, pattern)
        if self._flags is not None:
            self._flags.acquire(pattern.element * width, pattern.lane)
            self._flags.release(pattern.element * width, pattern.lane, how.releases, adds=True)
        before = update(self.storage, pattern.element, width, change)
        self.changes += changed(self.storage, pattern.element, width, before)
        return before

    def note_read(self, site: Site, pattern: Pattern) -> None:
        site.count_shared("load", pattern)
        pattern.atomic = site.guesses
        if self._copies.pending:
            self._check_pending(site, pattern, "reads")
        if self._writes & pattern.bits:
            self._compare(site, pattern, writes=False)
        if self.proxy is not None:
            self.proxy.check_generic(site, pattern, writes=False)
        if not site.guesses:
            self._note(False, pattern)
            self._reads |= pattern.bits

    def check_write(self, site: Site, pattern: Pattern, values: Array | None = None) -> None:
        """``values``: what is written, where that is known."""
        self._check_order(site, pattern, values, "writes")
        self._note(True, pattern)
        self._writes |= pattern.bits
        pattern.set_in(self._written)

    def _check_order(self, site: Site, pattern: Pattern, values: Array | None, verb: str) -> None:
        if not pattern.atomic:
            self._check_clash(site, pattern, values)
        if self._copies.pending:
            self._check_pending(site, pattern, verb)
        if (self._writes | self._reads) & pattern.bits:
            self._compare(site, pattern, writes=True, values=values)
        if self.proxy is not None:
            self.proxy.check_generic(site, pattern, writes=True)

    def copy(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        """cp.async: the bytes arrive at some time between now and the wait."""
        if (sampling := self.undefined.sampling) is not None:
            sampling.store(self, site, address, width, values, mask)
            return
        pattern = self.pattern(site, address, width, mask)
        site.count_shared("copy", pattern)
        self._check_order(site, pattern, values, "copies to")
        cell, lane = pattern.cells
        self._pending[cell] = lane % self._geometry.threads + 1
        self._written[cell] = True
        self._copies.issue(pattern)
        scatter(self.storage, pattern.element, width, values)

    def commit(self, mask: Mask | None) -> None:
        self._copies.commit(mask)

    def wait(self, groups: int, mask: Mask | None) -> None:
        """Until at most so many groups of each lane are in flight: what is done counts as written now."""
        for pattern, done in self._copies.wait(groups, mask):
            cell, lane = pattern.cells
            if done is not None:
                keep = done[lane]
                cell, lane = cell[keep], lane[keep]
            self._pending[cell] = 0
            self._note(True, pattern)
            self._writes |= pattern.bits

    # Undefined values

    def places(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> list[tuple[Any, Shadow, Array]]:
        """Of an access that has been checked: places among the active lanes, shadow, and offsets there."""
        return [(slice(None), self.shadow, self.pattern(site, address, width, mask).element * width)]

    def _doubt(self) -> None:
        """What was written may be undefined again."""
        self._doubts += 1
        for pattern in self._patterns.sure:
            pattern.known = False
        self._patterns.sure.clear()

    # Order

    def barrier(self, blocks: Array) -> None:
        """All threads of these blocks, (B,) bool, have met."""
        everywhere = bool(blocks.all()) and self._geometry.cluster_size == 1
        if not everywhere or self._clocks is not None:
            self.apply()  # what was logged belongs to the epoch that ends here
        self._epoch = self._epoch + blocks
        if everywhere:
            self.log.clear()
            self._reads = self._writes = 0

    def warp_barrier(self, mask: Mask | None) -> None:
        """__syncwarp: the lanes of a warp have met."""
        self._warp_step = self._warp_step + (1 if mask is None else mask.warps)

    # Checks

    def _note(self, write: bool, pattern: Pattern) -> None:
        if self.visit is not None:
            self.visit(pattern.site, pattern.lane, pattern.element * pattern.width // self.layout.row_size)
        now = self._warp_step if self._clocks is None else self._clocks.now
        self.log.add(write, [pattern], now, self._epoch)
        if self.log.unapplied > _LOGGED:
            self.apply()

    def apply(self) -> None:
        """Bring the tags up to the end of the log, in its order."""
        if self._tags is None:
            alone = self._geometry.cluster_size == 1
            self._tags = Tags(len(self._written), self._geometry, self._native if alone else None)
        self.log.apply(self._tags)

    def _compare(self, site: Site, pattern: Pattern, writes: bool, values: Array | None = None) -> None:
        self.apply()
        assert self._tags is not None
        same = None
        if values is not None:
            same = partial(rewrites, self.storage, pattern.element, pattern.width, values)
        clash = self._tags.clash(pattern, writes, self._epoch, self._warp_step, same)
        if clash is None:
            return
        cell, lane, other, was_write, harmless = clash
        verb, did = "writes" if writes else "reads", "wrote" if was_write else "read"
        who = f"thread {other}" if other >= 0 else "other threads"
        if self._clocks is not None:
            who = self._geometry.other(other, lane)
        place = self.layout.describe(cell * self.granule)
        what = f"{verb} {place}, which {who} {did} with no barrier between"
        if writes and not was_write:
            now = self._epoch, self._warp_step
            if (held := self.log.unread(pattern, *now)) is not None:
                for earlier, kept in held:
                    self.undefined.doubt(kept, what, site, lane, earlier)
                return
        before = self.log.before(cell, lane, was_write)
        self.report("race", what + SAME * harmless, site, lane, note=harmless, before=before)

    def _check_known(self, site: Site, pattern: Pattern) -> None:
        if pattern.all_of(self._written):
            pattern.known = True
            self._patterns.sure.append(pattern)
            return
        cell, lane = pattern.cells
        known = self._written[cell]
        unknown = np.flatnonzero(~known)
        place = int(cell[unknown[0]]) * self.granule
        why = self.layout.alignment(self.layout.variable(place))
        self.undefined.saw(site, f"{self.layout.describe(place)}, which no thread wrote{why}", lane[unknown])

    def _check_pending(self, site: Site, pattern: Pattern, verb: str) -> None:
        if not self._copies.overlap(pattern):
            return
        cell, lane = pattern.cells
        pending = self._pending[cell]
        if pending.any():
            i = int(np.argmax(pending != 0))
            who = f"thread {int(pending[i]) - 1}"
            place = self.layout.describe(int(cell[i]) * self.granule)
            what = f"{verb} {place}, where an asynchronous copy of {who} is in flight"
            self.report("race", what, site, int(lane[i]))

    def _check_clash(self, site: Site, pattern: Pattern, values: Array | None) -> None:
        """Two threads that write one byte with one instruction."""
        if self._last is None:
            self._last = np.zeros(len(self._written), np.int32)
        if pattern.clash is None and pattern.alone(self._last):
            pattern.clash = (-1, -1)
        if pattern.clash is None:
            cell, lane = pattern.cells
            self._last[cell] = lane
            bad = self._last[cell] != lane
            pattern.clash = (
                (int(np.argmax(bad)), int(self._last[cell[np.argmax(bad)]])) if bad.any() else (-1, -1)
            )
        i, other = pattern.clash
        if i < 0:
            return
        cell, lane = pattern.cells
        harmless = values is not None and bool((alike := agreed(pattern.element, values)).all())
        if values is not None and not harmless:  # of several, two that do not agree
            at = int(np.argmin(alike))
            there = np.flatnonzero(pattern.element == pattern.element[at])
            differ = (values[there] != values[at]).reshape(len(there), -1).any(axis=1)
            i, other = at * pattern.per, int(pattern.lane[there[differ][-1]])
        t = int(self._geometry.thread[other])
        place = self.layout.describe(int(cell[i]) * self.granule)
        what = f"writes {place}, as thread {t} does with the same instruction"
        self.report("race", what + SAME * harmless, site, int(lane[i]), note=harmless)

    # Whole pieces, of the async proxy

    def put(self, start: int, cells: Array, values: Array) -> None:
        """Bytes (n,) as the async proxy writes them."""
        self.storage[start : start + len(values)] = values
        self._written[cells] = True

    def check_idle(self, site: Site, lane: int, cells: Array, verb: str) -> None:
        """That no cp.async to these cells is in flight."""
        if self._copies.pending and self._pending[cells].any():
            place = self.layout.describe(int(cells[np.argmax(self._pending[cells] != 0)]) * self.granule)
            self.report("race", f"{verb} {place}, where an asynchronous copy is in flight", site, lane)

    def check_written(self, site: Site, lane: int, cells: Array) -> None:
        known = not len(cells) or (self._native is not None and self._native.all_set(self._written, cells, 1))
        if not known and not self._written[cells].all():
            place = self.layout.describe(int(cells[np.argmin(self._written[cells])]) * self.granule)
            self.undefined.saw(site, f"{place}, which no thread wrote", np.array([lane]))

    def hand_over(self, site: Site, mask: Mask | None) -> list[tuple[int, Array]]:
        """The cp.async in flight of these lanes end with an mbarrier in place of a wait: (lane, cells)."""
        found = []
        for pattern, done in self._copies.wait(-1, mask):
            cell, lane = pattern.cells
            if done is not None:
                cell, lane = cell[done[lane]], lane[done[lane]]
            self._pending[cell] = 0
            found += [(int(one), cell[lane == one]) for one in np.unique(lane)]
        return found

"""Registers that a wgmma in flight still reads or writes, and those touched without a wgmma.fence (PTX ISA
§9.7.15.4).

A warp must not touch the accumulators of a wgmma before it has waited for its group, nor change a fragment
of A. Of what it touched otherwise, a wgmma.fence has to stand before the next wgmma. A move hands on what a
register is: nvcc copies accumulators from name to name, and ptxas gives them one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.clocks import Clocks, Handed
from ptxsan.checks.races import ClockTags, Pattern
from ptxsan.frontend import Instruction, Register, Vector, register_names
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.native import library

Run = Callable[[Mask | None], None]


def is_move(i: Instruction) -> bool:
    return i.op.startswith("mov.") and len(i.operands) == 2 and isinstance(i.operands[0], Register)


class InFlight:
    """Of one kernel; ``watched`` are the registers that its wgmmas use, and those they are moved from and
    to."""

    OF_BLOCKS = ("_warps", "_now", "_of_d", "_of_a", "_touched", "_committed", "_done", "_fenced", "_started")

    def __init__(self, code: Sequence[Instruction]) -> None:
        used = [i for i in code if i.op.startswith("wgmma.mma_async")]
        self.watched = {
            name
            for i in used
            for o in i.operands[:2]
            if isinstance(o, Vector)
            for name in register_names([o])
        }
        moves = [
            (register_names([i.operands[0]]), register_names([i.operands[1]]))
            for i in code
            if used and is_move(i)
        ]
        size = -1
        while used and size != len(self.watched):
            size = len(self.watched)
            for to, source in moves:
                if self.watched & {*to, *source}:
                    self.watched |= {*to, *source}
        self._places = {name: place for place, name in enumerate(sorted(self.watched), 1)}
        self.report: Any = None
        self.enter(WARP)

    def enter(self, lanes: int) -> None:
        """So many lanes run from now on."""
        self._warps = lanes // WARP
        self._now = 1
        # By the register's place, 0 for none, and by warp: the group, from 1; when it was touched.
        self._of_d, self._of_a, self._touched = np.zeros((3, len(self._places) + 1, self._warps), np.int64)
        self._committed, self._done, self._fenced, self._started = np.zeros((4, self._warps), np.int64)

    def _at(self, mask: Mask | None) -> Array:
        return np.ones(self._warps, bool) if mask is None else mask.warps

    # What orders

    def fence(self, mask: Mask | None) -> None:
        self._now += 1
        self._fenced[self._at(mask)] = self._now

    def commit(self, mask: Mask | None) -> None:
        self._committed[self._at(mask)] += 1

    def wait(self, most: int, mask: Mask | None) -> None:
        at = self._at(mask)
        self._done[at] = np.maximum(self._done, self._committed - most)[at]

    # What touches

    def watch(self, i: Instruction, writes: int, site: Site, run: Run) -> Run:
        """The instruction, with what it touches looked at first."""
        if i.op.startswith("wgmma.mma_async"):
            return self._mma(i, site, run)
        to, of = register_names(i.operands[:writes]), register_names(i.operands[writes:])
        mine = self.watched & {*to, *of}
        if not mine:
            return run
        if is_move(i):
            return self._move(to[0], of[0] if of else "", site, run)
        reads, changes = ([n for n in names if n in self.watched] for names in (of, to))
        touched, changed = self._places_of(reads + changes), self._places_of(changes)

        def touching(mask: Mask | None) -> None:
            at = self._at(mask)
            self._now += 1
            self._check(self._of_d, reads + changes, touched, at, site)
            self._touched[touched[:, None], np.flatnonzero(at)] = self._now
            self._check(self._of_a, changes, changed, at, site)
            run(mask)

        return touching

    def _places_of(self, names: list[str]) -> Array:
        return np.array([self._places.get(name, 0) for name in names], np.int64)

    def _move(self, to: str, of: str, site: Site, run: Run) -> Run:
        place, source = places = self._places_of([to, of])

        def moved(mask: Mask | None) -> None:
            at = self._at(mask)
            if not (at & (self._of_d[source] > self._done)).any():
                self._check(self._of_d, [to], places[:1], at, site)
            for marks in (self._of_d, self._touched):
                marks[place, at] = marks[source, at]
            run(mask)

        return moved

    def _mma(self, i: Instruction, site: Site, run: Run) -> Run:
        out = self._places_of(register_names(i.operands[:1]))
        in_registers = isinstance(i.operands[1], Vector)
        fragments = self._places_of(register_names(i.operands[1:2]) if in_registers else [])
        used = np.concatenate([out, fragments])

        def started(mask: Mask | None) -> None:
            at = self._at(mask)
            last = self._touched[used].max(axis=0)
            # A fence since the last wgmma counts, even if nvcc has moved what touches past it.
            bad = at & ((self._fenced == 0) | ((last > self._fenced) & (self._started > self._fenced)))
            if bad.any():
                what = "uses registers that were accessed since the last wgmma.fence"
                self.report("race", what, site, int(np.argmax(bad)) * WARP)
            run(mask)
            self._now += 1
            self._started[at] = self._now
            warps = np.flatnonzero(at)
            for marks, places in ((self._of_d, out), (self._of_a, fragments)):
                marks[places[:, None], warps] = (self._committed + 1)[warps]

        return started

    def _check(self, marks: Array, names: list[str], places: Array, at: Array, site: Site) -> None:
        bad = at & (marks[places] > self._done)
        for name, warps in zip(names, bad, strict=True) if bad.any() else ():
            if warps.any():
                what = (
                    f"touches {name.split('@')[0]}, which a wgmma in flight uses: no wgmma.wait_group before"
                )
                self.report("race", what, site, int(np.argmax(warps)) * WARP)


# The async proxy's accesses to shared memory (PTX ISA §8 and §9.7.9.25): bulk copies, their sources, wgmma.
#
# A copy that an mbarrier completes is a write from its issue on; who has seen the phase complete comes
# after it. A read (by a bulk store or by wgmma) lasts until its threads have waited for its group; then it
# counts as their read at that time. Writes of the generic proxy come before the async proxy's accesses only
# past a fence.proxy.async.


# Who does something: some lane of each must be ordered. One lane for a copy, the four warps for wgmma.
Actors = Sequence[Array]


@dataclass
class AsyncAccess:
    """An access in flight, and who knows of its end. A write: the mbarrier's number and its phase; a read:
    for each of ``actors`` the time since which it is over, 0 while it is not. ``ends``: the phases, as
    (number, phase), of which each tells that a read which tcgen05.commit tracks is over."""

    site: Site | None
    actors: Actors
    number: int = -1
    phase: int = 0
    over: list[int] = field(default_factory=list)
    ends: Callable[[], list[tuple[int, int]]] | None = None
    reduces: bool = False  # a write that is an atomic
    handed: Handed | None = None  # what its end tells of the actors: what they knew as they began it

    @property
    def name(self) -> str:
        return self.site.instruction.op if self.site else ""


class AsyncProxy:
    """Of the blocks that run together; ``report`` and ``place``, which names a cell, are their owner's."""

    report: Any = None
    place: Any = None

    def __init__(self, cells: int, clocks: Clocks, tags: ClockTags, geometry: Geometry) -> None:
        self._cells, self._clocks, self._tags, self._geometry = cells, clocks, tags, geometry
        self._written = np.zeros(cells, np.int32)  # the last write, by its place in operations
        self._read: dict[int, Array] = {}  # by warp of the reader in its cluster: its last read
        self._operations: list[AsyncAccess] = [AsyncAccess(None, [])]
        self._reduce: list[int] = []  # the atomics among them
        self._native, self._found = library(), np.zeros(64, np.int32)
        self._ends = np.zeros((2, 256), np.int64)  # of each: column of its mbarrier, and phase
        self._known = np.zeros(
            (256, clocks.group), bool
        )  # of each read: who of its cluster knows that it is over

    # The async proxy's own accesses

    def write(
        self,
        site: Site,
        lane: int,
        cells: Array,
        number: int,
        phase: int,
        generic: bool = False,
        reduces: bool = False,
    ) -> None:
        """A copy to these cells (n,) that this lane asked for, of which a phase of the mbarrier of this
        number tells. ``generic``: by that proxy; ``reduces``: as an atomic, which races with no other one."""
        actors = [np.array([lane])]
        self._check(site, actors, cells, "stores to" if generic else "copies to", True, generic, reduces)
        self._written[cells] = self._new(AsyncAccess(site, actors, number, phase, reduces=reduces))

    def adopt(self, site: Site, lane: int, cells: Array, number: int, phase: int) -> None:
        """Copies of a thread, checked before, of which from now on this phase tells (cp.async)."""
        self._written[cells] = self._new(AsyncAccess(site, [np.array([lane])], number, phase))

    def read(self, site: Site, actors: Actors, cells: Array) -> AsyncAccess:
        """A read of these cells (n,); it goes on until it is ``end``ed for each of the actors."""
        self._check(site, actors, cells, "reads", False)
        operation = AsyncAccess(site, actors, over=[0] * len(actors))
        warp = int(actors[0][0]) % self._clocks.group // 32
        if warp not in self._read:
            self._read[warp] = np.zeros(self._cells, np.int32)
        self._read[warp][cells] = self._new(operation)
        return operation

    def end(self, operation: AsyncAccess, actor: int) -> None:
        """The actor has waited for a read."""
        operation.over[actor] = operation.over[actor] or self._clocks.now

    def _new(self, operation: AsyncAccess) -> int:
        number = len(self._operations)
        self._operations.append(operation)
        if operation.reduces:
            self._reduce.append(number)
        if number == self._ends.shape[1]:
            self._ends = np.hstack([self._ends, np.zeros_like(self._ends)])
            self._known = np.vstack([self._known, np.zeros_like(self._known)])
        self._ends[:, number] = operation.number, operation.phase
        return number

    # Checks

    def _check(
        self,
        site: Site,
        actors: Actors,
        cells: Array,
        verb: str,
        writes: bool,
        generic: bool = False,
        reduces: bool = False,
    ) -> None:
        lane = int(actors[0][0])
        clear, ended = self._clear(actors, cells, generic)
        if not clear and self._tags.when[cells].any():
            who, when = self._tags.who[cells], self._tags.when[cells]
            seen = when > 0
            both = np.unique(when[seen] * np.int64(self._geometry.lanes) + who[seen])
            then, others = np.divmod(both, self._geometry.lanes)
            orders = [(self._clocks.knows, "nothing between"), (self._clocks.sees, _FENCE)]
            for sees, why in orders[: 1 if generic else 2]:
                ok = [sees(a[:, None], others, then).any(axis=0) for a in actors]
                bad = ~np.logical_and.reduce(ok)
                if bad.any():
                    when_bad, other = then[np.argmax(bad)], others[np.argmax(bad)]
                    cell = int(cells[np.argmax((when == when_bad) & (who == other))])
                    said = f"which {self._thread(int(other), lane)} wrote with {why}"
                    # CUTLASS hands on what cp.async brings to wgmma with no fence.
                    note = why == _FENCE and bool(self._tags.copied[cell])
                    self._tell(site, lane, verb, cell, said, note)
                    return
        if writes:
            kinds = [(self._tags.reads, "read"), (self._tags.atomics, "changed")]
            for planes, did in kinds[: 1 if reduces else 2]:
                if planes.ordered(cells, actors[0][:1], 1):
                    continue
                i, other = planes.unordered(cells, np.full(len(cells), lane))
                if i >= 0:
                    said = f"which {self._thread(other, lane)} {did} with nothing between"
                    self._tell(site, lane, verb, int(cells[i]), said)
                    return
        for what, plane, bad_of in self._records(writes)[ended:]:
            for number in self._numbers(plane, cells):
                operation = self._operations[number]
                if not (reduces and operation.reduces) and bad_of(number, actors):
                    cell = int(cells[np.argmax(plane[cells] == number)])
                    self._tell(site, lane, verb, cell, f"{what} {operation.name} is still {_DOING[what]}")
                    return

    def _records(self, writes: bool) -> list[tuple[str, Array, Any]]:
        found = [("to which a", self._written, self._unseen)]
        return found + [("which a", plane, self._unread) for plane in self._read.values() if writes]

    def _clear(self, actors: Actors, cells: Array, generic: bool) -> tuple[bool, bool]:
        """Whether C finds that writes by the generic proxy come before the actors' access, and that copies
        have ended as far as they know."""
        each, lanes = len(actors[0]), actors[0] if len(actors) == 1 else np.concatenate(actors)
        if self._native is None or len(lanes) != each * len(actors):
            return False, False
        of, clocks = (cells, lanes, each), self._clocks
        planes = clocks.known, clocks.floor, clocks.fenced
        return (
            not self._native.write_uncovered(
                self._tags.who, self._tags.when, *of, *planes, clocks.group, generic
            ),
            not self._native.copy_uncovered(self._written, self._ends, *of, clocks.known, clocks.group),
        )

    def _numbers(self, plane: Array, cells: Array) -> list[int]:
        """Of the operations on cells, (cells,), those on these cells (n,), each once and in order."""
        if self._native is not None and (n := self._native.numbers_of(plane, cells, self._found)) >= 0:
            return sorted(self._found[:n].tolist())
        return [n for n in np.unique(plane[cells]).tolist() if n]

    def _unseen(self, number: int, actors: Actors) -> bool:
        """Whether some actor has not seen a copy complete."""
        mbarrier, phase = self._ends[:, number].tolist()
        return not all(self._clocks.completed(a, mbarrier, phase).any() for a in actors)

    def _unread(self, number: int, actors: Actors) -> bool:
        """Whether for some actor a read is not over."""
        return not all(self._is_over(number, a).any() for a in actors)

    def _is_over(self, number: int, lanes: Array) -> Array:
        """Of each of these lanes (n,), whether a read is over as far as it knows; asked until it does."""
        known, places = self._known[number], lanes % self._clocks.group
        asked = ~known[places]
        if asked.any():
            known[places[asked]] = self._learns(self._operations[number], lanes[asked])
        return np.asarray(known[places])

    def _learns(self, operation: AsyncAccess, lanes: Array) -> Array:
        over = np.zeros(len(lanes), bool)
        if operation.ends is not None:
            for number, phase in operation.ends():
                over |= self._clocks.completed(lanes, np.array(number), np.array(phase))
            return over
        # A warp that has waited for a wgmma speaks for its warpgroup: all of it is one operation.
        for readers, when in zip(operation.actors, operation.over, strict=True):
            if when and not over.all():
                over |= self._clocks.knows(lanes[:, None], readers, np.array(when)).any(axis=1)
        return over

    def check_generic(self, site: Site, pattern: Pattern, writes: bool) -> None:
        """An access of the generic proxy against those of the async proxy."""
        if len(self._operations) == 1:
            return
        if self._is_clear(pattern, writes):
            return
        cell, lane = pattern.cells
        verb = "writes" if writes else "reads"
        of_cells = self._written[cell]
        if of_cells.any():
            column, phase = self._ends[:, of_cells]
            bad = (of_cells > 0) & ~self._clocks.completed(lane, column, phase)
            if pattern.atomic and self._reduce:
                bad &= ~np.isin(of_cells, self._reduce)
            if bad.any():
                i = int(np.argmax(bad))
                name = self._operations[of_cells[i]].name
                said = f"to which a {name} is still writing as far as it knows"
                self._tell(site, int(lane[i]), verb, int(cell[i]), said)
                return
        for plane in self._read.values() if writes else ():
            of_cells = plane[cell]
            asked = (of_cells > 0) & ~self._known[of_cells, lane % self._clocks.group]
            for number in np.unique(of_cells[asked]):
                at = np.flatnonzero(of_cells == number)
                lanes = np.unique(lane[at])
                over = self._is_over(number, lanes)
                if not over.all():
                    one = lanes[np.argmin(over)]
                    i = int(at[np.argmax(lane[at] == one)])
                    name = self._operations[number].name
                    said = f"which a {name} is still reading as far as it knows"
                    self._tell(site, int(one), verb, int(cell[i]), said)
                    return

    def _is_clear(self, pattern: Pattern, writes: bool) -> bool:
        """Whether C finds that what the async proxy did there has ended as far as each lane knows."""
        if self._native is None or (pattern.atomic and self._reduce):
            return False
        clocks, of = self._clocks, (pattern.element, pattern.lane, pattern.per)
        planes = self._read.values() if writes else ()
        return not (
            self._native.copy_unseen(self._written, self._ends, *of, clocks.known, clocks.group)
            or any(self._native.read_unseen(plane, self._known, *of, clocks.group) for plane in planes)
        )

    def _thread(self, lane: int, near: int) -> str:
        return self._geometry.other(lane, near)

    def _tell(self, site: Site, lane: int, verb: str, cell: int, said: str, note: bool = False) -> None:
        self.report("race", f"{verb} {self.place(cell)}, {said}", site, lane, note)


_FENCE = "no fence.proxy.async between"
_DOING = {"to which a": "writing as far as it knows", "which a": "reading as far as it knows"}

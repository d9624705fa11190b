"""Who has exited, and whether they had gone past a barrier or a shuffle that others of their warp wait at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.checks.clocks import Handed
from ptxsan.frontend import Instruction, PtxError
from ptxsan.lanes import WARP, Array, Geometry, Mask, full, mask_of
from ptxsan.machine import Builder, Read, Write
from ptxsan.machine.state import KernelState
from ptxsan.machine.table import traits


class Exits:
    """Of the blocks that run together. ``after``: for each basic block those that may come next."""

    def __init__(self, geometry: Geometry, after: Sequence[Sequence[int]]) -> None:
        self.living = np.ones(geometry.lanes, bool) if geometry.living is None else geometry.living
        self.alive = self.living
        self._at = np.full(geometry.lanes, -1)
        self._after = after
        self._reached: dict[int, Array] = {}

    def add(self, lanes: Array | None, at: int) -> None:
        """These (None for all) exit at the end of a basic block; −1 for one with nothing else in it, as an
        early return is."""
        self._at[slice(None) if lanes is None else lanes] = at
        self.alive = np.zeros_like(self.alive) if lanes is None else self.alive & ~lanes

    def past(self, at: int) -> Array:
        """The lanes, (lanes,) bool, that have exited at the end of code which comes after the basic block
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


# Barriers of a block of threads: bar.sync, bar.arrive and bar.red, barrier.* (PTX ISA §9.7.13.1).
#
# A barrier is one of sixteen numbers, whichever instruction names it: warps that come to it from different
# branches meet there. Arrivals are counted by warps: one has arrived when all its threads have that have not
# exited. Without a count a barrier waits for all threads of the block that have not exited; with one for so
# many, in whole warps, and exiting counts for nothing.
#
# Undefined, and so an error: an .aligned one (every bar.* is) that the threads of a warp do not reach by the
# same instruction, or that some of them go past; .red mixed with the others; different counts at once. What
# CUDA C++ does not allow of __syncthreads(), which is bar.sync 0, but PTX defines, is a note: warps that meet
# from different instructions, and threads of a warp that exit straight away where the others go on to it.
@dataclass(frozen=True)
class Barrier:
    """bar.sync, bar.arrive and bar.red: number, count of threads (None for the whole block), reduction."""

    number: Read
    count: Read | None
    waits: bool
    aligned: bool
    site: Site
    reduction: str = ""
    put: Write | None = None
    source: Read | None = None

    @classmethod
    def of(cls, b: Builder, i: Instruction, site: Site) -> Barrier:
        words, operands = i.op.split("."), list(i.operands)
        action = traits(i.op).barrier
        aligned = words[0] == "bar" or "aligned" in words
        target = operands.pop(0) if action == "red" else None
        predicate = operands.pop() if action == "red" else None
        number = b.read(operands[0], "u32")
        count = b.read(operands[1], "u32") if len(operands) > 1 else None
        if target is None or predicate is None:
            if action == "arrive" and count is None:
                raise PtxError("bar.arrive needs a count of threads")
            return cls(number, count, action == "sync", aligned, site)
        if words[-1] not in ("u32", "pred"):
            raise PtxError("not supported")
        reduction = next(word for word in words if word in ("popc", "and", "or"))
        put, source = b.write(target), b.read(predicate, "pred")
        return cls(number, count, True, aligned, site, reduction, put, source)


def counts(instruction: Instruction) -> bool:
    """Whether it is a barrier for a number of threads, and not for all of the block."""
    action = traits(instruction.op).barrier
    return bool(action) and len(instruction.operands) > (3 if action == "red" else 1)


# Who goes on, from which place: lanes, None for all.
Free = list[tuple[int, Array | None]]


@dataclass
class _Meeting:
    """At one barrier, of all blocks: who waits at which place in the code, how often each lane has arrived,
    where, and ``since`` when, and for how many threads each block waits, 0 for all, −1 before the first
    arrival."""

    times: Array
    at: Array
    want: Array
    since: Array
    waiting: dict[int, Array] = field(default_factory=dict)
    given: dict[int, Handed] = field(default_factory=dict)  # by bar.arrive, by block


class Barriers:
    """Who waits at the barriers of the blocks that run together. ``places`` are the basic blocks that end
    in a barrier; ``state`` is told who has met."""

    def __init__(
        self, geometry: Geometry, places: Mapping[int, Barrier], state: KernelState, tell: Tell, exits: Exits
    ) -> None:
        self._geometry, self._places, self._state, self._tell = geometry, places, state, tell
        self._exits = exits
        self._meetings: dict[int, _Meeting] = {}
        self._past: dict[int, Array] = {}  # of each barrier's last phase: when each lane came to it, or 0

    def arrive(self, at: int, lanes: Array | None) -> Free:
        """Lanes (None for all) come to the barrier at a place. Who goes on now, from which place."""
        barrier = self._places[at]
        if lanes is None and barrier.count is None and not self._meetings:
            number = barrier.number()
            if number.ndim == 0 and self._exits.alive.all():
                self._reduce({at: self._exits.alive})
                self._state.barrier(np.ones(self._geometry.count, bool))
                self._past.clear()
                return [(at, None)]
        lanes = full(True, self._geometry.lanes) if lanes is None else lanes
        numbers = full(barrier.number(), self._geometry.lanes)
        free: Free = [] if barrier.waits else [(at, lanes)]
        for number in np.unique(numbers[lanes]).tolist():
            self._join(number, at, lanes & (numbers == number))
            free += self._open(number)
        return free

    def exit(self) -> Free:
        """Some have exited: who need not wait any longer."""
        return [free for number in list(self._meetings) for free in self._open(number)]

    def stuck(self) -> None:
        """Nobody runs any more. Raises Trap if somebody waits."""
        waiting = [(at, lanes) for m in self._meetings.values() for at, lanes in m.waiting.items()]
        if not waiting:
            return
        at, lanes = min(waiting, key=lambda each: each[0])
        threads, size = self._geometry.threads, self._geometry.size
        row = int(np.argmax(lanes)) // threads
        there = int(lanes.reshape(-1, threads)[row].sum())
        others = [
            f"{n} at PTX line {self._line(b)}"
            for b, other in sorted(waiting, key=lambda each: each[0])
            if b != at and (n := int(other.reshape(-1, threads)[row].sum()))
        ]
        where = f"; {', '.join(others)}" if others else "; the others went past it"
        what = f"waits at a barrier that {there} of the {size} threads of the block reached{where}"
        raise Trap("barrier", what, self._places[at].site, int(np.argmax(lanes)))

    # A meeting

    def _join(self, number: int, at: int, lanes: Array) -> None:
        g, barrier = self._geometry, self._places[at]
        if number not in self._meetings:
            zeros = np.zeros(g.lanes, np.int32)
            self._meetings[number] = _Meeting(zeros, zeros.copy(), np.full(g.count, -1), zeros.copy())
        meeting = self._meetings[number]
        self._check_again(number, meeting, at, lanes)
        meeting.times[lanes] += 1
        meeting.at[lanes] = at
        if not barrier.waits:
            for row in np.flatnonzero(lanes.reshape(g.count, -1).any(axis=1)).tolist():
                there = row * g.threads + np.flatnonzero(lanes.reshape(g.count, -1)[row])
                meeting.given[row] = self._state.release(there, meeting.given.get(row))
        else:
            meeting.waiting[at] = meeting.waiting.get(at, np.zeros(g.lanes, bool)) | lanes
        count = full(np.int64(0) if barrier.count is None else barrier.count(), g.lanes)
        want = np.where(lanes, count.astype(np.int64), -1).reshape(g.count, g.threads).max(axis=1)
        if (odd := (want > 0) & (want % WARP != 0)).any():
            what = f"comes to barrier {number} for {int(want[np.argmax(odd)])} threads: no whole warps"
            self._say(what, at, lanes & np.repeat(odd, g.threads))
            want = -(-want // WARP) * WARP
        if (other := (want >= 0) & (meeting.want >= 0) & (want != meeting.want)).any():
            counts = [int(each[np.argmax(other)]) or "all" for each in (want, meeting.want)]
            what = f"comes to barrier {number} for {counts[0]} threads, where others wait for {counts[1]}"
            self._say(what, at, lanes & np.repeat(other, g.threads))
        meeting.want = np.maximum(meeting.want, want)

    def _check_again(self, number: int, meeting: _Meeting, at: int, lanes: Array) -> None:
        """That who comes to a barrier knows its last phase to be complete. If not, this arrival may count for
        that phase, and complete it without those that are to come."""
        g, clocks, past = self._geometry, self._state.clocks, self._past.get(number)
        if (early := lanes & (meeting.times > 0)).any():
            self._say(f"comes to barrier {number} again, which it has come to and which waits", at, early)
        if clocks is None:
            return
        meeting.since[lanes] = clocks.now
        if past is None or past.max() <= clocks.floor.min():
            return
        for warp in np.flatnonzero(lanes.reshape(-1, WARP).any(axis=1)).tolist():
            mine = warp * WARP + np.flatnonzero(lanes[warp * WARP : (warp + 1) * WARP])
            start = warp * WARP // g.threads * g.threads
            others = start + np.flatnonzero(past[start : start + g.threads])
            missed = others[~clocks.knows(mine[:, None], others, past[others]).any(axis=0)]
            if len(missed):
                who = g.other(int(missed[0]), int(mine[0]))
                what = (
                    f"comes to barrier {number} again, with nothing that shows that {who} came to it before"
                )
                self._say(what, at, mask_of(mine, g.lanes).bits)
                return

    def _open(self, number: int) -> Free:
        """Lets go, block by block, whoever has met at a barrier."""
        meeting, g = self._meetings[number], self._geometry
        free: Free = []
        while True:
            here = meeting.times > 0
            blocks, alive = here.reshape(g.count, -1), self._exits.alive.reshape(g.count, -1)
            whole = (meeting.want == 0) & blocks.any(axis=1) & (blocks | ~alive).all(axis=1)
            counted, chosen = self._counted(meeting, here)
            if not (whole | counted).any():
                break
            chosen |= np.repeat(whole, g.threads) & here
            waits = {at: w & chosen for at, w in meeting.waiting.items() if (w & chosen).any()}
            self._check(number, meeting, chosen, whole)
            self._reduce(waits)
            self._order(meeting, waits, whole, counted)
            meeting.times[chosen] -= 1
            past = self._past.setdefault(number, np.zeros(g.lanes, np.int32))
            past[np.repeat(whole | counted, g.threads)] = 0
            past[chosen] = meeting.since[chosen]
            meeting.want[~(meeting.times > 0).reshape(g.count, -1).any(axis=1)] = -1
            for at, lanes in waits.items():
                meeting.waiting[at] = meeting.waiting[at] & ~lanes
                if not meeting.waiting[at].any():
                    del meeting.waiting[at]
                free.append((at, None if lanes.all() else lanes))
        if not meeting.times.any():
            del self._meetings[number]
        return free

    def _order(self, meeting: _Meeting, waits: dict[int, Array], whole: Array, counted: Array) -> None:
        """What those that met, and that gave by bar.arrive, did comes before what those do that waited."""
        g = self._geometry
        waiting = np.logical_or.reduce([np.zeros(g.lanes, bool), *waits.values()]).reshape(g.count, -1)
        alive = self._exits.alive.reshape(g.count, -1)
        entire = whole | (counted & (waiting | ~alive).all(axis=1))
        entire &= [row not in meeting.given for row in range(g.count)]
        # Blocks of which every thread has exited wait for nothing.
        self._state.barrier(entire | ~alive.any(axis=1))
        for row in np.flatnonzero((whole | counted) & ~entire).tolist():
            given = meeting.given.pop(row, None)
            if waiting[row].any():  # else all of them have only arrived
                self._state.meet(row * g.threads + np.flatnonzero(waiting[row]), given)

    def _counted(self, meeting: _Meeting, here: Array) -> tuple[Array, Array]:
        """Of the barriers with a count: which blocks have enough, and the lanes of the warps that make it up,
        the first ones of those that have come."""
        g = self._geometry
        chosen = np.zeros(g.lanes, bool)
        counted = np.zeros(g.count, bool)
        if (meeting.want > 0).any():
            # A warp counts once all its threads have come that have not exited.
            warps = (here | ~self._exits.alive).reshape(-1, WARP).all(axis=1) & here.reshape(-1, WARP).any(
                axis=1
            )
            total = np.cumsum(WARP * warps.reshape(g.count, -1), axis=1)
            counted = (meeting.want > 0) & (total[:, -1] >= meeting.want)
            enough = counted[:, None] & (total <= meeting.want[:, None])
            chosen = np.repeat(enough.ravel() & warps, WARP) & here
        return counted, chosen

    def _check(self, number: int, meeting: _Meeting, chosen: Array, whole: Array) -> None:
        places = np.unique(meeting.at[chosen])
        if len(places) > 1:
            self._apart(number, meeting.at, chosen, whole)
            if len({bool(self._places[int(at)].reduction) for at in places}) > 1:
                what = f"meets bar.red with another form of barrier {number}"
                self._say(what, int(places[0]), chosen & (meeting.at == places[0]))
        # A warp that has exited as a whole is missed by nobody.
        gone = (self._exits.living & ~self._exits.alive & ~chosen).reshape(-1, WARP)
        halves = chosen.reshape(-1, WARP).any(axis=1) & gone.any(axis=1)
        if halves.any():
            past = gone & np.logical_or.reduce([self._exits.past(int(at)) for at in places]).reshape(-1, WARP)
            past = halves & past.any(axis=1)
            half = chosen & np.repeat(past if past.any() else halves, WARP)
            lane = int(np.argmax(half))
            barrier = self._places[int(meeting.at[lane])]
            how = "went past before they exited" if past.any() else "left out by exiting"
            what = f"waits at a barrier that {int(gone[lane // WARP].sum())} threads of its warp {how}"
            if barrier.aligned:
                self._say(what, int(meeting.at[lane]), half, note=not past.any())

    def _apart(self, number: int, at: Array, chosen: Array, whole: Array) -> None:
        """Of those who met, some came by other instructions: within a warp an error, else a note."""
        g, far = self._geometry, max(self._places) + 1
        low = np.where(chosen, at, far).reshape(-1, WARP).min(axis=1)
        top = np.where(chosen, at, -1).reshape(-1, WARP).max(axis=1)
        aligned = [at in self._places and self._places[at].aligned for at in range(far + 1)]
        parted = (low < top) & np.array(aligned)[low]
        if parted.any():
            one, other = int(low[np.argmax(parted)]), int(top[np.argmax(parted)])
            what = f"waits at a barrier that other threads of its warp reach at PTX line {self._line(other)}"
            self._say(what, one, chosen & np.repeat(parted, WARP) & (at == one))
        apart = whole & (low.reshape(g.count, -1).min(axis=1) < top.reshape(g.count, -1).max(axis=1))
        apart &= ~parted.reshape(g.count, -1).any(axis=1)
        if number == 0 and apart.any():
            lanes = chosen & np.repeat(apart, g.threads)
            one = int(at[np.argmax(lanes)])
            row = int(np.argmax(lanes)) // g.threads
            others = np.unique(at.reshape(g.count, -1)[row][chosen.reshape(g.count, -1)[row]])
            there = ", ".join(str(self._line(int(other))) for other in others if other != one)
            what = f"waits at a barrier that other warps of the block reach at PTX line {there}"
            self._say(what, one, lanes & (at == one), note=True)

    def _line(self, at: int) -> int:
        return self._places[at].site.instruction.line

    def _say(self, what: str, at: int, lanes: Array, note: bool = False) -> None:
        """Of the first of these lanes."""
        self._tell("barrier", what, self._places[at].site, int(np.argmax(lanes)), note)

    def _reduce(self, waits: dict[int, Array]) -> None:
        """bar.red: what the predicates of those that met come to, for each of them."""
        g = self._geometry
        places = {at: b for at in waits if (b := self._places[at]).source is not None}
        if not places:
            return
        there, said = np.zeros(g.lanes, bool), np.zeros(g.lanes, bool)
        for at, barrier in places.items():
            there |= waits[at]
            assert barrier.source is not None
            said = np.where(waits[at], full(barrier.source(), g.lanes), said)
        yes, here = said.reshape(g.count, -1), there.reshape(g.count, -1)
        for at, barrier in places.items():
            result = {
                "popc": (yes & here).sum(axis=1).astype(np.int32),
                "and": (yes | ~here).all(axis=1),
                "or": (yes & here).any(axis=1),
            }[barrier.reduction]
            assert barrier.put is not None
            lanes = waits[at]
            barrier.put(np.repeat(result, g.threads), None if lanes.all() else Mask(lanes))

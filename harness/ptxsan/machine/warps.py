"""What the lanes of a warp do together: bar.warp.sync, shuffles, votes, match, redux, elect, tcgen05.ld.

A lane waits there until all lanes that its member mask names, and that have not exited, have come with the
same mask (PTX ISA §9.7.9.6, §9.7.13): to the same instruction, of bar.warp.sync to any. Named lanes that
never come, and a lane that its own mask does not name, are errors: the ISA leaves them undefined.

bar.warp.sync alone orders memory among these lanes (§9.7.13.2); of the others neither the ISA nor CUDA C++
says so ("do not imply a memory barrier").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.frontend import Instruction, Number, Operand, Register, Vector
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import Builder
from ptxsan.machine.barrier import Exits, Free
from ptxsan.machine.state import KernelState
from ptxsan.machine.table import traits

ALL = 0xFFFFFFFF
_LANE = np.arange(WARP, dtype=np.uint32)


def all_name_all(code: Sequence[Instruction]) -> bool:
    """Whether each member mask of bar.warp.sync is a number that names the whole warp, or a register that
    only holds it."""
    masks = {i.operands[-1] for i in code if traits(i.op).collective and i.op.startswith("bar")}
    held = {mask for mask in masks if isinstance(mask, Register)}
    for i in code if held else ():
        target = None if i.op.startswith("bar") or not i.operands else i.operands[0]
        items = target.items if isinstance(target, Vector) else (target,)
        if held & {*items} and not (i.op.startswith("mov") and _is_all(i.operands[-1])):
            return False
    return all(mask in held or _is_all(mask) for mask in masks)


def _is_all(mask: Operand) -> bool:
    return isinstance(mask, Number) and int(mask.value) & ALL == ALL


@dataclass(frozen=True)
class WarpSync:
    """Before a basic block that begins with such an instruction: who takes part, and with which mask."""

    members: Callable[[], Any]
    guard: Callable[[], Any] | None
    site: Site

    @classmethod
    def of(cls, b: Builder, i: Instruction, site: Site, guard: Callable[[], Any] | None) -> WarpSync:
        if i.op.startswith("tcgen05"):  # of all lanes
            return cls(lambda: np.uint32(ALL), guard, site)
        return cls(b.read(i.operands[-1], "u32"), guard, site)

    @property
    def is_barrier(self) -> bool:
        return self.site.instruction.op.startswith("bar")


class WarpSyncs:
    """Who waits for other lanes of the warp, by the basic block."""

    def __init__(self, state: KernelState, gates: Mapping[int, WarpSync], tell: Tell, exits: Exits) -> None:
        self._state, self._gates, self._tell, self._exits = state, gates, tell, exits
        self._lanes = state.lanes
        self._at = np.full(self._lanes, -1)  # where each lane waits
        self._mask = np.zeros(self._lanes, np.uint32)
        self._passed = np.zeros(self._lanes, bool)  # go on at once where they come next
        self._is_barrier = np.zeros(max(gates, default=0) + 2, bool)  # the last for -1
        self._is_barrier[[at for at, gate in gates.items() if gate.is_barrier]] = True

    def enter(self, at: int, lanes: Array | None) -> tuple[list[Array | None], Free]:
        """These lanes (None for all) come to a place: who goes on there, one after another, and who may come
        to another place again."""
        gate = self._gates[at]
        members = gate.members()
        everybody = gate.guard is None and np.ndim(members) == 0 and int(members) & ALL == ALL
        if everybody and (lanes is None or self._whole(lanes)):
            if gate.is_barrier:
                self._state.warp_barrier(None if lanes is None else Mask(lanes))
            else:
                self._gather(full(True, self._lanes) if lanes is None else lanes)
            return [lanes], []
        lanes = full(True, self._lanes) if lanes is None else lanes
        free = lanes & self._passed
        self._passed = self._passed & ~lanes
        if gate.guard is not None:
            free = free | (lanes & ~full(gate.guard(), self._lanes))
        self._come(at, lanes & ~free, full(members, self._lanes))
        here, elsewhere = [free] if free.any() else [], np.zeros(self._lanes, bool)
        for group in self._met():
            mine = group & (self._at == at)
            if mine.any():
                here.append(mine)
            elsewhere |= group & ~mine
            self._passed |= group & ~mine
        again = self._leave(elsewhere)
        self._at[np.logical_or.reduce([self._at < 0, *here])] = -1
        return list(here), again

    def _gather(self, lanes: Array) -> None:
        """These lanes have waited for each other, which orders no memory."""
        if self._state.asynchronous is not None:
            self._state.asynchronous.mbarriers.gather(lanes)

    def _whole(self, lanes: Array) -> bool:
        """Whether these are all threads of their warps, of which none has exited."""
        there, living = lanes.reshape(-1, WARP), self._exits.living.reshape(-1, WARP)
        return bool(((there == living).all(axis=1) | ~there.any(axis=1)).all())

    def exit(self) -> Free:
        """Some have exited: who waited comes again."""
        return self._leave(self._at >= 0)

    def stuck(self) -> Free:
        """Nobody else runs: those that wait go on all the same, but are told of."""
        waiting = self._at >= 0
        for at in np.unique(self._at[waiting]).tolist():
            lane = int(np.argmax(self._at == at))
            there = waiting & (self._at == at) & (self._mask == self._mask[lane])
            self._missed(at, lane, self._exits.alive & ~there)
        self._passed = self._passed | waiting
        return self._leave(waiting)

    def _missed(self, at: int, lane: int, missing: Array) -> None:
        """Tell of a lane whose mask names some of these, of its warp."""
        first = lane // WARP * WARP
        named = (self._mask[lane] >> _LANE & 1).astype(bool)
        if len(names := np.flatnonzero(named & missing[first : first + WARP])):
            what = f"waits for lane {', '.join(map(str, names))} of its warp, which the member mask"
            what += f" 0x{int(self._mask[lane]):08x} names and which never comes"
            self._tell("barrier", what, self._gates[at].site, lane)

    def _come(self, at: int, lanes: Array, members: Array) -> None:
        self._at[lanes] = at
        self._mask[lanes] = members[lanes].astype(np.uint32)
        own = np.left_shift(np.uint32(1), np.arange(self._lanes, dtype=np.uint32) % WARP)
        if (strange := lanes & (self._mask & own == 0)).any():
            lane = int(np.argmax(strange))
            what = f"has a member mask, 0x{int(self._mask[lane]):08x}, that does not name its own lane"
            self._tell("barrier", what, self._gates[at].site, lane)
            self._mask[strange] = own[strange]

    def _leave(self, lanes: Array) -> Free:
        """These wait no longer, and come to their places again."""
        free: Free = [(at, lanes & (self._at == at)) for at in np.unique(self._at[lanes]).tolist()]
        self._at[lanes] = -1
        return free

    def _met(self) -> list[Array]:
        """The lanes that have met, in sets of one group a warp; what they did is ordered."""
        rows = np.flatnonzero((self._at >= 0).reshape(-1, WARP).any(axis=1))
        at, mask, alive = (each.reshape(-1, WARP)[rows] for each in (self._at, self._mask, self._exits.alive))
        waits, barrier = at >= 0, self._is_barrier[at]
        left = waits & (mask & _packed(alive)[:, None] & ~self._beside(at, mask, waits, barrier) == 0)
        groups = []
        while left.any():
            first = left.argmax(axis=1)[:, None]
            one_mask, one_at = np.take_along_axis(mask, first, 1), np.take_along_axis(at, first, 1)
            group = left & (mask == one_mask) & ((at == one_at) | (barrier & self._is_barrier[one_at]))
            left &= ~group
            self._order(rows, group & barrier, alive)
            groups.append(self._spread(rows, group))
            self._gather(self._spread(rows, group & ~barrier))
            if not alive[group.any(axis=1)].all():
                for place in np.unique(self._at[groups[-1]]).tolist():
                    lane = int(np.argmax(groups[-1] & (self._at == place)))
                    self._missed(place, lane, self._exits.past(place))
        return groups

    @staticmethod
    def _beside(at: Array, mask: Array, waits: Array, barrier: Array) -> Array:
        """Of each lane (warps, lanes) those of its warp that wait with it, as bits; at barriers anywhere."""
        first = waits.argmax(axis=1)[:, None]
        same = (np.take_along_axis(at, first, 1) == at) | (np.take_along_axis(barrier, first, 1) & barrier)
        if (~waits | (same & (np.take_along_axis(mask, first, 1) == mask))).all():
            return _packed(waits)[:, None]  # nearly always all that wait do so together
        there = waits[:, None, :] & (mask[:, :, None] == mask[:, None, :])
        there &= (at[:, :, None] == at[:, None, :]) | (barrier[:, :, None] & barrier[:, None, :])
        return _packed(there)

    def _order(self, rows: Array, group: Array, alive: Array) -> None:
        whole = (group == alive).all(axis=1) & group.any(axis=1)
        if whole.any():
            self._state.warp_barrier(Mask(self._spread(rows[whole], group[whole])))
        part = ~whole & (np.count_nonzero(group, axis=1) > 1)
        for row, lanes in zip(rows[part], group[part], strict=True):
            self._state.meet(row * WARP + np.flatnonzero(lanes))

    def _spread(self, rows: Array, group: Array) -> Array:
        """As bits of all lanes."""
        bits = np.zeros((self._lanes // WARP, WARP), bool)
        bits[rows] = group
        return bits.ravel()


def _packed(lanes: Array) -> Array:
    """A bit for each lane of a warp, (..., 32) bool to (...,) uint32."""
    return np.packbits(lanes, axis=-1, bitorder="little").view("<u4")[..., 0]


# Instructions at which a thread waits for others: those of mbarriers, and of the barrier of a cluster.
#
# A lane that would wait goes on where what it waits for has happened, or where nothing else can: a test of
# an mbarrier then says no, which it may at any time. One that is not asked again at once says no every other
# time, to lanes that nothing else has told: what they do then would seldom run.


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
    """Who waits, by the basic block that ends in the wait."""

    def __init__(
        self,
        state: KernelState,
        waits: Mapping[int, Wait],
        sites: Sequence[Site | None],
        asked: Mapping[int, Callable[[Array], bool]],
    ) -> None:
        """``asked``: of the tests that are not asked again at once, whether one of the lanes (n,), which are
        ready, knows it from elsewhere."""
        self._state, self._places, self._sites, self._asked = state, waits, sites, asked
        self._said = dict.fromkeys(asked, True)  # by these, last
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
            ready = index[self._places[at].ready(index)]
            if len(ready):
                self._rounds = 0
                free.append(self._let_go(at, ready, self._says(at, ready)))
        return free

    def _says(self, at: int, ready: Array) -> bool:
        """What these lanes (n,), which are ready, are told."""
        if at not in self._asked or self._asked[at](ready):
            return True
        self._said[at] = not self._said[at]
        return self._said[at]

    def refuse(self) -> Free:
        """Nothing else can go on: those that ask go on with a no. Traps where that has led nowhere."""
        if not self._at:
            return []
        self._rounds += 1
        asking = [at for at in self._at if self._places[at].polls]
        if not asking or self._rounds > _ROUNDS:
            at = min(asking or self._at)
            lane = int(np.argmax(self._at[at]))
            others = sum(int(lanes.sum()) for lanes in self._at.values()) - 1
            what = f"waits for ever for {self._places[at].describe(lane)}"
            more = f"; {others} other threads wait, too" if others else ""
            raise Trap("hang", what + more, self._sites[at], lane)
        return [self._let_go(at, np.flatnonzero(self._at[at]), False) for at in asking]

    def _let_go(self, at: int, lanes: Array, said: bool) -> tuple[int, Array | None]:
        self._places[at].proceed(lanes, said)
        gone = np.zeros_like(self._at[at])
        gone[lanes] = True
        self._at[at] = self._at[at] & ~gone
        if not self._at[at].any():
            del self._at[at]
        return at, None if gone.all() else gone

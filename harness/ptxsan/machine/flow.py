"""Where each lane is: branches in program order, barriers, exits.

Lanes that part at a branch wait at the basic block where each goes on; the one that comes first in the
program runs first, which brings them together again at the end of an if and after a loop.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ptxsan.checks import Report, Site, Tell, Trap
from ptxsan.checks.undefined import Switch
from ptxsan.frontend import Instruction
from ptxsan.lanes import Array, Geometry, Mask, first_of, full
from ptxsan.machine import Run
from ptxsan.machine.barrier import Barrier, Barriers, Exits, Free
from ptxsan.machine.counters import Counters
from ptxsan.machine.sampling import Ending
from ptxsan.machine.state import KernelState
from ptxsan.machine.table import traits
from ptxsan.machine.tracked import Later, Tracked, needs
from ptxsan.machine.turns import Schedule, Turns, reached
from ptxsan.machine.warps import Wait, Waits, WarpSync, WarpSyncs

# All that a loop does which waits: it computes the address, and looks at the answer.
_IDLE = {"add", "and", "bra", "cvt", "lop3", "mad", "mov", "mul", "nanosleep", "not", "or", "selp", "setp"}
_IDLE |= {"shl", "shr", "sub", "xor"}


@dataclass
class BasicBlock:
    """The ``number``-th instructions that run one after another, and what comes then."""

    run: list[Run]
    number: int
    end: Instruction | None  # a branch, a barrier, an exit; None to fall into the next block
    target: int = -1
    guard: Callable[[], Any] | None = None
    negated: bool = False
    site: Site | None = None
    code: Sequence[Instruction] = ()
    barrier: Barrier | None = None
    wait: Wait | None = None
    gate: WarpSync | None = None  # before the first instruction
    # What does the same as ``run``, but for registers that nobody reads later.
    fast: Callable[[], Sequence[Run]] | None = None
    tracked: Sequence[Tracked | Later] = ()  # the same instructions, while some values are undefined
    ending: Ending | None = None

    @cached_property
    def found(self) -> tuple[frozenset[int], frozenset[int]]:
        """The registers that its instructions find as they were, and those that they write for certain."""
        return needs(self.tracked)

    @cached_property
    def jumps(self) -> bool:
        return self.end is not None and traits(self.end.op).base == "bra"

    @cached_property
    def leaves(self) -> bool:
        return self.end is not None and traits(self.end.op).leaves

    @cached_property
    def after(self) -> list[int]:
        """The basic blocks that may come after this one."""
        falls = self.guard is not None or not (self.jumps or self.leaves)
        return [*([self.target] if self.jumps else []), *([self.number + 1] if falls else [])]


class Places:
    """The basic blocks of a kernel, and those where lanes wait, by number."""

    def __init__(self, blocks: list[BasicBlock]) -> None:
        self.blocks, self.sites = blocks, [block.site for block in blocks]
        self.after = [block.after for block in blocks]
        self.barriers = _there(block.barrier for block in blocks)
        self.gates = _there(block.gate for block in blocks)
        self.waits = _there(block.wait for block in blocks)
        self.asked = {at: w.known for at, w in self.waits.items() if w.polls and not self._spins(at)}

    def _spins(self, at: int) -> bool:
        """Whether a wait that says no is asked again, with nothing done in between."""

        def ways(n: int) -> list[int]:
            block = self.blocks[n]
            idle = all(traits(i.op).base in _IDLE for i in block.code if i is not self.blocks[at].end)
            return [each for each in block.after if each < len(self.blocks)] if idle else []

        return at in reached(ways, at)


class Flow:
    """Where each lane of a chunk is."""

    def __init__(
        self,
        state: KernelState,
        places: Places,
        geometry: Geometry,
        budget: int,
        report: Report,
        tell: Tell,
        counters: Counters | None,
        deadline: float = math.inf,
        polls: Collection[int] = (),
        schedule: Schedule | None = None,
    ) -> None:
        self._schedule, self._released = schedule, False
        self._masks: dict[bytes, Mask] = {}
        self._deadline, self._turns, self._steps = deadline, Turns(polls, lambda: state.changes), 0
        self._blocks, self._geometry, self._undefined = places.blocks, geometry, state.undefined
        self._budget, self._report, self._counters = budget, report, counters
        self._waiting: dict[int, Array | None] = {0: geometry.living}  # basic block -> lanes, None for all
        self._order = [0]
        exits = Exits(geometry, places.after)
        self._barriers = Barriers(geometry, places.barriers, state, tell, exits)
        self._gates = WarpSyncs(state, places.gates, tell, exits)
        self._exits = exits
        self._waits = Waits(state, places.waits, places.sites, places.asked)
        self._trace = state.shared.log.trace

    @property
    def unfinished(self) -> int:
        """How many of the blocks have not ended."""
        return int(self._exits.alive.reshape(self._geometry.count, -1).any(axis=1).sum())

    def run(self, others: bool = False) -> bool:
        """Until all lanes have exited; with ``others``, blocks that may run meanwhile, False where all that
        is left waits for those."""
        self._turns.rounds = 0
        while self._order or self._resume(others):
            at = heapq.heappop(self._order)
            lanes = self._waiting.pop(at)
            if (self._order or self._turns.yielded or others) and self._turns.take(at, lanes):
                continue
            if self._schedule is not None and (lanes := self._delay(at, lanes)) is _NONE:
                continue
            if at == len(self._blocks):
                self._exit(lanes, -1)
                continue
            if self._blocks[at].gate is None:
                self._run(at, lanes)
                continue
            here, again = self._gates.enter(at, lanes)
            self._come(again)
            for each in here:
                self._run(at, each)
        if self._turns.yielded:
            return False
        self._barriers.stuck()
        return True

    def _delay(self, at: int, lanes: Any) -> Any:
        """Those of these lanes that go on at once."""
        assert self._schedule is not None
        every = full(True, self._geometry.lanes) if lanes is None else lanes
        late = self._schedule.late(at, every, self._geometry.threads)
        if not late.any() or self._released:
            self._released = False
            return lanes
        self._turns.hold(at, late)
        return rest if (rest := every & ~late).any() else _NONE

    def _run(self, at: int, lanes: Array | None) -> None:
        """One basic block."""
        block = self._blocks[at]
        mask = None if lanes is None else self._mask(lanes)
        if self._trace is not None:
            self._trace.enter(at, mask)
        self._execute(block, mask)
        active = self._geometry.lanes if mask is None else mask.count
        self._report.lane_instructions += active * len(block.code)
        if self._counters is not None:
            self._counters.touch_block(block.code, mask)
        self._steps += 1
        late = self._deadline < math.inf and time.monotonic() > self._deadline
        if late or self._steps > self._budget:
            what = f"still runs after {self._budget} basic blocks: loops, or waits for another block"
            if late:
                what = "still runs at the time limit: loops, or is too large to emulate in that time"
            raise Trap("hang", what, block.site or _first_site(self._blocks), first_of(mask))
        self._leave(at, block, lanes, mask)
        self._free(self._waits.wake())

    def _mask(self, lanes: Array) -> Mask:
        """The same one for the same lanes: they come again in a loop, and what is known of them counts."""
        key = lanes.tobytes()
        if (mask := self._masks.get(key)) is None:
            if len(self._masks) >= _MASKS:
                self._masks.clear()
            mask = self._masks[key] = Mask(lanes)
        return mask

    def _resume(self, others: bool) -> bool:
        """Nothing can go on but those that wait: whether some of them do."""
        self._free(self._waits.wake())
        if not self._order and self._turns.held:
            self._come(self._turns.let_go())
            self._released = True  # some go on for certain
        if not self._order and self._turns.yielded:
            if others and self._turns.stuck:
                return False
            self._come(self._turns.back())
            if not self._turns.rounds:
                self._steps = 0  # something was handed on: what is left to do counts anew
        if not self._order:
            self._free(self._waits.refuse())
        if not self._order:
            self._come(self._gates.stuck())
        return bool(self._order)

    def _execute(self, block: BasicBlock, mask: Mask | None) -> None:
        """Its instructions; one by one where some of the values are undefined that they find."""
        start, held = 0, self._undefined.registers
        if not held or not self._undefined.touches(block.found[0], mask):
            if held:
                self._undefined.clear(block.found[1], mask)
            try:
                for run in block.fast() if block.fast else block.run:
                    run(mask)
                return
            except Switch as switch:
                start = switch.at
        for tracked in block.tracked[start:]:
            tracked(mask)

    def _leave(self, at: int, block: BasicBlock, lanes: Array | None, mask: Mask | None) -> None:
        if block.end is None:
            self._go(at + 1, lanes)
            return
        if self._undefined.registers and block.ending is not None:
            block.ending.check(mask)
        taken, left = self._divide(block, mask)
        if block.jumps:
            if taken is not _NONE:
                self._go(block.target, taken)
            if left is not _NONE:
                self._go(at + 1, left)
                if taken is not _NONE and self._counters is not None:
                    self._counters.touch_divergence(block.end, Mask(taken), Mask(left))
        elif block.leaves:
            if left is not _NONE:
                self._go(at + 1, left)
            if taken is not _NONE:
                self._exit(taken, -1 if block.guard is not None or not block.run else at)
        else:
            if left is not _NONE:
                self._go(at + 1, left)
            if taken is not _NONE and block.wait is not None:
                self._waits.add(at, taken)
            elif taken is not _NONE:
                self._free(self._barriers.arrive(at, taken))

    def _divide(self, block: BasicBlock, mask: Mask | None) -> tuple[Any, Any]:
        """Lanes that the guard of the last instruction lets through, and those it does not."""
        lanes = None if mask is None else mask.bits
        if block.guard is None:
            return lanes, _NONE
        value = block.guard()
        if block.negated:
            value = ~value
        if value.ndim == 0:
            return (lanes, _NONE) if value else (_NONE, lanes)
        taken = value if lanes is None else value & lanes
        count = np.count_nonzero(taken)
        if not count:
            return _NONE, lanes
        if count == (self._geometry.lanes if mask is None else mask.count):
            return lanes, _NONE
        return taken, ~value if lanes is None else lanes & ~value

    def _go(self, at: int, lanes: Array | None) -> None:
        if at in self._waiting:
            other = self._waiting[at]
            merged = None if other is None or lanes is None else other | lanes
            if merged is not None and np.count_nonzero(merged) == len(merged):
                merged = None
            self._waiting[at] = merged
            return
        self._waiting[at] = lanes
        heapq.heappush(self._order, at)

    def _exit(self, lanes: Array | None, at: int) -> None:
        self._exits.add(lanes, at)
        self._free(self._barriers.exit())
        self._come(self._gates.exit())
        self._waits.exit(lanes)

    def _come(self, lanes: Free) -> None:
        """These come to their places again."""
        for at, each in lanes:
            self._go(at, each)

    def _free(self, lanes: Free) -> None:
        """These go on behind the barriers where they were."""
        for at, each in lanes:
            self._go(at + 1, each)


_NONE: Any = object()
_MASKS = 64  # kept


def _there(each: Iterable[Any]) -> dict[int, Any]:
    """Of the basic blocks that have one, by number."""
    return {at: one for at, one in enumerate(each) if one is not None}


def _first_site(blocks: list[BasicBlock]) -> Site | None:
    return next((b.site for b in blocks if b.site), None)

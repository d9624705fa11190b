"""Where each lane is: branches in program order, barriers, exits.

Lanes that part at a branch wait at the block of code where each goes on; the one that comes first in the
program runs first, which brings them together again at the end of an if and after a loop.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.ptx.barrier import Barrier
from harness.ptx.builder import Run
from harness.ptx.counters import Counters
from harness.ptx.hazards import Report, Site, Tell, Trap
from harness.ptx.lanes import Array, Geometry, Mask, full
from harness.ptx.state import State
from harness.ptx.syntax import Instruction

_ENDS = re.compile(r"bra\b|(bar|barrier)(\.cta)?\.(sync|arrive|red)\b")


@dataclass
class Block:
    """Instructions that run one after another, and what comes then."""

    run: list[Run]
    end: Instruction | None  # a branch, a barrier, an exit; None to fall into the next block
    target: int = -1
    guard: Callable[[], Any] | None = None
    negated: bool = False
    site: Site | None = None
    code: Sequence[Instruction] = ()
    barrier: Barrier | None = None


class Flow:
    """Where each lane of a chunk is."""

    def __init__(
        self,
        state: State,
        blocks: list[Block],
        geometry: Geometry,
        budget: int,
        report: Report,
        tell: Tell,
        counters: Counters | None,
    ) -> None:
        self._state, self._blocks, self._geometry, self._tell = state, blocks, geometry, tell
        self._budget, self._report, self._counters = budget, report, counters
        self._alive = np.ones(geometry.lanes, bool)
        self._waiting: dict[int, Array | None] = {0: None}  # block of code -> lanes, None for all
        self._order = [0]
        self._parked: dict[int, Array] = {}  # at a barrier, by its block of code
        self._arrived: dict[int, Array] = {}  # threads of each block at a named barrier, by its number

    def run(self) -> None:
        steps = 0
        while self._order:
            at = heapq.heappop(self._order)
            lanes = self._waiting.pop(at)
            if at == len(self._blocks):
                self._exit(lanes)
                continue
            block = self._blocks[at]
            mask = None if lanes is None else Mask(lanes)
            for run in block.run:
                run(mask)
            active = self._geometry.lanes if mask is None else int(np.count_nonzero(mask.bits))
            self._report.lane_instructions += active * (len(block.run) + (block.end is not None))
            if self._counters is not None:
                self._counters.touch_block(block.code, mask)
            steps += 1
            if steps > self._budget:
                lane = 0 if mask is None else int(mask.index[0])
                what = f"still runs after {self._budget} blocks of code: loops, or waits for another block"
                raise Trap("hang", what, block.site or _first_site(self._blocks), lane)
            self._leave(at, block, lanes, mask)
        if self._parked:
            self._stuck()

    def _leave(self, at: int, block: Block, lanes: Array | None, mask: Mask | None) -> None:
        if block.end is None:
            self._go(at + 1, lanes)
            return
        taken, left = self._divide(block, lanes)
        op = block.end.op
        if op.startswith("bra"):
            if taken is not _NONE:
                self._go(block.target, taken)
            if left is not _NONE:
                self._go(at + 1, left)
                if taken is not _NONE and self._counters is not None:
                    self._counters.touch_divergence(block.end, Mask(taken), Mask(left))
        elif op in ("ret", "exit"):
            if left is not _NONE:
                self._go(at + 1, left)
            if taken is not _NONE:
                self._exit(taken)
        else:
            if left is not _NONE:
                self._go(at + 1, left)
            if taken is not _NONE:
                self._barrier(at, block, taken)

    def _divide(self, block: Block, lanes: Any) -> tuple[Any, Any]:
        """Lanes that the guard of the last instruction lets through, and those it does not."""
        if block.guard is None:
            return lanes, _NONE
        value = block.guard()
        if block.negated:
            value = ~value
        if value.ndim == 0:
            return (lanes, _NONE) if value else (_NONE, lanes)
        taken = value if lanes is None else value & lanes
        if not taken.any():
            return _NONE, lanes
        left = ~value if lanes is None else lanes & ~value
        if not left.any():
            return lanes, _NONE
        return taken, left

    def _go(self, at: int, lanes: Array | None) -> None:
        if at in self._waiting:
            other = self._waiting[at]
            merged = None if other is None or lanes is None else other | lanes
            if merged is not None and merged.all():
                merged = None
            self._waiting[at] = merged
            return
        self._waiting[at] = lanes
        heapq.heappush(self._order, at)

    def _exit(self, lanes: Array | None) -> None:
        self._alive = np.zeros_like(self._alive) if lanes is None else self._alive & ~lanes
        for at in list(self._parked):
            if self._blocks[at].barrier.count is None:  # type: ignore[union-attr]
                self._release(at)

    # Barriers

    def _barrier(self, at: int, block: Block, lanes: Array | None) -> None:
        barrier = block.barrier
        assert barrier is not None
        if barrier.count is not None:
            self._named(at, barrier, full(True, self._geometry.lanes) if lanes is None else lanes)
        elif lanes is None:
            self._state.barrier(np.ones(self._geometry.count, bool))
            barrier.reduce(self._geometry, None)
            self._go(at + 1, None)
        else:
            self._park(at, lanes)
            self._release(at)

    def _park(self, at: int, lanes: Array) -> None:
        self._parked[at] = self._parked.get(at, np.zeros(self._geometry.lanes, bool)) | lanes

    def _named(self, at: int, barrier: Barrier, lanes: Array) -> None:
        """A barrier with a number and a count: it opens where so many threads of the block have arrived."""
        assert barrier.count is not None
        numbers, counts = (full(read(), len(lanes)) for read in (barrier.number, barrier.count))
        if barrier.waits:
            self._park(at, lanes)
        else:
            self._go(at + 1, lanes)
        # The number may be that of the thread's group.
        for number in np.unique(numbers[lanes]):
            here = lanes & (numbers == number)
            self._meet(int(number), int(counts[here].max()), here)

    def _meet(self, number: int, count: int, lanes: Array) -> None:
        rows, threads = self._geometry.count, self._geometry.threads
        arrived = self._arrived.setdefault(number, np.zeros(rows, np.int64))
        arrived += lanes.reshape(rows, threads).sum(axis=1)
        complete = arrived >= count
        if not complete.any():
            return
        arrived[complete] -= count
        # Orders what the whole block did before: more than the threads that met here are promised.
        self._state.barrier(complete)
        for other in list(self._parked):
            same = self._blocks[other].barrier
            if same and same.count is not None:
                waiting = self._parked[other] & (full(same.number(), len(lanes)) == number)
                self._let_go(other, np.repeat(complete, threads) & waiting)

    def _release(self, at: int) -> None:
        """Let go the blocks of threads that are complete at a barrier."""
        threads = self._geometry.threads
        here = self._parked[at].reshape(-1, threads)
        alive = self._alive.reshape(-1, threads)
        complete = (here == alive).all(axis=1) & here.any(axis=1)
        if not complete.any():
            return
        short = complete & ~here.all(axis=1)
        if short.any():
            row = int(np.argmax(short))
            lane = row * threads + int(np.argmax(here[row]))
            gone = threads - int(here[row].sum())
            what = f"waits at a barrier that {gone} of the {threads} threads of the block left out by exiting"
            self._tell("barrier", what, self._blocks[at].site, lane)
        # Blocks of which every thread has exited wait for nothing.
        self._state.barrier(complete | ~alive.any(axis=1))
        self._let_go(at, np.repeat(complete, threads) & self._parked[at])

    def _let_go(self, at: int, lanes: Array) -> None:
        left = self._parked[at] & ~lanes
        if left.any():
            self._parked[at] = left
        else:
            del self._parked[at]
        if lanes.any():
            everybody = bool(lanes.all())
            self._blocks[at].barrier.reduce(self._geometry, None if everybody else Mask(lanes))  # type: ignore[union-attr]
            self._go(at + 1, None if everybody else lanes)

    def _stuck(self) -> None:
        at, lanes = min(self._parked.items())
        threads = self._geometry.threads
        row = int(np.argmax(lanes)) // threads
        there = int(lanes.reshape(-1, threads)[row].sum())
        others = [
            f"{int(other.reshape(-1, threads)[row].sum())} at PTX line {self._blocks[b].end.line}"  # type: ignore[union-attr]
            for b, other in sorted(self._parked.items())
            if b != at and other.reshape(-1, threads)[row].any()
        ]
        where = f"; {', '.join(others)}" if others else "; the others went past it"
        what = f"waits at a barrier that {there} of the {threads} threads of the block reached{where}"
        raise Trap("barrier", what, self._blocks[at].site, int(np.argmax(lanes)))


_NONE: Any = object()


def _first_site(blocks: list[Block]) -> Site | None:
    return next((b.site for b in blocks if b.site), None)


def ends(instruction: Instruction) -> bool:
    """Whether lanes may part, wait or end after an instruction."""
    return instruction.op in ("ret", "exit") or bool(_ENDS.match(instruction.op))

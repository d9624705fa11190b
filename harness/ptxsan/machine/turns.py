"""Threads that wait for others by polling memory: who yields to whom, and which blocks are there to wait for.

Lanes at a poll, a strong load or an atomic in a loop, that come again and again while memory stays as it is
let all others run first: of their warp, of their block, of other blocks. Where nobody else of the blocks that
run together can go on, these blocks are put by, and others go on or start, as long as a GPU has room for them
(PTX ISA §2.2: blocks run in any order, and only resident ones may wait for one another).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ptxsan.frontend import Entry, Instruction, Operand
from ptxsan.lanes import WARP, Array, Geometry
from ptxsan.machine.barrier import Free
from ptxsan.machine.sampling import registers
from ptxsan.machine.state import KernelState
from ptxsan.machine.table import traits

_PATIENCE = 8  # visits in a row, with memory as it was, before lanes at a poll yield
_MOST = 256  # the same where memory changes
_ROUNDS = 4  # in which all have yielded and nothing has changed: they wait for other blocks
STRONG = {"volatile", "relaxed", "acquire", "mmio"}

# By compute capability: multiprocessors of the model for data centres, and what one of them holds: threads,
# blocks, KiB of shared memory (CUDA C++ Programming Guide, "Technical Specifications").
_MACHINES = {
    75: (40, 1024, 16, 64),
    80: (108, 2048, 32, 164),
    86: (84, 1536, 16, 100),
    87: (16, 1536, 16, 164),
    89: (142, 1536, 24, 100),
    90: (132, 2048, 32, 228),
    100: (148, 2048, 32, 228),
    103: (148, 2048, 32, 228),
    110: (20, 1536, 24, 228),
    120: (188, 1536, 24, 100),
    121: (48, 1536, 24, 100),
}


def residents(entry: Entry, block: tuple[int, int, int], shared: int) -> int:
    """How many blocks, with so many bytes of ``shared`` memory each, a GPU of the entry's target holds at
    once: whole clusters, at least one. Registers, which ptxas assigns, are not looked at."""
    processors, threads, blocks, kib = _MACHINES.get(entry.capability, _MACHINES[90])
    warps = -(-block[0] * block[1] * block[2] // WARP)
    reserved = 1024 if entry.capability >= 80 else 0
    of_shared = 1024 * kib // max(1, -(-shared // 128) * 128 + reserved)
    each = min(blocks, threads // WARP // warps, of_shared)
    size = entry.cluster[0] * entry.cluster[1] * entry.cluster[2]
    return max(1, processors * max(1, each) // size) * size


class Step(Protocol):
    """A basic block: its instructions, and the numbers of those that may come next."""

    code: Sequence[Instruction]

    @property
    def after(self) -> list[int]: ...


def polls(blocks: Sequence[Step]) -> frozenset[int]:
    """The basic blocks, by number, in a loop with a strong load or an atomic in them."""
    strong = {n for n, block in enumerate(blocks) if any(map(_is_strong, block.code))}
    if not strong:
        return frozenset()
    before: list[list[int]] = [[] for _ in range(len(blocks) + 1)]
    for n, block in enumerate(blocks):
        for after in block.after:
            before[after].append(n)
    return frozenset(n for n in strong if n in reached(before.__getitem__, n))


def waited_for(blocks: Sequence[Step]) -> set[int]:
    """The strong loads and atomics, by the id of the instruction, whose values decide whether a loop around
    them goes on."""
    edges = [[n for n in block.after if n < len(blocks)] for block in blocks]
    before: list[list[int]] = [[] for _ in blocks]
    for n, after in enumerate(edges):
        for each in after:
            before[each].append(n)
    found = set()
    for n in polls(blocks):
        loop = [
            blocks[each] for each in sorted(reached(edges.__getitem__, n) & reached(before.__getitem__, n))
        ]
        for i in blocks[n].code:
            if _is_strong(i) and _decides(i, [each for block in loop for each in block.code]):
                found.add(id(i))
    return found


def _decides(load: Instruction, loop: Sequence[Instruction]) -> bool:
    """Whether a branch in the loop depends on what the load gives, by way of registers."""
    known, guards, moves = _names(load.operands[:1]), set[str](), list[tuple[set[str], set[str]]]()
    for i in loop:
        base = traits(i.op).base
        if base == "bra" and i.guard:
            guards.add(i.guard[0])
        if base not in ("bra", "ld", "st", "atom", "red"):
            moves.append((_names(i.operands[:1]), _names(i.operands[1:])))
    size = 0
    while size != len(known):
        size = len(known)
        for targets, sources in moves:
            if not known.isdisjoint(sources):
                known |= targets
    return not known.isdisjoint(guards)


def _names(operands: Sequence[Operand]) -> set[str]:
    """The registers whose values these operands are."""
    return {register.name for operand in operands for register in registers(operand)}


def may_be_flag(i: Instruction) -> bool:
    """Whether a strong load may be of shared memory."""
    words = {*traits(i.op).words}
    return any(w.startswith("shared") for w in words) or (
        "global" not in words and not words & {"gpu", "sys"}
    )


def _is_strong(i: Instruction) -> bool:
    words = traits(i.op).words
    return words[0] == "atom" or (words[0] == "ld" and not STRONG.isdisjoint(words))


def reached(edges: Callable[[int], Sequence[int]], start: int) -> set[int]:
    """The basic blocks, by number, to which ways lead from this one; ``edges`` gives those next to one."""
    found: set[int] = set()
    left = list(edges(start))
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += edges(one)
    return found


class Turns:
    """Of the blocks that run together: which lanes have yielded, by the basic block where they go on.
    ``changes`` tells how often memory has changed."""

    def __init__(self, at: Collection[int], changes: Callable[[], int]) -> None:
        self._polls, self._changes = at, changes
        self._seen: dict[int, tuple[bytes, int, int, int]] = {}  # lanes, changes, visits, visits in all
        self.yielded: dict[int, Array | None] = {}
        self.held: dict[int, Array] = {}
        self.rounds = 0  # in a row without a change
        self._last = -1

    def take(self, at: int, lanes: Array | None) -> bool:
        """These lanes (None for all) come to a basic block: whether they yield there."""
        if at not in self._polls:
            return False
        key, now = b"" if lanes is None else lanes.tobytes(), self._changes()
        held, when, visits, total = self._seen.get(at, (b"", -1, 0, 0))
        total = total + 1 if held == key else 0
        visits = visits + 1 if held == key and when == now else 0
        self._seen[at] = key, now, visits, total
        if visits < _PATIENCE and total < _MOST:
            return False
        other = self.yielded.get(at, lanes)
        self.yielded[at] = None if lanes is None or other is None else other | lanes
        # The next time they look twice.
        self._seen[at] = key, now, _PATIENCE - 2, 0
        return True

    def back(self) -> Free:
        """Nobody else can go on: all that have yielded look again."""
        now = self._changes()
        self.rounds = self.rounds + 1 if now == self._last else 0
        self._last = now
        free: Free = list(self.yielded.items())
        self.yielded = {}
        return free

    def hold(self, at: int, lanes: Array) -> None:
        """These lanes go on only when nobody else can."""
        self.held[at] = self.held.get(at, np.zeros_like(lanes)) | lanes

    def let_go(self) -> Free:
        free: Free = list(self.held.items())
        self.held = {}
        return free

    @property
    def stuck(self) -> bool:
        """Whether they have looked often enough, and nothing has changed."""
        return self.rounds >= _ROUNDS


class Schedule:
    """Another order than that of the program, by a ``seed``: warps wait at random until nobody else can go
    on, mostly before they write or arrive somewhere, so that others read too early if nothing keeps them."""

    def __init__(self, seed: int, blocks: Sequence[Step]) -> None:
        self._random = np.random.default_rng(seed)
        writes = [any(map(_tells, block.code)) for block in blocks]
        self._chance = np.where([*writes, False], 0.5, 0.05)
        products = any(i.op.startswith("wgmma.mma_async") for block in blocks for i in block.code)
        self._together = 4 * WARP if products else WARP

    def late(self, at: int, lanes: Array, threads: int) -> Array:
        """Which of the lanes (lanes,) bool, so many ``threads`` a block, that come to a basic block are late:
        whole warps, of kernels with wgmma whole warpgroups."""
        groups = -(-threads // self._together)
        late = self._random.random((len(lanes) // threads, groups)) < self._chance[at]
        return np.asarray(lanes & np.repeat(late, self._together, axis=1)[:, :threads].ravel())


def _tells(i: Instruction) -> bool:
    """Whether others may wait for it."""
    of = traits(i.op)
    return of.base in ("st", "atom", "red", "mbarrier", "cp") or of.barrier == "arrive"


class Flow(Protocol):
    """Blocks that run together. ``run`` until all of them have ended; with ``others``, which may run
    meanwhile, False where they wait for those."""

    def run(self, others: bool) -> bool: ...

    @property
    def unfinished(self) -> int:
        """How many of the blocks have not ended."""


class Residents:
    """The blocks of a batch of launches: ``blocks`` (B, 3) of ``launches`` (B,), ``most`` of them at once on
    the GPU, ``each`` run together, in whole clusters of ``size``."""

    def __init__(self, blocks: Array, launches: Array, most: int, each: int, size: int) -> None:
        self._blocks, self._launches = blocks, launches
        self._most, self._each, self._size = most, each, size
        self._next = 0

    def run(
        self,
        state: KernelState,
        start: Callable[[Array, Array], Flow],
        resume: Callable[[Geometry], None],
        end: Callable[[], None],
    ) -> None:
        """``start`` makes these blocks those that run; ``resume`` is told that those of a geometry go on,
        ``end`` that those that ran have ended."""
        waiting: deque[tuple[Flow, Any]] = deque()
        idle = 0  # of them, in a row, that found nothing new
        while True:
            count = self._room([flow for flow, _ in waiting])
            if count and (idle or not waiting):
                flow = start(*self._take(count))
            elif waiting:
                flow, context = waiting.popleft()
                state.resume(context)
                resume(state.geometry)
            else:
                break
            before = state.changes
            can_start = bool(self._room([flow, *(each for each, _ in waiting)]))
            if flow.run(can_start or (bool(waiting) and idle <= len(waiting))):
                end()
                idle = 0
            else:
                waiting.append((flow, state.suspend()))
                idle = idle + 1 if state.changes == before else 0
                idle = idle or int(can_start)

    def _room(self, flows: Sequence[Flow]) -> int:
        """How many blocks may start beside these."""
        left = self._most - sum(flow.unfinished for flow in flows)
        return max(0, min(self._each, left // self._size * self._size, len(self._blocks) - self._next))

    def _take(self, count: int) -> Iterator[Array]:
        part = slice(self._next, self._next + count)
        self._next += count
        return iter((self._blocks[part], self._launches[part]))

"""Runs a kernel: blocks together, lanes in masks, branches in program order, barriers.

Lanes that part at a branch wait at the block of code where each goes on; the one that comes first in the
program runs first, which brings them together again at the end of an if and after a loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.devices.emulated import instructions, tensor
from harness.devices.emulated.arithmetic import FusedMultiplyAdd, canonical_if_any
from harness.devices.emulated.builder import Builder, Run
from harness.devices.emulated.counters import Counters
from harness.devices.emulated.hazards import Site, Trap
from harness.devices.emulated.lanes import WARP, Array, Geometry, Mask
from harness.devices.emulated.memory import SLOT, ConstantMemory, GlobalMemory, LocalMemory
from harness.devices.emulated.ptx import Entry, Instruction, Name, PtxError, Register, size_of
from harness.devices.emulated.shared import SharedMemory

LANES = 8192  # that run together: enough that NumPy's work outweighs Python's, few enough for the caches
LOCAL = 1 << 61  # generic addresses of local memory
SHARED = 1 << 62  # and of shared memory
_HAZARDS = 20  # kept a launch


@dataclass(frozen=True)
class Hazard:
    """Something that went wrong: a stable ``check``, the launch of the batch, one line."""

    check: str
    launch: int
    message: str


@dataclass
class _Block:
    """Instructions that run one after another, and what comes then."""

    run: list[Run]
    end: Instruction | None  # a branch, a barrier, an exit; None to fall into the next block
    target: int = -1
    guard: Callable[[], Any] | None = None
    negated: bool = False
    site: Site | None = None
    code: Sequence[Instruction] = ()


@dataclass
class Report:
    """What a batch of launches did: hazards, whether it was stopped, lanes × instructions executed."""

    hazards: list[Hazard] = field(default_factory=list)
    stopped: bool = False
    lane_instructions: int = 0


class Machine:
    """A kernel made ready to run. Raises PtxError for an instruction it does not know.

    ``lines`` gives the line of the .cu file ``source`` of each PTX line, where they are asked for.
    """

    def __init__(self, entry: Entry, source: str, lines: Callable[[], Mapping[int, int]] = dict) -> None:
        self.entry, self._source, self.lines = entry, source, lines
        self.registers: list[Any] = []
        # float64 copies of FP32 registers, or None; where the register is None, the copy is all there is.
        self.wide: list[Any] = []
        self.lanes = 0
        self.fma = FusedMultiplyAdd(0)
        self.shared: SharedMemory = None  # type: ignore[assignment]
        self.memory: GlobalMemory = None  # type: ignore[assignment]
        self.local: LocalMemory = None  # type: ignore[assignment]
        self.parameters: Mapping[str, Any] = {}
        self.geometry: Geometry = None  # type: ignore[assignment]
        self._shared_variables = [v for v in entry.variables if v.space == "shared"]
        constants = [v for v in entry.variables if v.space == "const"]
        self.constant = ConstantMemory(constants)
        self._slots = {v.name: i + 1 for of in (self._shared_variables, constants) for i, v in enumerate(of)}
        self.static_shared = sum(v.size for v in self._shared_variables)
        self._locals = {}
        at = 0
        for v in entry.variables:
            if v.space == "local":
                at = -(-at // v.align) * v.align
                self._locals[v.name] = at
                at += v.size
        self._local_size = at
        self._granule = 4
        self._builder = Builder(self, entry)
        self._blocks = self._build()
        self._report = Report()
        self._told: set[tuple[str, int, int]] = set()

    def _where(self, site: Site) -> str:
        line = self.lines().get(site.instruction.line, 0)
        return site.where(self._source, line or site.instruction.source)

    # Building

    def symbol(self, name: str) -> int | None:
        """The address of a variable, or None."""
        if name in self._locals:
            return self._locals[name]
        return self._slots[name] << SLOT if name in self._slots else None

    @staticmethod
    def known_special(name: str) -> bool:
        probe = Geometry(np.zeros((1, 3), np.int32), np.zeros(1, np.int64), (WARP, 1, 1), (1, 1, 1))
        return probe.special(name) is not None

    def special(self, name: str) -> Any:
        return self.geometry.special(name)

    def _build(self) -> list[_Block]:
        code, labels = self.entry.code, self.entry.labels
        for instruction in code:
            if ".shared" in instruction.op:
                kind = instruction.op.rsplit(".", 1)[-1]
                if kind in ("u8", "s8", "b8", "u16", "s16", "b16", "f16"):
                    self._granule = min(self._granule, size_of(kind))
            if instruction.op.startswith("wmma") and instruction.op.endswith("f16"):
                self._granule = min(self._granule, 2)
        starts = {0, *labels.values()}
        starts |= {i + 1 for i, instruction in enumerate(code) if _ends(instruction)}
        order = sorted(s for s in starts if s < len(code))
        number = {start: i for i, start in enumerate(order)}
        number[len(code)] = len(order)
        blocks = []
        for start, stop in zip(order, [*order[1:], len(code)], strict=True):
            body = code[start:stop]
            end = body.pop() if body and _ends(body[-1]) else None
            block = _Block([self._closure(i) for i in body], end, code=code[start:stop])
            if end is not None:
                block.site = self._builder.site(end)
                if end.guard:
                    name, block.negated = end.guard
                    block.guard = self._guard(name)
                if end.op.startswith("bra"):
                    assert isinstance(end.operands[-1], Name)
                    block.target = number[labels[end.operands[-1].text]]
            blocks.append(block)
        self.registers += self._builder.initial
        self.wide += [None] * len(self.registers)
        return blocks

    def _guard(self, name: str) -> Callable[[], Any]:
        return self._builder.read(Register(name), "pred")

    def _closure(self, instruction: Instruction) -> Run:
        base = instruction.op.split(".")[0]
        make = tensor.TABLE.get(base) or instructions.TABLE.get(base)
        where = self._builder.site(instruction)
        if make is None:
            raise PtxError(f"unknown instruction {instruction.op}: {self._where(where)}")
        try:
            run = make(self._builder, instruction, where)
        except (PtxError, KeyError, ValueError, IndexError, AssertionError) as error:
            detail = f" ({error})" if isinstance(error, PtxError) else ""
            raise PtxError(
                f"unknown form of {base}, {instruction.op}{detail}: {self._where(where)}"
            ) from None
        if instruction.guard is None:
            return run
        name, negated = instruction.guard
        guard = self._guard(name)

        def guarded(mask: Mask | None) -> None:
            taken = ~guard() if negated else guard()
            if mask is not None:
                taken = taken & mask.bits
            chosen = None if mask is None and taken.all() else Mask(taken)
            where.count_guard(chosen)
            if taken.any():
                run(chosen)

        return guarded

    def value(self, i: int) -> Any:
        """An FP32 register, of which there may be only the float64 copy that arithmetic left."""
        value = self.registers[i]
        if value is None:
            value = self.registers[i] = canonical_if_any(self.wide[i].astype(np.float32))
        return value

    # Running

    def run(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_shared: int,
        parameters: Sequence[Sequence[Any]],
        memory: GlobalMemory,
        budget: int,
        counters: Counters | None = None,
    ) -> Report:
        """A batch of launches of one grid. ``parameters`` are those of each launch, in the order of the
        kernel's; ``budget`` the blocks of code that the lanes of a chunk may run in all."""
        self._report, self._told = Report(), set()
        threads = block[0] * block[1] * block[2]
        if threads % WARP:
            raise PtxError(f"blocks of {threads} threads: whole warps of {WARP} are supported")
        self.memory = memory
        memory.report = self.report
        count = grid[0] * grid[1] * grid[2]
        number = np.arange(count)
        one = np.stack([number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])], axis=1)
        blocks = np.tile(one.astype(np.int32), (len(parameters), 1))
        launches = np.repeat(np.arange(len(parameters)), count)
        each = max(1, LANES // threads)
        for site in self._builder.sites:
            site.counters = counters
            site.patterns.clear()
        previous = -1
        with np.errstate(all="ignore", under="raise"):
            for at in range(0, len(blocks), each):
                geometry = Geometry(blocks[at : at + each], launches[at : at + each], block, grid)
                for site in self._builder.sites:
                    if geometry.count != previous:
                        site.patterns.clear()
                    for pattern in site.patterns:
                        pattern.known = False
                previous = geometry.count
                try:
                    self._run_chunk(geometry, dynamic_shared, parameters, budget, counters)
                except Trap as trap:
                    self.report(trap.check, trap.what, trap.site, trap.lane)
                    self._report.stopped = True
                    break
        return self._report

    def report(self, check: str, what: str, site: Site | None, lane: int) -> None:
        """Note a hazard, once an instruction and launch."""
        launch = int(self.geometry.launch[lane])
        line = site.instruction.line if site else 0
        if (check, line, launch) in self._told or len(self._told) >= _HAZARDS:
            return
        self._told.add((check, line, launch))
        where = f" at {self._where(site)}" if site else ""
        message = f"{self.geometry.describe(lane)} {what}{where}"
        self._report.hazards.append(Hazard(check, launch, message))

    def _run_chunk(
        self,
        geometry: Geometry,
        dynamic_shared: int,
        parameters: Sequence[Sequence[Any]],
        budget: int,
        counters: Counters | None,
    ) -> None:
        if geometry.lanes != self.lanes:
            self.fma = FusedMultiplyAdd(geometry.lanes)
        self.geometry, self.lanes = geometry, geometry.lanes
        self.registers[:] = self._builder.initial
        self.wide[:] = [None] * len(self.registers)
        self.memory.enter(geometry)
        self.shared = SharedMemory(self._shared_variables, dynamic_shared, geometry, self._granule)
        self.shared.report = self.report
        self.local = LocalMemory(self._local_size, geometry.lanes if self._local_size else 0)
        self.parameters = {}
        for i, (name, _) in enumerate(self.entry.parameters):
            values = [launch[i] for launch in parameters]
            same = all(v == values[0] for v in values)
            self.parameters[name] = values[0] if same else np.array(values)[geometry.launch]
        if counters is not None:
            counters.enter(geometry)
        _Flow(self, self._blocks, geometry, budget, self._report, counters).run()


class _Flow:
    """Where each lane of a chunk is."""

    def __init__(
        self,
        machine: Machine,
        blocks: list[_Block],
        geometry: Geometry,
        budget: int,
        report: Report,
        counters: Counters | None,
    ) -> None:
        self._machine, self._blocks, self._geometry = machine, blocks, geometry
        self._budget, self._report, self._counters = budget, report, counters
        self._alive = np.ones(geometry.lanes, bool)
        self._all_alive = True
        self._waiting: dict[int, Array | None] = {0: None}  # block of code -> lanes, None for all
        self._order = [0]
        self._parked: dict[int, Array] = {}  # at a barrier, by its block of code

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
                what = f"still runs after {self._budget} blocks of code: an endless loop?"
                raise Trap("hang", what, block.site or _first_site(self._blocks), lane)
            self._leave(at, block, lanes, mask)
        if self._parked:
            self._stuck()

    def _leave(self, at: int, block: _Block, lanes: Array | None, mask: Mask | None) -> None:
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

    def _divide(self, block: _Block, lanes: Any) -> tuple[Any, Any]:
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
        self._all_alive = False
        for at in list(self._parked):
            self._release(at)

    def _barrier(self, at: int, block: _Block, lanes: Array | None) -> None:
        if lanes is None:
            self._machine.shared.barrier(np.ones(self._geometry.count, bool))
            self._go(at + 1, None)
            return
        self._parked[at] = self._parked.get(at, np.zeros(self._geometry.lanes, bool)) | lanes
        self._release(at)

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
            self._machine.report("barrier", what, self._blocks[at].site, lane)
        # Blocks of which every thread has exited wait for nothing.
        self._machine.shared.barrier(complete | ~alive.any(axis=1))
        lanes = np.repeat(complete, threads) & self._parked[at]
        left = self._parked[at] & ~lanes
        if left.any():
            self._parked[at] = left
        else:
            del self._parked[at]
        self._go(at + 1, None if lanes.all() else lanes)

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


def _first_site(blocks: list[_Block]) -> Site | None:
    return next((b.site for b in blocks if b.site), None)


def _ends(instruction: Instruction) -> bool:
    op = instruction.op
    return op.startswith(("bra", "bar.sync", "barrier.sync", "barrier.cta.sync")) or op in (
        "ret",
        "exit",
        "bar.sync",
    )

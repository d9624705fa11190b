"""A kernel, translated for execution, and its launches: several thread blocks run at once, and a batch of
launches runs as one grid."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

import ptxsan.isa  # noqa: F401 (fills the table)
from ptxsan.checks import Hazard, Report, Site, Trap
from ptxsan.checks.proxy import InFlight
from ptxsan.checks.readers import read_and_written
from ptxsan.checks.spare import SpareLoad, Trace, Uses
from ptxsan.checks.tensor import LoadedRegisters
from ptxsan.checks.undefined import Effect, Undefined
from ptxsan.frontend import Entry, Instruction, Name, PtxError, Register, SourceLocation, size_of
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.machine import SEEN, Builder, Run
from ptxsan.machine.barrier import Barrier, counts
from ptxsan.machine.counters import Counters
from ptxsan.machine.flow import BasicBlock, Flow, Places
from ptxsan.machine.guesses import guesses
from ptxsan.machine.memory import RESERVED
from ptxsan.machine.memory.buffer import BUFFER
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.sampling import Ending, ones, registers
from ptxsan.machine.segments import Native
from ptxsan.machine.state import KernelState, refuse, refuse_cooperative
from ptxsan.machine.table import known, refused, traits
from ptxsan.machine.tracked import Later, Tracked
from ptxsan.machine.turns import Residents, Schedule, may_be_flag, polls, residents, waited_for
from ptxsan.machine.warps import WarpSync, all_name_all

# What the functions of the table raise where operands are not those they expect.
_NOT_KNOWN = (PtxError, LookupError, ValueError, TypeError, ArithmeticError, AssertionError, StopIteration)
LANES = 8192  # that run together: enough that NumPy's work outweighs Python's, few enough for the caches
_HAZARDS = 10  # kept of each check, launch and place in the source


Lines = Callable[[], Mapping[int, SourceLocation]]  # by PTX line


@dataclass
class _Told:
    """The hazards of one check in one launch: the PTX lines that have one, and the number of each source
    line."""

    lines: set[int] = field(default_factory=set)
    places: Counter[SourceLocation] = field(default_factory=Counter)


class PreparedKernel:
    """A kernel, translated for execution. Raises PtxError for an instruction that is not supported.

    ``source``: the name of the .cu file, for messages. ``lines``: returns the source location of each PTX
    line, and is called only for a hazard; by default the PTX names them itself (nvcc -lineinfo).
    ``static_shared``: bytes of static shared memory of a block.
    """

    def __init__(self, entry: Entry, source: str, lines: Lines = dict) -> None:
        self.entry, self._source, self.lines = entry, source, lines
        asynchronous = any("clocks" in traits(i.op).row or "shared::cluster" in i.op for i in entry.code)
        # Order between some threads of a block, or of a warp, that others have no part in.
        parted = any(counts(i) for i in entry.code) or not all_name_all(entry.code)
        tensor = any(i.op.startswith("tcgen05.") for i in entry.code)
        undefined = Undefined(self.report, self._hazard, self._keep, self._where)
        reserved = RESERVED if entry.capability >= 90 else 0
        self.state = KernelState(
            entry.variables, entry.parameters, self.report, undefined, reserved, asynchronous, parted, tensor
        )
        self.state.inflight, self.state.loads = InFlight(entry.code), LoadedRegisters(entry.code)
        self.state.inflight.report = self.state.loads.report = self.report
        self.static_shared = self.state.static_shared
        self._granule = 4
        self._builder = Builder(self.state, entry)
        self._blocks = self._build()
        self._places = Places(self._blocks)
        self._polls = polls(self._blocks)
        waits, guessed = waited_for(self._blocks), guesses(self._blocks)
        for site in self._builder.sites:
            site.polls = id(site.instruction) in waits
            site.guesses = id(site.instruction) in guessed
        if any(site.polls and may_be_flag(site.instruction) for site in self._builder.sites):
            self.state.follow_flags()
        self._steps = [_steps(block) for block in self._blocks]
        uses = Uses(self._steps, self._places.after)
        self._unset = self._live(uses)
        self._spare = self._spare_loads(uses)
        self._changes = read_and_written(entry)
        self._report = Report()
        self._counters: Counters | None = None
        self._told: dict[tuple[str, bool, int], _Told] = {}  # by check, level and launch

    def close(self) -> None:
        """Frees what was made ready, which refers to itself in circles; this is of no use afterwards."""
        vars(self).clear()

    def _place(self, site: Site) -> SourceLocation:
        return self.lines().get(site.instruction.line) or site.instruction.source

    def _where(self, site: Site) -> str:
        place = self._place(site).text(self._source)
        return f"{place} ({site.ptx})" if place else site.ptx

    # Building

    def _build(self) -> list[BasicBlock]:
        code, labels = self.entry.code, self.entry.labels
        for instruction in code:
            kind = instruction.op.rsplit(".", 1)[-1]
            if _may_be_shared(instruction.op) and kind in SEEN:
                self._granule = min(self._granule, size_of(kind))
            if instruction.op.startswith("wmma") and instruction.op.endswith("f16"):
                self._granule = min(self._granule, 2)
        starts = {0, *labels.values()}
        starts |= {i + 1 for i, instruction in enumerate(code) if traits(instruction.op).ends}
        starts |= {i for i, instruction in enumerate(code) if traits(instruction.op).collective}
        order = sorted(s for s in starts if s < len(code))
        number = {start: i for i, start in enumerate(order)}
        number[len(code)] = len(order)
        watched = self.state.inflight.watched | self.state.loads.watched
        self._native = Native.of(self._builder, watched)
        blocks: list[BasicBlock] = []
        for start, stop in zip(order, [*order[1:], len(code)], strict=True):
            body = code[start:stop]
            end = body.pop() if body and traits(body[-1].op).ends else None
            tracked = [self._tracked(i, n) for n, i in enumerate(body)]
            stops = [each.reads_memory or _may_be_shared(i.op) for i, each in zip(body, tracked, strict=True)]
            runs = [each.plain if stop else each.whole for stop, each in zip(stops, tracked, strict=True)]
            block = BasicBlock(runs, len(blocks), end, code=code[start:stop], tracked=tracked)
            if traits(code[start].op).collective:
                block.gate = self._gate(code[start])
            if end is not None:
                block.site = self._builder.site(end)
                block.ending = self._known(Ending, end, block.site)
                if traits(end.op).waits and (row := known(end.op)):
                    block.wait = self._known(row.make, end, block.site)
                elif traits(end.op).barrier:
                    block.barrier = self._known(Barrier.of, end, block.site)
                if end.guard:
                    block.guard, block.negated = self._guard(end, block.site), end.guard[1]
                if traits(end.op).base == "bra":
                    assert isinstance(end.operands[-1], Name)
                    block.target = number[labels[end.operands[-1].text]]
            blocks.append(block)
        if self._native:
            bodies = [(block.code, block.run, _steps(block), block.after) for block in blocks]
            for block, fast in zip(blocks, self._native.blocks(bodies), strict=True):
                block.fast = fast
        self.state.registers += self._builder.initial
        return blocks

    def _gate(self, instruction: Instruction) -> WarpSync:
        site = self._builder.site(instruction)
        guard = self._guard(instruction, site) if instruction.guard else None
        negated = instruction.guard is not None and instruction.guard[1]
        taken = (lambda: ~guard()) if guard is not None and negated else guard
        gate: WarpSync = self._known(lambda b, i, s: WarpSync.of(b, i, s, taken), instruction, site)
        return gate

    def _guard(self, instruction: Instruction, site: Site) -> Callable[[], Any]:
        assert instruction.guard is not None
        register = Register(instruction.guard[0])
        read: Callable[[], Any] = self._known(lambda b, i, s: b.read(register, "pred"), instruction, site)
        return read

    def _live(self, uses: Uses) -> dict[int, tuple[str, Any]]:
        """The registers that may be read before they are written: slot -> (name, all bits undefined)."""
        names = list(self.entry.registers.items())
        return {slot: (names[slot][0], ones(names[slot][1])) for slot in uses.unset}

    def _spare_loads(self, uses: Uses) -> dict[int, SpareLoad]:
        """Loads from shared memory whose value some ways on do not use, by the instruction's id."""
        found = {}
        self._numbers = {id(i): (b.number, n) for b in self._blocks for n, i in enumerate(b.code)}
        for i in self.entry.code:
            of = traits(i.op)
            if (
                of.base not in ("ld", "ldmatrix", "wmma")
                or "memory" not in of.row
                or not _may_be_shared(i.op)
            ):
                continue
            slots = {self._builder.slot(r): ones(self._builder.kind(r)) for r in registers(i.operands[0])}
            if uses.is_spare(place := self._numbers[id(i)], slots):
                found[id(i)] = SpareLoad(place, slots, whole="warp" in of.row)
        return found

    def _tracked(self, instruction: Instruction, number: int) -> Tracked | Later:
        where = self._builder.site(instruction)
        make = partial(self._made, instruction, number, where)
        if self._native and (step := self._known(self._native.step, instruction, where)) is not None:
            return Later(make, step, reads_memory=instruction.op.startswith("ld"))
        return make()

    def _made(self, instruction: Instruction, number: int, where: Site) -> Tracked:
        found = known(instruction.op)
        if found is None:
            what = f"{self._where(where)}{refused(instruction.op)}"
            raise PtxError(f"unknown instruction {instruction.op}: {what}")
        run: Run = self._known(found.make, instruction, where)
        whole = run
        for each in (self.state.inflight, self.state.loads):
            if each.watched:
                whole = each.watch(instruction, found.writes, where, whole)
        if instruction.guard is not None:
            whole = self._guarded(instruction, where, whole)
        tracked: Tracked = self._known(
            partial(Tracked, number=number, writes=found.writes, run=run, whole=whole), instruction, where
        )
        return tracked

    def _guarded(self, instruction: Instruction, where: Site, run: Run) -> Run:
        assert instruction.guard is not None
        guard, negated = self._guard(instruction, where), instruction.guard[1]

        def guarded(mask: Mask | None) -> None:
            taken = ~guard() if negated else guard()
            if mask is not None:
                taken = taken & mask.bits
            chosen = None if mask is None and taken.all() else Mask(taken)
            where.count_guard(chosen)
            if taken.any():
                run(chosen)

        return guarded

    def _known(self, make: Callable[..., Any], instruction: Instruction, site: Site) -> Any:
        """Calls a function of the instruction table; its exceptions become a PtxError with the line."""
        try:
            return make(self._builder, instruction, site)
        except _NOT_KNOWN as error:
            detail = f" ({error})" if isinstance(error, PtxError) else ""
            base = instruction.op.split(".")[0]
            raise PtxError(f"unknown form of {base}, {instruction.op}{detail}: {self._where(site)}") from None

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
        backwards: Collection[int] = (),
        seconds: float = math.inf,
        cooperative: bool = False,
        schedule: int | None = None,
        inexact: int | None = None,
    ) -> Report:
        """Runs a batch of launches with the same grid.

        ``grid`` and ``block``: x, y, z. ``dynamic_shared``: bytes. ``parameters``: the kernel's arguments,
        for each launch. ``memory``: the buffers, which the launches change. ``budget``: basic blocks that the
        lanes of a chunk may execute before they count as hanging, or before some that wait for others get
        what they wait for. ``counters``: collects the memory counters, if given. ``backwards``: the launches
        whose thread blocks run last to first, not first to last; a result that depends on the order then
        differs. ``seconds``: a batch that takes longer hangs. ``cooperative``: a cooperative launch, all of
        whose blocks are on the GPU at once. ``schedule``: a seed, by which warps are late at random, mostly
        before they write or arrive; by default they run in step. ``inexact``: a seed, by which FP32 results
        of .approx instructions are off by the ISA's bounds, up or down; by default they are nearly exact.
        Raises LaunchError for a launch that a GPU rejects.
        """
        self._report, self._told = Report(), {}
        self._deadline = time.monotonic() + seconds
        refuse(self.entry, grid, block, self.static_shared, dynamic_shared)
        room = residents(self.entry, block, self.static_shared + dynamic_shared)
        if cooperative:
            refuse_cooperative(self.entry, grid, room)
        self.state.begin(memory, len(parameters), cooperative)
        self._watch(memory, parameters)
        self.state.inexact = inexact
        count = grid[0] * grid[1] * grid[2]
        number = np.arange(count)
        one = np.stack([number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])], axis=1)
        cluster = self.entry.cluster
        # The blocks of a cluster stand together, by rank.
        size = cluster[0] * cluster[1] * cluster[2]
        keys = [one[:, i] % cluster[i] for i in range(3)] + [one[:, i] // cluster[i] for i in range(3)]
        one = one[np.lexsort(keys)]
        back = one.reshape(-1, size, 3)[::-1].reshape(-1, 3)
        orders = [back if launch in backwards else one for launch in range(len(parameters))]
        blocks = np.concatenate(orders).astype(np.int32)
        launches = np.repeat(np.arange(len(parameters)), count)
        threads = -(-block[0] * block[1] * block[2] // WARP) * WARP
        each = max(1, LANES // (threads * size)) * size
        # Blocks that never poll do not see which others are there; last to first they come in no GPU's order.
        most = len(blocks) if not self._polls or backwards else room
        if counters is not self._counters:
            for site in self._builder.sites:
                site.counters = counters
            self._counters = counters
        self._previous = 0
        self._schedule = None if schedule is None else Schedule(schedule, self._blocks)

        def start(blocks: Array, launches: Array) -> Flow:
            of = Geometry(blocks, launches, block, grid, cluster)
            return self._start(of, dynamic_shared, parameters, budget)

        with np.errstate(all="ignore"), ExitStack() as after:
            after.callback(self._leave)
            try:
                Residents(blocks, launches, most, each, size).run(self.state, start, self._resume, self._end)
            except Trap as trap:
                self._report.hazards.append(self._hazard(trap.check, trap.what, trap.site, trap.lane))
                self._report.stopped = True
        self._report.printed = self.state.printed
        self._note_leaks(memory)
        self.state.undefined.finish(memory.outputs(), self._report.stopped)
        return self._report

    def _watch(self, memory: GlobalMemory, parameters: Sequence[Sequence[Any]]) -> None:
        names = [name for name, _ in self.entry.parameters]
        given = [(names[i], value) for launch in parameters for i, value in enumerate(launch)]
        numbers = {
            (int(value) >> BUFFER) - 1
            for name, value in given
            if name in self._changes and isinstance(value, np.integer)
        }
        memory.watch(numbers, self._changes)

    def _note_leaks(self, memory: GlobalMemory) -> None:
        """A note of what this batch got from malloc and did not free; a later launch may."""
        left = memory.kept.left() if memory.kept is not None and not self._report.stopped else []
        for launch in sorted({block.launch for block in left}):
            mine = [block for block in left if block.launch == launch]
            total, place = sum(block.size for block in mine), self._place(mine[0].site)
            what = f"ends with {total} bytes that malloc gave and nobody has freed, the first of them"
            where = (*place.at(self._source), place.text(self._source), mine[0].site.ptx)
            self._report.notes.append(Hazard("bounds", launch, f"{what} to {mine[0].who}", "", *where))

    def _leave(self) -> None:
        """Frees what this batch held: the prepared kernel is kept for further launches."""
        self.state.leave(self._builder.initial)
        self._builder.forget()
        if self._native:
            self._native.forget()

    def report(
        self,
        check: str,
        what: str,
        site: Site | None,
        lane: int,
        note: bool = False,
        before: Site | None = None,
    ) -> None:
        """Records a hazard: once for each instruction and launch, and at most _HAZARDS for a source line."""
        if not self._repeats(check, int(self.state.geometry.launch[lane]), site, note):
            (self._report.notes if note else self._report.hazards).append(
                self._hazard(check, what, site, lane, before)
            )

    def _repeats(self, check: str, launch: int, site: Site | None, note: bool) -> bool:
        told = self._told.setdefault((check, note, launch), _Told())
        line = site.instruction.line if site else 0
        if line in told.lines:
            return True
        told.lines.add(line)
        # Those of one line, which may be waived, leave those of all others their room.
        place = self._place(site) if site else SourceLocation()
        told.places[place] += 1
        return told.places[place] > _HAZARDS

    def _hazard(
        self, check: str, what: str, site: Site | None, lane: int, before: Site | None = None, rest: str = ""
    ) -> Hazard:
        """``before``: where the other access is; ``rest``: what is said after that."""
        other = self._place(before).text(self._source) if before else ""
        what += f" (the other access is at {other})" * bool(other) + rest
        geometry, known = self.state.geometry, self._place(site) if site else SourceLocation()
        where = (*known.at(self._source), known.text(self._source))
        ptx = site.ptx if site else ""
        return Hazard(check, int(geometry.launch[lane]), what, geometry.describe(lane), *where, ptx)

    def _keep(self, hazard: Hazard, site: Site | None, note: bool) -> None:
        """Records a hazard that was found earlier, as ``report`` does."""
        if not self._repeats(hazard.check, hazard.launch, site, note):
            (self._report.notes if note else self._report.hazards).append(hazard)

    def _start(
        self, geometry: Geometry, dynamic_shared: int, parameters: Sequence[Sequence[Any]], budget: int
    ) -> Flow:
        """These blocks run from now on, from the start."""
        if geometry.count != self._previous:
            self._builder.forget()
        for site in self._builder.remembering:
            for pattern in site.patterns:
                pattern.known = False
        self._previous = geometry.count
        self.state.enter(geometry, self._builder.initial, self._granule, dynamic_shared, parameters)
        if self._native:
            self._native.forget()
        if self._spare:
            self.state.shared.log.trace = Trace(self._spare, self._numbers, self._steps, geometry.lanes)
        self.state.undefined.enter(geometry.lanes, self._unset)
        if self._counters is not None:
            self._counters.enter(geometry)
        more = (self._report, self.report, self._counters, self._deadline, self._polls, self._schedule)
        return Flow(self.state, self._places, geometry, budget, *more)

    def _resume(self, geometry: Geometry) -> None:
        """These blocks, which have been suspended, go on."""
        # Constants that C has got since.
        self.state.registers += self._builder.initial[len(self.state.registers) :]
        self._builder.forget()
        self._previous = geometry.count
        if self._native:
            self._native.forget()
        if self._counters is not None:
            self._counters.resume(geometry)

    def _end(self) -> None:
        """The blocks that ran have ended."""
        if self.state.asynchronous is not None:
            self.state.asynchronous.finish()


@cache
def _may_be_shared(op: str) -> bool:
    """Whether it may access shared memory: by name, or by a generic address."""
    base, *words = op.split(".")
    named = any(word.startswith(("global", "local", "param", "const")) for word in words)
    return ".shared" in op or (base in ("ld", "st", "atom", "red") and not named)


def _steps(block: BasicBlock) -> list[Effect]:
    """Of all instructions of a block."""
    return [*(each.step for each in block.tracked), *([block.ending.step] if block.ending else [])]

"""Blocks of code of which C runs what it knows, and the instructions' own functions the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from ptxsan.checks.hazards import Site
from ptxsan.checks.liveness import Step, before, bits
from ptxsan.frontend.syntax import Instruction, registers_in
from ptxsan.lanes import Array, Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.straight.program import Program
from ptxsan.machine.straight.translate import Load, Stretch, Translator
from ptxsan.native.build import Library, library

# The checks of a load, and then what it reads; None where the instruction's own function has to do.
Prepare = Callable[[Mask | None], Callable[[], tuple[Array, Array]] | None]


class Native:
    """The blocks of one kernel. ``successors`` of a block are those that may follow it."""

    def __init__(self, b: Builder, library: Library) -> None:
        self._b, self._library, self._translator = b, library, Translator(b, self._register)
        self._sites: dict[int, Site] = {}
        self._memories: list[_Addresses] = []

    @classmethod
    def of(cls, b: Builder) -> Native | None:
        """None where NumPy does everything."""
        found = library()
        return cls(b, found) if found else None

    def forget(self) -> None:
        """Other blocks of threads run from now on."""
        for memory in self._memories:
            memory.forget()

    def step(self, b: Builder, i: Instruction, site: Site) -> Step | None:
        """What an instruction reads and writes, if it may be part of a stretch."""
        written = self._translator.target(i)
        if not written:
            return None
        reads = frozenset(b.slot(o) for o in registers_in(i.operands[1:]))
        return Step(reads, frozenset(b.slot(o) for o in written))

    def blocks(
        self, blocks: Sequence[tuple[Sequence[Instruction], Sequence[Run], Sequence[Step], Sequence[int]]]
    ) -> list[Callable[[], list[Run]]]:
        """Of each block: (code, its functions, its steps, successors), what gives its functions in C; most
        blocks are never asked. Code may end with what is not of the functions: a branch, or a barrier."""
        self._sites = {id(site.instruction): site for site in self._b.sites}

        @cache
        def facts() -> tuple[list[list[tuple[int, int]]], list[int]]:
            found = [list(map(self._facts, code, steps)) for code, _, steps, _ in blocks]
            return found, self._alive(found, [after for *_, after in blocks])

        def make(at: int) -> list[Run]:
            found, alive = facts()
            return self._block(*blocks[at][:2], found[at], alive[at])

        return [cache(partial(make, at)) for at in range(len(blocks))]

    def _register(self, value: Any) -> int:
        """A register of our own, also while the kernel runs."""
        slot = self._b.constant(value)
        for registers, first in ((self._b.state.registers, value), (self._b.state.wide, None)):
            registers += [first] * (slot + 1 - len(registers)) if registers else []
        return slot

    # Which registers are read later

    def _facts(self, i: Instruction, step: Step) -> tuple[int, int]:
        """Registers that an instruction certainly writes, and those it may read, as bits."""
        reads, writes = bits(step.reads), bits(step.writes)
        return (writes, reads) if self._translator.target(i) else (0, reads | writes)

    def _alive(self, facts: list[list[tuple[int, int]]], successors: list[Sequence[int]]) -> list[int]:
        """After each block."""
        written, reads = [], []
        for of in facts:
            w = r = 0
            for kills, uses in reversed(of):
                w, r = w | kills, (r & ~kills) | uses
            written.append(w)
            reads.append(r)
        live, found = before(reads, written, successors), []
        for following in successors:
            after = 0
            for n in following:
                after |= live[n]
            found.append(after)
        return found

    # From instructions to stretches

    def _block(
        self, code: Sequence[Instruction], runs: Sequence[Run], facts: list[tuple[int, int]], after: int
    ) -> list[Run]:
        alive = [after] * (len(code) + 1)  # before each instruction
        for at in range(len(code) - 1, -1, -1):
            kills, uses = facts[at]
            alive[at] = (alive[at + 1] & ~kills) | uses
        found: list[Run] = []
        stretch, start = Stretch(), 0
        for at, run in enumerate(runs):
            # Of what may be part of a stretch is known what it writes.
            if facts[at][0] and self._translator.add(stretch, code[at]):
                continue
            found += self._finished(stretch, runs[start:at], alive[at])
            stretch, start = Stretch(), at
            if not facts[at][0]:
                found.append(run)
                start = at + 1
            else:
                self._translator.add(stretch, code[at])
        return found + self._finished(stretch, runs[start:], alive[len(runs)])

    def _finished(self, stretch: Stretch, plain: Sequence[Run], alive: int) -> list[Run]:
        """What runs a stretch; ``plain`` are the functions of its instructions."""
        outputs = {slot: value for slot, value in stretch.last.items() if alive >> slot & 1}
        needed = set(outputs.values())
        steps = []
        for step in reversed(stretch.steps):
            if step.result in needed or step.load >= 0:
                steps.append(step)
                needed |= set(step.operands)
        addresses = stretch.addresses()
        early = [step for step in stretch.steps if step.result in addresses]
        late = [step for step in reversed(steps) if step.result not in addresses]
        inputs = dict(stretch.slots)
        first = None
        if early:
            used = {v for step in late for v in step.operands} | set(outputs.values())
            used |= {load.address for load in stretch.loads if load.address is not None}
            kept = {self._register(stretch.dtypes[v].type(0)): v for v in addresses & used}
            program = Program(self._library, early, inputs, kept, stretch.dtypes, [])
            first = _Addresses(self._b.state, program, list(kept))
            self._memories.append(first)
            inputs |= {v: slot for slot, v in kept.items()}
        sites = self._sites
        loads = [_loading(self._b, sites[id(load.instruction)], load, inputs) for load in stretch.loads]
        if not late and not outputs:
            return []
        strides = [load.count for load in stretch.loads]
        program = Program(self._library, late, inputs, outputs, stretch.dtypes, strides)
        return [_runner(self._b.state, first, loads, program, plain)]


def _runner(
    state: Any, first: _Addresses | None, loads: list[Prepare], program: Program, plain: Sequence[Run]
) -> Run:
    registers, undefined = state.registers, state.undefined
    if not loads:
        return lambda mask: program.run(registers, state.lanes, mask and mask.bits, [])

    def run(mask: Mask | None) -> None:
        if first is not None:
            first.run(mask)
        # Until all loads are checked nothing has changed: the instructions themselves may still run instead.
        ready = [prepare(mask) for prepare in loads]
        if None in ready or undefined.fresh is not None:
            undefined.fresh = None  # the instructions themselves tell which of them reads what is undefined
            for each in plain:
                each(mask)
            return
        loaded = [part for read in ready for part in read()]  # type: ignore[misc]
        program.run(registers, state.lanes, mask and mask.bits, loaded)

    return run


class _Addresses:
    """What the loads of a stretch need. From the same arrays come the same ones, which the checks know again:
    in a loop nearly always."""

    def __init__(self, state: Any, program: Program, outputs: list[int]) -> None:
        self._state, self._program, self._outputs = state, program, outputs
        self.forget()

    def forget(self) -> None:
        self._given: list[Any] = []
        self._made: list[Any] = []

    def run(self, mask: Mask | None) -> None:
        registers = self._state.registers
        given = [registers[i] for i in self._program.inputs]
        if self._made and all(a is b for a, b in zip(given, self._given, strict=True)):
            for slot, value in zip(self._outputs, self._made, strict=True):
                registers[slot] = value
            return
        # Of all lanes: those that are not active are not looked at.
        self._program.run(registers, self._state.lanes, None, [])
        self._given, self._made = given, [registers[slot] for slot in self._outputs]


def _loading(b: Builder, site: Site, load: Load, inputs: dict[int, int]) -> Prepare:
    """A load, of addresses in registers that are ready."""
    state, width = b.state, load.size * load.count
    dtype = SEEN["s32" if load.space == "shared" else "s64"]
    offset = dtype.type(load.offset)
    registers, slot = state.registers, None if load.address is None else inputs[load.address]
    last: list[Any] = [None, None]

    def address() -> Any:
        if slot is None:
            return offset
        now = registers[slot]
        if now is not last[0]:
            last[0], last[1] = now, now + offset if load.offset else now
        return last[1]

    if load.space == "shared":
        return lambda mask: state.shared.prepare(site, address(), width, mask)
    return lambda mask: state.memory.prepare(site, address(), width, mask)

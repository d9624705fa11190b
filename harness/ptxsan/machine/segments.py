"""A program of blocks.c: steps, where their values are kept, and what becomes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.undefined import Effect, before
from ptxsan.frontend import Instruction, registers_in
from ptxsan.lanes import Array, Mask
from ptxsan.machine import SEEN, Builder, Run
from ptxsan.machine.translate import Load, Segment, Step, Translator
from ptxsan.native import KINDS, CLibrary, library

_CACHE = 64 * 1024  # bytes that the values of a strip may take
_STRIPS = (64, 1024)  # lanes
_KEPT = 4  # sets of addresses that the loads of a segment had last


class _ProgramFields(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("operations", "inputs", "values", "outputs", "loads", "strip")],
        *[(name, ctypes.c_void_p) for name in ("operation", "input", "size", "room", "output", "scratch")],
        *[(name, ctypes.c_void_p) for name in ("place", "step", "same", "made", "target")],
    ]


class Program:
    """Steps made ready to run. ``inputs`` are the registers of values from before, ``outputs`` those that
    get a value; ``strides`` the elements of each load."""

    def __init__(
        self,
        library: CLibrary,
        steps: Sequence[Step],
        inputs: Mapping[int, int],
        outputs: Mapping[int, int],
        dtypes: Sequence[Any],
        strides: Sequence[int],
    ) -> None:
        used = {v for step in steps for v in step.operands} | set(outputs.values())
        before = [v for v in inputs if v in used]
        number = {v: i for i, v in enumerate([*before, *(step.result for step in steps)])}
        last = {v: at for at, step in enumerate(steps) for v in step.operands}
        made = {step.result: at for at, step in enumerate(steps)}
        last |= dict.fromkeys(outputs.values(), len(steps))
        sizes = {v: np.dtype(dtypes[v]).itemsize for v in number}
        rooms, count = _rooms(steps, {v: i for i, v in enumerate(before)}, last, sizes)
        self.inputs = [inputs[v] for v in before]
        size = list(sizes.values())
        room = [rooms[v] for v in number]
        operation = []
        for step in steps:
            if step.load >= 0:
                source = [step.load, strides[step.load], step.element]
            else:
                source = [number[v] for v in step.operands]
                source += source[:1] * (3 - len(source))
            operation.append([step.code, number[step.result], *source])
        output: list[list[int]] = []
        seen: dict[int, int] = {}
        passed = set(outputs.values())
        of_slot = {inputs[v]: v for v in before}
        for k, (slot, value) in enumerate(outputs.items()):
            old = of_slot.get(slot)
            # Its old array may be written over once nothing reads it any more.
            over = value in made and (old is None or (old not in passed and last.get(old, -1) <= made[value]))
            kind = KINDS.index(np.dtype(dtypes[value]))
            output.append(
                [slot, number[value], kind, int(over), seen.setdefault(value, k) if value in seen else -1]
            )
            seen.setdefault(value, k)
        strip = _strip(sum(size))
        counts = (len(steps), len(before), len(number), len(output), len(strides), strip)
        rows = [list(chain(*operation)), self.inputs, size, room, list(chain(*output))]
        # The scratch, and of each value and output what a run fills in.
        filled_of = [count * strip * 8, *[8 * len(number)] * 3, *[8 * len(output)] * 2]
        # Kept, as the structure has their addresses alone.
        self._held = np.array(list(chain(*rows)), np.int32), np.zeros(sum(filled_of) + 64, np.uint8)
        numbers, filled = (array.__array_interface__["data"][0] for array in self._held)
        filled += -filled % 64
        pointers = [
            *_one_after_another(numbers, [4 * len(each) for each in rows]),
            *_one_after_another(filled, filled_of),
        ]
        self._fields = _ProgramFields(*counts, *pointers)
        self._run, self._at = library.run, ctypes.addressof(self._fields)

    def run(self, registers: list[Any], lanes: int, bits: Any, loaded: list[Any]) -> None:
        wrong = self._run(self._at, registers, bits, loaded, lanes)
        if wrong == -2:
            self.run(registers, lanes, np.ascontiguousarray(bits), loaded)
        elif wrong:
            raise AssertionError(
                f"register {self.inputs[wrong - 1]} holds {registers[self.inputs[wrong - 1]]!r}"
            )


def _one_after_another(start: int, sizes: Sequence[int]) -> list[int]:
    """Where pieces of so many bytes begin."""
    return list(accumulate(sizes[:-1], initial=start))


def _rooms(
    steps: Sequence[Step], before: Mapping[int, int], last: Mapping[int, int], size: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Where each value is kept: a room is free again after a value's last use, and at once for a result of
    the same width."""
    rooms = dict(before)
    count, free = len(before), list[int]()
    for at, step in enumerate(steps):
        done = [v for v in dict.fromkeys(step.operands) if last[v] == at and v not in before]
        alike = [rooms[v] for v in done if size[v] == size[step.result]]
        free += alike
        if free:
            rooms[step.result] = free.pop()
        else:
            rooms[step.result], count = count, count + 1
        free += [rooms[v] for v in done if size[v] != size[step.result]]
        if step.result not in last:
            free.append(rooms[step.result])
    return rooms, count


def _strip(size: int) -> int:
    """Lanes at a time, of so many bytes each."""
    low, high = _STRIPS
    while high > low and high * size > _CACHE:
        high //= 2
    return high


# Blocks of code of which C runs what it knows, and the instructions' own functions the rest.


# The checks of a load, and then what it reads; None where the instruction's own function has to do.
Prepare = Callable[[Mask | None], Callable[[], tuple[Array, Array]] | None]


class Native:
    """The blocks of one kernel. ``successors`` of a block are those that may follow it; what touches the
    ``watched`` registers, by name, is left to the instructions' own functions."""

    def __init__(self, b: Builder, library: CLibrary, watched: Set[str]) -> None:
        self._b, self._library, self._translator = b, library, Translator(b, self._register, watched)
        self._sites: dict[int, Site] = {}
        self._holding: set[_Addresses | _Reads] = set()  # those that remember something

    @classmethod
    def of(cls, b: Builder, watched: Set[str]) -> Native | None:
        """None where NumPy does everything."""
        found = library()
        return cls(b, found, watched) if found else None

    def forget(self) -> None:
        """Other blocks of threads run from now on."""
        for memory in self._holding:
            memory.forget()
        self._holding.clear()

    def step(self, b: Builder, i: Instruction, site: Site) -> Effect | None:
        """What an instruction reads and writes, if it may be part of a segment."""
        written = self._translator.target(i)
        if not written:
            return None
        reads = frozenset(b.slot(o) for o in registers_in(i.operands[1:]))
        return Effect(reads, frozenset(b.slot(o) for o in written))

    def blocks(
        self, blocks: Sequence[tuple[Sequence[Instruction], Sequence[Run], Sequence[Effect], Sequence[int]]]
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
        registers = self._b.state.registers
        registers += [value] * (slot + 1 - len(registers)) if registers else []
        return slot

    # Which registers are read later

    def _facts(self, i: Instruction, step: Effect) -> tuple[int, int]:
        """Registers that an instruction certainly writes, and those it may read, as bits."""
        reads, writes = step.bits
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

    # From instructions to segments

    def _block(
        self, code: Sequence[Instruction], runs: Sequence[Run], facts: list[tuple[int, int]], after: int
    ) -> list[Run]:
        alive = [after] * (len(code) + 1)  # before each instruction
        for at in range(len(code) - 1, -1, -1):
            kills, uses = facts[at]
            alive[at] = (alive[at + 1] & ~kills) | uses
        found: list[Run] = []
        segment, start = Segment(), 0
        for at, run in enumerate(runs):
            # Of what may be part of a segment is known what it writes.
            if facts[at][0] and self._translator.add(segment, code[at]):
                continue
            found += self._finished(segment, runs[start:at], alive[at])
            segment, start = Segment(), at
            if not facts[at][0]:
                found.append(run)
                start = at + 1
            else:
                self._translator.add(segment, code[at])
        return found + self._finished(segment, runs[start:], alive[len(runs)])

    def _finished(self, segment: Segment, plain: Sequence[Run], alive: int) -> list[Run]:
        """What runs a segment; ``plain`` are the functions of its instructions."""
        outputs = {slot: value for slot, value in segment.last.items() if alive >> slot & 1}
        needed = set(outputs.values())
        steps = []
        for step in reversed(segment.steps):
            if step.result in needed or step.load >= 0:
                steps.append(step)
                needed |= set(step.operands)
        addresses = segment.addresses()
        early = [step for step in segment.steps if step.result in addresses]
        late = [step for step in reversed(steps) if step.result not in addresses]
        inputs = dict(segment.slots)
        first = None
        if early:
            used = {v for step in late for v in step.operands} | set(outputs.values())
            used |= {load.address for load in segment.loads if load.address is not None}
            kept = {self._register(segment.dtypes[v].type(0)): v for v in addresses & used}
            program = Program(self._library, early, inputs, kept, segment.dtypes, [])
            first = _Addresses(self._b.state, program, list(kept), self._holding)
            inputs |= {v: slot for slot, v in kept.items()}
        sites = self._sites
        loads = [_loading(self._b, sites[id(load.instruction)], load, inputs) for load in segment.loads]
        reads = _Reads(self._b.state, segment.loads, inputs, self._holding)
        if not late and not outputs:
            return []
        strides = [load.count for load in segment.loads]
        program = Program(self._library, late, inputs, outputs, segment.dtypes, strides)
        return [_runner(self._b.state, first, loads, reads, program, plain)]


def _runner(
    state: Any,
    first: _Addresses | None,
    loads: list[Prepare],
    reads: _Reads,
    program: Program,
    plain: Sequence[Run],
) -> Run:
    registers, undefined = state.registers, state.undefined
    if not loads:
        return lambda mask: program.run(registers, state.lanes, mask and mask.bits, [])

    def run(mask: Mask | None) -> None:
        if first is not None:
            first.run(mask)
        if (known := reads.again(mask)) is not None:
            program.run(registers, state.lanes, mask and mask.bits, known)
            return
        # Until all loads are checked nothing has changed: the instructions themselves may still run instead.
        ready = [prepare(mask) for prepare in loads]
        if None in ready or undefined.fresh is not None:
            undefined.fresh = None  # the instructions themselves tell which of them reads what is undefined
            for each in plain:
                each(mask)
            return
        loaded = [part for read in ready for part in read()]  # type: ignore[misc]
        reads.keep(mask, ready, loaded)
        program.run(registers, state.lanes, mask and mask.bits, loaded)

    return run


class _Addresses:
    """What the loads of a segment need. From the same arrays come the same ones, which the checks know again:
    in a loop nearly always."""

    def __init__(self, state: Any, program: Program, outputs: list[int], holding: set[Any]) -> None:
        self._state, self._program, self._outputs, self._holding = state, program, outputs, holding
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
        self._holding.add(self)


class _Reads:
    """The loads of a segment, where all are from shared memory: from the same addresses they are checked at
    once."""

    def __init__(
        self, state: Any, loads: Sequence[Load], inputs: Mapping[int, int], holding: set[Any]
    ) -> None:
        self._state, self._holding = state, holding
        self._shared = all(load.space == "shared" for load in loads)
        self._slots = sorted({inputs[load.address] for load in loads if load.address is not None})
        self.forget()

    def forget(self) -> None:
        self._held: list[tuple[list[Any], Mask | None, Any, list[Any]]] = []

    def again(self, mask: Mask | None) -> list[Any] | None:
        """Storage and elements of each load; None where each has to be looked at."""
        for given, of, repeated, loaded in self._held:
            if of is mask and all(map(self._alike, self._slots, given)):
                return loaded if self._state.shared.repeat(repeated) else None
        return None

    def _alike(self, slot: int, given: Any) -> bool:
        now = self._state.registers[slot]
        return now is given or (now.shape == given.shape and not np.count_nonzero(now != given))

    def keep(self, mask: Mask | None, ready: Sequence[Any], loaded: list[Any]) -> None:
        """What was looked at just now, for when it comes again."""
        if self._shared:
            repeated = self._state.shared.repeated([read.pattern for read in ready])
            if repeated is not None:
                given = [self._state.registers[slot] for slot in self._slots]
                self._held = [(given, mask, repeated, loaded), *self._held][:_KEPT]
                self._holding.add(self)


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

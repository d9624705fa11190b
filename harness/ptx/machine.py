"""A kernel made ready to run, and run: blocks of threads together, a batch of launches as one grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.ptx import instructions, tensor
from harness.ptx.arithmetic import FusedMultiplyAdd, canonical_if_any
from harness.ptx.builder import Builder, Run
from harness.ptx.counters import Counters
from harness.ptx.flow import Barrier, Block, Flow, Hazard, Report, ends
from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import WARP, Geometry, Mask
from harness.ptx.memory import SLOT, ConstantMemory, GlobalMemory, LocalMemory
from harness.ptx.parser import Entry, Instruction, Name, PtxError, Register, size_of
from harness.ptx.shared import SharedMemory

# What the functions of the table raise where operands are not those they expect.
_NOT_KNOWN = (PtxError, LookupError, ValueError, TypeError, ArithmeticError, AssertionError, StopIteration)
LANES = 8192  # that run together: enough that NumPy's work outweighs Python's, few enough for the caches
_HAZARDS = 10  # kept of each check and launch


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
        self._told: dict[tuple[str, int], set[int]] = {}  # lines, by check and launch

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

    def _build(self) -> list[Block]:
        code, labels = self.entry.code, self.entry.labels
        for instruction in code:
            if ".shared" in instruction.op:
                kind = instruction.op.rsplit(".", 1)[-1]
                if kind in ("u8", "s8", "b8", "u16", "s16", "b16", "f16"):
                    self._granule = min(self._granule, size_of(kind))
            if instruction.op.startswith("wmma") and instruction.op.endswith("f16"):
                self._granule = min(self._granule, 2)
        starts = {0, *labels.values()}
        starts |= {i + 1 for i, instruction in enumerate(code) if ends(instruction)}
        order = sorted(s for s in starts if s < len(code))
        number = {start: i for i, start in enumerate(order)}
        number[len(code)] = len(order)
        blocks = []
        for start, stop in zip(order, [*order[1:], len(code)], strict=True):
            body = code[start:stop]
            end = body.pop() if body and ends(body[-1]) else None
            block = Block([self._closure(i) for i in body], end, code=code[start:stop])
            if end is not None:
                block.site = self._builder.site(end)
                if end.op.startswith("bar"):
                    block.barrier = self._known(lambda b, i, s: Barrier.of(b, i), end, block.site)
                if end.guard:
                    block.guard, block.negated = self._guard(end, block.site), end.guard[1]
                if end.op.startswith("bra"):
                    assert isinstance(end.operands[-1], Name)
                    block.target = number[labels[end.operands[-1].text]]
            blocks.append(block)
        self.registers += self._builder.initial
        self.wide += [None] * len(self.registers)
        return blocks

    def _guard(self, instruction: Instruction, site: Site) -> Callable[[], Any]:
        assert instruction.guard is not None
        register = Register(instruction.guard[0])
        read: Callable[[], Any] = self._known(lambda b, i, s: b.read(register, "pred"), instruction, site)
        return read

    def _closure(self, instruction: Instruction) -> Run:
        base = instruction.op.split(".")[0]
        make = tensor.TABLE.get(base) or instructions.TABLE.get(base)
        where = self._builder.site(instruction)
        if make is None:
            raise PtxError(f"unknown instruction {instruction.op}: {self._where(where)}")
        run: Run = self._known(make, instruction, where)
        if instruction.guard is None:
            return run
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
        """What a function of the table makes of an instruction, or a clear error."""
        try:
            return make(self._builder, instruction, site)
        except _NOT_KNOWN as error:
            detail = f" ({error})" if isinstance(error, PtxError) else ""
            base = instruction.op.split(".")[0]
            raise PtxError(f"unknown form of {base}, {instruction.op}{detail}: {self._where(site)}") from None

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
        self._report, self._told = Report(), {}
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
                    self._tell(trap.check, trap.what, trap.site, trap.lane)
                    self._report.stopped = True
                    break
        return self._report

    def report(self, check: str, what: str, site: Site | None, lane: int) -> None:
        """Note a hazard, once an instruction and launch, and so many of a kind that none hides another."""
        launch = int(self.geometry.launch[lane])
        told = self._told.setdefault((check, launch), set())
        line = site.instruction.line if site else 0
        if line in told or len(told) >= _HAZARDS:
            return
        told.add(line)
        self._tell(check, what, site, lane)

    def _tell(self, check: str, what: str, site: Site | None, lane: int) -> None:
        launch = int(self.geometry.launch[lane])
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
        Flow(self, self._blocks, geometry, budget, self._report, counters).run()

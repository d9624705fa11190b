"""Memory counters and FLOP of a launch, counted while its PTX runs, instruction by instruction.

A request is one execution of an instruction by a warp with at least one active lane; ``ptxsan.checks``
computes its cost. An atomic operation counts as a load and a store for each lane. A wmma load or store counts
as accesses of 16 bytes per lane (isa/wmma.py); ptxas may implement it differently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ptxsan.checks import GlobalAccess, SharedAccess, bulk_access, global_access, shared_access
from ptxsan.checks.races import Pattern
from ptxsan.frontend import Instruction
from ptxsan.lanes import WARP, Array, Geometry, Items, Mask
from ptxsan.machine.table import shape, traits

KINDS = ("load", "store", "copy")  # copy: cp.async, a load from global and a store to shared memory

_GLOBAL, _SHARED = GlobalAccess(), SharedAccess()
_NONE = (_GLOBAL, _GLOBAL, _GLOBAL, _SHARED, _SHARED, _SHARED)


class Tally(NamedTuple):
    """The counts of some instructions over all their executions. ``instructions`` and ``barriers``:
    executions by a warp. ``divergent``: branches that split a warp. ``flop``: 2 for each FMA and active lane,
    1 for an addition or multiplication, 2·m·n·k for a tensor-core instruction."""

    instructions: int = 0
    flop: int = 0
    barriers: int = 0
    divergent: int = 0
    loads: GlobalAccess = _GLOBAL
    stores: GlobalAccess = _GLOBAL
    copies: GlobalAccess = _GLOBAL
    shared_loads: SharedAccess = _SHARED
    shared_stores: SharedAccess = _SHARED
    shared_copies: SharedAccess = _SHARED

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally.of_all([self, other])

    @classmethod
    def of_all(cls, tallies: Sequence[Tally]) -> Tally:
        """The sum of some, of none as well."""
        if len(tallies) == 1:
            return tallies[0]
        counts = [sum(each) for each in zip(*(tally[:4] for tally in tallies), strict=True)] or (0, 0, 0, 0)
        # Most instructions access no memory, and there are many.
        accesses: Any = _NONE
        for tally in tallies:
            if tally[4:] != _NONE:
                accesses = [*map(add, accesses, tally[4:])]
        return cls(*counts, *accesses)

    @property
    def reads(self) -> GlobalAccess:
        """Reads of global memory, by loads and by cp.async."""
        return self.loads + self.copies

    @property
    def accesses(self) -> GlobalAccess:
        return self.reads + self.stores

    @property
    def shared(self) -> SharedAccess:
        return self.shared_loads + self.shared_stores + self.shared_copies


@dataclass
class _Row:
    """The executions of an instruction, by warps and by lanes, and its accesses."""

    instruction: Instruction
    warps: int = 0
    lanes: int = 0
    guarded: int = 0
    divergent: int = 0
    flop: int = 0
    on_global: dict[str, GlobalAccess] = field(default_factory=dict)
    on_shared: dict[str, SharedAccess] = field(default_factory=dict)

    def tally(self) -> Tally:
        op = self.instruction.op
        lane, warp = flop(op)
        lanes = self.guarded if self.instruction.guard else self.lanes
        return Tally(
            instructions=self.warps,
            flop=lane * lanes + warp * self.warps + self.flop,
            barriers=self.warps if traits(op).barrier else 0,
            divergent=self.divergent,
            **{_FIELDS[kind]: access for kind, access in self.on_global.items()},  # type: ignore[arg-type]
            **{f"shared_{_FIELDS[kind]}": access for kind, access in self.on_shared.items()},  # type: ignore[arg-type]
        )


_FIELDS = {"load": "loads", "store": "stores", "copy": "copies"}


class Counters:
    """The counters of one kernel's launches, which ``PreparedKernel.run`` fills."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._runs: dict[int, list[Any]] = {}
        self._geometry: Geometry | None = None
        self._read: tuple[Array, Array] | None = None  # by the cp.async that is about to write
        self.buffers: dict[tuple[str, str], GlobalAccess] = defaultdict(GlobalAccess)
        self.blocks = self.warps = 0

    # What a machine calls

    def enter(self, geometry: Geometry) -> None:
        """These thread blocks run next."""
        self.resume(geometry)
        self.blocks += geometry.count
        self.warps += geometry.lanes // WARP

    def resume(self, geometry: Geometry) -> None:
        """These thread blocks, which were there before, go on."""
        self._geometry = geometry

    def touch_block(self, code: Sequence[Instruction], mask: Mask | None) -> None:
        """The active lanes executed these instructions, a basic block."""
        run = self._runs.setdefault(id(code), [code, 0, 0])
        run[1] += self._lanes // WARP if mask is None else int(mask.warps.sum())
        run[2] += self._count(mask)

    def touch_guard(self, instruction: Instruction, mask: Mask | None) -> None:
        self._row(instruction).guarded += self._count(mask)

    def touch_flop(self, instruction: Instruction, count: int) -> None:
        self._row(instruction).flop += count

    def touch_divergence(self, instruction: Instruction, taken: Mask, left: Mask) -> None:
        self._row(instruction).divergent += int((taken.warps & left.warps).sum())

    def touch_global(
        self, instruction: Instruction, kind: str, buffer: str, address: Array, width: int, mask: Mask | None
    ) -> None:
        if isinstance(mask, Items):
            access = bulk_access(address, width, len(np.unique(mask.index)))
        else:
            access = global_access(address, width, mask, self._lanes)
        held = self._row(instruction).on_global
        held[kind] = held.get(kind, _GLOBAL) + access
        self.buffers[buffer, kind] += access
        if kind == "copy" and not isinstance(mask, Items):
            self._read = (address, np.arange(self._lanes) if mask is None else mask.index)

    def touch_shared(self, instruction: Instruction, kind: str, pattern: Pattern) -> None:
        held = self._row(instruction).on_shared
        if pattern.access is None or kind == "copy":  # which reads other addresses each time
            read = self._read if kind == "copy" else None
            pattern.access = shared_access(pattern.offset, pattern.lane, pattern.width, kind, read)
        held[kind] = held.get(kind, _SHARED) + pattern.access

    @property
    def _lanes(self) -> int:
        assert self._geometry is not None
        return self._geometry.lanes

    def _count(self, mask: Mask | None) -> int:
        return self._lanes if mask is None else int(np.count_nonzero(mask.bits))

    def _row(self, instruction: Instruction) -> _Row:
        if (row := self._rows.get(id(instruction))) is None:
            row = self._rows[id(instruction)] = _Row(instruction)
        return row

    # What was counted

    def tallies(self) -> Iterator[tuple[Instruction, Tally]]:
        """Each instruction that was executed, with its counts, in program order."""
        for code, warps, lanes in self._runs.values():
            for instruction in code:
                row = self._row(instruction)
                row.warps, row.lanes = warps, lanes
        for row in sorted(self._rows.values(), key=lambda row: row.instruction.line):
            yield row.instruction, row.tally()


# What an instruction is, by its name

_LANE_FLOP = {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1}
_REAL = {"f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2, "f32": 1, "f64": 1}


@cache
def flop(op: str) -> tuple[int, int]:
    """Floating-point operations of an instruction: (for each active lane, for each warp)."""
    words = op.split(".")
    if words[0] == "mma" or words[:2] == ["wmma", "mma"]:
        return 0, 2 * prod(shape(op))
    if words[:2] == ["wgmma", "mma_async"]:
        return 0, 2 * prod(shape(op)) // 4  # by four warps
    return _LANE_FLOP.get(words[0], 0) * _REAL.get(words[-1], 0), 0


@cache
def mnemonic(op: str) -> str:
    """The name of an instruction in the instruction mix: ld.shared, fma.f32, cp.async, mma."""
    words = op.split(".")
    if words[0] in ("ld", "st", "ldu", "atom", "red"):
        space = next((w.split("::")[0] for w in words[1:] if w.startswith(_SPACES)), "generic")
        return f"{words[0]}.{space}"
    if words[0] in ("cp", "wmma", "wgmma", "tcgen05", "bar", "mbarrier"):
        return ".".join(words[:2])
    if words[0] in _LANE_FLOP and words[-1] in _REAL:
        return f"{words[0]}.{words[-1]}"
    return words[0]


_SPACES = ("global", "shared", "local", "param", "const")

"""What a launch asks of the hardware, counted while its PTX runs, instruction by instruction.

A request is one execution of an instruction by a warp with at least one active lane.

Global memory: a request touches sectors of 32 bytes, each once however many lanes want it, which is what
Nsight Compute counts as l1tex__t_requests and l1tex__t_sectors. Buffers start at a multiple of 256 bytes.

Shared memory: 32 banks of 4 bytes. Lanes are served in groups: 32 of them for accesses of up to 4 bytes, 16
for 8, 8 for 16. A group takes a wavefront for each distinct word that its fullest bank has to give; a word is
broadcast to all lanes that want it. Two groups of a load are served as one where each active lane wants what
the lane beside it wants, or each what the lane two further does (NVIDIA's developer forums, "Unexpected
shared memory bank conflict"). One wavefront a group is the least; more are bank conflicts. A cp.async reads
banks of L1, which is the same memory, and writes others: it takes as many wavefronts as the worse of the two
(fitted to Nsight Compute's figures on an H200). Not in the model: ptxas merges and drops accesses of the PTX.

An atomic operation counts as a load and a store for each lane. A wmma load or store counts as accesses of 16
bytes a lane (tensor.py): what ptxas makes of it is its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.ptx.lanes import WARP, Array, Geometry, Mask
from harness.ptx.parser import Instruction

if TYPE_CHECKING:
    from harness.ptx.shared import Pattern

SECTOR = 32  # bytes
BANKS = 32
_ROW = 4 * BANKS  # bytes, one word of each bank
KINDS = ("load", "store", "copy")  # copy: cp.async, a load from global and a store to shared memory


@dataclass(frozen=True)
class GlobalAccess:
    """Requests and their sectors; ``ideal`` the fewest sectors that could hold the distinct bytes of each
    request; ``bytes`` what the lanes asked for, each for itself."""

    requests: int = 0
    sectors: int = 0
    ideal: int = 0
    bytes: int = 0

    def __add__(self, other: GlobalAccess) -> GlobalAccess:
        return GlobalAccess(
            self.requests + other.requests,
            self.sectors + other.sectors,
            self.ideal + other.ideal,
            self.bytes + other.bytes,
        )

    @property
    def sectors_per_request(self) -> float:
        """4 where a warp reads 128 bytes in one piece; 0 without a request."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def excess(self) -> int:
        """Sectors that would not be needed if what a request wants lay together."""
        return self.sectors - self.ideal


@dataclass(frozen=True)
class SharedAccess:
    """Requests and their wavefronts; ``ideal`` what they were without a bank conflict; ``bytes`` of all
    lanes."""

    requests: int = 0
    wavefronts: int = 0
    ideal: int = 0
    bytes: int = 0

    def __add__(self, other: SharedAccess) -> SharedAccess:
        return SharedAccess(
            self.requests + other.requests,
            self.wavefronts + other.wavefronts,
            self.ideal + other.ideal,
            self.bytes + other.bytes,
        )

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal


_GLOBAL, _SHARED = GlobalAccess(), SharedAccess()


@dataclass(frozen=True)
class Tally:
    """What some instructions did in all their executions. ``instructions`` and ``barriers`` are counted a
    warp, ``divergent`` the times that a branch split a warp; ``flop`` 2 an FMA and active lane, 1 an addition
    or multiplication, 2·m·n·k a tensor core instruction."""

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

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.instructions + other.instructions,
            self.flop + other.flop,
            self.barriers + other.barriers,
            self.divergent + other.divergent,
            # Most instructions access no memory, and there are many.
            *(
                one if more is _GLOBAL or more is _SHARED else one + more
                for one, more in zip(self._accesses, other._accesses, strict=True)
            ),
        )

    @property
    def _accesses(self) -> tuple[Any, ...]:
        shared = (self.shared_loads, self.shared_stores, self.shared_copies)
        return (self.loads, self.stores, self.copies, *shared)

    @property
    def reads(self) -> GlobalAccess:
        """What is read of global memory, into registers or by cp.async."""
        return self.loads + self.copies

    @property
    def accesses(self) -> GlobalAccess:
        return self.reads + self.stores

    @property
    def shared(self) -> SharedAccess:
        return self.shared_loads + self.shared_stores + self.shared_copies


@dataclass
class _Row:
    """An instruction: executions by warps and by lanes, its accesses."""

    instruction: Instruction
    warps: int = 0
    lanes: int = 0
    guarded: int = 0
    divergent: int = 0
    on_global: dict[str, GlobalAccess] = field(default_factory=dict)
    on_shared: dict[str, SharedAccess] = field(default_factory=dict)

    def tally(self) -> Tally:
        op = self.instruction.op
        lane, warp = flop(op)
        lanes = self.guarded if self.instruction.guard else self.lanes
        return Tally(
            instructions=self.warps,
            flop=lane * lanes + warp * self.warps,
            barriers=self.warps if is_barrier(op) else 0,
            divergent=self.divergent,
            **{_FIELDS[kind]: access for kind, access in self.on_global.items()},  # type: ignore[arg-type]
            **{f"shared_{_FIELDS[kind]}": access for kind, access in self.on_shared.items()},  # type: ignore[arg-type]
        )


_FIELDS = {"load": "loads", "store": "stores", "copy": "copies"}


class Counters:
    """Filled by a machine that runs launches of one kernel."""

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self._runs: dict[int, list[Any]] = {}
        self._geometry: Geometry | None = None
        self._read: tuple[Array, Array] | None = None  # by the cp.async that is about to write
        self.buffers: dict[tuple[str, str], GlobalAccess] = defaultdict(GlobalAccess)
        self.blocks = self.warps = 0

    # What a machine calls

    def enter(self, geometry: Geometry) -> None:
        """These blocks of threads run from now on."""
        self._geometry = geometry
        self.blocks += geometry.count
        self.warps += geometry.lanes // WARP

    def touch_block(self, code: Sequence[Instruction], mask: Mask | None) -> None:
        """The active lanes ran these instructions."""
        run = self._runs.setdefault(id(code), [code, 0, 0])
        run[1] += self._lanes // WARP if mask is None else int(mask.warps.sum())
        run[2] += self._count(mask)

    def touch_guard(self, instruction: Instruction, mask: Mask | None) -> None:
        self._row(instruction).guarded += self._count(mask)

    def touch_divergence(self, instruction: Instruction, taken: Mask, left: Mask) -> None:
        self._row(instruction).divergent += int((taken.warps & left.warps).sum())

    def touch_global(
        self, instruction: Instruction, kind: str, buffer: str, address: Array, width: int, mask: Mask | None
    ) -> None:
        access = global_access(address, width, mask, self._lanes)
        held = self._row(instruction).on_global
        held[kind] = held.get(kind, _GLOBAL) + access
        self.buffers[buffer, kind] += access
        if kind == "copy":
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
        return self._rows.setdefault(id(instruction), _Row(instruction))

    # What was counted

    def tallies(self) -> Iterator[tuple[Instruction, Tally]]:
        """Each instruction that ran, in the order of the program."""
        rows = dict(self._rows)
        for code, warps, lanes in self._runs.values():
            for instruction in code:
                row = rows.setdefault(id(instruction), _Row(instruction))
                row.warps, row.lanes = warps, lanes
        for row in sorted(rows.values(), key=lambda row: row.instruction.line):
            yield row.instruction, row.tally()


def global_access(address: Array, width: int, mask: Mask | None, lanes: int) -> GlobalAccess:
    """Of the addresses (n,) of the active ones of ``lanes`` lanes, ``width`` bytes each, aligned."""
    if mask is None:
        each = np.sort(address.reshape(-1, WARP), axis=1)
        requests = len(each)
    else:
        # Inactive lanes go first, and together count as one address that is taken off again.
        spread = np.full(lanes, -SECTOR, np.int64)
        spread[mask.index] = address
        each = np.sort(spread.reshape(-1, WARP)[mask.warps], axis=1)
        requests = len(each)
    idle = each[:, 0] < 0
    distinct = _distinct(each) - idle
    sectors = _distinct(each // SECTOR) - idle
    ideal = -(-distinct * width // SECTOR)
    return GlobalAccess(requests, int(sectors.sum()), int(ideal.sum()), len(address) * width)


def _distinct(rows: Array) -> Array:
    """How many different values each sorted row has."""
    return 1 + np.asarray((rows[:, 1:] != rows[:, :-1]).sum(axis=1))


def shared_access(
    offset: Array, lane: Array, width: int, kind: str = "store", read: tuple[Array, Array] | None = None
) -> SharedAccess:
    """Of offsets (n,) in bytes from the start of shared memory, ``width`` bytes each, of the lanes (n,);
    ``read`` the global addresses that a cp.async copies, and their lanes."""
    group = lane // _served(width)
    if kind == "load" and width > 4:
        group = np.where(_alike(offset, lane, 2 * _served(width)), group & ~1, group)
    banks = _banks(offset, group, width)
    wavefronts = banks.max(axis=1)
    if read is not None and len(read[0]):
        at, by = read
        other = _banks(at - at.min() // _ROW * _ROW, by // _served(width), width).max(axis=1)
        wavefronts[: len(other)] = np.maximum(wavefronts[: len(other)], other[: len(wavefronts)])
    return SharedAccess(
        requests=len(np.unique(lane // WARP)),
        wavefronts=int(wavefronts.sum()),
        ideal=int(banks.any(axis=1).sum()),
        bytes=len(offset) * width,
    )


def _served(width: int) -> int:
    """How many lanes at a time."""
    return WARP // max(1, width // 4)


def _alike(offset: Array, lane: Array, count: int) -> Array:
    """Of each lane, whether in its ``count`` all lanes want the same as a neighbour at one or at two."""
    held = np.full(-(-(int(lane.max()) + 1) // WARP) * WARP, -1, np.int64)
    held[lane] = offset
    rows, column = held.reshape(-1, count), np.arange(count)
    merged = np.zeros(len(rows), bool)
    for distance in (1, 2):
        beside = rows[:, column ^ distance]
        merged |= ((rows == beside) | (rows < 0) | (beside < 0)).all(axis=1)
    return np.asarray(merged[lane // count])


def _banks(offset: Array, group: Array, width: int) -> Array:
    """How many distinct words each bank (columns) has to give to each group (rows)."""
    words = max(1, width // 4)
    group = np.repeat(group, words)
    word = ((offset // 4)[:, None] + np.arange(words)).ravel()
    span = int(word.max()) + 1
    distinct = np.unique(group * span + word)
    banks = np.bincount(distinct // span * BANKS + distinct % span % BANKS)
    return np.pad(banks, (0, -len(banks) % BANKS)).reshape(-1, BANKS)


# What an instruction is, by its name

_LANE_FLOP = {"fma": 2, "mad": 2, "add": 1, "sub": 1, "mul": 1}
_REAL = {"f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2, "f32": 1, "f64": 1}


def flop(op: str) -> tuple[int, int]:
    """Floating-point operations of an active lane, and of a warp."""
    words = op.split(".")
    if words[0] == "mma" or words[:2] == ["wmma", "mma"]:
        shape = next(word for word in words if word.startswith("m") and word[1].isdigit())
        m, rest = shape[1:].split("n")
        n, k = rest.split("k")
        return 0, 2 * int(m) * int(n) * int(k)
    return _LANE_FLOP.get(words[0], 0) * _REAL.get(words[-1], 0), 0


def is_barrier(op: str) -> bool:
    return op.startswith(("bar.sync", "barrier.sync", "barrier.cta.sync", "bar.red", "bar.arrive"))


def mnemonic(op: str) -> str:
    """What an instruction is called in the mix: ld.shared, fma.f32, cp.async, mma."""
    words = op.split(".")
    if words[0] in ("ld", "st", "ldu", "atom", "red"):
        space = next((w.split("::")[0] for w in words[1:] if w.startswith(_SPACES)), "generic")
        return f"{words[0]}.{space}"
    if words[0] in ("cp", "wmma", "bar"):
        return ".".join(words[:2])
    if words[0] in _LANE_FLOP and words[-1] in _REAL:
        return f"{words[0]}.{words[-1]}"
    return words[0]


_SPACES = ("global", "shared", "local", "param", "const")

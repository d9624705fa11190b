"""Hazards, and the cost of memory accesses. A site is an instruction in the text of a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple, Protocol

import numpy as np

from ptxsan.frontend import Instruction
from ptxsan.lanes import WARP, Array, Mask
from ptxsan.native import library

_MANY = re.compile(r"\{\s*([^{},]+?)\s*(?:,[^{},]+){4,},\s*([^{},]+?)\s*\}")


@dataclass(frozen=True)
class Hazard:
    """An error of a kernel.

    ``check``: its kind, a stable name: bounds, misaligned, uninit, race, barrier, hang, trap or unsupported.
    ``launch``: the number of the launch in the batch. ``problem``: what the ``thread`` did. ``file`` and
    ``line``: the place in the .cu file, or in a header if the .cu file has no line for it; "" and 0 if
    unknown. ``place``: the same as text, with the header that the code was inlined from. ``ptx``: the line of
    the PTX.
    """

    check: str
    launch: int
    problem: str
    thread: str = ""
    file: str = ""
    line: int = 0
    place: str = ""
    ptx: str = ""

    @property
    def where(self) -> str:
        return f"{self.place} ({self.ptx})" if self.place else self.ptx

    @property
    def message(self) -> str:
        """One line: the thread, the problem and the source line."""
        said = f"{self.thread} {self.problem}".strip()
        return f"{said} at {self.where}" if self.where else said


@dataclass
class Report:
    """What a batch of launches did.

    ``hazards``: the errors. ``notes``: no errors, but code that is undefined in CUDA C++ and defined in PTX,
    and undefined values on which no result depends. ``stopped``: a hazard ended the batch early.
    ``lane_instructions``: instructions × active lanes. ``printed``: the output of printf, as (launch, text).
    """

    hazards: list[Hazard] = field(default_factory=list)
    notes: list[Hazard] = field(default_factory=list)
    stopped: bool = False
    lane_instructions: int = 0
    printed: list[tuple[int, str]] = field(default_factory=list)


class Trap(Exception):
    """A hazard after which the launch cannot continue. ``check``: as in ``Hazard``."""

    def __init__(self, check: str, what: str, site: Site | None, lane: int) -> None:
        super().__init__(what)
        self.check, self.what, self.site, self.lane = check, what, site, lane


IMAGE = "image"  # an access through a texture or surface, which Nsight Compute counts apart: not counted


@dataclass
class Site:
    """An instruction of a kernel. ``patterns``: its recent shared-memory accesses, ``remembering`` the
    sites of the kernel that have some. ``counters``: what counts
    its accesses, or None. ``polls``: a loop goes on until it reads another value. ``guesses``: a load of what
    an atomicCAS expects. ``number``: from 1 on, of those of a kernel."""

    instruction: Instruction
    number: int = 0
    polls: bool = False
    guesses: bool = False
    patterns: list[Any] = field(default_factory=list)
    remembering: list[Site] = field(default_factory=list, repr=False)
    counters: Any = None  # of machine/counters.py

    def count_global(self, kind: str, buffer: str, address: Any, width: int, mask: Any) -> None:
        """A load, store, copy or IMAGE access of ``width`` bytes at addresses (n,) of the active lanes."""
        if self.counters is not None and kind != IMAGE:
            self.counters.touch_global(self.instruction, kind, buffer, address, width, mask)

    def count_shared(self, kind: str, pattern: Any) -> None:
        if self.counters is not None:
            self.counters.touch_shared(self.instruction, kind, pattern)

    def count_flop(self, flop: int) -> None:
        """Operations that only the operands tell, not the name of the instruction."""
        if self.counters is not None:
            self.counters.touch_flop(self.instruction, flop)

    def count_guard(self, mask: Any) -> None:
        """``mask``: the active lanes for which the instruction's guard predicate holds."""
        if self.counters is not None:
            self.counters.touch_guard(self.instruction, mask)

    @property
    def ptx(self) -> str:
        """Line and text; of many registers in braces, as those of a wgmma, the first and the last."""
        text = _MANY.sub(r"{\1, ..., \2}", self.instruction.text)
        return f"PTX line {self.instruction.line}: {text}"


# An access is noted with its time and with the number of its site, in one word.
SITE_BITS = 20


def stamp(clock: int, site: int) -> int:
    return clock << SITE_BITS | site


def time_of(stamps: Array) -> Array:
    return stamps >> SITE_BITS


def site_of(stamp: int) -> int:
    return stamp & (1 << SITE_BITS) - 1


class Tell(Protocol):
    """Records a hazard after which the launch continues; with ``note``, records a note. ``before``: the
    other access."""

    def __call__(
        self,
        check: str,
        what: str,
        site: Site | None,
        lane: int,
        note: bool = False,
        before: Site | None = None,
    ) -> None: ...


# What one access to memory costs: sectors of global memory, wavefronts of shared memory.
#
# Global memory: a request touches sectors of 32 bytes, each once however many lanes want it, which is what
# Nsight Compute counts as l1tex__t_requests and l1tex__t_sectors. Buffers start at a multiple of 256 bytes.
#
# Shared memory: 32 banks of 4 bytes. Lanes are served in groups: 32 of them for accesses of up to 4 bytes,
# 16 for 8, 8 for 16. A group takes a wavefront for each distinct word that its fullest bank has to give; a
# word is broadcast to all lanes that want it. Two groups of a load are served as one where each active lane
# wants what the lane beside it wants, or each what the lane two further does (NVIDIA's developer forums,
# "Unexpected shared memory bank conflict"). One wavefront a group is the least; more are bank conflicts. A
# cp.async reads banks of L1, which is the same memory, and writes others: it takes as many wavefronts as
# the worse of the two (fitted to Nsight Compute's figures on an H200). Not in the model: ptxas merges and
# drops accesses of the PTX.


SECTOR = 32  # bytes
BANKS = 32
_ROW = 4 * BANKS  # bytes, one word of each bank


class GlobalAccess(NamedTuple):
    """Requests to global memory. ``sectors``: 32-byte sectors that they touch. ``ideal``: the fewest sectors
    that could hold the distinct bytes of each request. ``bytes``: the sum of all lanes' access widths."""

    requests: int = 0
    sectors: int = 0
    ideal: int = 0
    bytes: int = 0

    def __add__(self, other: GlobalAccess) -> GlobalAccess:  # type: ignore[override]
        return GlobalAccess(*map(add, self, other))

    @property
    def sectors_per_request(self) -> float:
        """4 for a warp that reads 128 contiguous bytes; 0 without a request."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def excess(self) -> int:
        """Sectors that perfectly coalesced requests would save."""
        return self.sectors - self.ideal


class SharedAccess(NamedTuple):
    """Requests to shared memory. ``wavefronts``: passes over the banks that they take. ``ideal``: the same
    without bank conflicts. ``bytes``: the sum of all lanes' access widths."""

    requests: int = 0
    wavefronts: int = 0
    ideal: int = 0
    bytes: int = 0

    def __add__(self, other: SharedAccess) -> SharedAccess:  # type: ignore[override]
        return SharedAccess(*map(add, self, other))

    @property
    def conflicts(self) -> int:
        return self.wavefronts - self.ideal


def global_access(address: Array, width: int, mask: Mask | None, lanes: int) -> GlobalAccess:
    """The cost of an access. ``address`` (n,): the addresses of the active lanes, of ``lanes`` in all,
    aligned to ``width`` bytes."""
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


def bulk_access(address: Array, width: int, requests: int) -> GlobalAccess:
    """Of so many bulk copies that together access these addresses (n,), ``width`` bytes each."""
    sectors = len(np.unique(address // SECTOR))
    return GlobalAccess(requests, sectors, -(-len(address) * width // SECTOR), len(address) * width)


def _distinct(rows: Array) -> Array:
    """How many different values each sorted row has."""
    return 1 + np.asarray((rows[:, 1:] != rows[:, :-1]).sum(axis=1))


def shared_access(
    offset: Array, lane: Array, width: int, kind: str = "store", read: tuple[Array, Array] | None = None
) -> SharedAccess:
    """Of offsets (n,) in bytes from the start of shared memory, ``width`` bytes each, of the ascending lanes
    (n,); ``read`` the global addresses that a cp.async copies, and their lanes."""
    group = lane // _served(width)
    if kind == "load" and width > 4:
        group = np.where(_alike(offset, lane, 2 * _served(width)), group & ~1, group)
    if kind != "copy" and (native := library()) is not None:
        found = np.zeros(3, np.int64)
        given = (np.ascontiguousarray(each, np.int64) for each in (offset, lane, group))
        if not native.wavefronts(*given, max(1, width // 4), found):
            requests, wavefronts, ideal = found.tolist()
            return SharedAccess(requests, wavefronts, ideal, len(offset) * width)
    banks = _banks(offset, group, width)
    worst = banks.max(axis=1)
    if read is not None and len(read[0]):
        at, by = read
        other = _banks(at - at.min() // _ROW * _ROW, by // _served(width), width).max(axis=1)
        worst[: len(other)] = np.maximum(worst[: len(other)], other[: len(worst)])
    return SharedAccess(
        requests=len(np.unique(lane // WARP)),
        wavefronts=int(worst.sum()),
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

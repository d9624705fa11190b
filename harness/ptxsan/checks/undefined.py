"""What is undefined of a memory's bytes, to the bit, and where each undefined value came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import and_, or_
from typing import Any

import numpy as np

from ptxsan.checks import Hazard, Site, Tell
from ptxsan.lanes import Array, Mask, warps_with

ORIGIN: Any = np.int16  # numbers of origins, 0 for none


class Shadow:
    """Beside the bytes of a memory: which bits are undefined where the memory does not know its cells to hold
    something.

    ``data`` (bytes,) uint8; ``known`` gives the memory's (cells,) bool of ``cell`` bytes each, in place: a
    plain store makes its cells known, which ends what this says of them. ``forget`` is called when cells
    are no longer known. ``place`` names a byte of a memory that the caller of a kernel reads afterwards;
    None for others.
    """

    def __init__(
        self, data: Array, known: Callable[[], Array], cell: Callable[[], int], forget: Callable[[], None]
    ) -> None:
        self.data = data
        self.place: Callable[[int], str] | None = None
        self._known, self._cell, self._forget = known, cell, forget
        self._bits: Array | None = None  # nothing that nobody wrote is defined
        self._origins: Array | None = None

    def read(self, at: Array, width: int) -> tuple[Array, Array]:
        """Undefined bits (n, width) uint8 of the bytes from ``at`` (n,) on, and their origins (n,)."""
        where = at[:, None] + np.arange(width)
        unknown = ~self._known()[where // self._cell()]
        if self._bits is None or self._origins is None:
            return np.where(unknown, np.uint8(0xFF), np.uint8(0)), np.zeros(len(at), ORIGIN)
        bits = np.where(unknown, self._bits[where], np.uint8(0))
        return bits, np.where(unknown, self._origins[where], ORIGIN(0)).max(axis=1, initial=0)

    def write(self, at: Array, bits: Array, origins: Array) -> None:
        """The bytes from ``at`` (n,) on were just stored, with these bits undefined, (n, width) uint8."""
        known, cell = self._known(), self._cell()
        where = at[:, None] + np.arange(bits.shape[1])
        if not bits.any():
            return
        if self._bits is None or self._origins is None:
            self._bits = np.full(len(self.data), 0xFF, np.uint8)
            self._origins = np.zeros(len(self.data), ORIGIN)
        cells = where // cell
        whole = (np.unique(cells[known[cells]])[:, None] * cell + np.arange(cell)).ravel()
        self._bits[whole], self._origins[whole] = 0, 0
        self._bits[where] = bits
        self._origins[where] = np.where(bits != 0, origins[:, None], ORIGIN(0))
        known[cells[bits != 0]] = False
        self._forget()

    def left(self) -> list[int]:
        """Of a memory that is read afterwards: the origins of what is undefined in it."""
        if self._origins is None or self._bits is None:
            return []
        undefined = np.flatnonzero(self._origins)
        unknown = ~self._known()[undefined // self._cell()]
        return [int(v) for v in np.unique(self._origins[undefined[unknown]])]


# Registers that may be read before anything is written to them, over all paths through a kernel.
@dataclass(frozen=True)
class Effect:
    """What an instruction reads, and what it writes for certain, by slot."""

    reads: frozenset[int]
    writes: frozenset[int]

    @cached_property
    def bits(self) -> tuple[int, int]:
        """The same as numbers with a bit for each slot."""
        return bits(self.reads), bits(self.writes)


def accesses(blocks: Sequence[Sequence[Effect]]) -> tuple[list[int], list[int]]:
    """By block, as bits: the registers that it reads before it writes them, and those that it writes."""
    reads: list[int] = []
    writes: list[int] = []
    for steps in blocks:
        read = written = 0
        for step in steps:
            reads_now, writes_now = step.bits
            read |= reads_now & ~written
            written |= writes_now
        reads.append(read)
        writes.append(written)
    return reads, writes


def bits(slots: Iterable[int]) -> int:
    """A number with a bit for each of the slots."""
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found


def before(
    reads: Sequence[int], writes: Sequence[int], following: Sequence[Sequence[int]], every: int = 0
) -> list[int]:
    """The registers that are live before each block and, last, at the end, as bits. Of each block are given
    those that it reads before it writes them, and those that it writes. With ``every`` register: those that
    are read on all ways on ("very busy", §9.2), not on some."""
    live = [*([every] * len(reads)), 0]
    changed = True
    while changed:
        changed = False
        for at in reversed(range(len(reads))):
            after = joined(live, following[at], bool(every))
            now = reads[at] | (after & ~writes[at])
            if now != live[at]:
                live[at], changed = now, True
    return live


def joined(of_blocks: Sequence[int], following: Sequence[int], on_all: bool) -> int:
    """Of bits by block, those of all blocks that follow, or of some; none where nothing follows."""
    join = and_ if on_all else or_
    return reduce(join, [of_blocks[n] for n in following]) if following else 0


# Undefined values: registers that nothing has written, memory that nobody wrote, and what comes of them.
#
# An undefined value is carried along, to the bit, through registers and memories, and is an error only
# where it matters: where it reaches the output, an address, a predicate that decides what is executed, a
# barrier or the member mask of a warp. Elsewhere it is a note: to load zeros' neighbours for sums that are
# never stored is common and harmless.
#
# Nothing is followed before the first undefined value is there: ``registers`` is empty, and memories tell
# by ``saw`` of a read of what nobody wrote. How values are followed is in ``tracked.py``.


CHECK = "uninit"
_MOST = 30_000  # origins told apart; the rest counts as the last of them

# Of a register: undefined bits (lanes,) of its width, bool of a predicate; origins (lanes,), 0 for none.
Shade = tuple[Array, Array]


class Switch(Exception):
    """From the instruction ``at`` of its basic block on, undefined values are followed."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


@dataclass
class Origin:
    """Where an undefined value comes from: ``what``, seen first at ``site``. ``error`` and ``note``: what to
    say of it in the end. Of a value as it was stored to the output, ``parent`` is where that came from."""

    what: str
    site: Site | None
    error: Hazard | None = None
    note: Hazard | None = None
    parent: int = 0
    mattered: bool = False
    tells: bool = False  # of a race: where the value matters, the error is said, not the place


@dataclass
class Fresh:
    """A read just now of what is undefined in memory: ``lanes`` (lanes,) bool, and the first ``lane``."""

    site: Site
    what: str
    lanes: Array
    lane: int


class Undefined:
    """The undefined values of a launch while it runs.

    ``tell`` notes a hazard now; ``hazard`` words one, (check, what, site, lane), which ``keep`` notes later,
    (hazard, site, note); ``where`` words a site.
    """

    def __init__(
        self,
        tell: Tell,
        hazard: Callable[..., Hazard],
        keep: Callable[[Hazard, Site | None, bool], None],
        where: Callable[[Site], str],
    ) -> None:
        self._tell, self._hazard, self._keep, self._where = tell, hazard, keep, where
        self.registers: dict[int, Shade] = {}
        self._warps: dict[int, tuple[Array, int]] = {}  # by slot: of which bits, and the warps that have some
        self.sampling: Any = None  # while an instruction is executed for its undefined bits alone
        self.fresh: Fresh | None = None
        self.late = False  # an instruction has made the value of an earlier one undefined
        self.unplaced: dict[int, int] = {}  # origins of registers that nothing has read so far, by slot
        self._lanes = 0
        self.begin()

    # Origins

    def begin(self) -> None:
        """A batch of launches."""
        self._origins: list[Origin] = [Origin("", None)]
        self._numbers: dict[Any, int] = {}

    def enter(self, lanes: int, unset: Mapping[int, tuple[str, Any]]) -> None:
        """So many lanes run now. ``unset``: name and undefined bits of the registers that may be read before
        they are written, by slot."""
        self._lanes, self.fresh, self.sampling = lanes, None, None
        self.registers.clear()
        self.unplaced = {}
        for slot, (name, bits) in unset.items():
            number = self._number(
                ("register", slot), partial(Origin, f"register {name.split('@')[0]}, not set before", None)
            )
            self.registers[slot] = np.full(lanes, bits), np.full(lanes, number, ORIGIN)
            if self._origins[number].site is None:
                self.unplaced[slot] = number

    def suspend(self) -> Any:
        """What is undefined of the lanes that run, for ``resume``."""
        return dict(self.registers), self.unplaced

    def resume(self, lanes: int, held: Any) -> None:
        registers, self.unplaced = held
        self._lanes = lanes
        self.registers.clear()
        self.registers.update(registers)

    def set(self, slot: int, bits: Array, origins: Array, mask: Mask | None) -> None:
        """These bits (lanes,) of a register are undefined in the active lanes."""
        held = self.registers
        if mask is not None and slot in held:
            bits, origins = (
                np.where(mask.bits, new, old) for new, old in zip((bits, origins), held[slot], strict=True)
            )
        elif mask is not None:
            bits = np.where(mask.bits, bits, np.zeros_like(bits))
        if (bits != 0).any():
            held[slot] = bits, origins
        else:
            held.pop(slot, None)

    def touches(self, slots: Set[int], mask: Mask | None) -> bool:
        """Whether one of these registers is undefined in some lane of a warp that has active lanes."""
        held = self.registers.keys() & slots
        return bool(held) if mask is None else any(self._warps_of(slot) & mask.packed for slot in held)

    def holds(self, slot: int, mask: Mask) -> bool:
        """Whether this undefined register is undefined in one of the active lanes."""
        return bool(self._warps_of(slot) & mask.packed and self.registers[slot][0][mask.index].any())

    def _warps_of(self, slot: int) -> int:
        """The warps in which an undefined register is, a bit for each."""
        bits = self.registers[slot][0]
        if slot not in self._warps or self._warps[slot][0] is not bits:
            self._warps[slot] = bits, warps_with(bits)
        return self._warps[slot][1]

    def clear(self, slots: Iterable[int], mask: Mask | None) -> None:
        """These registers are defined in the active lanes."""
        for slot in self.registers.keys() & slots:
            bits, origins = self.registers[slot]
            if mask is not None and not self._warps_of(slot) & mask.packed:
                continue
            left = None if mask is None else np.where(mask.bits, bits.dtype.type(0), bits)
            if left is not None and left.any():
                self.registers[slot] = left, origins
            else:
                del self.registers[slot]

    def _number(self, key: Any, make: Callable[[], Origin]) -> int:
        if key not in self._numbers:
            if len(self._origins) < _MOST:
                self._origins.append(make())
            self._numbers[key] = len(self._origins) - 1
        return self._numbers[key]

    def saw(self, site: Site, what: str, lanes: Array) -> None:
        """Memory: lanes (n,) read ``what`` nobody wrote, or what was stored undefined."""
        if self.fresh is None:
            self.fresh = Fresh(site, what, np.zeros(self._lanes, bool), int(lanes[0]))
        self.fresh.lanes[lanes] = True

    def absent(self, site: Site, values: Array, lanes: Array, what: str) -> Array:
        """Values (lanes,), undefined in these lanes (lanes,) bool, which read ``what``."""
        if self.sampling is not None:
            return np.asarray(self.sampling.absent(values, lanes))
        self.saw(site, what, np.flatnonzero(lanes))
        return values

    def born(self, fresh: Fresh) -> int:
        """The origin of values that nobody wrote."""

        def make() -> Origin:
            said = [f"reads {fresh.what}", f"reads {fresh.what}; nothing depends on the value"]
            error, note = (self._hazard(CHECK, what, fresh.site, fresh.lane) for what in said)
            return Origin(fresh.what, fresh.site, error, note)

        launch = self._hazard(CHECK, "", None, fresh.lane).launch
        return self._number((launch, id(fresh.site)), make)

    def doubt(
        self, held: Mapping[int, tuple[Any, Array]], what: str, site: Site, lane: int, before: Site
    ) -> None:
        """What a load ``before`` gave is undefined from now on in lanes (lanes,) bool that still hold it, by
        slot, with all undefined bits: a ``site`` writes what it read. A race if that matters, else a note."""
        more = "", "; nothing depends on what was read"
        error, note = (self._hazard("race", what, site, lane, before, rest) for rest in more)
        key = error.launch, id(site), id(before)
        number = self._number(key, lambda: Origin(what, site, error, note, tells=True))
        for slot, (every, lanes) in held.items():
            if lanes.any():
                origins = np.full(self._lanes, number, ORIGIN)
                self.set(slot, np.full(self._lanes, every), origins, Mask(lanes))
                self.late = True

    def read_first(self, site: Site, slots: Iterable[int]) -> None:
        """These registers are read here: the place of those that nothing has written."""
        for slot in slots:
            if slot in self.unplaced:
                self._origins[self.unplaced.pop(slot)].site = site

    # Where a value matters

    def matters(self, how: str, site: Site | None, bad: Array, origins: Array) -> None:
        """An undefined value decides in the lanes ``bad`` (lanes,) bool, at this site."""
        lane = int(np.argmax(bad))
        number = self._root(int(origins[lane]))
        origin = self._origins[number]
        origin.mattered = True
        if origin.tells and origin.error:
            self._keep(origin.error, origin.site, False)
            return
        self._tell(CHECK, f"{how}, {self._comes_from(number)}", site, lane)

    def stored(self, site: Site, shadow: Shadow, at: Array, origins: Array, lanes: Array) -> Array:
        """Origins (n,) of undefined values as they are stored: in an output, with the place of the store."""
        if shadow.place is None:
            return origins
        place, result = shadow.place, origins.copy()
        for number in np.unique(origins[origins != 0]):
            i = int(np.argmax(origins == number))
            root = self._root(int(number))
            launch = self._hazard(CHECK, "", None, int(lanes[i])).launch

            def make(i: int = i, root: int = root) -> Origin:
                what = f"stores an undefined value to {place(int(at[i]))}, {self._comes_from(root)}"
                return Origin(what, site, self._hazard(CHECK, what, site, int(lanes[i])), parent=root)

            result[origins == number] = self._number((launch, root, id(site)), make)
        return result

    def _root(self, number: int) -> int:
        return self._origins[number].parent or number

    def _comes_from(self, number: int) -> str:
        origin = self._origins[number]
        where = f" ({self._where(origin.site)})" if origin.site else ""
        return f"which comes from {origin.what}{where}"

    def finish(self, outputs: Iterable[Shadow], stopped: bool) -> None:
        """After the last block: what is left undefined in the outputs, and what did not matter. Of a launch
        that was ``stopped`` nobody knows what would have."""
        left = [] if stopped else [number for shadow in outputs for number in shadow.left()]
        told: set[tuple[int, int]] = set()
        for number in left:
            origin = self._origins[number]
            parent = self._origins[origin.parent]
            parent.mattered = True
            if parent.tells:
                origin = parent
            # Of what one read brought, one store stands for all.
            if origin.error and (key := (origin.error.launch, id(parent))) not in told:
                told.add(key)
                self._keep(origin.error, origin.site, False)
        for origin in self._origins:
            if origin.error and origin.note and not origin.mattered:
                self._keep(origin.error if stopped else origin.note, origin.site, not stopped)

"""Where state spaces lie in the address space, and bytes of storage as elements."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.checks.races import Pattern
from ptxsan.checks.undefined import Shadow
from ptxsan.frontend import Variable
from ptxsan.lanes import Array, Geometry, Mask, first_of, full
from ptxsan.native import CLibrary

SLOT = 20  # address bits of a shared or constant variable, apart like the buffers
# Bytes at the start of shared memory that are the system's from sm_90 on: as in the cubins, whose sections of
# shared memory have so many more. An address of a variable is no multiple of a larger power of two.
RESERVED = 1024
RANK = 28  # address bits of shared memory below the rank + 1 of a block in its cluster, 0 for the own one
LOCAL, SHARED, CONSTANT = 1 << 61, 2 << 61, 3 << 61  # where the generic addresses of each space start
UNSIGNED: dict[int, Any] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
PARAMETER = 1 << 60  # generic addresses of parameters

# A word, (1,), of 32 or 64 bits, to what an atomic makes of it, for the lane at a place of the active ones.
Change = Callable[[int, Array], Array]


def unsigned(width: int) -> Any:
    """The dtype of so many bits; the widest one is for moving them alone."""
    return np.dtype(f"u{width}" if width <= 8 else np.complex128)


def gather(storage: Array, element: Array, width: int) -> Array:
    """Elements of ``width`` bytes of a byte storage: (n,), or (n, width / 4) words where wider than one."""
    if width <= 4:
        return np.asarray(storage.view(UNSIGNED[width]).take(element))
    return storage.view(np.uint32).reshape(-1, width // 4).take(element, axis=0)


def scatter(storage: Array, element: Array, width: int, values: Array) -> None:
    """Set elements, shaped as ``gather`` gives them."""
    if width <= 4:
        storage.view(UNSIGNED[width])[element] = values
    else:  # each as one number: NumPy sets rows of words seven times slower
        words = unsigned(width)
        storage.view(words)[element] = np.ascontiguousarray(values).view(words)[:, 0]


def rewrites(storage: Array, element: Array, width: int, values: Array) -> Array:
    """(n,) bool: of each lane whether its element holds what it writes already; ``values`` as of `gather`."""
    same = gather(storage, element, width) == values
    return np.asarray(same if same.ndim == 1 else same.all(axis=1))


def agreed(element: Array, values: Array) -> Array:
    """(n,) bool: of each lane whether all that write its element with it write the same value."""
    _, first, group = np.unique(element, return_index=True, return_inverse=True)
    same = values == values[first[group]]
    alike = np.ones(len(first), bool)
    np.logical_and.at(alike, group, same if same.ndim == 1 else same.all(axis=1))
    return np.asarray(alike[group])


def update(
    storage: Array, element: Array, width: int, change: Change, places: Sequence[int] | None = None
) -> Array:
    """Words of 2 to 16 bytes, changed one after another, for the lanes at these places among the active ones;
    what was there before, (n,) of ``unsigned``."""
    words = storage.view(unsigned(width))
    before = np.empty(len(element), words.dtype)
    for i, at in enumerate(element):
        before[i] = words[at]
        words[at : at + 1] = change(places[i] if places else i, words[at : at + 1])
    return before


def changed(storage: Array, element: Array, width: int, before: Array) -> bool:
    """Whether atomics that found this ``before`` left anything else."""
    return bool(before.tobytes() != storage.view(unsigned(width))[element].tobytes())


def together(parts: Sequence[tuple[Any, Array]]) -> Array:
    """Values of parts of the active lanes, with their places among them, as those of all."""
    first = parts[0][1]
    if len(parts) == 1:
        return first
    values = np.empty((sum(len(each) for _, each in parts), *first.shape[1:]), first.dtype)
    for at, each in parts:
        values[at] = each
    return values


def divide(kinds: Array, mask: Mask | None) -> Iterator[tuple[Array, Mask]]:
    """The lanes of each kind, ``kinds`` (n,) being those of the active ones: places among those, and mask."""
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        bits = of_kind if mask is None else np.zeros_like(mask.bits)
        if mask is not None:
            bits[mask.index[of_kind]] = True
        yield np.flatnonzero(of_kind), Mask(bits)


def readable(name: str) -> str:
    """A variable as the .cu file has it: _ZZ10gemm_tiledE2As is As, _ZL5count is count."""
    match = re.fullmatch(r"_Z(?:Z\d+\w+?E|L)(\d+)(\w+)", name)
    return match[2][: int(match[1])] if match else name


# Asynchronous copies to shared memory that are in flight.
class Copies:
    """Asynchronous copies in flight, in the groups that each thread has committed."""

    def __init__(self, lanes: int) -> None:
        self._committed: Any = 0  # groups, one number while all lanes commit alike
        self._lanes = lanes
        self.pending: list[tuple[Pattern, Any]] = []
        self._bits = 0  # of the patterns that are pending

    def issue(self, pattern: Pattern) -> None:
        self.pending.append((pattern, self._committed))
        self._bits |= pattern.bits

    def overlap(self, pattern: Pattern) -> bool:
        return bool(self._bits & pattern.bits)

    def commit(self, mask: Mask | None) -> None:
        self._committed = self._committed + (1 if mask is None else mask.bits.astype(np.int64))

    def wait(self, groups: int, mask: Mask | None) -> list[tuple[Pattern, Array | None]]:
        """What this completes, in order: patterns, and for which lanes where not for all."""
        done: list[tuple[Pattern, Array | None]] = []
        left: list[tuple[Pattern, Any]] = []
        for pattern, group in self.pending:
            complete = np.asarray(group < self._committed - groups)
            if mask is not None:
                complete = complete & mask.bits
            of_lanes = complete[pattern.lane] if complete.ndim else complete
            if of_lanes.all():
                done.append((pattern, None))
                continue
            if of_lanes.any():
                done.append((pattern, complete))
                # A lane that is done must not be done again: its group moves out of reach.
                group = np.where(complete, np.iinfo(np.int64).max, group)
            left.append((pattern, group))
        self.pending, self._bits = left, 0
        for pattern, _ in left:
            self._bits |= pattern.bits
        return done


# Local memory, a thread's own, and constant memory, which all read.
class LocalMemory:
    """Memory of a thread's own: spilled registers and arrays that are indexed."""

    def __init__(self, size: int, lanes: int) -> None:
        self._limit, self._size = size, -(-size // 16) * 16
        self.bytes = np.zeros(self._size * lanes, np.uint8)
        self._known = np.zeros(self._size * lanes, bool)
        self._row = np.arange(lanes, dtype=np.int64) * self._size
        self.undefined: Any = None  # the undefined values of the launch, set by the machine
        me = weakref.proxy(self)
        self._shadow = Shadow(self.bytes, lambda: me._known, lambda: 1, lambda: None)

    def locate(self, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        """Storage offsets of the active lanes. Traps out of bounds and misaligned accesses."""
        address = full(address, len(self._row)).astype(np.int64)
        rows = self._row
        if mask is not None:
            address, rows = address[mask.index], rows[mask.index]
        past = (address < 0) | (address + width > self._limit)
        for check, bad, how in (
            ("bounds", past, "out of the bounds of local memory"),
            ("misaligned", (address & (width - 1)) != 0, f"not aligned to {width} bytes"),
        ):
            if bad.any():
                i = int(np.argmax(bad))
                what = f"{width}-byte access at local address {int(address[i])} is {how}"
                raise Trap(check, what, site, first_of(mask, i))
        return np.asarray(rows + address)

    def load(self, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        if self.undefined.sampling is not None:
            return np.asarray(self.undefined.sampling.load(self, site, address, width, mask))
        at = self.locate(site, address, width, mask)[:, None] + np.arange(width)
        known = self._known[at].all(axis=1)
        if not known.all():
            lanes = np.flatnonzero(~known) if mask is None else mask.index[~known]
            self.undefined.saw(site, "local memory that the thread never wrote", lanes)
        return gather(self.bytes, at[:, 0] // width, width)

    def store(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        if self.undefined.sampling is not None:
            self.undefined.sampling.store(self, site, address, width, values, mask)
            return
        at = self.locate(site, address, width, mask)[:, None] + np.arange(width)
        scatter(self.bytes, at[:, 0] // width, width, values)
        self._known[at] = True

    def places(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> list[tuple[Any, Shadow, Array]]:
        """Of an access that has been checked: places among the active lanes, shadow, and offsets there."""
        return [(slice(None), self._shadow, self.locate(site, address, width, mask))]


class ConstantMemory:
    """Variables in constant memory, with the values that the PTX gives them; zeros beyond."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._variables = list(variables)
        self._sizes = np.array([v.size for v in variables] or [0], np.int64)
        self._starts = np.r_[0, np.cumsum(-(-self._sizes // 16) * 16)][:-1]
        self._bytes = np.zeros(int((-(-self._sizes // 16) * 16).sum()), np.uint8)
        for start, variable in zip(self._starts, variables, strict=False):
            self._bytes[start : start + len(variable.data)] = np.frombuffer(variable.data, np.uint8)

    def load(self, site: Site, address: Any, width: int, mask: Mask | None, lanes: int) -> Array:
        where = full(address, lanes).astype(np.int64)
        where = where if mask is None else where[mask.index]
        slot, offset = (where >> SLOT) - 1, where & ((1 << SLOT) - 1)
        inside = (slot >= 0) & (slot < len(self._variables))
        slot = np.where(inside, slot, 0)
        inside &= offset + width <= self._sizes[slot]
        for check, good, what in (
            ("bounds", inside, "out of the bounds of its variable"),
            ("misaligned", offset % width == 0, f"not aligned to {width} bytes"),
        ):
            if not good.all():
                i = int(np.argmin(good))
                name = self._variables[int(slot[i])].name
                text = f"reads {width} bytes of constant memory at {name}+{int(offset[i])}, {what}"
                raise Trap(check, text, site, first_of(mask, i))
        return gather(self._bytes, (self._starts[slot] + offset) // width, width)


# Where the variables of shared memory lie: in the address space, apart from each other, and in the storage.
#
# An address has the number of the variable above SLOT, and the rank + 1 of a block of the cluster above
# RANK, 0 for the block's own. In kernels with matrix descriptors, which hold the low bits alone, those are
# what they are on a GPU.
class SharedLayout:
    """Of the blocks that run together; ``row_size`` bytes of storage are of one block. Before the variables
    are ``reserved`` bytes; ``packed``: the low bits of an address are those of a GPU."""

    def __init__(
        self, variables: Sequence[Variable], dynamic: int, geometry: Geometry, reserved: int, packed: bool
    ) -> None:
        self._geometry, self._reserved, self._variables = geometry, reserved, list(variables)
        self._starts, self._sizes = layout(variables, dynamic)
        # Where a variable starts within its slot of the address space.
        self._bias = self._starts if packed else np.zeros_like(self._starts)
        self._slots = np.stack([self._starts, self._sizes, self._bias], axis=1)[: len(variables)].copy()
        end = int((self._starts + self._sizes).max())
        self.row_size = -(-max(end, 16) // 16) * 16

    def places(self, site: Site, address: Array, width: int, lane: Array) -> Array:
        """Of addresses (lanes,) where these lanes (n,) access ``width`` bytes: elements (n,) in the storage
        of all blocks. Traps where one is out of bounds or not aligned."""
        active = address[lane].astype(np.int64) & 0xFFFFFFFF
        row, active = self._peers(lane, active)
        active = active - self._reserved
        slot, offset = (active >> SLOT) - 1, active & ((1 << SLOT) - 1)
        inside = (slot >= 0) & (slot < len(self._variables))
        slot = np.where(inside, slot, 0)
        offset = offset - self._bias[slot]
        inside &= (offset >= 0) & (offset + width <= self._sizes[slot])
        if not inside.all():
            self._out_of_bounds(site, int(active[np.argmin(inside)]), width, int(lane[np.argmin(inside)]))
        if width > 1 and (offset & (width - 1)).any():
            i = int(np.argmax((offset & (width - 1)) != 0))
            name = readable(self._variables[int(slot[i])].name)
            place = f"shared memory {name}+{int(offset[i])}"
            what = f"{width}-byte access at {place} is not aligned to {width} bytes"
            raise Trap("misaligned", what, site, int(lane[i]))
        offset = offset + self._starts[slot]
        return np.asarray((row * self.row_size + offset) >> (width.bit_length() - 1))

    def places_in_c(
        self, native: CLibrary, address: Array, width: int, granule: int, lane: Array, *more: Array
    ) -> int:
        """The same in C; see shared.c."""
        item, threads = address.dtype.itemsize, self._geometry.threads
        numbers = SLOT, self._reserved, self.row_size, threads, width, granule.bit_length() - 1
        return int(native.shared_places(address, item, lane, self._slots, *numbers, *more))

    def _peers(self, lane: Array, address: Array) -> tuple[Array, Array]:
        """Whose shared memory these addresses are of, and what they are there: of the lane's own block, or of
        one of its cluster by its rank."""
        row = self._geometry.row[lane]
        size = self._geometry.cluster_size
        if size == 1:
            return row, address
        rank = (address >> RANK) - 1
        peer = np.where((rank >= 0) & (rank < size), row // size * size + rank, row)
        return peer, np.where(rank < size, address & ((1 << RANK) - 1), address)

    def locate(self, site: Site, lane: int, address: int, size: int) -> int:
        """Where so many bytes of one variable start in the storage; traps where they are not within one."""
        at = np.array([lane])
        row, where = self._peers(at, np.array([address & 0xFFFFFFFF]))
        where = where - self._reserved
        slot, offset = (int(where[0]) >> SLOT) - 1, int(where[0]) & ((1 << SLOT) - 1)
        if 0 <= slot < len(self._variables):
            offset -= int(self._bias[slot])
        if not 0 <= slot < len(self._variables) or not 0 <= offset <= self._sizes[slot] - size:
            self._out_of_bounds(site, int(where[0]), size, lane)
        return int(row[0]) * self.row_size + int(self._starts[slot]) + offset

    def expand(self, site: Site, lane: int, address: int) -> int:
        """The address of which a matrix descriptor holds the low bits."""
        offset = address - self._reserved
        found = np.flatnonzero((self._starts <= offset) & (offset < self._starts + self._sizes))
        if not len(found):
            what = f"reads shared address 0x{address:x}, which is of no variable"
            raise Trap("bounds", what, site, lane)
        slot = int(found[0])
        return (slot + 1 << SLOT) + address

    def _out_of_bounds(self, site: Site, address: int, width: int, lane: int) -> None:
        # An index past either end of a variable of slot s lands within half a slot of it.
        slot = (address + (1 << (SLOT - 1))) >> SLOT
        offset = address - (slot << SLOT)
        if 1 <= slot <= len(self._variables):
            offset -= int(self._bias[slot - 1])
            name, size = readable(self._variables[slot - 1].name), int(self._sizes[slot - 1])
            if offset < 0:
                where = f"{-offset} bytes before the start of {name}"
                if -offset <= self._reserved:
                    where += f", in the {self._reserved} bytes that are reserved from sm_90 on"
            else:
                where = f"{max(0, offset - size)} bytes past the end of {name} ({size} bytes)"
            where += self.alignment(slot - 1)
        else:
            where = f"shared address 0x{address + self._reserved:x} is of no variable"
        raise Trap("bounds", f"accesses {width} bytes of shared memory, {where}", site, lane)

    def describe(self, storage: int) -> str:
        """A place in the storage of all blocks as one in a variable."""
        i = self.variable(storage)
        offset = storage % self.row_size - int(self._starts[i])
        return f"shared memory {readable(self._variables[i].name)}+{offset}"

    def variable(self, storage: int) -> int:
        offset = storage % self.row_size
        return int(np.argmax(np.where(self._starts <= offset, self._starts, -1)))

    def alignment(self, i: int) -> str:
        """What became of the alignment of a variable that has more than shared memory itself."""
        if not 0 < self._reserved < self._variables[i].align:
            return ""
        name, align = readable(self._variables[i].name), self._variables[i].align
        return (
            f" ({name} is not aligned to the {align} bytes that it asks for: from sm_90 on shared memory "
            f"starts with {self._reserved} reserved bytes)"
        )


def layout(variables: Sequence[Variable], dynamic: int) -> tuple[Array, Array]:
    """Where each variable starts, and its bytes: those of a fixed size first, as ptxas places them."""
    sizes = np.array([v.size or dynamic for v in variables] or [0], np.int64)
    starts = np.zeros(len(sizes), np.int64)
    at = 0
    for i in sorted(range(len(variables)), key=lambda i: variables[i].size == 0):
        align = max(variables[i].align, 16)
        starts[i] = at = -(-at // align) * align
        at += int(sizes[i]) if variables[i].size else 0
    return starts, sizes

"""Where the variables of shared memory lie: in the address space, apart from each other, and in the storage.

An address has the number of the variable above SLOT, and the rank + 1 of a block of the cluster above RANK,
0 for the block's own. In kernels with matrix descriptors, which hold the low bits alone, those are what they
are on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Variable
from ptxsan.lanes import Array, Geometry
from ptxsan.machine.memory.spaces import RANK, SLOT, readable
from ptxsan.native.build import Library


class Layout:
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

    def places(
        self, site: Site, address: Array, width: int, lane: Array, native: Library | None
    ) -> tuple[Array, Array, Array]:
        """Of addresses (lanes,) where these lanes (n,) access ``width`` bytes: elements in the storage of all
        blocks, offsets in that of one, (n,) both, and the elements over all lanes, (lanes,) int32. Traps
        where one is out of bounds or not aligned."""
        index = np.zeros(len(address), np.int32)
        if native is not None:
            element, offset = np.empty_like(lane), np.empty_like(lane)
            geometry, item = self._geometry, address.dtype.itemsize
            numbers = (SLOT, self._reserved, self.row_size, geometry.threads, width)
            if not native.shared_places(address, item, lane, self._slots, *numbers, element, offset, index):
                return element, offset, index
        element, offset = self._resolve(site, address[lane], width, lane)
        index[lane] = element
        return element, offset, index

    def _resolve(self, site: Site, active: Array, width: int, lane: Array) -> tuple[Array, Array]:
        active = active.astype(np.int64) & 0xFFFFFFFF
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
        element = (row * self.row_size + offset) >> (width.bit_length() - 1)
        return element, offset

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

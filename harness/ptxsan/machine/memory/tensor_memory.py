"""Tensor memory: of each block 128 lanes of 512 columns of 32 bits, allocated by columns (PTX ISA §9.7.16.1).

By the text of the ISA, never compared with a chip. What is refused is what the guardrails that ptxas puts in
(-g-tmem-access-check) refuse: columns that are not allocated, lanes that are another warp's, columns
that were not allocated so and are deallocated, an allocation after the permit was given up.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.checks.clocks import Clocks
from ptxsan.checks.tensor import TensorAccess, TensorOrder
from ptxsan.checks.undefined import ORIGIN, Shadow
from ptxsan.lanes import WARP, Array, Geometry, Mask, full

LANES, COLUMNS, UNIT = 128, 512, 32  # of a block; columns that are allocated together at least
SHARED_OF_PROCESSOR = 228 * 1024  # bytes, of sm_100
_CELLS = LANES * COLUMNS
_DID = {"ld": "reads", "st": "writes", "mma": "writes", "cp": "writes", "dealloc": "deallocates"}


@dataclass
class Allocation:
    """Columns that ``site`` allocated: the first one, and how many."""

    start: int
    count: int
    site: Site
    lane: int


class TensorMemory:
    """Of the blocks that run together; a cell is a word of one lane and column, numbered over all blocks.

    ``alone``: no other block has room on the multiprocessor, so columns are given from 0 on. Else from the
    last ones on, as where another block has the first ones. ``version`` changes with what is free."""

    def __init__(self, clocks: Clocks, geometry: Geometry, report: Tell, undefined: Any, alone: bool) -> None:
        cells = geometry.count * _CELLS
        self._clocks, self._geometry, self._report = clocks, geometry, report
        self.undefined, self._alone = undefined, alone
        self.words = np.zeros(cells, np.uint32)
        self.order = TensorOrder(clocks)
        self.version = 0
        self._known = np.zeros(cells, bool)
        self.shadow = Shadow(self.words.view(np.uint8), lambda: self._known, lambda: 4, lambda: None)
        # The last write and read of each cell, as places in ``accesses``; a lane is read by one warp of each
        # warpgroup alone, and by mma.
        self._accesses: list[TensorAccess | None] = [None]
        self._written = np.zeros(cells, np.int32)
        self._read: dict[int, Array] = {}
        self._unwaited: dict[tuple[str, int], list[TensorAccess]] = defaultdict(list)  # by kind and warp
        self._begun: dict[tuple[str, int], int] = defaultdict(int)
        self._held: list[dict[int, Allocation]] = [{} for _ in range(geometry.count)]
        self._allocated = np.zeros((geometry.count, COLUMNS), bool)
        self._freed = np.zeros((geometry.count, COLUMNS), bool)
        self._last: dict[int, int] = {}  # how many columns a block allocated
        self._relinquished: dict[int, Site] = {}
        self._group: tuple[str, Site] | None = None

    # Allocation (§9.7.16.7.1)

    def same_group(self, site: Site, lane: int, group: str) -> None:
        """All instructions of a kernel have the same .cta_group."""
        if self._group is None:
            self._group = group, site
        elif self._group[0] != group:
            what = f"is of .{group}, while {self._group[1].instruction.op} is of .{self._group[0]}"
            self._report("barrier", f"{what}: all of a kernel must have the same", site, lane)

    def has_room(self, row: int, count: int) -> bool:
        """Whether an allocation need not wait; one that is not allowed stops at once."""
        return row in self._relinquished or self.room(row, count) >= 0

    def room(self, row: int, count: int) -> int:
        """Where so many columns of a block are free, −1 for nowhere."""
        starts = range(0, COLUMNS - count + 1, UNIT)
        for start in starts if self._alone else reversed(starts):
            if not self._allocated[row, start : start + count].any():
                return start
        return -1

    def allocate(self, site: Site, lane: int, row: int, count: int) -> int:
        """The first of so many columns that are free."""
        if row in self._relinquished:
            what = "allocates tensor memory after tcgen05.relinquish_alloc_permit"
            raise Trap("barrier", what, site, lane)
        start = self.room(row, count)
        if count > (before := self._last.get(row, count)):
            what = f"allocates {count} columns after {before}: it must not be more than before"
            self._report("barrier", what, site, lane)
        self._last[row] = count
        self._held[row][start] = Allocation(start, count, site, lane)
        self.version += 1
        self._allocated[row, start : start + count] = True
        self._freed[row, start : start + count] = False
        cells = self.cells(row, np.arange(LANES), start + np.arange(count))
        self._known[cells] = False
        self._written[cells] = 0
        for plane in self._read.values():
            plane[cells] = 0
        return start

    def relinquish(self, site: Site, row: int) -> None:
        self._relinquished.setdefault(row, site)

    def deallocate(self, site: Site, lane: int, row: int, address: int, count: int) -> None:
        """Traps for columns that were not allocated so."""
        found = self._held[row].get(address & 0xFFFF)
        if address >> 16 or found is None or found.count != count:
            what = f"deallocates {count} columns of tensor memory at 0x{address:x}, which "
            said = f"was allocated with {found.count} columns" if found else "no tcgen05.alloc has returned"
            raise Trap("bounds", what + said, site, lane)
        access = TensorAccess(site, "dealloc", lane, self._clocks.now)
        self._check(access, self.cells(row, np.arange(LANES), found.start + np.arange(count)), True)
        del self._held[row][found.start]
        self._allocated[row, found.start : found.start + count] = False
        self._freed[row, found.start : found.start + count] = True
        self.version += 1

    def exit(self, rows: Array) -> None:
        """These blocks have exited."""
        for row in rows.tolist():
            for held in self._held[row].values():
                what = f"allocates {held.count} columns of tensor memory, which the block never deallocates"
                self._report("barrier", what, held.site, held.lane)
            self._held[row] = {}

    # Accesses

    def cells(self, row: int, lanes: Array, columns: Array) -> Array:
        """Those of lanes (n,) and columns (m,), (n, m)."""
        return np.asarray(row * _CELLS + lanes[:, None] * COLUMNS + columns[None, :])

    def check_columns(self, site: Site, lane: int, row: int, verb: str, columns: Array) -> None:
        """That these are allocated."""
        inside = columns < COLUMNS
        good = inside & self._allocated[row, np.where(inside, columns, 0)]
        if good.all():
            return
        column = int(columns[np.argmin(good)])
        why = f"of {COLUMNS}" if column >= COLUMNS else "which is not allocated"
        if column < COLUMNS and self._freed[row, column]:
            why = "which has been deallocated"
        raise Trap("bounds", f"{verb} column {column} of tensor memory, {why}", site, lane)

    def begin(self, site: Site, kind: str, lane: int, form: tuple[Any, ...] = ()) -> TensorAccess:
        """An access that begins now, for ``read`` and ``write``."""
        access = TensorAccess(site, kind, lane, self._clocks.now, form=form)
        if kind in ("ld", "st"):
            self._unwaited[kind, lane // WARP].append(access)
            self._begun[kind, lane // WARP] += 1
            access.sequence = self._begun[kind, lane // WARP]
        else:
            access.sequence = self.order.commits.issue(lane)
        access.number = len(self._accesses)
        self._accesses.append(access)
        return access

    def wait(self, kind: str, warps: Array) -> None:
        """tcgen05.wait::ld or ::st of these warps."""
        for warp in warps.tolist():
            for access in self._unwaited.pop((kind, warp), []):
                access.over = self._clocks.now
        self._clocks.tick()

    def used(self, warps: Array, places: Array) -> None:
        """These warps (n,) have read all registers of the loads that they began as these (n,)."""
        of_warp = dict(zip(warps.tolist(), places.tolist(), strict=True))
        for warp, place in of_warp.items():
            for access in self._unwaited["ld", warp]:
                if access.sequence == place:
                    access.used = self._clocks.now
        self._clocks.tick()

    def taint(self, site: Site, lane: int, cells: Array, shade: tuple[Array, Array]) -> None:
        """These cells (n,) were changed from values of which these bits (n, 4) were undefined, with their
        origins (n,), of which 0 is for what nothing wrote."""
        bits, origins = shade
        if not (bad := bits.any(axis=1)).any():
            return
        if (bad & (origins == 0)).any():
            cell = int(cells[bad & (origins == 0)][0])
            self.undefined.saw(site, f"{self.place(cell)}, which nothing wrote", np.array([lane]))
            origins = np.where(origins == 0, ORIGIN(self.undefined.born(self.undefined.fresh)), origins)
        whole = np.full((int(bad.sum()), 4), 0xFF, np.uint8)
        self.shadow.write(4 * cells[bad], whole, origins[bad])

    def read(self, access: TensorAccess, cells: Array) -> None:
        """Checks that it reads these cells, written before."""
        self._check(access, cells, False)
        group = -1
        if access.kind == "ld":
            group = access.lane % self._geometry.threads // (4 * WARP)
        if group not in self._read:
            self._read[group] = np.zeros(len(self.words), np.int32)
        self._read[group][cells] = access.number

    def write(self, access: TensorAccess, cells: Array, words: Array) -> None:
        """Words (like cells) are written."""
        self._check(access, cells, True)
        self._written[cells] = access.number
        self._known[cells] = True
        self.words[cells] = words

    def check_known(self, site: Site, lanes: Array, cells: Array) -> None:
        """These lanes (n,) read these cells (n, m), or all of them do."""
        known = self._known[cells]
        if known.all():
            return
        at = np.argwhere(~known)[0]
        what = f"{self.place(int(cells[tuple(at)]))}, which nothing wrote"
        unknown = np.unique(np.broadcast_to(lanes[:, None], known.shape)[~known])
        self.undefined.saw(site, what, unknown)

    def place(self, cell: int) -> str:
        lane, column = divmod(cell % _CELLS, COLUMNS)
        return f"lane {lane}, column {column} of tensor memory"

    def _check(self, access: TensorAccess, cells: Array, writes: bool) -> None:
        planes = [(self._written, "writes")]
        planes += [(plane, "reads") for plane in self._read.values()] if writes else []
        verb = _DID[access.kind] if writes else "reads"
        for plane, does in planes:
            numbers = plane[cells]
            for number in np.unique(numbers):
                before = self._accesses[number]
                if before is None or before is access:
                    continue
                missing, note = self.order.missing(before, access)
                if missing:
                    place = self.place(int(cells[numbers == number][0]))
                    what = f"{verb} {place}, which {before.site.instruction.op} {does}, {missing}"
                    self._report("race", what, access.site, access.lane, note)
                    break

    # Undefined values: addresses are numbers of cells

    def places(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> list[tuple[Any, Shadow, Array]]:
        """Of an access that has been checked: places among the active lanes, shadow, and offsets there."""
        cells = full(address, self._geometry.lanes) if mask is None else address
        return [(slice(None), self.shadow, cells * 4)]

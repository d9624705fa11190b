"""Which bytes of shared memory an instruction accesses: in a loop the same ones come again."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ptxsan.checks.accesses import SharedAccess
from ptxsan.checks.hazards import Site
from ptxsan.lanes import WARP, Array, Mask
from ptxsan.native.build import Library

Reading = tuple[Array, Array]  # storage, and each lane's element of the width in it, (lanes,) int32
SEVERAL_IN_WARP, SEVERAL = -1, -2  # in place of a thread, where there were several


@dataclass
class Pattern:
    """Which bytes the active lanes of an instruction access. ``element`` (n,) storage elements of ``width``
    bytes, ``lane`` (n,) whose each is, ``offset`` (n,) from the start of shared memory; ``index`` (lanes,)
    int32 the element of each lane, 0 of those that are not active. ``native`` does in C what it can."""

    address: Any
    mask: Mask | None
    width: int
    element: Array
    lane: Array
    offset: Array
    index: Array
    granule: int
    threads: int
    site: Site
    native: Library | None = None
    known: bool = False
    access: SharedAccess | None = None  # where counters are kept
    atomic: bool = False
    clash: tuple[int, int] | None = field(default=None)
    by_warp: list[tuple[int, Array, Array]] | None = None  # see clock_tags.py

    @cached_property
    def per(self) -> int:
        """Cells of an access."""
        return max(1, self.width // self.granule)

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """Storage cells of one granule and the lanes that touch them, a lane once a cell."""
        cell = (self.element[:, None] * self.per + np.arange(self.per)).ravel()
        return cell, np.repeat(self.lane, self.per)

    def all_of(self, cells: Array) -> bool:
        """Whether all its cells are set, of all (cells,) bool."""
        if self.native is not None:
            return bool(self.native.all_set(cells, self.element, self.per))
        return bool(cells[self.cells[0]].all())

    def set_in(self, cells: Array) -> None:
        if self.native is not None:
            self.native.set_all(cells, self.element, self.per)
        else:
            cells[self.cells[0]] = True

    def alone(self, last: Array) -> bool:
        """Whether C knows that each cell is of one lane alone; ``last`` (cells,) int32 is overwritten."""
        return self.native is not None and bool(self.native.apart(self.element, self.lane, self.per, last))

    @cached_property
    def bits(self) -> int:
        """A bit for each granule of a block's shared memory: whether any lane accesses it in any block."""
        last = int(self.offset.max()) // self.granule + self.per
        if self.native is not None:
            packed = np.zeros(last // 8 + 1, np.uint8)
            self.native.granules(self.offset, self.granule.bit_length() - 1, self.per, packed)
            return int.from_bytes(packed.tobytes(), "little")
        first, held = self.offset // self.granule, np.zeros(last, bool)
        for j in range(self.per):
            held[first + j] = True
        return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")

    @cached_property
    def readers(self) -> tuple[Array, Array, Array]:
        """Each cell once; its thread, or that there are several; the warp of the first one."""
        cell, lane = self.cells
        thread = lane % self.threads
        order = np.argsort(cell, kind="stable")
        cell, thread = cell[order], thread[order]
        start = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
        low, high = np.minimum.reduceat(thread, start), np.maximum.reduceat(thread, start)
        who = np.where(low == high, low, np.where(low // WARP == high // WARP, SEVERAL_IN_WARP, SEVERAL))
        return cell[start], who, low // WARP


def over_lanes(element: Array, mask: Mask | None) -> Array:
    """Elements of the active lanes as those of all, int32, with 0 for the others."""
    if mask is None:
        return element.astype(np.int32)
    index = np.zeros(len(mask.bits), np.int32)
    index[mask.index] = element
    return index


def same_mask(one: Mask | None, other: Mask | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or bool((one.bits == other.bits).all())

"""Patterns of accesses to shared memory, those that an instruction had before among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.races import Pattern, bits_of, remember, same_mask
from ptxsan.lanes import Array, Geometry, Mask, full
from ptxsan.machine.memory import SharedLayout
from ptxsan.native import library

_NONE = np.zeros(0, np.int32)


class Patterns:
    """Of one shared memory; ``written`` tells which of its cells, of ``granule`` bytes, hold something.
    ``sure``: those of which all cells do."""

    def __init__(self, layout: SharedLayout, geometry: Geometry, granule: int, written: Array) -> None:
        self._layout, self._geometry, self._granule, self._written = layout, geometry, granule, written
        self._native = library()
        self._held = np.zeros(layout.row_size // granule // 64 + 1, np.uint64)
        self.sure: list[Pattern] = []

    def find(self, site: Site, address: Any, width: int, mask: Mask | None, reads: bool = False) -> Pattern:
        """``reads``: of each lane the element will be asked for, and whether it was written."""
        patterns: list[Pattern] = site.patterns
        for pattern in patterns:
            if pattern.address is address and pattern.mask is mask:
                return pattern
        address = full(address, self._geometry.lanes)
        ends = address.item(0), address.item(-1)
        for pattern in patterns:
            alike = pattern.ends == ends and same_mask(pattern.mask, mask)
            if alike and not np.count_nonzero(pattern.address != address):
                pattern.address, pattern.mask = address, mask
                return remember(site, pattern)
        return remember(site, self._build(site, address, ends, mask, width, reads))

    def _build(
        self, site: Site, address: Array, ends: tuple[int, int], mask: Mask | None, width: int, reads: bool
    ) -> Pattern:
        lane, native = self._geometry.every if mask is None else mask.index, self._native
        per, row_size, index = max(1, width // self._granule), self._layout.row_size, None
        of = self._geometry.threads, row_size, site, native
        if native is not None:
            element, written = np.empty(len(lane), np.int64), _NONE
            if reads:
                index = np.empty(len(address), np.int32) if mask is None else np.zeros(len(address), np.int32)
                written = self._written
            more = written, element, _NONE if index is None else index, self._held
            if found := self._layout.places_in_c(native, address, width, self._granule, lane, *more):
                bits = int.from_bytes(self._held[: found >> 4].tobytes(), "little")
                pattern = Pattern(address, ends, mask, width, element, lane, index, per, bits, *of)
                if found & 1:
                    pattern.known = True
                    self.sure.append(pattern)
                return pattern
        element = self._layout.places(site, address, width, lane)
        bits = bits_of(element * width % row_size, self._granule, per)
        return Pattern(address, ends, mask, width, element, lane, None, per, bits, *of)

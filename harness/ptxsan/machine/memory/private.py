"""Local memory, a thread's own, and constant memory, which all read."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.checks.shadow import Shadow
from ptxsan.frontend.syntax import Variable
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine.memory.spaces import SLOT, gather, scatter


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
        for check, bad, what in (
            ("bounds", (address < 0) | (address + width > self._limit), "out of the bounds of local memory"),
            ("misaligned", (address & (width - 1)) != 0, f"not aligned to {width} bytes"),
        ):
            if bad.any():
                i = int(np.argmax(bad))
                lane = i if mask is None else int(mask.index[i])
                raise Trap(
                    check, f"{width}-byte access at local address {int(address[i])} is {what}", site, lane
                )
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
                lane = i if mask is None else int(mask.index[i])
                name = self._variables[int(slot[i])].name
                text = f"reads {width} bytes of constant memory at {name}+{int(offset[i])}, {what}"
                raise Trap(check, text, site, lane)
        return gather(self._bytes, (self._starts[slot] + offset) // width, width)

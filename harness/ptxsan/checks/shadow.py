"""What is undefined of a memory's bytes, to the bit, and where each undefined value came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxsan.lanes import Array

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
        self,
        data: Array,
        known: Callable[[], Array],
        cell: Callable[[], int],
        forget: Callable[[], None],
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

"""Fragments of tensor-core instructions: registers of a warp as matrices, and back.

Products are exact and sums are made in float64, then rounded to the accumulator's type: integers come out
as on the hardware, real numbers within its error bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.arithmetic import round_narrow
from harness.ptx.builder import Builder
from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import WARP, Array, Mask, full
from harness.ptx.syntax import Operand, PtxError, Vector


def _items(operand: Operand) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector):
        raise PtxError("a fragment is a vector of registers")
    return operand.items


def whole_warps(mask: Mask | None, site: Site) -> None:
    if mask is None:
        return
    warps = mask.bits.reshape(-1, WARP)
    part = warps.any(axis=1) & ~warps.all(axis=1)
    if part.any():
        raise Trap("barrier", "is executed by a part of its warp", site, int(np.argmax(part)) * WARP)


class Words:
    """Registers of a fragment as an array (lanes, registers) of 32-bit words, and back."""

    def __init__(self, b: Builder, operand: Operand) -> None:
        items = _items(operand)
        self._state = b.state
        self._reads = [b.read(item, "b32") for item in items]
        self._puts = [b.write(item) for item in items]
        self.count = len(items)

    def get(self) -> Array:
        return np.stack([full(read(), self._state.lanes) for read in self._reads], axis=1)

    def set(self, words: Array, mask: Mask | None) -> None:
        columns = np.ascontiguousarray(words.T)
        for put, column in zip(self._puts, columns, strict=True):
            put(column, mask)


def cut(words: Array, kind: str) -> Array:
    """TF32 multiplicands: the hardware does not look at the lower 13 bits."""
    return words & np.uint32(0xFFFFE000) if kind == "tf32" else words


def rounded(values: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"):
        return values.astype(np.float32) if dtype == np.float32 else round_narrow(values, dtype)

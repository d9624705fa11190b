"""Fragments of tensor-core instructions: registers of a warp as matrices, and back.

Products are exact and sums are made in float64, then rounded to the accumulator's type: integers come out
as on the hardware, real numbers within its error bounds.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from harness.ptx.arithmetic import round_narrow
from harness.ptx.builder import SEEN, Builder
from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import WARP, Array, Mask, full
from harness.ptx.syntax import Operand, PtxError, Vector

_EIGHTS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
_BITS = {"s4": 4, "u4": 4, "b1": 1, "tf32": 32, **dict.fromkeys(_EIGHTS, 8)}


def bits_of(kind: str) -> int:
    """Of an element in a fragment. Raises PtxError for a type that is in none."""
    if kind not in _BITS and kind not in SEEN:
        raise PtxError(f"type .{kind} is not supported")
    return _BITS[kind] if kind in _BITS else 8 * int(SEEN[kind].itemsize)


def elements(words: Array, kind: str) -> Array:
    """Registers (..., words) of 32 or 64 bits as elements (..., n) in float64, those in low bits first."""
    if kind == "tf32":  # the hardware does not look at the lower 13 bits
        words = words & np.uint32(0xFFFFE000)
    raw = np.ascontiguousarray(words)
    if kind == "b1":
        return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little").astype(np.float64)
    if kind in ("s4", "u4"):
        octets = raw.view(np.uint8)
        nibbles = (
            np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1).astype(np.int8)
        )
        signed = (nibbles ^ 8) - 8 if kind == "s4" else nibbles
        return np.asarray(signed, np.float64)
    dtype = _EIGHTS.get(kind) or SEEN["f32" if kind == "tf32" else kind]
    return np.asarray(raw.view(dtype), np.float64)


def registers(values: Array, kind: str, saturates: bool = False) -> Array:
    """Elements (..., n) in float64 as registers of a sum's type: rounded to floats; integers wrap around, or
    stay within their limits (.satfinite)."""
    with np.errstate(all="ignore"):
        if kind == "f16":
            return np.ascontiguousarray(round_narrow(values, np.float16)).view(np.uint32)
        if kind in ("f32", "f64"):
            return np.ascontiguousarray(values.astype(SEEN[kind])).view(SEEN[f"u{kind[1:]}"])
    whole = values.astype(np.int64)
    if saturates:
        whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
    return np.ascontiguousarray(whole.astype(np.uint32))


def product(a: Array, b: Array, c: Array, operation: str = "") -> Array:
    """a·b + c of matrices (warps, rows, columns); of bits with xor or and in place of products."""
    both = a @ b
    if operation == "xor":
        both = a.sum(axis=2, keepdims=True) + b.sum(axis=1, keepdims=True) - 2 * both
    total: Array = both + c
    return total


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
    """Registers of a fragment as an array (lanes, registers) of words, and back."""

    def __init__(self, b: Builder, operand: Operand, bits: int = 32) -> None:
        items = _items(operand)
        self._state = b.state
        self._reads = [b.read(item, f"b{bits}") for item in items]
        self._puts = [b.write(item) for item in items]
        self.count = len(items)

    def get(self) -> Array:
        return np.stack([full(read(), self._state.lanes) for read in self._reads], axis=1)

    def set(self, words: Array, mask: Mask | None) -> None:
        columns = np.ascontiguousarray(words.T)
        for put, column in zip(self._puts, columns, strict=True):
            put(column, mask)

"""Products of tensor cores in C: fragments of warps in registers to those of the sum."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxsan.lanes import WARP, Array, Mask
from ptxsan.native.build import Library

# Types by what matrices.c calls them; e4m3 and e5m2 are tables of their values.
_KINDS = {
    name: i for i, name in enumerate(("f16", "bf16", "tf32", "8", "s8", "u8", "s4", "u4", "f32", "s32"))
}
SUMS = ("f16", "f32", "s32")
MULTIPLIED = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s4", "u4")


class _Fragments(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("kind", "registers")],
        *[(name, ctypes.c_void_p) for name in ("place", "eights")],
    ]


class _Fields(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("copies", "m", "n", "k", "saturates")],
        *[(name, _Fragments) for name in "abcd"],
        ("array_type", ctypes.c_void_p),
    ]


class Multiply:
    """One form of mma: ``sizes`` are copies, m, n and k; of A, B, C and D ``kinds``, ``registers`` a lane and
    ``places`` (32, elements), and of those of 8 bits the values, (256,)."""

    def __init__(
        self,
        library: Library,
        sizes: tuple[int, int, int, int],
        kinds: Sequence[str],
        registers: Sequence[int],
        places: Sequence[Array],
        eights: dict[str, Array],
        saturates: bool,
    ) -> None:
        # Kept, as the structure has their addresses alone.
        self._held = [np.ascontiguousarray(place, np.int32) for place in places]
        tables = {kind: np.ascontiguousarray(values, np.float64) for kind, values in eights.items()}
        self._tables = tables
        of = [
            _Fragments(_KINDS["8" if kind in tables else kind], count, _at(place), _at(tables.get(kind)))
            for kind, count, place in zip(kinds, registers, self._held, strict=True)
        ]
        self._fields = _Fields(*sizes, int(saturates), *of, id(np.ndarray))
        self._address, self._run = ctypes.addressof(self._fields), library.multiply
        self._made = registers[3]

    def run(self, given: list[Any], lanes: int, mask: Mask | None) -> Array:
        """Of the registers of A, B and C, arrays over the lanes or scalars of 32 bits, those of D,
        (registers, lanes) uint32; undefined in warps that are not active."""
        made = np.empty((self._made, lanes), np.uint32)
        warps = None if mask is None else np.ascontiguousarray(mask.bits.reshape(-1, WARP)[:, 0])
        if self._run(self._address, given, made, warps, lanes, None):
            raise AssertionError(f"registers of a fragment are {given!r}")
        return made


def _at(array: Array | None) -> int | None:
    return None if array is None else int(array.__array_interface__["data"][0])

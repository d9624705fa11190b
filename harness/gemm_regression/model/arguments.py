"""The arguments of a launch as values; a struct by value lies in memory as a C compiler lays it out."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from gemm_regression.model.problem import Storage

# struct's letters for the kinds of arguments; a half is handed over by its bits.
_LETTERS = {
    **{"i8": "b", "i16": "h", "i32": "i", "i64": "q", "p64": "P"},
    **{"f16": "H", "bf16": "H", "f32": "f", "f64": "d"},
}
_HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class TensorMap:
    """The declaration of a tensor map (CUtensorMap) of a matrix. ``box``: rows and columns of storage that
    one copy transfers. ``swizzle``: in shared memory, in bytes (0, 32, 64 or 128). Elements past the edges
    are zero. ``tf32``: FP32 elements are rounded to TF32, to nearest even, when they are copied to shared
    memory."""

    box: tuple[int, int]
    swizzle: int = 0
    tf32: bool = False

    def dimensions(self, storage: Storage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Extents, strides in bytes (of all but the first) and box of the map of a matrix, as
        cuTensorMapEncodeTiled takes them: the contiguous dimension first. A batch is one matrix of all its
        rows."""
        rows, (down, across) = storage.count * (storage.rows + storage.gap), self.box
        return (storage.columns, rows), (storage.ld * storage.dtype.itemsize,), (across, down)


def integer(name: str, kind: str, value: int) -> int:
    """A signed or an unsigned integer, as a signed one of its width. Raises ValueError for neither."""
    bits = int(kind[1:])
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise ValueError(f"parameter {name} is {value}, more than {bits} bits hold")
    return value - (value >> bits - 1 << bits) if value > 0 else value


@dataclass(frozen=True)
class Argument:
    """The value for a parameter: a number, or the address of an operand or of the workspace, or the
    ``members`` of a struct."""

    name: str
    kind: str
    value: float = 0
    buffer: str = ""
    map: TensorMap | None = None
    members: tuple[Argument, ...] = ()

    @classmethod
    def struct(cls, *members: Argument) -> Argument:
        """A struct of these by value."""
        size = struct.calcsize(_format(members))
        return cls(f"{{{', '.join(one.name for one in members)}}}", f"bytes[{size}]", members=members)

    @property
    def letters(self) -> str:
        """As Python's struct names its type, of a struct or a tensor map as so many bytes."""
        return _LETTERS.get(self.kind) or f"{self.kind[6:-1]}s"

    def handed(self, at: Callable[[str], int]) -> float | bytes:
        """What is packed by `letters`, with buffers at these addresses; of all but tensor maps."""
        if self.members:
            return struct.pack(_format(self.members), *(one.handed(at) for one in self.members))
        if self.buffer:
            return at(self.buffer)
        half = _HALVES.get(self.kind)
        return int(half(self.value).view(np.uint16)) if half else self.value


def _format(members: tuple[Argument, ...]) -> str:
    """Of a struct, padded to a multiple of its widest member."""
    letters = [one.letters for one in members]
    return "".join([*letters, f"0{max(letters, key=struct.calcsize)}"])

"""Tensor maps: how the tensor memory accelerator sees an array in global memory (PTX ISA §5.5).

Their fields and their limits are those of the driver's cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.
The 128 bytes that a kernel gets are the interpreter's own: NVIDIA does not document a CUtensorMap's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.frontend import PtxError
from ptxsan.lanes import Array

_MAGIC = b"TENSMAP1"
_FORM = struct.Struct("<8s6BQ5I4Q5H5B6h")
BYTES = 128
# Elements by their number in CUtensorMapDataType: bytes, and the NaN that fills what lies outside.
ELEMENTS: dict[str, tuple[int, int, int | None]] = {
    "uint8": (0, 1, None),
    "uint16": (1, 2, None),
    "uint32": (2, 4, None),
    "int32": (3, 4, None),
    "uint64": (4, 8, None),
    "int64": (5, 8, None),
    "float16": (6, 2, 0x7FF7),
    "float32": (7, 4, 0x7FF77FF7),
    "float64": (8, 8, 0x7FF77FF77FF77FF7),
    "bfloat16": (9, 2, 0x7FF7),
    "tfloat32": (11, 4, None),  # FP32 in memory; what a fill of NaN is has not been measured
}
_NAMES = {number: name for name, (number, _, _) in ELEMENTS.items()}
_CORNERS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}  # by the dimensions of a map, what a corner is less than
SWIZZLES = {0: 0, 32: 1, 64: 3, 128: 7}  # bytes: which of the bits from 2⁷ of an address move those from 2⁴


# How tensormap.replace numbers what a map says (PTX ISA §9.7.9.27.1.1).
_REPLACED_ELEMENTS = dict(enumerate(ELEMENTS)) | {8: "", 9: "float64", 10: "bfloat16", 11: "tfloat32"}
_ELEMENT, _RANK, _SWIZZLE, _NAN, _ADDRESS = 1, 2, 3, 4, 7  # fields of _FORM
_ARRAYS = {  # the first field, how many there are, and what is added to what the field holds
    "global_dim": (8, 5, 1, 32),
    "global_stride": (13, 4, 0, 64),
    "box_dim": (17, 5, 1, 16),
    "element_stride": (22, 5, 0, 8),
}


@dataclass(frozen=True)
class TensorMapDescriptor:
    """A tensor of ``element`` (a name such as "float16") at an address in bytes. ``extents`` of each
    dimension, the contiguous one first; ``strides`` in bytes of all but that one; ``box`` what one copy
    brings, and ``steps`` between the elements it takes; ``swizzle`` in bytes; ``nan``: fill what lies
    outside with NaN. Elements of "tfloat32" are FP32, rounded to TF32 on the way to shared memory.

    Of im2col mode (PTX ISA §5.5.4) are the ``corners``, the lower and the upper one: for W, H and D, as many
    as there are, how far the bounding box begins after the first pixel and ends after the last one. Its box
    is the channels of a pixel and the pixels of a column, and ``steps`` are between pixels.

    Raises PtxError, one line, for what the driver refuses.
    """

    element: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    nan: bool = False
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        rank = len(self.extents)
        object.__setattr__(self, "steps", self.steps or (1,) * rank)
        if self.element not in ELEMENTS:
            raise PtxError(f"tensor map: elements of {self.element}; known: {', '.join(ELEMENTS)}")
        row, tiles = self.box[0] * self.item, self.box[:1] if self.corners else self.box
        wrong = [
            *(self._wrong_corners(rank, *self.corners) if self.corners else ()),
            (not 1 <= rank <= 5, "1 to 5 dimensions"),
            (not self.corners and len(self.box) != rank, "1 to 5 dimensions, and a box of as many"),
            (len(self.strides) != rank - 1 or len(self.steps) != rank, "a stride for all but the first one"),
            (self.address % 16, "an address that is a multiple of 16"),
            (any(s % 16 or not 0 <= s < 1 << 40 for s in self.strides), "strides of multiples of 16 bytes"),
            (any(not 0 < e <= 1 << 32 for e in self.extents), "extents from 1 to 2³²"),
            (any(not 0 < b <= 256 for b in tiles), "a box of 1 to 256 elements in each dimension"),
            (any(not 0 < s <= 8 for s in self.steps), "steps from 1 to 8"),
            (row % 16, "rows of the box that are a multiple of 16 bytes"),
            (self.swizzle not in SWIZZLES, "a swizzle of 0, 32, 64 or 128 bytes"),
            (self.swizzle and row > self.swizzle, "rows of the box no longer than the swizzle"),
            (self.nan and ELEMENTS[self.element][2] is None, "a fill of NaN for real elements but tfloat32"),
        ]
        for bad, takes in wrong:
            if bad:
                raise PtxError(f"a tensor map takes {takes}: {self}")

    def _wrong_corners(
        self, rank: int, lower: tuple[int, ...], upper: tuple[int, ...]
    ) -> Iterator[tuple[bool, str]]:
        yield not 3 <= rank <= 5, "3 to 5 dimensions in im2col mode"
        yield len(lower) != rank - 2 or len(upper) != rank - 2, "corners of W, H and D, as many as there are"
        most = _CORNERS.get(rank, 1)
        yield any(not -most <= c < most for c in (*lower, *upper)), f"corners from {-most} to {most - 1}"
        yield len(self.box) != 2 or not 0 < self.box[1] <= 1024, "channels, and a column of 1 to 1024 pixels"
        ends = zip(lower, upper, self.extents[1:-1], strict=False)
        yield any(e - 1 + high < low for low, high, e in ends), "a bounding box that holds a pixel"

    @property
    def item(self) -> int:
        return ELEMENTS[self.element][1]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of a box that are copied, by dimension."""
        if self.corners:
            return self.box
        return (self.box[0], *(-(-b // s) for b, s in zip(self.box[1:], self.steps[1:], strict=True)))

    @property
    def size(self) -> int:
        """Bytes of a box in shared memory."""
        return prod(self.counts) * self.item

    @classmethod
    def of_array(
        cls, address: int, array: Any, box: Sequence[int], tf32: bool = False, **more: Any
    ) -> TensorMapDescriptor:
        """Of a NumPy array, or what has its shape and dtype, there; ``box`` in the order of its axes, the
        contiguous one last; ``tf32``: its FP32 elements are rounded to TF32 on the way to shared memory."""
        dtype = np.dtype(array.dtype)
        shape = array.shape if isinstance(array.shape, tuple) else (array.shape,)
        extents = tuple(reversed(shape))
        strides = tuple(prod(extents[:i]) * dtype.itemsize for i in range(1, len(extents)))
        if tf32 and dtype != np.float32:
            raise PtxError(f"a tensor map rounds float32 to TF32, and not {dtype.name}")
        name = "tfloat32" if tf32 else "uint16" if dtype == np.int16 else dtype.name
        name = "uint8" if dtype.itemsize == 1 else name
        return cls(name, address, extents, strides, tuple(reversed(box)), **more)

    def encode(self) -> bytes:
        rank = len(self.extents)

        def padded(values: Sequence[int], count: int) -> list[int]:
            return [*values, *[0] * (count - len(values))]

        head = (ELEMENTS[self.element][0], rank, self.swizzle // 2, self.nan, self.corners is not None, 0)
        corners = [c for each in self.corners or ((), ()) for c in padded(each, 3)]
        extents, box = (padded([v - 1 for v in values], 5) for values in (self.extents, self.box))
        fields = (*extents, *padded(self.strides, 4), *box, *padded(self.steps, 5), *corners)
        return _FORM.pack(_MAGIC, *head, self.address, *fields).ljust(BYTES, b"\0")

    @staticmethod
    @cache
    def decode(held: bytes) -> TensorMapDescriptor:
        """Raises PtxError for bytes that are none."""
        magic, element, rank, swizzle, nan, columns, _, address, *fields = _FORM.unpack(held[: _FORM.size])
        if magic != _MAGIC:
            raise PtxError("these 128 bytes are no tensor map")
        return TensorMapDescriptor(
            _NAMES[element],
            address,
            tuple(v + 1 for v in fields[:rank]),
            tuple(fields[5 : 5 + rank - 1]),
            tuple(v + 1 for v in fields[9 : 9 + (2 if columns else rank)]),
            tuple(fields[14 : 14 + rank]),
            2 * swizzle,
            bool(nan),
            (tuple(fields[19 : 17 + rank]), tuple(fields[22 : 20 + rank])) if columns else None,
        )

    @staticmethod
    def replaced(held: bytes, field: str, ordinal: int, value: int) -> bytes:
        """The 128 bytes of a map with a field set to a value, as tensormap.replace names it, of an array of
        fields the ``ordinal``-th. A value that fits into no map is kept until a copy by it is refused.

        Raises PtxError for what is not known."""
        fields = list(_FORM.unpack(held[: _FORM.size]))
        if field in _ARRAYS:
            first, count, more, bits = _ARRAYS[field]
            if not 0 <= ordinal < count:
                raise PtxError(f"sets {field} {ordinal} of a tensor map, which has {count}")
            fields[first + ordinal] = (value - more) & ((1 << bits) - 1)
        elif field == "global_address":
            fields[_ADDRESS] = value & ((1 << 64) - 1)
        elif field == "rank":
            fields[_RANK] = (value + 1) & 0xFF
        elif field == "elemtype" and (name := _REPLACED_ELEMENTS.get(value)):
            fields[_ELEMENT] = ELEMENTS[name][0]
        elif field == "swizzle_mode" and 0 <= value <= 3:
            fields[_SWIZZLE] = (0, 16, 32, 64)[value]  # half of the bytes
        elif field == "fill_mode" and value in (0, 1):
            fields[_NAN] = value
        elif (field, value) not in (("interleave_layout", 0), ("swizzle_atomicity", 0)):
            raise PtxError(f"{field} {value} of a tensor map is not supported")
        return _FORM.pack(*fields) + held[_FORM.size :]

    def elements(self, at: Sequence[int], stores: bool = False) -> tuple[Array, Array]:
        """Of a box whose first element has these coordinates: the addresses of its elements (n,), the
        contiguous dimension first, and which of them lie inside the tensor. A store or a reduction writes
        whole 16 bytes of a row, as an H200 does: those past its end, too, of which one lies inside."""
        address = np.full((1,) * len(at), self.address, np.int64)
        inside = np.ones((1,) * len(at), bool)
        strides = (self.item, *self.strides)
        steps = (1, *self.steps[1:])
        ends = list(self.extents)
        if stores:
            ends[0] += -ends[0] % (16 // self.item)
        for axis, (first, count) in enumerate(zip(at, self.counts, strict=True)):
            place = first + np.arange(count, dtype=np.int64) * steps[axis]
            shape = [1] * len(at)
            shape[len(at) - 1 - axis] = count
            address = address + (place * strides[axis]).reshape(shape)
            inside = inside & ((place >= 0) & (place < ends[axis])).reshape(shape)
        return address.ravel(), np.ascontiguousarray(np.broadcast_to(inside, address.shape)).ravel()

    def column(self, at: Sequence[int], offsets: Sequence[int]) -> tuple[Array, Array]:
        """The same in im2col mode: a column of pixels from that of these coordinates on, through the bounding
        box along W, then H, D and N, each shifted by the ``offsets``; the channels of a pixel first.

        Raises PtxError for coordinates of which the ISA does not say where they go on."""
        assert self.corners is not None
        number, size, axes = 0, 1, list[tuple[int, int, int]]()  # lower end, step and pixels of each axis
        ends = zip(at[1:-1], *self.corners, self.extents[1:-1], self.steps[1:-1], strict=True)
        for where, low, high, extent, step in ends:
            count = (extent - 1 + high - low) // step + 1
            index, rest = divmod(where - low, step)
            if rest or not 0 <= index < count:
                raise PtxError(f"coordinates {tuple(at)}, of no pixel of the bounding box")
            number, size = number + index * size, size * count
            axes.append((low, step, count))
        pixel = number + at[-1] * size + np.arange(self.box[1], dtype=np.int64)
        channel = at[0] + np.arange(self.box[0], dtype=np.int64)
        address, inside = self.address + channel * self.item, (channel >= 0) & (channel < self.extents[0])
        for (low, step, count), offset, stride, extent in zip(
            axes, offsets, self.strides, self.extents[1:], strict=False
        ):
            place = low + pixel % count * step + offset
            pixel = pixel // count
            address = address + (place * stride)[:, None]
            inside = inside & ((place >= 0) & (place < extent))[:, None]
        address = address + (pixel * self.strides[-1])[:, None]
        inside = inside & ((pixel >= 0) & (pixel < self.extents[-1]))[:, None]
        return address.ravel(), inside.ravel()

    def places(self, start: int) -> Array:
        """Where the bytes (size,) of a box lie in shared memory that starts at an address, from it on."""
        address = start + np.arange(self.size, dtype=np.int64)
        return np.asarray(swizzled(address, self.swizzle) - start)

    @property
    def dtype(self) -> Any:
        return np.dtype(ml_dtypes.bfloat16 if self.element == "bfloat16" else self.element.removeprefix("t"))

    @property
    def rounds(self) -> bool:
        """Whether a copy to shared memory rounds to TF32."""
        return self.element == "tfloat32"

    @property
    def fill(self) -> int:
        """The bits of an element outside."""
        nan = ELEMENTS[self.element][2]
        return nan if self.nan and nan is not None else 0


def swizzled(address: Any, swizzle: int) -> Any:
    """Where a byte of this address lies in shared memory: chunks of 16 bytes change places."""
    return address ^ ((address >> 7 & SWIZZLES[swizzle]) << 4)

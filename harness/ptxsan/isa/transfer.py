"""A tensor map: how the tensor memory accelerator sees an array in global memory.

The fields and their limits are those of the driver's cuTensorMapEncodeTiled. The 128 bytes that a kernel gets
are the interpreter's own: NVIDIA does not document a CUtensorMap's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, PtxError
from ptxsan.isa.mbarrier import engine
from ptxsan.lanes import Array, Items, full
from ptxsan.machine import Builder
from ptxsan.machine.memory import RANK

_MAGIC = b"TENSMAP1"
_FORM = struct.Struct("<8s6BQ5I4Q5H5B")
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
SWIZZLES = {0: 0, 32: 1, 64: 3, 128: 7}  # bytes: which of the bits from 2⁷ of an address move those from 2⁴


@dataclass(frozen=True)
class TensorMap:
    """A tensor of ``element`` (a name such as "float16") at an address in bytes. ``extents`` of each
    dimension, the contiguous one first; ``strides`` in bytes of all but that one; ``box`` what one copy
    brings, and ``steps`` between the elements it takes; ``swizzle`` in bytes; ``nan``: fill what lies
    outside with NaN. Elements of "tfloat32" are FP32, rounded to TF32 on the way to shared memory.

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

    def __post_init__(self) -> None:
        rank = len(self.extents)
        object.__setattr__(self, "steps", self.steps or (1,) * rank)
        if self.element not in ELEMENTS:
            raise PtxError(f"tensor map: elements of {self.element}; known: {', '.join(ELEMENTS)}")
        row = self.box[0] * self.item
        wrong = [
            (not 1 <= rank <= 5 or len(self.box) != rank, "1 to 5 dimensions, and a box of as many"),
            (
                len(self.strides) != rank - 1 or len(self.steps) != rank,
                "a stride for each dimension but the first",
            ),
            (self.address % 16, "an address that is a multiple of 16"),
            (
                any(s % 16 or not 0 <= s < 1 << 40 for s in self.strides),
                "strides that are multiples of 16 bytes",
            ),
            (any(not 0 < e <= 1 << 32 for e in self.extents), "extents from 1 to 2³²"),
            (any(not 0 < b <= 256 for b in self.box), "a box of 1 to 256 elements in each dimension"),
            (any(not 0 < s <= 8 for s in self.steps), "steps from 1 to 8"),
            (row % 16, "rows of the box that are a multiple of 16 bytes"),
            (self.swizzle not in SWIZZLES, "a swizzle of 0, 32, 64 or 128 bytes"),
            (self.swizzle and row > self.swizzle, "rows of the box no longer than the swizzle"),
            (self.nan and ELEMENTS[self.element][2] is None, "a fill of NaN for real elements but tfloat32"),
        ]
        for bad, takes in wrong:
            if bad:
                raise PtxError(f"a tensor map takes {takes}: {self}")

    @property
    def item(self) -> int:
        return ELEMENTS[self.element][1]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of a box that are copied, by dimension."""
        return (self.box[0], *(-(-b // s) for b, s in zip(self.box[1:], self.steps[1:], strict=True)))

    @property
    def size(self) -> int:
        """Bytes of a box in shared memory."""
        return int(np.prod(self.counts)) * self.item

    @classmethod
    def of_array(
        cls, address: int, array: Any, box: Sequence[int], tf32: bool = False, **more: Any
    ) -> TensorMap:
        """Of a NumPy array, or what has its shape and dtype, there; ``box`` in the order of its axes, the
        contiguous one last; ``tf32``: its FP32 elements are rounded to TF32 on the way to shared memory."""
        dtype = np.dtype(array.dtype)
        shape = array.shape if isinstance(array.shape, tuple) else (array.shape,)
        extents = tuple(reversed(shape))
        strides = tuple(
            int(np.prod(extents[:i], dtype=np.int64)) * dtype.itemsize for i in range(1, len(extents))
        )
        if tf32 and dtype != np.float32:
            raise PtxError(f"a tensor map rounds float32 to TF32, and not {dtype.name}")
        name = "tfloat32" if tf32 else {"int8": "uint8", "int16": "uint16"}.get(dtype.name, dtype.name)
        return cls(
            "uint8" if dtype.itemsize == 1 else name, address, extents, strides, tuple(reversed(box)), **more
        )

    def encode(self) -> bytes:
        rank = len(self.extents)

        def padded(values: Sequence[int], count: int) -> list[int]:
            return [*values, *[0] * (count - len(values))]

        head = (ELEMENTS[self.element][0], rank, self.swizzle // 2, self.nan, 0, 0)
        extents, box = (padded([v - 1 for v in values], 5) for values in (self.extents, self.box))
        fields = (*extents, *padded(self.strides, 4), *box, *padded(self.steps, 5))
        return _FORM.pack(_MAGIC, *head, self.address, *fields).ljust(BYTES, b"\0")

    @staticmethod
    @cache
    def decode(held: bytes) -> TensorMap:
        """Raises PtxError for bytes that are none."""
        magic, element, rank, swizzle, nan, _, _, address, *fields = _FORM.unpack(held[: _FORM.size])
        if magic != _MAGIC:
            raise PtxError("these 128 bytes are no tensor map")
        return TensorMap(
            _NAMES[element],
            address,
            tuple(v + 1 for v in fields[:rank]),
            tuple(fields[5 : 5 + rank - 1]),
            tuple(v + 1 for v in fields[9 : 9 + rank]),
            tuple(fields[14 : 14 + rank]),
            2 * swizzle,
            bool(nan),
        )

    def elements(self, at: Sequence[int]) -> tuple[Array, Array]:
        """Of a box whose first element has these coordinates: the addresses of its elements (n,), the
        contiguous dimension first, and which of them lie inside the tensor."""
        address = np.full((1,) * len(at), self.address, np.int64)
        inside = np.ones((1,) * len(at), bool)
        strides = (self.item, *self.strides)
        steps = (1, *self.steps[1:])
        for axis, (first, count) in enumerate(zip(at, self.counts, strict=True)):
            place = first + np.arange(count, dtype=np.int64) * steps[axis]
            shape = [1] * len(at)
            shape[len(at) - 1 - axis] = count
            address = address + (place * strides[axis]).reshape(shape)
            inside = inside & ((place >= 0) & (place < self.extents[axis])).reshape(shape)
        return address.ravel(), np.ascontiguousarray(np.broadcast_to(inside, address.shape)).ravel()

    def places(self, start: int) -> Array:
        """Where the bytes (size,) of a box lie in shared memory that starts at an address, from it on."""
        address = start + np.arange(self.size, dtype=np.int64)
        return np.asarray(swizzled(address, self.swizzle) - start)

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


# What bulk copies and their tensor form share: bytes between global memory and blocks' shared memory.


def words_of(i: Instruction) -> list[str]:
    return i.op.replace("::", "_").split(".")


def read_global(b: Builder, site: Site, lane: int, address: Array, width: int) -> Array:
    """Bytes (n × width,) of places (n,) in global memory, as a copy by a lane reads them."""
    if not len(address):
        return np.zeros(0, np.uint8)
    values = b.state.memory.load(site, address, width, Items(np.full(len(address), lane)), "copy")
    return np.ascontiguousarray(values).view(np.uint8).ravel()


def write_global(b: Builder, site: Site, lane: int, address: Array, width: int, values: Array) -> None:
    if not len(address):
        return
    held: Array = np.ascontiguousarray(values).ravel().view(np.uint32 if width > 4 else f"u{width}")
    held = held.reshape(-1, width // 4) if width > 4 else held
    b.state.memory.store(site, address, width, held, Items(np.full(len(address), lane)))


def change_global(b: Builder, site: Site, lane: int, address: Any, values: Array, change: Combiner) -> None:
    """A reduction of bytes (n,) into global memory, from an address on, or at the addresses of each
    element."""
    width = change.width
    if np.ndim(address) == 0:
        address = address + np.arange(0, len(values), width)
    given = np.ascontiguousarray(values).ravel().view(f"u{width}")
    items = Items(np.full(len(address), lane))
    b.state.memory.combine(site, address, width, items, lambda old: change(old, given))


def deliver(
    b: Builder,
    site: Site,
    lane: int,
    to: int,
    values: Array,
    bar: int,
    align: int,
    cta_mask: Any,
    change: Any = None,
) -> None:
    """Bytes (n,) into shared memory, of the block that the address names or, by a mask of ranks, of several
    of the cluster at the same place; an mbarrier of the same block is told."""
    here, size = engine(b), b.state.geometry.cluster_size
    peers: list[int | None] = [None]
    if cta_mask is not None:
        given = int(full(cta_mask(), b.state.lanes)[lane])
        peers = [rank for rank in range(16) if given >> rank & 1]
        if not peers or given >> size:
            raise Trap("bounds", f"copies to blocks of mask 0x{given:x} in a cluster of {size}", site, lane)
    for peer in peers:
        start = here.piece(site, lane, to, len(values), align, peer)
        m = here.mbarriers.one(site, lane, bar, peer)
        if peer is None and to >> RANK != bar >> RANK:
            raise Trap("bounds", "copies to one block and tells an mbarrier of another", site, lane)
        held = (
            values if change is None else change.of_bytes(here.storage[start : start + len(values)], values)
        )
        here.put(site, lane, start, held, m)


class Combiner:
    """What a reduction makes of elements: (old, given) words to new words."""

    def __init__(self, operation: str, kind: str) -> None:
        self._operation = OPERATIONS[operation]
        self._dtype: Any = _DTYPES[kind]
        self.width = self._dtype.itemsize

    def __call__(self, old: Array, given: Array) -> Array:
        with np.errstate(all="ignore"):
            made = self._operation(old.view(self._dtype), given.view(self._dtype)).astype(self._dtype)
        return np.asarray(made).view(old.dtype)

    def of_bytes(self, old: Array, given: Array) -> Array:
        kind = f"u{self.width}"
        return self(old.view(kind), np.ascontiguousarray(given).view(kind)).view(np.uint8)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}
_DTYPES: dict[str, Any] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{
        f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}")
        for sign in "bus"
        for bits in (32, 64)
    },
}

"""Bulk copies and reductions, of bytes or of boxes that a tensor map describes, and their groups (PTX ISA
§9.7.9.25 and §9.7.9.27); fences of the async proxy (§9.7.13.4).

A tensor map is how the tensor memory accelerator sees an array in global memory: its fields and their limits
are those of the driver's cuTensorMapEncodeTiled. The 128 bytes that a kernel gets are the interpreter's own:
NVIDIA does not document a CUtensorMap's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address, told_of_pair
from ptxsan.isa.warp import OPERATIONS
from ptxsan.lanes import Array, Items, Mask, full
from ptxsan.machine import SEEN, Builder, Run, words_of
from ptxsan.machine.memory import PARAMETER, RANK, SLOT
from ptxsan.machine.memory.buffer import BUFFER
from ptxsan.machine.table import instruction

_BOX_ALIGNED = 128  # bytes, a box in shared memory
_MAP_ALIGNED = 64  # bytes, a tensor map
_UNIT = 16  # bytes, of addresses and sizes; and where in a row a box may begin: an H200 ends elsewhere with
# ILLEGAL_INSTRUCTION

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
class TensorMapDescriptor:
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
            (len(self.strides) != rank - 1 or len(self.steps) != rank, "a stride for all but the first one"),
            (self.address % 16, "an address that is a multiple of 16"),
            (any(s % 16 or not 0 <= s < 1 << 40 for s in self.strides), "strides of multiples of 16 bytes"),
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

        head = (ELEMENTS[self.element][0], rank, self.swizzle // 2, self.nan, 0, 0)
        extents, box = (padded([v - 1 for v in values], 5) for values in (self.extents, self.box))
        fields = (*extents, *padded(self.strides, 4), *box, *padded(self.steps, 5))
        return _FORM.pack(_MAGIC, *head, self.address, *fields).ljust(BYTES, b"\0")

    @staticmethod
    @cache
    def decode(held: bytes) -> TensorMapDescriptor:
        """Raises PtxError for bytes that are none."""
        magic, element, rank, swizzle, nan, _, _, address, *fields = _FORM.unpack(held[: _FORM.size])
        if magic != _MAGIC:
            raise PtxError("these 128 bytes are no tensor map")
        return TensorMapDescriptor(
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


# The global side of a copy: reads and writes bytes at places of its own


Change = Callable[[Array, Array], Array]


@dataclass
class _Bytes:
    """Places (n,) of ``width`` bytes in global memory that a lane's copy accesses, ``size`` bytes in all."""

    b: Builder
    site: Site
    lane: int
    address: Array
    width: int
    size: int

    def get(self) -> Array:
        """The bytes (n × width,)."""
        if not len(self.address):
            return np.zeros(0, np.uint8)
        values = self.b.state.memory.load(self.site, self.address, self.width, self._items(), "copy")
        return np.ascontiguousarray(values).view(np.uint8).ravel()

    def put(self, values: Array, dtype: Any, change: Change | None) -> None:
        """Bytes as they are, or by a reduction of elements of a dtype."""
        if not len(self.address):
            return
        flat: Array = np.ascontiguousarray(values).ravel()
        memory, address, width = self.b.state.memory, self.address, self.width
        if change is None:
            held = flat.view(f"u{width}" if width <= 4 else np.uint32)
            held = held if width <= 4 else held.reshape(-1, width // 4)
            memory.store(self.site, address, width, held, self._items())
            return
        if width != dtype.itemsize:
            address = (address[:, None] + np.arange(0, width, dtype.itemsize)).ravel()
        given = flat.view(f"u{dtype.itemsize}")
        items = Items(np.full(len(address), self.lane))
        memory.combine(self.site, address, dtype.itemsize, items, lambda old: change(old, given))

    def _items(self) -> Items:
        return Items(np.full(len(self.address), self.lane))

    def read(self, start: int) -> Array:
        """What arrives at this address in shared memory."""
        return self.get()

    def write(self, storage: Array, first: int, start: int, dtype: Any, change: Change | None) -> None:
        """What lies there, from the ``first`` byte of the storage on."""
        self.put(storage[first : first + self.size], dtype, change)


@dataclass
class _Box(_Bytes):
    """Those elements of a box that lie ``inside`` its tensor."""

    made: TensorMapDescriptor
    inside: Array

    def read(self, start: int) -> Array:
        held = np.full(len(self.inside), self.made.fill, f"u{self.made.item}")
        held[self.inside] = self.get().view(held.dtype)
        if self.made.rounds:  # as an H100 does: to nearest even, subnormals too, NaN to 0x7FFFE000
            held = arith.tf32(held.view(np.float32), "rn")
        values = np.empty(self.size, np.uint8)
        values[self.made.places(start)] = held.view(np.uint8)
        return values

    def write(self, storage: Array, first: int, start: int, dtype: Any, change: Change | None) -> None:
        held = storage[first + self.made.places(start)].reshape(-1, self.made.item)[self.inside]
        self.put(held, self.made.dtype, change)


class _Linear:
    """An address, and the bytes from there on."""

    align = _UNIT

    def __init__(self, b: Builder, address: Operand, size: Operand, shared: bool) -> None:
        self._b, self._size = b, b.read(size, "u32")
        self._address = shared_address(b, address) if shared else b.address(address)

    def of(self, site: Site, lane: int, stores: bool) -> _Bytes:
        count, where = (int(full(read(), self._b.state.lanes)[lane]) for read in (self._size, self._address))
        if count % _UNIT or not count:
            raise Trap("misaligned", f"copies {count} bytes, which is no multiple of {_UNIT}", site, lane)
        return _Bytes(self._b, site, lane, where + np.arange(0, count, _UNIT), _UNIT, count)


class _Tensor:
    """[map, {x, y}]: a tensor map, among the parameters or in global memory, and coordinates, the contiguous
    dimension first."""

    align = _BOX_ALIGNED

    def __init__(self, b: Builder, operand: Operand, rank: int) -> None:
        if not isinstance(operand, Vector) or not isinstance(operand.items[1], Vector):
            raise PtxError("takes [map, {coordinates}]")
        self._b = b
        self._address = b.address(operand.items[0])
        self._at = [b.read(item, "s32") for item in operand.items[1].items]
        self._names = [name for name, _ in b.entry.parameters]
        if len(self._at) != rank:
            raise PtxError(f"takes {rank} coordinates")

    def of(self, site: Site, lane: int, stores: bool) -> _Bytes:
        lanes = self._b.state.lanes
        made = self._map(site, lane, int(full(self._address(), lanes)[lane]))
        at = [int(full(read(), lanes)[lane]) for read in self._at]
        if len(made.extents) != len(at):
            what = f"copies a box of {len(at)} dimensions of a tensor of {len(made.extents)}"
            raise Trap("bounds", what, site, lane)
        if (byte := at[0] * made.item) % _UNIT:
            what = f"copies a box from coordinate {at[0]} of a row on, byte {byte}: no multiple of {_UNIT}"
            raise Trap("misaligned", what, site, lane)
        if stores and made.rounds:
            what = "a store or reduction by a tensor map that rounds to TF32 (not measured)"
            raise Trap("unsupported", what, site, lane)
        if stores and min(at) < 0:  # of loads it is allowed (CUDA programming guide, TMA); an H200 agrees
            what = f"stores a box from coordinates ({', '.join(map(str, at))}) on: none may be negative"
            raise Trap("bounds", what, site, lane)
        places, inside = made.elements(at)
        places = places[inside]
        if (places >> BUFFER != made.address >> BUFFER).any():
            raise Trap("bounds", "copies a box of a tensor that is larger than its buffer", site, lane)
        return _Box(self._b, site, lane, places, made.item, made.size, made, inside)

    def _parameter(self, site: Site, lane: int, address: int) -> Array:
        number, offset = divmod((address & (PARAMETER - 1)) - (1 << SLOT), 1 << SLOT)
        held: Any = b""
        if 0 <= number < len(self._names):
            held = self._b.state.parameters[self._names[number]]
        if getattr(held, "dtype", None) != np.uint8 or not 0 <= offset <= held.shape[-1] - BYTES:
            raise Trap("unsupported", f"a tensor map at 0x{address:x}, which is in no parameter", site, lane)
        return np.asarray((held[lane] if held.ndim == 2 else held)[offset : offset + BYTES])

    def _map(self, site: Site, lane: int, address: int) -> TensorMapDescriptor:
        if address % _MAP_ALIGNED:
            what = f"a tensor map at 0x{address:x}, no multiple of {_MAP_ALIGNED}"
            raise Trap("misaligned", what, site, lane)
        if address >> BUFFER in (0, PARAMETER >> BUFFER):
            one = self._parameter(site, lane, address)
        else:
            one = _Bytes(self._b, site, lane, address + np.arange(0, BYTES, _UNIT), _UNIT, BYTES).get()
        try:
            return TensorMapDescriptor.decode(one.tobytes())
        except PtxError as error:
            raise Trap("unsupported", str(error), site, lane) from None


# The instructions


@instruction(
    "9.7.9", "cp.async.bulk:25", "move memory once clocks", writes=0, note="see [Hopper](../emulation.md)"
)
def _bulk(b: Builder, i: Instruction, site: Site) -> Run:
    words = words_of(i)[3:]
    if words[0] == "commit_group":
        return lambda mask: engine(b).commit_bulk(lanes_of(b, mask))
    if words[0] == "wait_group":
        (groups,) = i.operands
        assert isinstance(groups, Number)
        return lambda mask: engine(b).wait_bulk(int(groups.value), lanes_of(b, mask))
    if words[0] == "prefetch":
        return lambda mask: None
    return _copy(b, i, site, words, None, None)


@instruction("9.7.9", "cp.reduce.async:25", "move memory once clocks", writes=0)
def _reduce(b: Builder, i: Instruction, site: Site) -> Run:
    words = words_of(i)[4:]
    operation = OPERATIONS[next(w for w in words if w in OPERATIONS)]

    def change(old: Array, given: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(operation(old, given)).astype(old.dtype)

    return _copy(b, i, site, words, change, None if words[0] == "tensor" else SEEN[words[-1]])


def _copy(b: Builder, i: Instruction, site: Site, words: list[str], operation: Any, dtype: Any) -> Run:
    """A copy, or with an ``operation`` a reduction of elements of a dtype, which a tensor map has itself."""
    operands, state, is_tensor = list(i.operands), b.state, words[0] == "tensor"
    in_pairs, words = "cta_group_2" in words, [word for word in words if not word.startswith("cta_group")]
    to, source = words[2:4] if is_tensor else words[:2]
    if "cp_mask" in words or re.search("im2col|gather|scatter", i.op):
        raise PtxError("only bytes and boxes of tiles are supported")
    size = None if is_tensor else operands.pop(2)
    near, distant = (operands[1], operands[0]) if to == "global" else operands[:2]
    within = "global" not in (to, source)
    far: _Tensor | _Linear
    far = _Linear(b, distant, size, within) if size else _Tensor(b, distant, int(words[1].removesuffix("d")))
    at = shared_address(b, near)

    def changing(of: Any) -> Change | None:
        if operation is None:
            return None
        return lambda old, given: operation(old.view(of), given.view(of)).view(old.dtype)

    def store(mask: Mask | None) -> None:
        here = engine(b)
        for lane in lanes_of(b, mask).tolist():
            piece, address = far.of(site, lane, True), int(full(at(), state.lanes)[lane])
            start = here.piece(site, lane, address, piece.size, far.align)
            here.bulk[lane].add(here.get(site, [np.array([lane])], here.cells(start, piece.size)), 0)
            of = piece.made.dtype if isinstance(piece, _Box) else dtype
            piece.write(here.shared.storage, start, address, of, changing(of))

    if to == "global":
        return store
    bar, of_pair = shared_address(b, operands[2]), told_of_pair(b, operands[2]) if in_pairs else None
    cta_mask = b.read(operands[3], "u16") if "multicast_cluster" in words else None

    def peers_of(lane: int) -> list[int | None]:
        """The ranks of the blocks that get the bytes, at the same place of each; None for the one that the
        address names."""
        if cta_mask is None:
            return [None]
        given, size = int(full(cta_mask(), state.lanes)[lane]), state.geometry.cluster_size
        if not given or given >> size:
            raise Trap("bounds", f"copies to blocks of mask 0x{given:x} in a cluster of {size}", site, lane)
        return [rank for rank in range(16) if given >> rank & 1]

    def load(mask: Mask | None) -> None:
        here = engine(b)
        for lane in lanes_of(b, mask).tolist():
            piece = far.of(site, lane, False)
            address, tells = (int(full(read(), state.lanes)[lane]) for read in (at, bar))
            if within:
                start = here.piece(site, lane, int(piece.address[0]), piece.size, _UNIT)
                here.look(site, lane, here.cells(start, piece.size))
                values = here.shared.storage[start : start + piece.size].copy()
            else:
                values = piece.read(address)
            for peer in peers_of(lane):
                start = here.piece(site, lane, address, len(values), far.align, peer)
                of = of_pair(lane, tells, start) if of_pair else peer
                m = here.mbarriers.one(site, lane, tells, of)
                if not in_pairs and peer is None and address >> RANK != tells >> RANK:
                    raise Trap("bounds", "copies to one block and tells an mbarrier of another", site, lane)
                held = values
                if change := changing(dtype):
                    held = change(here.shared.storage[start : start + len(values)], values)
                here.put(site, lane, start, held, m)

    return load


@instruction("9.7.13", "fence.proxy:4", writes=0)
def _fence_proxy(b: Builder, i: Instruction, site: Site) -> Run:
    """fence.proxy.async of shared memory; the other fences of proxies have nothing to order here."""
    words = words_of(i)[2:]
    if words[0] == "async" and (len(words) == 1 or words[1].startswith("shared")):
        state = b.state
        return lambda mask: state.asynchronous.clocks.fence_proxy(mask) if state.asynchronous else None
    if words[0].startswith("tensormap"):
        raise PtxError("tensor maps that a kernel changes are not supported")
    return lambda mask: None


@instruction("9.7.13", "fence.mbarrier_init:4", writes=0)
def _fence_init(b: Builder, i: Instruction, site: Site) -> Run:
    return lambda mask: engine(b).mbarriers.fence_init(mask)

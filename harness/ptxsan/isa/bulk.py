"""Bulk copies and reductions, of bytes or of boxes that a tensor map describes, and their groups (PTX ISA
§9.7.9.25 and §9.7.9.27); fences of the async proxy (§9.7.13.4)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site, Trap
from ptxsan.checks.undefined import ORIGIN, Shadow
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.carried import Marks, carried, leave, marks_of, reduced, wholly
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address, told_of_pair
from ptxsan.isa.tensormap import BYTES, TensorMapDescriptor
from ptxsan.isa.warp import OPERATIONS
from ptxsan.lanes import Array, Items, Mask, full
from ptxsan.machine import SEEN, Builder, Run, items_of, words_of
from ptxsan.machine.memory import PARAMETER, RANK, SLOT
from ptxsan.machine.memory.buffer import BUFFER
from ptxsan.machine.table import instruction

_BOX_ALIGNED = 128  # bytes, a box in shared memory
_MAP_ALIGNED = 64  # bytes, a tensor map
_UNIT = 16  # bytes, of addresses and sizes; and where in a row a box may begin: an H200 ends elsewhere with
# ILLEGAL_INSTRUCTION

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

    def get(self, bulk: bool = True) -> Array:
        """The bytes (n × width,), read by the async proxy, but for those of a tensor map."""
        if not len(self.address):
            return np.zeros(0, np.uint8)
        memory, items = self.b.state.memory, self._items()
        values = memory.load(self.site, self.address, self.width, items, "copy", bulk=bulk)
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
            memory.store(self.site, address, width, held, self._items(), bulk=True)
            return
        if width != dtype.itemsize:
            address = (address[:, None] + np.arange(0, width, dtype.itemsize)).ravel()
        given = flat.view(f"u{dtype.itemsize}")
        items = Items(np.full(len(address), self.lane))
        memory.combine(self.site, address, dtype.itemsize, items, lambda old: change(old, given))

    def _items(self) -> Items:
        return Items(np.full(len(self.address), self.lane))

    def picked(self, held: Array, start: int) -> Array:
        """Of what shared memory holds from this address on, a value a byte, that which goes to the places."""
        return held

    def read(self, start: int) -> Array:
        """What arrives at this address in shared memory."""
        return self.get()

    # Undefined values, a byte each

    def _shadows(self) -> list[tuple[Any, Shadow, Array]]:
        return self.b.state.memory.places(self.site, self.address, self.width, self._items())

    def marks(self, start: int) -> Marks:
        """Of what arrives there."""
        bits, origins = (
            np.zeros((len(self.address), self.width), np.uint8),
            np.zeros(len(self.address), ORIGIN),
        )
        for at, shadow, offsets in self._shadows() if len(self.address) else ():
            bits[at], origins[at] = shadow.read(offsets, self.width)
        return bits.ravel(), np.repeat(origins, self.width)

    def mark(self, marks: Marks, start: int) -> None:
        """The places were just stored to, with this undefined of what shared memory holds there."""
        bits, origins = (self.picked(each, start).reshape(-1, self.width) for each in marks)
        undefined, lanes = self.b.state.undefined, np.full(len(bits), self.lane)
        for at, shadow, offsets in self._shadows() if bits.any() else ():
            of = undefined.stored(self.site, shadow, offsets, origins.max(axis=1)[at], lanes[at])
            shadow.write(offsets, bits[at], of)


@dataclass
class _Box(_Bytes):
    """Those elements of a box that lie ``inside`` its tensor."""

    made: TensorMapDescriptor
    inside: Array

    def _laid(self, given: Array, start: int, outside: Any) -> Array:
        """What lies inside, a value a byte, as it lies in shared memory; ``outside``: of an element."""
        held = np.empty((len(self.inside), self.made.item), given.dtype)
        held[:] = outside
        held[self.inside] = given.reshape(-1, self.made.item)
        found = np.empty(self.size, given.dtype)
        found[self.made.places(start)] = held.ravel()
        return found

    def picked(self, held: Array, start: int) -> Array:
        return np.asarray(held[self.made.places(start)].reshape(-1, self.made.item)[self.inside].ravel())

    def read(self, start: int) -> Array:
        given = self.get()
        if self.made.rounds:  # as an H100 does: to nearest even, subnormals too, NaN to 0x7FFFE000
            given = arith.tf32(given.view(np.float32), "rn").view(np.uint8)
        fill = np.frombuffer(self.made.fill.to_bytes(self.made.item, "little"), np.uint8)
        return self._laid(given, start, fill)

    def marks(self, start: int) -> Marks:
        bits, origins = super().marks(start)
        bits = wholly(bits, 4) if self.made.rounds else bits
        return self._laid(bits, start, 0), self._laid(origins, start, 0)


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

    def __init__(self, b: Builder, operand: Operand, rank: int, columns: Operand | None = None) -> None:
        if not isinstance(operand, Vector) or not isinstance(operand.items[1], Vector):
            raise PtxError("takes [map, {coordinates}]")
        self._b = b
        self._address = b.address(operand.items[0])
        self._at = [b.read(item, "s32") for item in operand.items[1].items]
        self._names = [name for name, _ in b.entry.parameters]
        if len(self._at) != rank:
            raise PtxError(f"takes {rank} coordinates")
        self._columns = columns is not None
        self._offsets = [b.read(item, "u16") for item in items_of(columns)] if columns else []
        if self._columns and len(self._offsets) != rank - 2:
            raise PtxError(f"takes {rank - 2} offsets of im2col")

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
        if (made.corners is not None) != self._columns:
            kinds = ("boxes", "im2col")
            what = f"copies {kinds[self._columns]} by a tensor map of {kinds[not self._columns]}"
            raise Trap("bounds", what, site, lane)
        try:
            if self._columns:
                places, inside = made.column(at, self._shifts(lane))
            else:
                places, inside = made.elements(at, stores)
        except PtxError as error:
            raise Trap("bounds", f"copies a column of {error}", site, lane) from None
        places = places[inside]
        if (places >> BUFFER != made.address >> BUFFER).any():
            raise Trap("bounds", "copies a box of a tensor that is larger than its buffer", site, lane)
        return _Box(self._b, site, lane, places, made.item, made.size, made, inside)

    def _shifts(self, lane: int) -> list[int]:
        return [int(full(read(), self._b.state.lanes)[lane]) for read in self._offsets]

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
            one = _Bytes(self._b, site, lane, address + np.arange(0, BYTES, _UNIT), _UNIT, BYTES).get(False)
            self._b.state.memory.check_map(site, lane, address, BYTES)
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
    other = next((w for w in words if re.search("cp_mask|im2col_|gather|scatter", w)), "")
    if other or ("im2col" in words and (to == "global" or operation is not None)):
        raise PtxError(f"{other or 'stores by im2col'} is not supported")
    size = None if is_tensor else operands.pop(2)
    columns = operands.pop(3) if "im2col" in words else None
    near, distant = (operands[1], operands[0]) if to == "global" else operands[:2]
    within = "global" not in (to, source)
    far: _Tensor | _Linear
    if size:
        far = _Linear(b, distant, size, within)
    else:
        far = _Tensor(b, distant, int(words[1].removesuffix("d")), columns)
    at, undefined = shared_address(b, near), state.undefined

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
            before = None if operation is None else piece.marks(address)
            piece.put(
                piece.picked(here.shared.storage[start : start + piece.size], address), of, changing(of)
            )
            if undefined.fresh is not None:
                marks = marks_of(b, start, piece.size)
                piece.mark(carried(b, reduced(marks, before, of) if before else marks), address)

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
            marks = None
            if undefined.fresh is not None:
                marks = carried(b, marks_of(b, start, piece.size) if within else piece.marks(address))
            for peer in peers_of(lane):
                start = here.piece(site, lane, address, len(values), far.align, peer)
                of = of_pair(lane, tells, start) if of_pair else peer
                m = here.mbarriers.one(site, lane, tells, of)
                if not in_pairs and peer is None and address >> RANK != tells >> RANK:
                    raise Trap("bounds", "copies to one block and tells an mbarrier of another", site, lane)
                held, lost = values, marks
                if change := changing(dtype):
                    held = change(here.shared.storage[start : start + len(values)], values)
                    here.shared.check_written(site, lane, here.cells(start, len(values)))
                    if marks is not None or undefined.fresh is not None:
                        before = marks_of(b, start, len(values))
                        lost = carried(b, reduced(marks or (0 * before[0], before[1]), before, dtype))
                here.put(site, lane, start, held, m)
                if lost is not None:
                    leave(b, start, lost)

    return load


@instruction("9.7.13", "fence.proxy:4", writes=0)
def _fence_proxy(b: Builder, i: Instruction, site: Site) -> Run:
    """fence.proxy.async of shared and global memory; other fences of proxies have nothing to order here."""
    words, state = words_of(i)[2:], b.state
    if words[0] != "async":
        return lambda mask: None
    spaces = words[1:] or ["shared", "global"]

    def run(mask: Mask | None) -> None:
        if "global" in spaces:
            state.memory.order.fence_proxy(mask)
        if state.asynchronous and any(space.startswith("shared") for space in spaces):
            state.asynchronous.clocks.fence_proxy(mask)

    return run


@instruction("9.7.13", "fence.mbarrier_init:4", writes=0)
def _fence_init(b: Builder, i: Instruction, site: Site) -> Run:
    return lambda mask: engine(b).mbarriers.fence_init(mask)

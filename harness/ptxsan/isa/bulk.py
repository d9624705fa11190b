"""Bulk copies of boxes that a tensor map describes, and reductions (PTX ISA §9.7.9.27)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan import rounding as arith
from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address
from ptxsan.isa.transfer import (
    BYTES,
    OPERATIONS,
    Combiner,
    TensorMap,
    change_global,
    deliver,
    read_global,
    words_of,
    write_global,
)
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine import Builder, Known, Run
from ptxsan.machine.memory import PARAMETER, SLOT
from ptxsan.machine.memory.buffer import BUFFER

_ALIGNED = 128  # bytes, a box in shared memory
_MAP_ALIGNED = 64  # bytes, a tensor map
_ROW_ALIGNED = 16  # bytes, where in a row a box may begin: an H200 ends elsewhere with ILLEGAL_INSTRUCTION
_REDUCED = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "uint32": "u32"}
_REDUCED |= {"int32": "s32", "uint64": "u64", "int64": "s64"}


def _tensor_copy(b: Builder, i: Instruction, site: Site, words: list[str], reduces: bool = False) -> Run:
    """cp.async.bulk.tensor, cp.reduce.async.bulk.tensor; ``words`` from "tensor" on."""
    rank, to, state = int(words[1].removesuffix("d")), words[2], b.state
    if any("im2col" in w or "gather" in w or "scatter" in w for w in words) or "cta_group_2" in words:
        raise PtxError("only boxes of tiles are supported")
    goal, origin = i.operands[:2]
    if to == "global":
        tensor, at = _Tensor(b, goal, rank), shared_address(b, origin)
        operation = next((w for w in words if w in OPERATIONS), "")

        def store(mask: Mask | None) -> None:
            here = engine(b)
            for lane in lanes_of(b, mask).tolist():
                made, coordinates = tensor.of(site, lane)
                if made.rounds:
                    what = "a store or reduction by a tensor map that rounds to TF32 (not measured)"
                    raise Trap("unsupported", what, site, lane)
                if (
                    min(coordinates) < 0
                ):  # of loads it is allowed (CUDA programming guide, TMA); an H200 agrees
                    what = f"stores a box from coordinates ({', '.join(map(str, coordinates))}) on"
                    raise Trap("bounds", f"{what}: none may be negative", site, lane)
                address = int(full(at(), state.lanes)[lane])
                start = here.piece(site, lane, address, made.size, _ALIGNED)
                here.bulk[lane].add(here.get(site, [np.array([lane])], here.cells(start, made.size)), 0)
                held = here.storage[start + made.places(address)].reshape(-1, made.item)
                places, inside = made.elements(coordinates)
                _within_one(places[inside], made, site, lane)
                if reduces:
                    change = Combiner(operation, _REDUCED[made.element])
                    change_global(b, site, lane, places[inside], held[inside], change)
                else:
                    write_global(b, site, lane, places[inside], made.item, held[inside])

        return store
    tensor, address_of, bar = (
        _Tensor(b, origin, rank),
        shared_address(b, goal),
        shared_address(b, i.operands[2]),
    )
    cta_mask = b.read(i.operands[3], "u16") if "multicast_cluster" in words else None

    def load(mask: Mask | None) -> None:
        for lane in lanes_of(b, mask).tolist():
            made, coordinates = tensor.of(site, lane)
            address = int(full(address_of(), state.lanes)[lane])
            places, inside = made.elements(coordinates)
            _within_one(places[inside], made, site, lane)
            held = np.full(len(places), made.fill, f"u{made.item}")
            held[inside] = read_global(b, site, lane, places[inside], made.item).view(held.dtype)
            if made.rounds:  # as an H100 does: to nearest even, subnormals too, NaN to 0x7FFFE000
                held = arith.tf32(held.view(np.float32), "rn")
            values = np.empty(made.size, np.uint8)
            values[made.places(address)] = held.view(np.uint8)
            deliver(b, site, lane, address, values, int(full(bar(), state.lanes)[lane]), _ALIGNED, cta_mask)

    return load


def _within_one(places: Array, made: TensorMap, site: Site, lane: int) -> None:
    if len(places) and (places >> BUFFER != made.address >> BUFFER).any():
        raise Trap("bounds", "copies a box of a tensor that is larger than its buffer", site, lane)


class _Tensor:
    """[map, {x, y}]: a tensor map, among the parameters or in global memory, and coordinates, the contiguous
    dimension first."""

    def __init__(self, b: Builder, operand: Operand, rank: int) -> None:
        if not isinstance(operand, Vector) or not isinstance(operand.items[1], Vector):
            raise PtxError("takes [map, {coordinates}]")
        self._b = b
        self._address = b.address(operand.items[0])
        self._at = [b.read(item, "s32") for item in operand.items[1].items]
        self._names = [name for name, _ in b.entry.parameters]
        if len(self._at) != rank:
            raise PtxError(f"takes {rank} coordinates")

    def of(self, site: Site, lane: int) -> tuple[TensorMap, list[int]]:
        lanes = self._b.state.lanes
        made = self._map(site, lane, int(full(self._address(), lanes)[lane]))
        coordinates = [int(full(read(), lanes)[lane]) for read in self._at]
        if len(made.extents) != len(coordinates):
            what = f"copies a box of {len(coordinates)} dimensions of a tensor of {len(made.extents)}"
            raise Trap("bounds", what, site, lane)
        if (byte := coordinates[0] * made.item) % _ROW_ALIGNED:
            what = f"copies a box from coordinate {coordinates[0]} of a row on, byte {byte}"
            raise Trap("misaligned", f"{what}: no multiple of {_ROW_ALIGNED}", site, lane)
        return made, coordinates

    def _parameter(self, site: Site, lane: int, address: int) -> Array:
        number, offset = divmod((address & (PARAMETER - 1)) - (1 << SLOT), 1 << SLOT)
        held: Any = b""
        if 0 <= number < len(self._names):
            held = self._b.state.parameters[self._names[number]]
        if getattr(held, "dtype", None) != np.uint8 or not 0 <= offset <= held.shape[-1] - BYTES:
            raise Trap("unsupported", f"a tensor map at 0x{address:x}, which is in no parameter", site, lane)
        return np.asarray((held[lane] if held.ndim == 2 else held)[offset : offset + BYTES])

    def _map(self, site: Site, lane: int, address: int) -> TensorMap:
        if address % _MAP_ALIGNED:
            raise Trap(
                "misaligned", f"a tensor map at 0x{address:x}, no multiple of {_MAP_ALIGNED}", site, lane
            )
        if address >> BUFFER in (0, PARAMETER >> BUFFER):
            one = self._parameter(site, lane, address)
        else:
            one = read_global(self._b, site, lane, address + np.arange(0, BYTES, 16), 16)
        try:
            return TensorMap.decode(one.tobytes())
        except PtxError as error:
            raise Trap("unsupported", str(error), site, lane) from None


# Bulk copies and reductions, and their groups (PTX ISA §9.7.9.25); fences of the async proxy (§9.7.13.4).


_UNIT = 16  # bytes, of addresses and sizes


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
    if words[0] == "tensor":
        return _tensor_copy(b, i, site, words)
    if "cp_mask" in words:
        raise PtxError("with a mask of bytes is not supported")
    return _copy(b, i, site, words, None)


def _reduce(b: Builder, i: Instruction, site: Site) -> Run:
    words = words_of(i)[4:]
    if words[0] == "tensor":
        return _tensor_copy(b, i, site, words, reduces=True)
    kind = words[-1]
    operation = next(w for w in words if w in OPERATIONS)
    return _copy(b, i, site, words, Combiner(operation, kind))


def _copy(b: Builder, i: Instruction, site: Site, words: list[str], change: Any) -> Run:
    to, source, state = words[0], words[1], b.state
    first, second, size = i.operands[:3]
    bytes_of = b.read(size, "u32")
    if to == "global":
        target, at = b.address(first), shared_address(b, second)

        def store(mask: Mask | None) -> None:
            here = engine(b)
            for lane in lanes_of(b, mask).tolist():
                address, count, where = (int(full(r(), state.lanes)[lane]) for r in (at, bytes_of, target))
                _check_size(site, lane, count)
                start = here.piece(site, lane, address, count, _UNIT)
                here.bulk[lane].add(here.get(site, [np.array([lane])], here.cells(start, count)), 0)
                held = here.storage[start : start + count]
                if change is None:
                    write_global(b, site, lane, where + np.arange(0, count, _UNIT), _UNIT, held)
                else:
                    change_global(b, site, lane, where, held, change)

        return store
    bar = shared_address(b, i.operands[3])
    cta_mask = b.read(i.operands[4], "u16") if "multicast_cluster" in words else None
    of_global = source == "global"
    origin = b.address(second) if of_global else shared_address(b, second)
    goal = shared_address(b, first)

    def load(mask: Mask | None) -> None:
        here = engine(b)
        for lane in lanes_of(b, mask).tolist():
            address, count, where = (int(full(r(), state.lanes)[lane]) for r in (goal, bytes_of, origin))
            _check_size(site, lane, count)
            if of_global:
                values = read_global(b, site, lane, where + np.arange(0, count, _UNIT), _UNIT)
            else:
                start = here.piece(site, lane, where, count, _UNIT)
                here.look(site, lane, here.cells(start, count))
                values = here.storage[start : start + count].copy()
            deliver(
                b, site, lane, address, values, int(full(bar(), state.lanes)[lane]), _UNIT, cta_mask, change
            )

    return load


def _check_size(site: Site, lane: int, count: int) -> None:
    if count % _UNIT or not count:
        raise Trap("misaligned", f"copies {count} bytes, which is no multiple of {_UNIT}", site, lane)


def _fence_proxy(b: Builder, i: Instruction, site: Site) -> Run:
    """fence.proxy.async of shared memory; the other fences of proxies have nothing to order here."""
    words = words_of(i)[2:]
    if words[0] == "async" and (len(words) == 1 or words[1].startswith("shared")):
        state = b.state
        return lambda mask: state.asynchronous.clocks.fence_proxy(mask) if state.asynchronous else None
    if words[0].startswith("tensormap"):
        raise PtxError("tensor maps that a kernel changes are not supported")
    return lambda mask: None


def _fence_init(b: Builder, i: Instruction, site: Site) -> Run:
    return lambda mask: engine(b).mbarriers.fence_init(mask)


TABLE: dict[str, Known] = {
    "cp.async.bulk": Known(_bulk, "9.7.9.25", 0),
    "cp.reduce.async": Known(_reduce, "9.7.9.25", 0),
    "fence.proxy": Known(_fence_proxy, "9.7.13.4", 0),
    "fence.mbarrier_init": Known(_fence_init, "9.7.13.4", 0),
}

"""Tensor maps that a kernel changes: tensormap.replace and tensormap.cp_fenceproxy (PTX ISA §9.7.9.27), and
the fences of their proxy (§9.7.13.4)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Number, PtxError
from ptxsan.isa.fragments import whole_warps
from ptxsan.isa.mbarrier import lanes_of
from ptxsan.isa.memory import accessors
from ptxsan.isa.tensormap import BYTES, TensorMapDescriptor
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import Builder, Read, Run, words_of
from ptxsan.machine.table import instruction

_PIECE = 16  # bytes that are accessed at once


def _whole(b: Builder, words: list[str], at: Read, site: Site) -> tuple[Any, Any]:
    """(load, store) of the bytes (n, 128) of maps at the active lanes' addresses, a piece after another."""
    place = [0]
    load_piece, store_piece = accessors(b, words, site, lambda: at() + np.int64(place[0]), _PIECE)

    def load(mask: Mask | None) -> Array:
        pieces = []
        for place[0] in range(0, BYTES, _PIECE):
            pieces.append(np.ascontiguousarray(load_piece(mask)).view(np.uint8).reshape(-1, _PIECE))
        return np.concatenate(pieces, axis=1)

    def store(octets: Array, mask: Mask | None) -> None:
        for place[0] in range(0, BYTES, _PIECE):
            piece = np.ascontiguousarray(octets[:, place[0] : place[0] + _PIECE])
            store_piece(piece.view(np.uint32), mask)

    return load, store


@instruction("9.7.9", "tensormap.replace:27", "move memory", writes=0, note="not compared with a chip")
def _replace(b: Builder, i: Instruction, site: Site) -> Run:
    """tensormap.replace.tile.FIELD{.ss}.b1024.type [map], {dimension,} value: a weak access to all of it."""
    words, state = words_of(i), b.state
    if words[2] != "tile" or words[-2] != "b1024":
        raise PtxError("not supported")
    _, *more = i.operands
    ordinal = 0
    if len(more) > 1:
        if not isinstance(more[0], Number):
            raise PtxError("takes an immediate number of a dimension")
        ordinal = int(more[0].value)
    read = b.read(more[-1], "u64" if words[-1] == "b64" else "u32")
    load, store = _whole(b, words[4:-2], b.address(i.operands[0]), site)

    def run(mask: Mask | None) -> None:
        held, lanes = load(mask), lanes_of(b, mask)
        given = full(read(), state.lanes)[lanes].tolist()
        try:
            made = [
                TensorMapDescriptor.replaced(each.tobytes(), words[3], ordinal, int(new))
                for each, new in zip(held, given, strict=True)
            ]
        except PtxError as error:
            raise Trap("unsupported", str(error), site, int(lanes[0])) from None
        store(np.frombuffer(b"".join(made), np.uint8).reshape(-1, BYTES), mask)

    return run


@instruction(
    "9.7.9", "tensormap.cp_fenceproxy:27", "move memory warp whole", writes=0, note="not compared with a chip"
)
def _copy(b: Builder, i: Instruction, site: Site) -> Run:
    """A warp copies a map from shared to global memory, and releases it."""
    words, state = words_of(i), b.state
    to, of, size = i.operands
    if not isinstance(size, Number) or size.value != BYTES:
        raise PtxError(f"copies {BYTES} bytes alone")
    load, _ = _whole(b, ["shared"], b.address(of), site)
    _, store = _whole(b, ["global"], b.address(to), site)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        bits = np.zeros(state.lanes, bool)
        bits[::WARP] = True if mask is None else mask.warps
        held = load(mask)  # by all of the warp: nothing tells which thread of it copies
        store(held[::WARP], Mask(bits))
        if state.undefined.sampling is None:
            state.memory.maps.release(lanes_of(b, mask), "cta" not in words)

    return run


@instruction(
    "9.7.13", "fence.proxy.tensormap::generic:4", "memory once", writes=0, note="not compared with a chip"
)
def _fence(b: Builder, i: Instruction, site: Site) -> Run:
    words, state = words_of(i), b.state
    if words[3] == "release":
        return lambda mask: state.memory.maps.release(lanes_of(b, mask), "cta" not in words)
    if words[3] != "acquire" or len(i.operands) != 2:
        raise PtxError("not supported")
    at = b.address(i.operands[0])

    def run(mask: Mask | None) -> None:
        memory, lanes = state.memory, lanes_of(b, mask)
        where = full(at(), state.lanes)[lanes]
        pairs = zip(lanes.tolist(), where.tolist(), strict=True)
        writes = [memory.last_writes(site, int(address), lane, BYTES)[1] for lane, address in pairs]
        memory.maps.acquire(lanes, where, writes)

    return run

"""What bulk copies and their tensor form share: bytes between global memory and blocks' shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Instruction
from ptxsan.isa.mbarrier import engine
from ptxsan.lanes import Array, Items, Mask, full
from ptxsan.machine.builder import Builder
from ptxsan.machine.memory.spaces import RANK


def words_of(i: Instruction) -> list[str]:
    return i.op.replace("::", "_").split(".")


def lanes_of(b: Builder, mask: Mask | None) -> Array:
    return b.state.geometry.every if mask is None else mask.index


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

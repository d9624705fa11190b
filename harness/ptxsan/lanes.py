"""Lanes: all threads of some blocks at once, one lane a thread, and which of them are active.

Each block has whole warps of lanes; those that no thread is of never live.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
WARP = 32
_PROCESSORS = 132  # of an H200
CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
WORKSPACE = ("%envreg2", "%envreg1")  # low and high half of its address, 0 unless the launch is cooperative
SHARED_SIZES = ("%total_smem_size", "%aggr_smem_size", "%dynamic_smem_size")


class Mask:
    """The active lanes, where not all are; ``bits`` (lanes,) bool, never changed."""

    def __init__(self, bits: Array) -> None:
        self.bits = bits

    @cached_property
    def index(self) -> Array:
        return np.flatnonzero(self.bits)

    @cached_property
    def count(self) -> int:
        """How many lanes are active."""
        return int(np.count_nonzero(self.bits))

    @cached_property
    def warps(self) -> Array:
        """The warps with an active lane, (warps,) bool."""
        return np.asarray(np.packbits(self.bits).view(np.uint32) != 0)

    @cached_property
    def packed(self) -> int:
        """The same warps, a bit for each."""
        return warps_with(self.bits)


class Items(Mask):
    """Accesses of which one lane may make many: ``index`` (n,) tells whose each is."""

    def __init__(self, index: Array) -> None:
        self.index = index


@dataclass(frozen=True)
class Geometry:
    """Blocks that run together. ``blocks`` (B, 3) are their x, y, z in the grid; ``launches`` (B,) tells of
    which of the launches of a batch each one is; ``block`` the threads of one, ``cluster`` the blocks of a
    cluster, which stand one after another by their rank."""

    blocks: Array
    launches: Array
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)

    @cached_property
    def size(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @cached_property
    def threads(self) -> int:
        """Lanes of a block: its threads, and those that fill its last warp."""
        return -(-self.size // WARP) * WARP

    @cached_property
    def living(self) -> Array | None:
        """The lanes that are threads, (lanes,) bool; None where all are."""
        return None if self.size == self.threads else self.thread < self.size

    @property
    def count(self) -> int:
        return len(self.blocks)

    @cached_property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    @cached_property
    def lanes(self) -> int:
        return self.count * self.threads

    @cached_property
    def every(self) -> Array:
        """All lanes, by number."""
        return np.arange(self.lanes)

    @cached_property
    def row(self) -> Array:
        """The block of each lane, an index into ``blocks``."""
        return np.repeat(np.arange(self.count), self.threads)

    @cached_property
    def launch(self) -> Array:
        return np.repeat(self.launches, self.threads)

    @cached_property
    def thread(self) -> Array:
        """The number of each lane's thread within its block."""
        return np.tile(np.arange(self.threads, dtype=np.int32), self.count)

    @cached_property
    def writer(self) -> Array:
        """A number of each lane that no other lane of the same launch has, from 1."""
        x, y, z = (self.blocks[:, i].astype(np.int64) for i in range(3))
        block = (z * self.grid[1] + y) * self.grid[0] + x
        return np.repeat(block * self.threads, self.threads) + self.thread + 1

    def special(self, name: str) -> Any:
        """A special register of the PTX ISA (§10), or None for an unknown one."""
        stem, _, axis = name.partition(".")
        if axis in ("x", "y", "z"):
            i = "xyz".index(axis)
            x, y, _ = self.block
            if stem == "%tid":
                t = self.thread
                return (t % x, t // x % y, t // (x * y))[i].astype(np.int32)
            if stem == "%ctaid":
                return np.repeat(self.blocks[:, i].astype(np.int32), self.threads)
            if stem in ("%cluster_ctaid", "%clusterid"):
                of = (
                    self.blocks[:, i] % self.cluster[i]
                    if stem == "%cluster_ctaid"
                    else self.blocks[:, i] // self.cluster[i]
                )
                return np.repeat(of.astype(np.int32), self.threads)
            clusters = tuple(n // c for n, c in zip(self.grid, self.cluster, strict=True))
            sizes = {
                "%ntid": self.block,
                "%nctaid": self.grid,
                "%cluster_nctaid": self.cluster,
                "%nclusterid": clusters,
            }.get(stem)
            return np.int32(sizes[i]) if sizes else None
        bit = np.left_shift(np.uint32(1), (self.thread % WARP).astype(np.uint32)).view(np.int32)
        return {
            # What the state of a kernel knows
            **dict.fromkeys((*CLOCKS, *SHARED_SIZES, *WORKSPACE), np.int64(0)),
            "%smid": self.row.astype(np.int32) % np.int32(_PROCESSORS),
            "%nsmid": np.int32(_PROCESSORS),
            "%gridid": np.int64(1),
            "%cluster_ctarank": self.row.astype(np.int32) % np.int32(self.cluster_size),
            "%cluster_nctarank": np.int32(self.cluster_size),
            "%is_explicit_cluster": np.bool_(self.cluster_size > 1),
            "%laneid": self.thread % WARP,
            "%warpid": self.thread // WARP,
            "%nwarpid": np.int32(self.threads // WARP),
            "WARP_SZ": np.int32(WARP),
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - 1,
            "%lanemask_le": bit ^ (bit - 1),
            "%lanemask_gt": ~(bit ^ (bit - 1)),
            "%lanemask_ge": ~(bit - 1),
        }.get(name)

    def other(self, lane: int, near: int) -> str:
        """A thread as one of the same block or of another calls it."""
        row = lane // self.threads
        block = "" if row == near // self.threads else f" of block {tuple(int(v) for v in self.blocks[row])}"
        return f"thread {lane % self.threads}{block}"

    def describe(self, lane: int) -> str:
        """Where a lane is, in CUDA's words."""
        x, y, _ = self.block
        t = int(self.thread[lane])
        place = tuple(int(v) for v in self.blocks[self.row[lane]])
        return f"thread ({t % x}, {t // x % y}, {t // (x * y)}) of block {place}"


def warps_with(bits: Array) -> int:
    """The warps of which a lane has some of these bits (lanes,), a bit for each."""
    of_lanes = bits if bits.dtype == bool else bits != 0
    warps = np.packbits(of_lanes).view(np.uint32) != 0  # each has whole warps of lanes
    return int.from_bytes(np.packbits(warps).tobytes(), "little")


def mask_of(index: Array, lanes: int) -> Mask:
    """These lanes (n,) of so many as the active ones."""
    bits = np.zeros(lanes, bool)
    bits[index] = True
    return Mask(bits)


def first_of(mask: Mask | None, position: int = 0) -> int:
    """The lane at a position among the active ones."""
    return position if mask is None else int(mask.index[position])


def full(value: Any, lanes: int) -> Array:
    """A value over all lanes, where it was the same in each."""
    value = np.asarray(value)
    return value if value.shape == (lanes,) else np.broadcast_to(value, (lanes,))


def longest(one: Array, other: Array) -> Array:
    """The maximum of two vectors, the shorter one with zeros after it."""
    if len(one) < len(other):
        one, other = other, one
    result = one.copy()
    np.maximum(result[: len(other)], other, out=result[: len(other)])
    return result

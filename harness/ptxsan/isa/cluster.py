"""Clusters of blocks (PTX ISA §9.7.9.23, §9.7.13.5), the election of a lane, the registers of a warpgroup."""

from __future__ import annotations

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Address, Instruction, Number, PtxError, Vector
from ptxsan.isa.fragments import whole_warps
from ptxsan.isa.mbarrier import engine
from ptxsan.isa.transfer import lanes_of
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known
from ptxsan.machine.memory.spaces import RANK, SHARED

_REGISTERS = 65536  # of a multiprocessor
_OWN = np.int64((1 << RANK) - 1)


def _mapa(b: Builder, i: Instruction, site: Site) -> Run:
    """mapa: an address in shared memory as that of the same place in another block of the cluster."""
    wide, state = i.op.endswith("64"), b.state
    put, of = b.write(i.operands[0]), i.operands[1]
    read = b.address(of) if isinstance(of, Address) else b.read(of, "s64" if wide else "s32")
    rank = b.read(i.operands[2], "u32")
    generic = np.int64(0 if "shared::cluster" in i.op else SHARED)

    def run(mask: Mask | None) -> None:
        ranks = np.asarray(rank()).astype(np.int64)
        size = state.geometry.cluster_size
        active = full(ranks, state.lanes)[lanes_of(b, mask)]
        if (active >= size).any():
            lane = int(lanes_of(b, mask)[np.argmax(active >= size)])
            raise Trap("bounds", f"maps to block {int(active.max())} of a cluster of {size}", site, lane)
        there = (np.asarray(read()).astype(np.int64) & _OWN) | ((ranks + 1) << RANK) | generic
        put(there if wide else there.astype(np.int32), mask)

    return run


def _rank_of(b: Builder, i: Instruction, site: Site) -> Run:
    """getctarank: of which block of the cluster an address is."""
    put, read = b.write(i.operands[0]), b.read(i.operands[1], "s64" if i.op.endswith("64") else "s32")
    state = b.state

    def run(mask: Mask | None) -> None:
        rank = (np.asarray(read()).astype(np.int64) >> RANK & 15) - 1
        put(np.where(rank < 0, state.special("%cluster_ctarank"), rank).astype(np.int32), mask)

    return run


def _arrive(b: Builder, i: Instruction, site: Site) -> Run:
    releases = "relaxed" not in i.op
    return lambda mask: engine(b).clusters.arrive(site, lanes_of(b, mask), releases)


class ClusterWait:
    """barrier.cluster.wait: a Wait."""

    polls = False

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self._b, self._site = b, site

    def ready(self, lanes: Array) -> Array:
        return engine(self._b).clusters.ready(lanes)

    def proceed(self, lanes: Array, said: bool) -> None:
        engine(self._b).clusters.passed(self._site, lanes)

    def describe(self, lane: int) -> str:
        return engine(self._b).clusters.describe(lane)


def _at_end(b: Builder, i: Instruction, site: Site) -> Run:
    raise PtxError("is not the end of a block of code")


def _elect(b: Builder, i: Instruction, site: Site) -> Run:
    """elect.sync: the first of the lanes that the mask names and that are here."""
    target, named, state = i.operands[0], b.read(i.operands[1], "u32"), b.state
    assert isinstance(target, Vector)
    leader, chosen = (b.write(item) for item in target.items)

    def run(mask: Mask | None) -> None:
        lane = np.arange(state.lanes, dtype=np.uint32) % WARP
        here = (full(named(), state.lanes) >> lane & 1).astype(bool)
        if mask is not None:
            here &= mask.bits
        first = np.argmax(here.reshape(-1, WARP), axis=1).astype(np.int32).repeat(WARP)
        leader(first, mask)
        chosen(here & (lane == first), mask)

    return run


def _setmaxnreg(b: Builder, i: Instruction, site: Site) -> Run:
    """setmaxnreg: a warpgroup gives registers back, or takes more; they have to be there."""
    (number,) = i.operands
    assert isinstance(number, Number)
    count = int(number.value)
    if count % 8 or not 24 <= count <= 256:
        raise PtxError("takes a multiple of 8 from 24 to 256")

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        here = engine(b)
        here.registers.ravel()[lanes_of(b, mask)[::WARP] // WARP] = count
        known = here.registers.all(axis=1)
        short = known & (here.registers.sum(axis=1) * WARP > _REGISTERS)
        if short.any():
            row = int(np.argmax(short))
            total = int(here.registers[row].sum()) * WARP
            what = f"waits for ever for registers: {total} for the warps of the block, of {_REGISTERS}"
            raise Trap("hang", what, site, row * b.state.geometry.threads)

    return run


TABLE: dict[str, Known] = {
    "mapa": Known(_mapa, "9.7.9.23"),
    "getctarank": Known(_rank_of, "9.7.9.24"),
    "barrier.cluster.arrive": Known(_arrive, "9.7.13.3", 0),
    "barrier.cluster.wait": Known(_at_end, "9.7.13.3", 0),
    "elect": Known(_elect, "9.7.13.14"),
    "setmaxnreg": Known(_setmaxnreg, "9.7.19.5", 0),
}

"""mbarrier: initialise, arrive, expect bytes, test (PTX ISA §9.7.13.15), and the arrival of cp.async on one;
clusters of blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Address, Instruction, Number, Operand, PtxError
from ptxsan.isa.fragments import whole_warps
from ptxsan.lanes import WARP, Array, Mask, full, mask_of
from ptxsan.machine import Builder, Read, Run, items_of, parts, simple
from ptxsan.machine.memory import RANK, SHARED
from ptxsan.machine.memory.asynchronous import REGISTERS, Asynchronous
from ptxsan.machine.table import instruction

_PENDING = 20  # bits of a state that tell the arrivals outstanding; the phase is above


def engine(b: Builder) -> Asynchronous:
    """That of the running blocks."""
    assert b.state.asynchronous is not None
    return b.state.asynchronous


def lanes_of(b: Builder, mask: Mask | None) -> Array:
    return b.state.geometry.every if mask is None else mask.index


def shared_address(b: Builder, operand: Operand) -> Read:
    """An address in shared memory, of the own block or of one of its cluster; generic ones lose their
    space."""
    read = b.address(operand)
    return lambda: np.asarray(read()).astype(np.int64) & np.int64(SHARED - 1)


_ODD = 1 << 24  # the lowest bit of the rank that an address has on a GPU


def told_of_pair(b: Builder, operand: Operand) -> Callable[[int, int, int], int]:
    """Of copies with .cta_group::2 (PTX ISA §9.7.9.25): from the lane, the address of its mbarrier and where
    the bytes arrive in the storage to the rank of the block that is told. It is the one of their pair whose
    rank is even or odd as that of the address; a cleared bit makes that even, as in CUTLASS."""
    base, state = operand.base if isinstance(operand, Address) else None, b.state
    masks = [o for i in b.entry.code if i.op == "and.b32" and i.operands[0] == base for o in i.operands]
    # nvcc joins the mask of the bits that are 0 anyway.
    is_even = any(isinstance(o, Number) and ~int(o.value) & 0xFFFFFF00 == _ODD for o in masks)

    def told(lane: int, address: int, start: int) -> int:
        rank = (address >> RANK) - 1 if address >> RANK else int(state.geometry.row[lane])
        of = start // engine(b).shared.layout.row_size % state.geometry.cluster_size
        return of // 2 * 2 + (0 if is_even else rank % 2)

    return told


@instruction("9.7.13", "mbarrier.init:15", "once clocks", writes=0)
def _init(b: Builder, i: Instruction, site: Site) -> Run:
    at, count = shared_address(b, i.operands[0]), b.read(i.operands[1], "s32")
    return lambda mask: engine(b).mbarriers.init(site, at(), full(count(), b.state.lanes), mask)


@instruction("9.7.13", "mbarrier.inval:15", "once clocks", writes=0)
def _inval(b: Builder, i: Instruction, site: Site) -> Run:
    at = shared_address(b, i.operands[0])
    return lambda mask: engine(b).mbarriers.invalidate(site, at(), mask)


@instruction("9.7.13", "mbarrier.arrive:15 mbarrier.arrive_drop:15", "once clocks")
def _arrive(b: Builder, i: Instruction, site: Site) -> Run:
    """mbarrier.arrive and arrive_drop, with .expect_tx first where it has it."""
    modifiers, _ = parts(i)
    expects, drops = "expect_tx" in modifiers, "arrive_drop" in modifiers
    # There may be a destination for the state before the address.
    to = [] if isinstance(i.operands[0], Address) else [b.write(i.operands[0])]
    at = shared_address(b, i.operands[len(to)])
    more = i.operands[len(to) + 1 :]
    number = b.read(more[0], "s32") if more else None
    state, releases, narrow = b.state, "relaxed" not in modifiers, "cta" in modifiers

    def run(mask: Mask | None) -> None:
        barriers = engine(b).mbarriers
        given = full(number() if number else np.int32(1), state.lanes)
        told = np.zeros(state.lanes, np.int64)
        for m, lanes in barriers.resolve(site, at(), mask):
            if expects:
                for lane in lanes.tolist():
                    barriers.expect(site, m, int(given[lane]), lane)
            if drops:
                m.count -= len(lanes)
            counts = np.ones(len(lanes), np.int64) if expects else given[lanes]
            outstanding = m.pending
            told[lanes] = (
                barriers.arrive(site, m, lanes, counts, releases, narrow) << _PENDING
            ) + outstanding
        for put in to:
            put(told, mask)

    return run


@instruction("9.7.13", "mbarrier.expect_tx:15 mbarrier.complete_tx:15", "once clocks", writes=0)
def _tx(b: Builder, i: Instruction, site: Site) -> Run:
    """Bytes that are to come, and bytes that have come."""
    at, number, state = shared_address(b, i.operands[0]), b.read(i.operands[1], "s32"), b.state

    def run(mask: Mask | None) -> None:
        barriers = engine(b).mbarriers
        change = barriers.expect if "expect_tx" in i.op else barriers.complete
        for m, lanes in barriers.resolve(site, at(), mask):
            for lane in lanes.tolist():
                change(site, m, int(full(number(), state.lanes)[lane]), lane)

    return run


@instruction("9.7.13", "mbarrier.pending_count:15", "once clocks")
def _pending_count(b: Builder, i: Instruction, site: Site) -> Run:
    return simple(b, i, "s64", lambda state: (state & ((1 << _PENDING) - 1)).astype(np.int32))


@instruction("9.7.13", "cp.async.mbarrier:15", "move memory once clocks", writes=0)
def _cp_async_arrive(b: Builder, i: Instruction, site: Site) -> Run:
    """cp.async.mbarrier.arrive: once the thread's copies so far are complete, it arrives."""
    at, noinc = shared_address(b, i.operands[0]), "noinc" in i.op.split(".")

    def run(mask: Mask | None) -> None:
        here = engine(b)
        copies = here.shared.hand_over(site, mask)
        for m, lanes in here.mbarriers.resolve(site, at(), mask):
            if not noinc:
                m.pending += len(lanes)
            phases = here.mbarriers.arrive(site, m, lanes, np.ones(len(lanes), np.int64), releases=False)
            of_lane = dict(zip(lanes.tolist(), phases.tolist(), strict=True))
            for lane, cells in copies:
                if lane in of_lane:
                    here.proxy.adopt(site, lane, cells, m.number, of_lane[lane])

    return run


@instruction("9.7.13", "mbarrier.test_wait:15 mbarrier.try_wait:15", "once clocks waits")
class Test:
    """mbarrier.test_wait and try_wait, by a state or a parity: a Wait."""

    polls = True

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        modifiers, _ = parts(i)
        self._b, self._site, self._parity = b, site, "parity" in modifiers
        self._acquires = "relaxed" not in modifiers
        self._put = b.write(i.operands[0])
        self._at = shared_address(b, i.operands[1])
        self._given = b.read(i.operands[2], "s32" if self._parity else "s64")

    def _each(self, lanes: Array) -> Any:
        return engine(self._b).mbarriers.resolve(self._site, self._at(), mask_of(lanes, self._b.state.lanes))

    def _asked(self) -> Array:
        """The parities or states that all lanes give, (lanes,)."""
        return full(self._given(), self._b.state.lanes).astype(np.int64)

    def ready(self, lanes: Array) -> Array:
        given = self._asked()
        done = np.zeros(self._b.state.lanes, bool)
        for m, here in self._each(lanes):
            if self._parity:
                engine(self._b).mbarriers.check_parity(self._site, m, here, given[here])
                done[here] = (m.phase & 1) != (given[here] & 1)
            else:
                done[here] = m.phase > given[here] >> _PENDING
        return done[lanes]

    def known(self, lanes: Array) -> bool:
        """Whether one of these lanes (n,), whose phases are complete, knows it from elsewhere."""
        clocks, given = engine(self._b).clocks, self._asked()
        for m, here in self._each(lanes):
            phase = m.phase - 1 if self._parity else given[here] >> _PENDING
            if clocks.completed(here, m.number, phase).any():
                return True
        return False

    def proceed(self, lanes: Array, said: bool) -> None:
        for m, here in self._each(lanes) if said else ():
            engine(self._b).mbarriers.observe(self._site, m, here, self._acquires)
        self._put(np.bool_(said), mask_of(lanes, self._b.state.lanes))

    def describe(self, lane: int) -> str:
        ((m, _),) = self._each(np.array([lane]))
        return str(m.describe())


# Clusters of blocks (PTX ISA §9.7.9.23, §9.7.13.5), the election of a lane, the registers of a warpgroup.


_OWN = np.int64((1 << RANK) - 1)


@instruction("9.7.9", "mapa:23", "clocks")
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
        own = np.asarray(read()).astype(np.int64) & _OWN
        # Where a cluster is one block, memory knows no ranks: it is the block's own address.
        there = own | ((ranks + 1) * (size > 1) << RANK) | generic
        put(there if wide else there.astype(np.int32), mask)

    return run


@instruction("9.7.9", "getctarank:24")
def _rank_of(b: Builder, i: Instruction, site: Site) -> Run:
    """getctarank: of which block of the cluster an address is."""
    put, read = b.write(i.operands[0]), b.read(i.operands[1], "s64" if i.op.endswith("64") else "s32")
    state = b.state

    def run(mask: Mask | None) -> None:
        rank = (np.asarray(read()).astype(np.int64) >> RANK & 15) - 1
        put(np.where(rank < 0, state.special("%cluster_ctarank"), rank).astype(np.int32), mask)

    return run


@instruction("9.7.13", "barrier.cluster.arrive:3", "once clocks", writes=0)
def _arrive_at_cluster(b: Builder, i: Instruction, site: Site) -> Run:
    releases = "relaxed" not in i.op
    return lambda mask: engine(b).clusters.arrive(site, lanes_of(b, mask), releases)


@instruction("9.7.13", "barrier.cluster.wait:3", "once clocks waits", writes=0)
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


@instruction("9.7.13", "elect:14", "warp members")
def _elect(b: Builder, i: Instruction, site: Site) -> Run:
    """elect.sync: the first of the lanes that the mask names and that are here."""
    named, state = b.read(i.operands[1], "u32"), b.state
    leader, chosen = (b.write(item) for item in items_of(i.operands[0]))

    def run(mask: Mask | None) -> None:
        lane = np.arange(state.lanes, dtype=np.uint32) % WARP
        here = (full(named(), state.lanes) >> lane & 1).astype(bool)
        if mask is not None:
            here &= mask.bits
        first = np.argmax(here.reshape(-1, WARP), axis=1).astype(np.int32).repeat(WARP)
        leader(first, mask)
        chosen(here & (lane == first), mask)

    return run


@instruction("9.7.19", "setmaxnreg:5", "once clocks", writes=0)
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
        warps = lanes_of(b, mask)[::WARP] // WARP
        here.registers.ravel()[warps] = count
        here.adjusted.setdefault(id(site), (site, np.zeros_like(here.registers)))[1].ravel()[warps] += 1
        known = here.registers.all(axis=1)
        short = known & (here.registers.sum(axis=1) * WARP > REGISTERS)
        if short.any():
            row = int(np.argmax(short))
            total = int(here.registers[row].sum()) * WARP
            what = f"waits for ever for registers: {total} for the warps of the block, of {REGISTERS}"
            raise Trap("hang", what, site, row * b.state.geometry.threads)

    return run

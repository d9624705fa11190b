"""Within a warp, and fences (PTX ISA §9.7.9 and §9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Instruction, PtxError, Vector
from ptxsan.lanes import WARP, Mask, full
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known


def _warp_barrier(b: Builder, i: Instruction, site: Site) -> Run:
    """bar.warp.sync. Who waits for whom, here and below, and what that orders is in warps.py."""
    if i.op != "bar.warp.sync":
        raise PtxError("not supported")
    return lambda mask: None


def _shfl(b: Builder, i: Instruction, site: Site) -> Run:
    """shfl.sync: the value of another lane, and whether that lane is within the segment."""
    mode = i.op.split(".")[2]
    target = i.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    puts = [b.write(item) for item in items]
    value, by, clamp = (b.read(o, "u32") for o in i.operands[1:4])
    state = b.state

    def run(mask: Mask | None) -> None:
        lane = np.arange(state.lanes) % WARP
        c, offset = (
            full(clamp(), state.lanes).astype(np.int64),
            full(by(), state.lanes).astype(np.int64) & 31,
        )
        segment, bound = (c >> 8) & 31, c & 31
        first = lane & segment
        last = first | (bound & ~segment & 31)
        source = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}.get(
            mode, first | (offset & ~segment)
        )
        inside = source >= last if mode == "up" else source <= last
        index = np.arange(state.lanes) - lane + np.where(inside, source, lane)
        for put, result in zip(puts, (full(value(), state.lanes)[index], inside), strict=False):
            put(result, mask)

    return run


def _vote(b: Builder, i: Instruction, site: Site) -> Run:
    """vote.sync over the active lanes of each warp."""
    mode = i.op.split(".")[2]
    put, source = b.write(i.operands[0]), b.read(i.operands[1], "pred")
    state = b.state

    def run(mask: Mask | None) -> None:
        active = np.ones((state.lanes // WARP, WARP), bool) if mask is None else mask.bits.reshape(-1, WARP)
        said = full(source(), state.lanes).reshape(-1, WARP) & active
        if mode == "ballot":
            result = (
                (said.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
            )
        else:
            every, some = (said | ~active).all(axis=1), said.any(axis=1)
            result = {"all": every, "any": some, "uni": every | ~some}[mode]
        put(np.repeat(result, WARP), mask)

    return run


def _redux(b: Builder, i: Instruction, site: Site) -> Run:
    """redux.sync over the active lanes of each warp."""
    _, _, operation, kind = i.op.split(".")
    put, source, state = b.write(i.operands[0]), b.read(i.operands[1], kind.replace("b", "u")), b.state
    reduce = _REDUCTIONS[operation]

    def run(mask: Mask | None) -> None:
        values = full(source(), state.lanes).reshape(-1, WARP)
        active = np.ones_like(values, bool) if mask is None else mask.bits.reshape(-1, WARP)
        limits = np.iinfo(values.dtype)
        idle = {"min": limits.max, "max": limits.min, "and": -1 if kind == "s32" else limits.max}
        held = np.where(active, values, values.dtype.type(idle.get(operation, 0)))
        put(np.repeat(reduce.reduce(held, axis=1, dtype=values.dtype), WARP), mask)

    return run


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _match(b: Builder, i: Instruction, site: Site) -> Run:
    """match.any and match.all: which active lanes of the warp hold the same value."""
    mode, kind = i.op.split(".")[1], i.op.split(".")[-1]
    items = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    puts, source, state = [b.write(item) for item in items], b.read(i.operands[1], kind), b.state
    bit = np.uint32(1) << np.arange(WARP, dtype=np.uint32)

    def run(mask: Mask | None) -> None:
        values = full(source(), state.lanes).reshape(-1, WARP)
        active = np.ones(values.shape, bool) if mask is None else mask.bits.reshape(-1, WARP)
        same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        found = (same * bit).sum(axis=2, dtype=np.uint32)
        if mode == "all":
            everybody = (active * bit).sum(axis=1, dtype=np.uint32)[:, None]
            alike = ((found == everybody) | ~active).all(axis=1, keepdims=True)
            puts[0](np.where(alike, everybody, 0).astype(np.uint32).repeat(WARP, axis=1).ravel(), mask)
            if len(puts) > 1:
                puts[1](alike.repeat(WARP, axis=1).ravel(), mask)
        else:
            puts[0](found.ravel(), mask)

    return run


def _activemask(b: Builder, i: Instruction, site: Site) -> Run:
    put, state = b.write(i.operands[0]), b.state
    bit = np.uint32(1) << np.arange(WARP, dtype=np.uint32)

    def run(mask: Mask | None) -> None:
        active = np.ones((state.lanes // WARP, WARP), bool) if mask is None else mask.bits.reshape(-1, WARP)
        put(np.repeat((active * bit).sum(axis=1, dtype=np.uint32), WARP), mask)

    return run


def _trap(b: Builder, i: Instruction, site: Site) -> Run:
    """trap, which __trap() and a failed assert() are."""

    def run(mask: Mask | None) -> None:
        raise Trap("trap", "stops the launch by trap", site, 0 if mask is None else int(mask.index[0]))

    return run


def _fence(b: Builder, i: Instruction, site: Site) -> Run:
    """membar and fence: those of GPU or system scope order what other blocks see."""
    words, state = set(i.op.split(".")[1:]), b.state
    if words & {"gpu", "sys", "gl"} and "proxy" not in words:
        return lambda mask: state.memory.order.fence(mask)
    return lambda mask: None


def _nothing(b: Builder, i: Instruction, site: Site) -> Run:
    """Hints: there is nothing to fetch or to wait for."""
    return lambda mask: None


TABLE: dict[str, Known] = {
    "shfl": Known(_shfl, "9.7.9.6"),
    "prefetch": Known(_nothing, "9.7.9.15", writes=0),
    "prefetchu": Known(_nothing, "9.7.9.15", writes=0),
    "applypriority": Known(_nothing, "9.7.9.16", writes=0),
    "discard": Known(_nothing, "9.7.9.17", writes=0),
    "bar.warp": Known(_warp_barrier, "9.7.13.2", writes=0),
    "membar": Known(_fence, "9.7.13.4", writes=0),
    "fence": Known(_fence, "9.7.13.4", writes=0),
    "vote": Known(_vote, "9.7.13.9"),
    "match": Known(_match, "9.7.13.10"),
    "activemask": Known(_activemask, "9.7.13.11"),
    "redux": Known(_redux, "9.7.13.12"),
    "griddepcontrol": Known(_nothing, "9.7.13.13", writes=0),
    "nanosleep": Known(_nothing, "9.7.19.2", writes=0),
    "pmevent": Known(_nothing, "9.7.19.3", writes=0),
    "trap": Known(_trap, "9.7.19.4", writes=0),
}

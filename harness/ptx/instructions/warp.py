"""Within a warp, and fences (PTX ISA §9.7.9 and §9.7.13)."""

from __future__ import annotations

import numpy as np

from harness.ptx.builder import Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import Make
from harness.ptx.lanes import WARP, Mask, full
from harness.ptx.syntax import Instruction, PtxError, Vector


def _warp_barrier(b: Builder, i: Instruction, site: Site) -> Run:
    if i.op != "bar.warp.sync":
        raise PtxError("not supported")
    state = b.state
    return lambda mask: state.warp_barrier(mask)


def _shfl(b: Builder, i: Instruction, site: Site) -> Run:
    """shfl.sync: the value of another lane, and whether that lane is within the segment."""
    mode = i.op.split(".")[2]
    target = i.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    puts = [b.write(item) for item in items]
    value, by, clamp = (b.read(o, "u32") for o in i.operands[1:4])
    state = b.state

    def run(mask: Mask | None) -> None:
        state.warp_barrier(mask)
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
        state.warp_barrier(mask)
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


def _fence(b: Builder, i: Instruction, site: Site) -> Run:
    """membar and fence: those of GPU or system scope order what other blocks see."""
    words, state = set(i.op.split(".")[1:]), b.state
    if words & {"gpu", "sys", "gl"} and "proxy" not in words:
        return lambda mask: state.memory.order.fence(mask)
    return lambda mask: None


def _nothing(b: Builder, i: Instruction, site: Site) -> Run:
    """Hints: there is nothing to fetch or to wait for."""
    return lambda mask: None


TABLE: dict[str, Make] = {
    "bar": _warp_barrier,
    "shfl": _shfl,
    "vote": _vote,
    "membar": _fence,
    "fence": _fence,
    **dict.fromkeys(("prefetch", "discard", "griddepcontrol"), _nothing),
}

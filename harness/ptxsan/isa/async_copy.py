"""cp.async and its groups (PTX ISA §9.7.9.25.3)."""

from __future__ import annotations

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, Number, PtxError
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine.builder import Builder, Read, Run
from ptxsan.machine.common import Known


def _copy(b: Builder, i: Instruction, site: Site) -> Run:
    """From global to shared memory, 4, 8 or 16 bytes (.cg: 16): with a fourth operand, a number, only so many
    of them and zeros for the rest; where it is a predicate that is set, zeros alone."""
    state, words, operands = b.state, i.op.split("."), list(i.operands)
    if words[2:3] not in (["ca"], ["cg"]) or not isinstance(operands[2], Number):
        raise PtxError("not supported")
    if any(word.endswith("cache_hint") for word in words):
        operands.pop()
    width = int(operands[2].value)
    if width not in ((16,) if words[2] == "cg" else (4, 8, 16)):
        raise PtxError(f"{width} bytes")
    to, of = b.address(operands[0]), b.address(operands[1])
    size: Read | None = None
    if len(operands) > 3 and b.kind(operands[3]) == "pred":
        ignored = b.read(operands[3], "pred")
        size = lambda: np.where(ignored(), 0, width)  # noqa: E731
    elif len(operands) > 3:
        size = b.read(operands[3], "u32")

    def run(mask: Mask | None) -> None:
        if size is None:
            values = state.memory.load(site, of(), width, mask, "copy")
        else:
            values = _partial(b, site, of(), size(), width, mask)
        # Both ends are one instruction: the patterns are of its shared-memory side.
        state.shared.copy(site, to(), width, values, mask)

    return run


def _partial(b: Builder, site: Site, address: Array, size: Array, width: int, mask: Mask | None) -> Array:
    """The first ``size`` bytes, (lanes,), zeros for the rest: as (n,) or (n, words). Only those are read."""
    lanes, memory = b.state.lanes, b.state.memory
    active = np.ones(lanes, bool) if mask is None else mask.bits
    size = np.where(active, np.minimum(full(size, lanes), width), 0).astype(np.int64)
    octets = np.zeros((lanes, width), np.uint8)
    if (whole := size == width).any():
        chosen = memory.load(site, address, width, Mask(whole), "copy")
        octets[whole] = np.ascontiguousarray(chosen).view(np.uint8).reshape(-1, width)
    for at in range(width if (part := (size > 0) & ~whole).any() else 0):
        if (read := part & (size > at)).any():
            octets[read, at] = memory.load(site, address + at, 1, Mask(read), "copy")
    words = octets.view(np.uint32)[active]
    return words[:, 0] if width == 4 else words


def _group(b: Builder, i: Instruction, site: Site) -> Run:
    state, action = b.state, i.op.split(".")[2]
    if action == "commit_group":
        return lambda mask: state.shared.commit(mask)
    if action == "wait_group":
        groups = i.operands[0]
        assert isinstance(groups, Number)
        return lambda mask: state.shared.wait(int(groups.value), mask)

    def all_of_them(mask: Mask | None) -> None:
        state.shared.commit(mask)
        state.shared.wait(0, mask)

    return all_of_them


TABLE: dict[str, Known] = {
    "cp.async.ca": Known(_copy, "9.7.9.25.3.1", writes=0),
    "cp.async.cg": Known(_copy, "9.7.9.25.3.1", writes=0),
    "cp.async.commit_group": Known(_group, "9.7.9.25.3.2", writes=0),
    "cp.async.wait_group": Known(_group, "9.7.9.25.3.3", writes=0),
    "cp.async.wait_all": Known(_group, "9.7.9.25.3.3", writes=0),
}

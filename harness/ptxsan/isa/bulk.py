"""Bulk copies and reductions, and their groups (PTX ISA §9.7.9.25); fences of the async proxy (§9.7.13.4)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Instruction, Number, PtxError
from ptxsan.isa import tensor
from ptxsan.isa.mbarrier import engine, shared_address
from ptxsan.isa.transfer import (
    OPERATIONS,
    Combiner,
    change_global,
    deliver,
    lanes_of,
    read_global,
    words_of,
    write_global,
)
from ptxsan.lanes import Mask, full
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known

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
        return tensor.copy(b, i, site, words)
    if "cp_mask" in words:
        raise PtxError("with a mask of bytes is not supported")
    return _copy(b, i, site, words, None)


def _reduce(b: Builder, i: Instruction, site: Site) -> Run:
    words = words_of(i)[4:]
    if words[0] == "tensor":
        return tensor.copy(b, i, site, words, reduces=True)
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

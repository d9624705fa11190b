"""Asynchronous stores and reductions in the shared memory of a cluster, of which an mbarrier tells (PTX ISA
§9.7.9.12 and §9.7.13.7).

They are of the generic proxy: neither their bytes nor their mbarrier need a fence.proxy.async.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.checks.undefined import ORIGIN
from ptxsan.frontend import Instruction, Operand, PtxError, Register
from ptxsan.isa.carried import Marks, carried, leave, marks_of, reduced
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address
from ptxsan.isa.warp import OPERATIONS
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine import SEEN, Builder, Run, items_of, join, parts
from ptxsan.machine.table import instruction


@instruction("9.7.9", "st.async:12", "once clocks", writes=0, note="to shared memory of a cluster")
@instruction("9.7.13", "red.async:7", "once clocks", writes=0, note="to shared memory of a cluster")
def _async(b: Builder, i: Instruction, site: Site) -> Run:
    """st.async and red.async: the bytes are there once the phase of the mbarrier is."""
    modifiers, kind = parts(i)
    if "release" in modifiers or len(i.operands) != 3:
        raise PtxError("only of shared memory of a cluster, with an mbarrier")
    name, dtype = next((m for m in modifiers if m in OPERATIONS), ""), SEEN[kind]
    items, state = items_of(i.operands[1]), b.state
    reads, width = [b.read(item, f"b{8 * dtype.itemsize}") for item in items], dtype.itemsize * len(items)
    at, bar = shared_address(b, i.operands[0]), shared_address(b, i.operands[2])

    def run(mask: Mask | None) -> None:
        here, lanes = engine(b), lanes_of(b, mask)
        if state.geometry.cluster_size == 1:
            raise Trap("bounds", f"{i.op} in a cluster of one block", site, int(lanes[0]))
        values = join([full(read(), state.lanes) for read in reads], width)
        octets = np.ascontiguousarray(values).view(np.uint8).reshape(state.lanes, width)
        where, tells = (full(read(), state.lanes) for read in (at, bar))
        for lane in lanes.tolist():
            start = here.piece(site, lane, int(where[lane]), width, width)
            m = here.mbarriers.one(site, lane, int(tells[lane]))
            if start // here.shared.layout.row_size != m.row:
                raise Trap("bounds", "stores to one block and tells an mbarrier of another", site, lane)
            if name and m.row == state.geometry.row[lane]:
                raise Trap("bounds", "reduces in its own block: red.async is for others", site, lane)
            held, marks = octets[lane], _shaded(b, items, lane, width)
            if name:
                before = here.shared.storage[start : start + width].copy().view(dtype)
                with np.errstate(all="ignore"):
                    held = np.asarray(OPERATIONS[name](before, held.view(dtype)), dtype).view(np.uint8)
                here.shared.check_written(site, lane, here.cells(start, width))
                if marks is not None or state.undefined.fresh is not None:
                    old = marks_of(b, start, width)
                    marks = carried(b, reduced(marks or (0 * old[0], old[1]), old, dtype))
            here.put(site, lane, start, held, m, generic=True, reduces=bool(name))
            if marks is not None:
                leave(b, start, marks)

    return run


def _shaded(b: Builder, items: Sequence[Operand], lane: int, width: int) -> Marks | None:
    """What is undefined of the registers that a lane stores; None for nothing."""
    held, each = b.state.undefined.registers, width // len(items)
    bits, origins = np.zeros((len(items), each), np.uint8), np.zeros(width, ORIGIN)
    for n, item in enumerate(items):
        shade = held.get(b.slot(item)) if isinstance(item, Register) else None
        if shade is not None and shade[0][lane]:
            bits[n] = _octets(shade[0][lane : lane + 1])[:each]
            origins[n * each : (n + 1) * each] = shade[1][lane]
    return (bits.ravel(), origins) if bits.any() else None


def _octets(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)

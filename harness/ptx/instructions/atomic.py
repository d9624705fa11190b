"""Atomic operations (PTX ISA §9.7.13)."""

from __future__ import annotations

from typing import Any

import numpy as np

import harness.ptx.arithmetic as arith
from harness.ptx.builder import SEEN, Builder, Run
from harness.ptx.hazards import Site, Trap
from harness.ptx.instructions.common import Known, parts
from harness.ptx.instructions.memory import space_of, spaces, within
from harness.ptx.lanes import Array, Mask, full
from harness.ptx.memory import Strength
from harness.ptx.syntax import Instruction, PtxError


def _atom(b: Builder, i: Instruction, site: Site) -> Run:
    """One lane after another, in their order."""
    modifiers, kind = parts(i)
    returns = i.op.startswith("atom")
    operation = next((m for m in modifiers if m in _OPERATIONS), None)
    dtype = np.dtype(np.uint32) if kind == "f16x2" else SEEN.get(kind)
    if operation is None or dtype is None or dtype.itemsize not in (4, 8):
        raise PtxError("not supported")
    seen = "b32" if kind == "f16x2" else kind
    put = b.write_active(i.operands[0], seen) if returns else None
    address = b.address(i.operands[int(returns)])
    sources = [b.read(o, seen) for o in i.operands[1 + int(returns) :]]
    state, apply, space = b.state, _OPERATIONS[operation], space_of(modifiers)
    if kind in ("f32", "f64", "f16x2") and operation not in ("add", "exch"):
        raise PtxError("not supported")
    if kind == "f16x2":
        apply = _add_halves
    width, how = dtype.itemsize, Strength.of(modifiers, atomic=True)
    if space not in ("global", "shared", "generic"):
        raise PtxError("not supported")

    def run(mask: Mask | None) -> None:
        where = full(address(), state.lanes)
        operands = [full(read(), state.lanes) for read in sources]
        if mask is not None:
            operands = [operand[mask.index] for operand in operands]

        def change(at: int, old: Array) -> Array:
            new = apply(old.view(dtype), *(operand[at : at + 1] for operand in operands))
            return np.asarray(new, dtype).view(old.dtype)

        target = space
        if space == "generic":
            (_, target, _), *others = spaces(where, mask)
            if others or target == "local":
                lane = 0 if mask is None else int(mask.index[0])
                raise Trap("unsupported", "an atomic on several state spaces, or on local memory", site, lane)
            where = within(target, where)
        if target == "shared":
            before = state.shared.update(site, where, width, mask, change)
        else:
            before = state.memory.update(site, where, width, mask, change, how)
        if put:
            put(before, mask)

    return run


_OPERATIONS: dict[str, Any] = {
    "add": lambda old, v: old + v,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, bound: np.where(old >= bound, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, bound: np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1)),
    "exch": lambda old, v: v,
    "cas": lambda old, compare, v: np.where(old == compare, v, old),
}


def _add_halves(old: Array, v: Array) -> Array:
    """Two float16 a word, each rounded for itself."""
    total = old.view(np.float16).astype(np.float64) + v.view(np.float16).astype(np.float64)
    return np.asarray(arith.round_narrow(total, np.float16).view(np.uint32))


TABLE: dict[str, Known] = {"atom": Known(_atom, "9.7.13.5"), "red": Known(_atom, "9.7.13.6", writes=0)}

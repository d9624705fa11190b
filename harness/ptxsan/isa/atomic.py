"""Atomic operations (PTX ISA §9.7.13.5 f.)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site, Trap
from ptxsan.frontend.syntax import Instruction, Operand, PtxError, Vector
from ptxsan.isa.memory import space_of, spaces, within
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import FLOATS, NARROW, Known, parts
from ptxsan.machine.memory import Change, Strength, unsigned

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
_WIDE, _ALL = ("u32", "s32", "u64", "s64"), ("b32", "b64", "u32", "s32", "u64", "s64")
# The types of those that are not of floats.
_KINDS = {
    **dict.fromkeys(("add", "min", "max"), _WIDE),
    **dict.fromkeys(("and", "or", "xor"), _ALL),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "exch": (*_ALL, "f32", "f64"),
    "cas": ("b16", "u16", *_ALL),
}
_OF_FLOATS: dict[str, Any] = {"add": np.add, "min": arith.minimum, "max": arith.maximum}


def _atom(b: Builder, i: Instruction, site: Site) -> Run:
    """One lane after another, in their order; of a vector one element after another."""
    modifiers, kind = parts(i)
    returns = i.op.startswith("atom")
    name = next((m for m in modifiers if m in _OPERATIONS), "")
    space, seen = space_of(modifiers), "b32" if kind.endswith("16x2") else kind
    operands = list(i.operands[:-1] if "L2_cache_hint" in modifiers else i.operands)
    operation = _operation(name, kind, space)
    width = SEEN[seen].itemsize
    targets = _items(operands.pop(0)) if returns else ()
    puts = [b.write_active(target, seen) for target in targets]
    address = b.address(operands[0])
    of_elements = list(zip(*(_items(operand) for operand in operands[1:]), strict=True))
    sources = [[b.read(o, seen) for o in given] for given in of_elements]
    if space not in ("global", "shared", "generic") or (returns and len(puts) != len(sources)):
        raise PtxError("not supported")
    state, how, dtype = b.state, Strength.of(modifiers, atomic=True), SEEN[seen]

    def run(mask: Mask | None) -> None:
        where = full(address(), state.lanes)
        _aligned(where, width * len(sources), mask, site)
        for j, reads in enumerate(sources):
            values = [full(read(), state.lanes) for read in reads]
            if mask is not None:
                values = [value[mask.index] for value in values]

            def change(at: int, old: Array, values: list[Array] = values) -> Array:
                new = operation(old.view(dtype), *(value[at : at + 1] for value in values))
                return np.asarray(new, dtype).view(old.dtype)

            before = update(b, site, space, where + j * width, width, mask, change, how)
            if puts:
                puts[j](before, mask)

    return run


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _aligned(where: Array, width: int, mask: Mask | None, site: Site) -> None:
    active = where if mask is None else where[mask.index]
    if (active & (width - 1)).any():
        i = int(np.argmax((active & (width - 1)) != 0))
        lane = i if mask is None else int(mask.index[i])
        raise Trap("misaligned", f"has an atomic on {width} bytes that are not aligned to them", site, lane)


def update(
    b: Builder,
    site: Site,
    space: str,
    where: Array,
    width: int,
    mask: Mask | None,
    change: Change,
    how: Strength,
) -> Array:
    """Words of ``width`` bytes changed one after another, at addresses (lanes,) of a state space; what was
    there before, (n,) unsigned."""
    state = b.state
    if space == "shared":
        return state.shared.update(site, where, width, mask, change)
    if space == "global":
        return state.memory.update(site, where, width, mask, change, how)
    of_spaces = spaces(where, mask)
    before = np.empty(state.lanes if mask is None else len(mask.index), unsigned(width))
    for at, target, part in of_spaces:
        if target not in ("global", "shared"):
            lane = 0 if part is None else int(part.index[0])
            raise Trap("unsupported", f"an atomic on {target} memory", site, lane)
        places = np.arange(len(before))[at]
        one = lambda n, old, places=places: change(int(places[n]), old)  # noqa: E731
        before[at] = update(b, site, target, within(target, where), width, part, one, how)
    return before


def _operation(name: str, kind: str, space: str) -> Any:
    """A function of what is there and of the operands. Raises PtxError for one that PTX has not."""
    if kind == "b128" and name in ("exch", "cas"):
        return _OPERATIONS[name] if name == "exch" else _compare_and_swap
    if kind in _KINDS.get(name, ()):
        return _OPERATIONS[name]
    if name not in _OF_FLOATS or kind not in FLOATS | NARROW or (kind in ("f32", "f64") and name != "add"):
        raise PtxError("not supported")
    if kind == "f64":
        return np.add
    if kind == "f32":
        # To global memory, subnormal numbers count as zeros (§9.7.13.5).
        return arith.add32 if space == "shared" else modify.flushing(arith.add32)
    return _of_halves(name, SEEN[kind.removesuffix("x2")])


def _compare_and_swap(old: Array, compare: Array, v: Array) -> Array:
    """By all bits of 128."""
    return v if old.tobytes() == compare.tobytes() else old


def _of_halves(name: str, dtype: Any) -> Any:
    """Of one or two float16 or bfloat16 a word, each rounded for itself."""
    operation = _OF_FLOATS[name]

    def run(old: Array, v: Array) -> Array:
        with np.errstate(all="ignore"):
            one, other = (np.ascontiguousarray(w).view(dtype).astype(np.float64) for w in (old, v))
            return np.asarray(arith.round_narrow(operation(one, other), dtype)).view(old.dtype)

    return run


TABLE: dict[str, Known] = {"atom": Known(_atom, "9.7.13.5"), "red": Known(_atom, "9.7.13.6", writes=0)}

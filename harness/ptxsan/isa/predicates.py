"""Comparisons, and what is chosen by them (PTX ISA §9.7.6 and §9.7.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, Operand, PtxError, Vector
from ptxsan.lanes import Mask, full
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import FLOATS, Known, only, parts

_COMPARE: dict[str, Any] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _combination(modifiers: list[str]) -> Any:
    """How a comparison is combined with a predicate; None where it is not."""
    return next((_COMBINE[m] for m in modifiers if m in _COMBINE), None)


def _setp(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if kind.endswith("x2"):
        return _setp_pairs(b, i, modifiers, kind[:-2])
    compare = _comparison(modifiers[0], kind)
    if "ftz" in modifiers:
        modifiers.remove("ftz")
        compare = _of_flushed(compare)
    target = i.operands[0]
    one, two = b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    if isinstance(target, Vector) or len(modifiers) > 1:
        return _setp_combined(b, i, modifiers, compare, one, two)
    put = b.write(target)
    return lambda mask: put(compare(one(), two()), mask)


def _of_flushed(compare: Any) -> Any:
    return lambda a, b: compare(modify.flush(a), modify.flush(b))


def _setp_combined(b: Builder, i: Instruction, modifiers: list[str], compare: Any, one: Any, two: Any) -> Run:
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    puts = [b.write(target) for target in targets]
    operation = _combination(modifiers[1:])
    third = b.read(i.operands[3], "pred") if len(i.operands) > 3 else None

    def run(mask: Mask | None) -> None:
        result = compare(one(), two())
        for put, value in zip(puts, (result, ~result), strict=False):
            put(operation(value, third()) if operation and third else value, mask)

    return run


def _pairs(b: Builder, operand: Operand, element: str) -> Any:
    """Two values a register: reads them as (lanes or 1, 2)."""
    read = b.read(operand, "b32")
    return lambda: np.ascontiguousarray(np.atleast_1d(read())).view(SEEN[element]).reshape(-1, 2)


def _setp_pairs(b: Builder, i: Instruction, modifiers: list[str], element: str) -> Run:
    """setp of two values a register: a predicate for each, the lower one first."""
    combine = _combination(modifiers[1:])
    only([m for m in modifiers[1:] if m not in _COMBINE], {"ftz"})
    compare, target = _comparison(modifiers[0], element), i.operands[0]
    if "ftz" in modifiers:
        compare = _of_flushed(compare)
    assert isinstance(target, Vector)
    puts = [b.write(item) for item in target.items]
    third = b.read(i.operands[3], "pred") if combine else None
    one, two, state = _pairs(b, i.operands[1], element), _pairs(b, i.operands[2], element), b.state

    def run(mask: Mask | None) -> None:
        found = np.broadcast_to(compare(one(), two()), (state.lanes, 2))
        if combine and third:
            found = combine(found, full(third(), state.lanes)[:, None])
        for j, put in enumerate(puts):
            put(np.ascontiguousarray(found[:, j]), mask)

    return run


def _set(b: Builder, i: Instruction, site: Site) -> Run:
    """set: 1.0, or all bits of an integer, where the comparison holds, else 0 (§9.7.6.1)."""
    _, name, *modifiers, kind, source = i.op.split(".")
    combine = _combination(modifiers)
    only([m for m in modifiers if m not in _COMBINE], {"ftz"})
    element, packed = source.removesuffix("x2"), source.endswith("x2")
    compare, to = _comparison(name, element), SEEN[kind.removesuffix("x2")]
    if "ftz" in modifiers and source in ("f32", "f16", "f16x2"):
        compare = _of_flushed(compare)
    if packed and kind in ("u32", "s32"):  # all bits of a half for each
        to = SEEN["u16"]
    elif packed and not kind.endswith("x2"):
        raise PtxError("not supported")
    yes = ~to.type(0) if to.kind in "iu" else to.type(1)
    put = b.write(i.operands[0])
    third = b.read(i.operands[3], "pred") if combine else None
    if packed:
        one, two = _pairs(b, i.operands[1], element), _pairs(b, i.operands[2], element)
    else:
        one, two = b.read(i.operands[1], element), b.read(i.operands[2], element)

    def run(mask: Mask | None) -> None:
        holds = compare(one(), two())
        if combine and third:
            other = np.asarray(third())
            holds = combine(holds, other.reshape(-1, 1) if packed else other)
        found = np.where(holds, yes, to.type(0))
        put(np.ascontiguousarray(found).view(np.uint32)[:, 0] if packed else found, mask)

    return run


def _comparison(name: str, kind: str) -> Any:
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if name.endswith("u") and kind in FLOATS:
        ordered = _COMPARE[name[:-1]]
        return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and kind in FLOATS:  # ordered: false where one is NaN
        return lambda a, b: (a < b) | (a > b)
    return _COMPARE[name]


def _selp(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    put, one, two = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    choose = b.read(i.operands[3], "pred")
    return lambda mask: put(np.where(choose(), one(), two()), mask)


def _slct(b: Builder, i: Instruction, site: Site) -> Run:
    """slct: a where c is not negative, else b; b where c is NaN. −0 is not negative."""
    *modifiers, kind, by = i.op.split(".")[1:]
    only(modifiers, {"ftz"} if by == "f32" else set())
    bits = f"b{8 * SEEN[kind].itemsize}"
    put, one, two, choose = (
        b.write(i.operands[0]),
        b.read(i.operands[1], bits),
        b.read(i.operands[2], bits),
        b.read(i.operands[3], by),
    )

    def run(mask: Mask | None) -> None:
        c = modify.flush(choose()) if modifiers else choose()
        put(np.where(c >= 0, one(), two()), mask)

    return run


TABLE: dict[str, Known] = {
    "slct": Known(_slct, "9.7.6.4"),
    "set": Known(_set, "9.7.6.1"),
    "setp": Known(_setp, "9.7.6.2"),
    "selp": Known(_selp, "9.7.6.3"),
}

"""Comparisons, and what is chosen by them (PTX ISA §9.7.6 and §9.7.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, PtxError
from ptxsan.lanes import Mask
from ptxsan.machine import FLOATS, SEEN, Builder, Run, items_of, only, parts, simple
from ptxsan.machine.table import instruction

_COMPARE: dict[str, Any] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(modifiers: list[str], kind: str) -> tuple[Any, Any]:
    """How values of a type are compared, and how the result is combined with a predicate; None where it is
    not."""
    name, *others = modifiers
    combine = next((_COMBINE[m] for m in others if m in _COMBINE), None)
    only([m for m in others if m not in _COMBINE], {"ftz"})
    compare = _compare(name, kind)
    if "ftz" not in others or kind not in ("f32", "f16"):
        return compare, combine
    return lambda a, b: compare(arith.flush(a), arith.flush(b)), combine


def _compare(name: str, kind: str) -> Any:
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if name.endswith("u") and kind in FLOATS:
        ordered = _COMPARE[name[:-1]]
        return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and kind in FLOATS:  # ordered: false where one is NaN
        return lambda a, b: (a < b) | (a > b)
    return _COMPARE[name]


def _sources(b: Builder, i: Instruction, kind: str) -> list[Any]:
    """What reads the first two sources: of two values a register as (lanes or 1, 2)."""
    if not kind.endswith("x2"):
        return [b.read(o, kind) for o in i.operands[1:3]]

    def pairs(read: Any) -> Any:
        element = SEEN[kind.removesuffix("x2")]
        return lambda: np.ascontiguousarray(np.atleast_1d(read())).view(element).reshape(-1, 2)

    return [pairs(b.read(o, "b32")) for o in i.operands[1:3]]


@instruction("9.7.6", "setp:2", "compares")
def _setp(b: Builder, i: Instruction, site: Site) -> Run:
    """The result and its opposite; of two values a register the result of each, the lower one first."""
    modifiers, kind = parts(i)
    compare, combine = _comparison(modifiers, kind.removesuffix("x2"))
    puts, (one, two), state = [b.write(o) for o in items_of(i.operands[0])], _sources(b, i, kind), b.state
    if len(puts) == 1 and not combine:
        (put,) = puts
        return lambda mask: put(compare(one(), two()), mask)
    third = b.read(i.operands[3], "pred") if combine else None

    def run(mask: Mask | None) -> None:
        result = compare(one(), two())
        both = (result, ~result)
        if kind.endswith("x2"):
            both = tuple(np.ascontiguousarray(np.broadcast_to(result, (state.lanes, 2)).T))
        other = third() if third else None
        for put, value in zip(puts, both, strict=False):
            put(combine(value, other) if combine else value, mask)

    return run


@instruction("9.7.6", "set:1", "compares")
def _set(b: Builder, i: Instruction, site: Site) -> Run:
    """set: 1.0, or all bits of an integer, where the comparison holds, else 0 (§9.7.6.1)."""
    _, *modifiers, kind, source = i.op.split(".")
    packed = source.endswith("x2")
    (compare, combine), to = _comparison(modifiers, source.removesuffix("x2")), SEEN[kind.removesuffix("x2")]
    if packed and kind in ("u32", "s32"):  # all bits of a half for each
        to = SEEN["u16"]
    elif packed and not kind.endswith("x2"):
        raise PtxError("not supported")
    yes = ~to.type(0) if to.kind in "iu" else to.type(1)
    put, (one, two) = b.write(i.operands[0]), _sources(b, i, source)
    third = b.read(i.operands[3], "pred") if combine else None

    def run(mask: Mask | None) -> None:
        holds = compare(one(), two())
        if third is not None:
            other = np.asarray(third())
            holds = combine(holds, other.reshape(-1, 1) if packed else other)
        found = np.where(holds, yes, to.type(0))
        put(np.ascontiguousarray(found).view(np.uint32)[:, 0] if packed else found, mask)

    return run


@instruction("9.7.6", "selp:3", "logic")
def _selp(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    return simple(b, i, kind, lambda one, two, choose: np.where(choose, one, two), kind, "pred")


@instruction("9.7.6", "slct:4")
def _slct(b: Builder, i: Instruction, site: Site) -> Run:
    """slct: a where c is not negative, else b; b where c is NaN. −0 is not negative."""
    *modifiers, kind, by = i.op.split(".")[1:]
    only(modifiers, {"ftz"} if by == "f32" else set())
    bits = f"b{8 * SEEN[kind].itemsize}"

    def choose(one: Any, two: Any, c: Any) -> Any:
        return np.where((arith.flush(c) if modifiers else c) >= 0, one, two)

    return simple(b, i, bits, choose, bits, by)

"""Comparisons, and what is chosen by them (PTX ISA §9.7.6 and §9.7.7)."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.builder import Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import FLOATS, Make, parts
from harness.ptx.lanes import Mask
from harness.ptx.syntax import Instruction, PtxError, Vector

_COMPARE: dict[str, Any] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


def _setp(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if modifiers[-1] == "ftz":
        raise PtxError("setp.ftz is not supported")
    compare = _comparison(modifiers[0], kind)
    target = i.operands[0]
    one, two = b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    if isinstance(target, Vector) or len(modifiers) > 1:
        return _setp_combined(b, i, modifiers, compare, one, two)
    put = b.write(target)
    return lambda mask: put(compare(one(), two()), mask)


def _setp_combined(b: Builder, i: Instruction, modifiers: list[str], compare: Any, one: Any, two: Any) -> Run:
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    puts = [b.write(target) for target in targets]
    operation = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(
        (modifiers[1:] or [""])[0]
    )
    third = b.read(i.operands[3], "pred") if len(i.operands) > 3 else None

    def run(mask: Mask | None) -> None:
        result = compare(one(), two())
        for put, value in zip(puts, (result, ~result), strict=False):
            put(operation(value, third()) if operation and third else value, mask)

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


TABLE: dict[str, Make] = {"setp": _setp, "selp": _selp}

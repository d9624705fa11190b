"""Integers beyond a register: carries, and products of 24 bits (PTX ISA §9.7.1.5 f. and §9.7.2).

The parser makes the condition code an operand: written as a second result, read as a last source
(``ptxsan.frontend.carry``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError, Vector
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import Known, only


def _carry(b: Builder, i: Instruction, site: Site) -> Run:
    """add.cc, addc, sub.cc, subc, mad.cc and madc: of unsigned words, with the carry in and out."""
    base, *modifiers, kind = i.op.split(".")
    if kind not in ("u32", "s32", "b32", "u64", "s64"):
        raise PtxError("not supported")
    out = "cc" in modifiers
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    puts = [b.write(target) for target in targets]
    takes_in = base.endswith("c")
    sources = list(i.operands[1:-1] if takes_in else i.operands[1:])
    held = b.read(i.operands[-1], "pred") if takes_in else None
    unsigned = f"u{kind[1:]}"
    product: Any = None
    if base.startswith("mad"):
        half = next((m for m in modifiers if m in ("lo", "hi")), None)
        if half is None:
            raise PtxError("not supported")
        product = np.multiply if half == "lo" else arith.high_product
    else:
        only(modifiers, {"cc"})
    factor = kind.replace("b", "u") if product else unsigned
    reads = [b.read(o, factor if j < 2 else unsigned) for j, o in enumerate(sources)]
    to, minus = SEEN[unsigned], base.startswith("sub")

    def run(mask: Mask | None) -> None:
        if product:
            x, y = np.asarray(product(reads[0](), reads[1]())).view(to), reads[2]()
        else:
            x, y = (read() for read in reads)
        into = np.asarray(held() if held else False).astype(to)
        if minus:
            result = x - y - into
            carry = (x < y) | ((x == y) & (into == 1))
        else:
            result = x + y + into
            carry = (result < x) | ((result == x) & (into == 1))
        puts[0](result, mask)
        if out:
            puts[1](carry, mask)

    return run


def _short(b: Builder, i: Instruction, site: Site) -> Run:
    """mul24 and mad24: of the low 24 bits, the low or the high word of 48."""
    base, half, *modifiers, kind = i.op.split(".")
    saturates = base == "mad24" and half == "hi" and kind == "s32" and modifiers == ["sat"]
    if kind not in ("s32", "u32") or half not in ("lo", "hi") or (modifiers and not saturates):
        raise PtxError("not supported")
    put, reads = b.write(i.operands[0]), [b.read(o, kind) for o in i.operands[1:]]

    def low24(v: Any) -> Any:
        wide = np.asarray(v).astype(np.int64) & 0xFFFFFF
        return wide - ((wide & 0x800000) << 1) if kind == "s32" else wide

    def run(mask: Mask | None) -> None:
        product = low24(reads[0]()) * low24(reads[1]())
        result = product >> 16 if half == "hi" else product
        if kind == "s32":
            result = np.asarray(result).astype(np.int32).astype(np.int64)
        if base == "mad24":
            result = result & 0xFFFFFFFF if kind == "u32" else result
            result = result + np.asarray(reads[2]()).astype(np.int64)
        if saturates:
            result = np.clip(result, -(1 << 31), (1 << 31) - 1)
        put(np.asarray(result).astype(np.uint32), mask)

    return run


TABLE: dict[str, Known] = {
    "mul24": Known(_short, "9.7.1.5"),
    "mad24": Known(_short, "9.7.1.6"),
    "add.cc": Known(_carry, "9.7.2.1"),
    "addc": Known(_carry, "9.7.2.2"),
    "sub.cc": Known(_carry, "9.7.2.3"),
    "subc": Known(_carry, "9.7.2.4"),
    "mad.lo.cc": Known(_carry, "9.7.2.5"),
    "mad.hi.cc": Known(_carry, "9.7.2.5"),
    "madc": Known(_carry, "9.7.2.6"),
}

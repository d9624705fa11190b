"""Integer arithmetic (PTX ISA §9.7.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, PtxError, Vector
from ptxsan.lanes import Mask
from ptxsan.machine import SEEN, Builder, Known, Run, only, parts, simple

_TWO: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "div": arith.divide,
    "rem": arith.remainder,
}


def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    """.sat of s32 stays within its limits, .relu is max with 0; two halves of 16 bits are each for itself."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    if kind == "relu":  # which nvcc puts last
        kind, modifiers = modifiers[-1], [*modifiers[:-1], "relu"]
    only(modifiers, {"sat"} if base in ("add", "sub") and kind == "s32" else _relu(base, kind))
    operation = _TWO[base]
    if "sat" in modifiers:
        operation = _saturating(operation)
    if "relu" in modifiers:
        operation = _not_negative(operation)
    if kind.endswith("16x2"):
        if base not in ("add", "min", "max"):
            raise PtxError("not supported")
        return simple(b, i, "u32", _of_halves(operation, kind[:-2]))
    return simple(b, i, kind, operation)


def _relu(base: str, kind: str) -> set[str]:
    return {"relu"} if base in ("min", "max") and kind in ("s32", "s16x2") else set()


def _saturating(operation: Any) -> Any:
    def run(*operands: Any) -> Any:
        wide = operation(*(np.asarray(v).astype(np.int64) for v in operands))
        return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)

    return run


def _not_negative(operation: Any) -> Any:
    return lambda x, y: np.maximum(operation(x, y), x.dtype.type(0))


def _of_halves(operation: Any, kind: str) -> Any:
    """An operation on 16 bits as one on words of two of them."""

    def run(*operands: Any) -> Any:
        halves = [np.ascontiguousarray(v).reshape(-1, 1).view(SEEN[kind]) for v in operands]
        both = np.ascontiguousarray(operation(*halves)).view(np.uint32)[:, 0]
        return both if any(np.ndim(v) for v in operands) else both[0]

    return run


def _unary(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, set())
    return simple(b, i, kind, np.negative if base == "neg" else np.abs)


def _wide_product(a: Any, b: Any) -> Any:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


_PRODUCTS: dict[str, Any] = {"lo": np.multiply, "hi": arith.high_product, "wide": _wide_product}


def _mul(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    return simple(b, i, kind, _PRODUCTS[modifiers[0]])


def _mad(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    only(modifiers[1:], {"sat"} if modifiers[0] == "hi" and kind == "s32" else set())
    product: Any = _PRODUCTS[modifiers[0]]
    wide = f"{kind[0]}{2 * int(kind[1:])}" if modifiers[0] == "wide" else kind
    put, one, two = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    three = b.read(i.operands[3], wide)
    if len(modifiers) > 1:
        total = _saturating(np.add)
        return lambda mask: put(total(product(one(), two()), three()), mask)
    return lambda mask: put(product(one(), two()) + three(), mask)


def _sad(b: Builder, i: Instruction, site: Site) -> Run:
    """c + |a − b|."""
    _, kind = parts(i)
    put, (one, two, three) = b.write(i.operands[0]), (b.read(o, kind) for o in i.operands[1:])

    def run(mask: Mask | None) -> None:
        x, y = one(), two()
        put(three() + np.where(x < y, y - x, x - y), mask)

    return run


def _dot(b: Builder, i: Instruction, site: Site) -> Run:
    """dp4a: c plus the products of four bytes; dp2a: of two halves of a and two bytes of b (§9.7.1.23 f.).

    Sums wrap at 32 bits."""
    words = i.op.split(".")
    if words[0] == "dp2a" and words[1] not in ("lo", "hi"):
        raise PtxError("not supported")
    first, second = words[-2:]
    kinds = {"s32": "i", "u32": "u"}
    put = b.write(i.operands[0])
    one, two = b.read(i.operands[1], "b32"), b.read(i.operands[2], "b32")
    three = b.read(i.operands[3], "s32" if "s32" in (first, second) else "u32")

    def elements(value: Any, kind: str, width: int) -> Any:
        return (
            np.ascontiguousarray(np.atleast_1d(value)).view(f"{kinds[kind]}{width}").reshape(-1, 4 // width)
        )

    def run(mask: Mask | None) -> None:
        y = elements(two(), second, 1).astype(np.int64)
        if words[0] == "dp4a":
            x = elements(one(), first, 1).astype(np.int64)
        else:
            x = elements(one(), first, 2).astype(np.int64)
            y = y[:, :2] if words[1] == "lo" else y[:, 2:]
        put((three() + (x * y).sum(axis=1)).astype(np.int32), mask)

    return run


# Integers beyond a register: carries, and products of 24 bits (PTX ISA §9.7.1.5 f. and §9.7.2).
#
# The parser makes the condition code an operand: written as a second result, read as a last source
# (``ptxsan.frontend.body``).


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
    "add": Known(_arithmetic, "9.7.1.1"),
    "sub": Known(_arithmetic, "9.7.1.2"),
    "mul": Known(_mul, "9.7.1.3"),
    "mad": Known(_mad, "9.7.1.4"),
    "sad": Known(_sad, "9.7.1.7"),
    "div": Known(_arithmetic, "9.7.1.8"),
    "rem": Known(_arithmetic, "9.7.1.9"),
    "abs": Known(_unary, "9.7.1.10"),
    "neg": Known(_unary, "9.7.1.11"),
    "min": Known(_arithmetic, "9.7.1.12"),
    "max": Known(_arithmetic, "9.7.1.13"),
    "dp4a": Known(_dot, "9.7.1.23"),
    "dp2a": Known(_dot, "9.7.1.24"),
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

"""Integer arithmetic (PTX ISA §9.7.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import Known, only, parts, simple

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
}

"""Logic, shifts and fields of bits (PTX ISA §9.7.1 and §9.7.8)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, Number, PtxError, Vector
from ptxsan.lanes import Mask, full
from ptxsan.machine import SEEN, Builder, Known, Run, only, parts, simple

_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


def _logic(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    return simple(b, i, kind, _LOGIC[base])


def _cnot(b: Builder, i: Instruction, site: Site) -> Run:
    return simple(b, i, parts(i)[1], lambda v: (v == 0).astype(v.dtype))


def _shift(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    operation = arith.shift_left if base == "shl" else arith.shift_right
    put, value, amount = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], "u32")
    if isinstance(i.operands[2], Number) and 0 <= i.operands[2].value < 8 * SEEN[kind].itemsize:
        by = SEEN[kind].type(i.operands[2].value)
        plain = np.left_shift if base == "shl" else np.right_shift
        return lambda mask: put(plain(value(), by), mask)
    return lambda mask: put(operation(value(), amount()), mask)


def _funnel(b: Builder, i: Instruction, site: Site) -> Run:
    """shf: the upper (l) or lower (r) word of {b, a} shifted by c."""
    _, side, mode, kind = i.op.split(".")
    if kind != "b32" or side not in ("l", "r") or mode not in ("wrap", "clamp"):
        raise PtxError("not supported")
    put, (low, high, amount) = b.write(i.operands[0]), (b.read(o, "u32") for o in i.operands[1:])

    def run(mask: Mask | None) -> None:
        by = amount() & np.uint32(31) if mode == "wrap" else np.minimum(amount(), np.uint32(32))
        pair, by = low().astype(np.uint64) | (high().astype(np.uint64) << np.uint64(32)), by.astype(np.uint64)
        moved = (pair << by) >> np.uint64(32) if side == "l" else pair >> by
        put((moved & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask)

    return run


def _prmt(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")
    if len(words) == 2:
        return simple(b, i, "u32", arith.permute)
    selectors = np.array([int(row[::-1], 16) for row in _MODES[words[2]]], np.uint32)
    return simple(b, i, "u32", lambda x, y, by: arith.permute(x, y, selectors[by & np.uint32(3)]))


# Of prmt's modes, for each value of the selector's two low bits, the bytes from the lowest on.
_MODES = {
    "f4e": ("0123", "1234", "2345", "3456"),
    "b4e": ("0765", "1076", "2107", "3210"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("0123", "1123", "2223", "3333"),
    "ecr": ("0000", "0111", "0122", "0123"),
    "rc16": ("0101", "2323", "0101", "2323"),
}


def _lop3(b: Builder, i: Instruction, site: Site) -> Run:
    """The form with a predicate, lop3.or.b32 d|p, has in it whether d is not 0, combined with another."""
    table, (modifiers, _) = i.operands[4], parts(i)
    assert isinstance(table, Number)
    x, y, z = (b.read(o, "u32") for o in i.operands[1:4])
    if not modifiers:
        put = b.write(i.operands[0])
        return lambda mask: put(_any_logic(x(), y(), z(), int(table.value)), mask)
    combine, target = {"or": np.logical_or, "and": np.logical_and}[modifiers[0]], i.operands[0]
    assert isinstance(target, Vector)
    (put, found), other = (b.write(item) for item in target.items), b.read(i.operands[5], "pred")

    def run(mask: Mask | None) -> None:
        result = np.asarray(_any_logic(x(), y(), z(), int(table.value)))
        there = other()
        put(result, mask)
        found(combine(result != 0, there), mask)

    return run


def _any_logic(x: Any, y: Any, z: Any, table: int) -> Any:
    """Any logic of three inputs: bit (4x + 2y + z) of the table."""
    result = np.uint32(0)
    for row in range(8):
        if table >> row & 1:
            result = result | ((x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z))
    return result


def _extract(b: Builder, i: Instruction, site: Site) -> Run:
    """bfe: ``length`` bits from bit ``start`` on; above them zeros, or the topmost of them where signed."""
    _, kind = parts(i)
    bits, signed = 8 * SEEN[kind].itemsize, kind[0] == "s"
    put, value = b.write(i.operands[0]), b.read(i.operands[1], f"u{bits}")
    start, length = b.read(i.operands[2], "u32"), b.read(i.operands[3], "u32")
    one = SEEN[f"u{bits}"].type(1)

    def run(mask: Mask | None) -> None:
        v, at, n = value(), start() & np.uint32(0xFF), length() & np.uint32(0xFF)
        there = np.minimum(n, bits - np.minimum(at, np.uint32(bits))).astype(np.uint32)
        low = arith.shift_left(np.broadcast_to(one, np.shape(there)), there) - one
        field = arith.shift_right(v, at) & low
        if signed:
            top = np.minimum(at + np.maximum(n, np.uint32(1)) - np.uint32(1), np.uint32(bits - 1))
            negative = (arith.shift_right(v, top) & one == 1) & (n > 0)
            field = np.where(negative, field | ~low, field)
        put(field, mask)

    return run


def _insert(b: Builder, i: Instruction, site: Site) -> Run:
    """bfi: the lower ``length`` bits of a at bit ``start`` of b."""
    kind = f"u{parts(i)[1][1:]}"
    put, (a, into) = b.write(i.operands[0]), (b.read(o, kind) for o in i.operands[1:3])
    start, length = b.read(i.operands[3], "u32"), b.read(i.operands[4], "u32")
    one = SEEN[kind].type(1)

    def run(mask: Mask | None) -> None:
        at, n = start() & np.uint32(0xFF), length() & np.uint32(0xFF)
        low = arith.shift_left(np.broadcast_to(one, np.shape(n)), n) - one
        field = arith.shift_left(low, at)
        put((into() & ~field) | (arith.shift_left(a(), at) & field), mask)

    return run


def _count(b: Builder, i: Instruction, site: Site) -> Run:
    """popc, clz and bfind: as 32 bits, of a value of 32 or 64; brev: the bits in reverse."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"shiftamt"} if base == "bfind" else set())
    bits = int(kind[1:])

    def leading(v: Any) -> Any:
        """Zeros above the highest bit set."""
        n = np.asarray(v)
        for shift in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:
            n = n | (n >> n.dtype.type(shift))
        return (bits - np.bitwise_count(n)).astype(np.int32)

    def find(v: Any) -> Any:
        if kind[0] == "s":
            v = np.where(v < 0, ~v, v)
        zeros = leading(v.view(f"u{bits // 8}"))
        at = zeros if modifiers else (bits - 1 - zeros).astype(np.int32)
        return np.where(zeros == bits, np.int32(-1), at)

    def reverse(v: Any) -> Any:
        r = np.zeros_like(v)
        for j in range(bits):
            r = r | ((v >> v.dtype.type(j) & v.dtype.type(1)) << v.dtype.type(bits - 1 - j))
        return r

    if base == "bfind":
        return simple(b, i, kind, find)
    how = {"popc": lambda v: np.bitwise_count(v).astype(np.int32), "clz": leading, "brev": reverse}
    return simple(b, i, f"b{bits}", how[base])


def _fields(b: Builder, i: Instruction, site: Site) -> Run:
    """szext: the low bits of a value, filled by zeros or their sign; bmsk: a mask of so many bits."""
    base, mode, kind = i.op.split(".")
    if mode not in ("clamp", "wrap") or kind not in ("u32", "s32", "b32"):
        raise PtxError("not supported")
    ones, zero, one = np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(1)

    def extend(value: Any, width: Any) -> Any:
        n = width & np.uint32(31)
        whole = (width >= 32) & (mode == "clamp")
        above = np.where(whole, zero, np.left_shift(ones, n))
        negative = (kind == "s32") & (n != 0) & ~whole & (value >> ((n - one) & np.uint32(31)) & one == 1)
        return np.where(negative, value | above, value & ~above).astype(np.uint32)

    def make(start: Any, width: Any) -> Any:
        at, n = start & np.uint32(31), width & np.uint32(31)
        below, end = np.left_shift(ones, at), at + n
        past = end >= 32
        if mode == "clamp":
            below = np.where(start >= 32, zero, below)
            past = past | (start >= 32) | (width >= 32)
        rest = np.where(past, zero, np.where(n == 0, ones, np.left_shift(ones, end & np.uint32(31))))
        # No bit of a mask of no bits; all above where it runs past the end.
        return np.where((n == 0) & ~past, zero, below & ~rest).astype(np.uint32)

    return simple(b, i, "u32", extend if base == "szext" else make)


def _fns(b: Builder, i: Instruction, site: Site) -> Run:
    """fns: where the n-th bit set lies, from a base up or down."""
    put, bits, base = b.write(i.operands[0]), b.read(i.operands[1], "u32"), b.read(i.operands[2], "u32")
    offset, state = b.read(i.operands[3], "s32"), b.state

    def run(mask: Mask | None) -> None:
        value, start, n = (full(read(), state.lanes) for read in (bits, base, offset))
        left, step = np.maximum(np.abs(n.astype(np.int64)), 1), np.where(n >= 0, 1, -1)
        found = np.full(state.lanes, 0xFFFFFFFF, np.uint32)
        for j in range(32):
            at = start.astype(np.int64) + j * step
            there = (at >= 0) & (at < 32) & ((n != 0) | (j == 0))
            there &= value >> (at & 31).astype(np.uint32) & np.uint32(1) == 1
            left = left - there
            found = np.where(there & (left == 0), at.astype(np.uint32), found)
        put(found, mask)

    return run


# SIMD within a word: two halves or four bytes each for itself (PTX ISA §9.7.18, video instructions).
#
# Known without masks and selectors, as nvcc emits them for __vabsdiffu4 and the like.


_SIMD: dict[str, Any] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


def _simd(b: Builder, i: Instruction, site: Site) -> Run:
    """vabsdiff4.u32.u32.u32 d, a, b, c: of each element; .sat within its limits; .add: their sum, and c."""
    base, *words = i.op.split(".")
    kinds, last = words[:3], words[3:]
    count = int(base[-1])
    if not set(kinds) <= {"u32", "s32"} or len(kinds) != 3 or last not in ([], ["sat"], ["add"]):
        raise PtxError("not supported")
    operation, size = _SIMD[base[:-1]], 4 // count
    put, (a, c), rest = (
        b.write(i.operands[0]),
        (b.read(o, "u32") for o in i.operands[1:3]),
        b.read(i.operands[3], "u32"),
    )
    to, *of = (SEEN[f"{kind[0]}{8 * size}"] for kind in kinds)
    limits = np.iinfo(to)

    def run(mask: Mask | None) -> None:
        x, y = (
            np.ascontiguousarray(np.atleast_1d(read())).view(kind).reshape(-1, count).astype(np.int64)
            for read, kind in zip((a, c), of, strict=True)
        )
        result = operation(x, y)
        if last == ["add"]:
            put((result.sum(axis=1) + rest()).astype(np.uint32), mask)
            return
        if last == ["sat"]:
            result = np.clip(result, limits.min, limits.max)
        put(np.ascontiguousarray(result.astype(f"u{size}")).view(np.uint32)[:, 0], mask)

    return run


TABLE: dict[str, Known] = {
    "fns": Known(_fns, "9.7.1.17"),
    "szext": Known(_fields, "9.7.1.21"),
    "bmsk": Known(_fields, "9.7.1.22"),
    "popc": Known(_count, "9.7.1.14"),
    "clz": Known(_count, "9.7.1.15"),
    "bfind": Known(_count, "9.7.1.16"),
    "brev": Known(_count, "9.7.1.18"),
    "bfe": Known(_extract, "9.7.1.19"),
    "bfi": Known(_insert, "9.7.1.20"),
    "and": Known(_logic, "9.7.8.1"),
    "or": Known(_logic, "9.7.8.2"),
    "xor": Known(_logic, "9.7.8.3"),
    "not": Known(_logic, "9.7.8.4"),
    "cnot": Known(_cnot, "9.7.8.5"),
    "lop3": Known(_lop3, "9.7.8.6"),
    "shf": Known(_funnel, "9.7.8.7"),
    "shl": Known(_shift, "9.7.8.8"),
    "shr": Known(_shift, "9.7.8.9"),
    "prmt": Known(_prmt, "9.7.9.7"),
    **{f"{name}{count}": Known(_simd, "9.7.18") for name in _SIMD for count in (2, 4)},
}

"""Integers: arithmetic, also beyond a register, logic, shifts and fields of bits (PTX ISA §9.7.1, §9.7.2 and
§9.7.8)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, Number, PtxError
from ptxsan.lanes import Mask, full
from ptxsan.machine import SEEN, Builder, Run, items_of, only, parts, simple
from ptxsan.machine.table import instruction

_TWO: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "div": arith.divide,
    "rem": arith.remainder,
}


@instruction("9.7.1", "add:1 sub:2", "left")
@instruction("9.7.1", "div:8 rem:9 min:12 max:13")
def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    """.sat of s32 stays within its limits, .relu is max with 0; two halves of 16 bits are each for itself."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    if kind == "relu":  # which nvcc puts last
        kind, modifiers = modifiers[-1], [*modifiers[:-1], "relu"]
    relu = {"relu"} if base in ("min", "max") and kind in ("s32", "s16x2") else set[str]()
    only(modifiers, {"sat"} if base in ("add", "sub") and kind == "s32" else relu)
    operation = _TWO[base]
    if base in ("div", "rem"):
        return _division(b, i, kind, operation, site)
    if "sat" in modifiers:
        operation = _saturating(operation)
    if "relu" in modifiers:
        operation = _not_negative(operation)
    if kind.endswith("16x2"):
        if base not in ("add", "min", "max"):
            raise PtxError("not supported")
        return simple(b, i, "u32", _of_halves(operation, kind[:-2]))
    return simple(b, i, kind, operation)


def _division(b: Builder, i: Instruction, kind: str, operation: Any, site: Site) -> Run:
    """Notes a division by 0, whose result PTX leaves open: a kernel may choose another value afterwards."""
    put, (dividend, divisor) = b.write(i.operands[0]), [b.read(o, kind) for o in i.operands[1:]]

    def run(mask: Mask | None) -> None:
        by = divisor()
        if not np.all(by):
            lanes = range(b.state.lanes) if mask is None else mask.index
            zeros = full(by, b.state.lanes)[lanes] == 0
            if zeros.any():
                what = "divides by 0, of which PTX leaves the result open"
                b.state.tell("uninit", what, site, int(lanes[int(zeros.argmax())]), note=True)
        put(operation(dividend(), by), mask)

    return run


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


@instruction("9.7.1", "abs:10")
@instruction("9.7.1", "neg:11", "left")
def _unary(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, set())
    return simple(b, i, kind, np.negative if base == "neg" else np.abs)


def _wide_product(a: Any, b: Any) -> Any:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


_PRODUCTS: dict[str, Any] = {"lo": np.multiply, "hi": arith.high_product, "wide": _wide_product}


@instruction("9.7.1", "mul:3", "left")
def _mul(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    return simple(b, i, kind, _PRODUCTS[modifiers[0]])


@instruction("9.7.1", "mad:4", "left")
def _mad(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    only(modifiers[1:], {"sat"} if modifiers[0] == "hi" and kind == "s32" else set())
    product: Any = _PRODUCTS[modifiers[0]]
    total: Any = _saturating(np.add) if len(modifiers) > 1 else np.add
    wide = f"{kind[0]}{2 * int(kind[1:])}" if modifiers[0] == "wide" else kind
    return simple(b, i, kind, lambda x, y, z: total(product(x, y), z), kind, wide)


@instruction("9.7.1", "sad:7", "left")
def _sad(b: Builder, i: Instruction, site: Site) -> Run:
    """c + |a − b|."""
    return simple(b, i, parts(i)[1], lambda x, y, z: z + np.where(x < y, y - x, x - y))


def _elements(value: Any, kind: str, count: int) -> Any:
    """A word, (lanes or 1,), as elements of a width and the sign of a kind, (lanes or 1, count) int64."""
    element = f"{'i' if kind[0] == 's' else 'u'}{4 // count}"
    return np.ascontiguousarray(np.atleast_1d(value)).view(element).reshape(-1, count).astype(np.int64)


@instruction("9.7.1", "dp4a:23 dp2a:24", "left")
def _dot(b: Builder, i: Instruction, site: Site) -> Run:
    """dp4a: c plus the products of four bytes; dp2a: of two halves of a and two bytes of b. Sums wrap at 32
    bits."""
    words = i.op.split(".")
    first, second = words[-2:]
    count = 4 if words[0] == "dp4a" else 2
    if not {first, second} <= {"s32", "u32"} or (count == 2 and words[1] not in ("lo", "hi")):
        raise PtxError("not supported")
    start = 2 if words[1] == "hi" else 0

    def total(x: Any, y: Any, z: Any) -> Any:
        products = _elements(x, first, count) * _elements(y, second, 4)[:, start : start + count]
        return (z + products.sum(axis=1)).astype(np.int32)

    return simple(b, i, "b32", total, "b32", "s32" if "s32" in (first, second) else "u32")


# The parser makes the condition code an operand: written as a second result, read as a last source
# (``ptxsan.frontend.body``).
@instruction("9.7.2", "add.cc:1 addc:2 sub.cc:3 subc:4 mad.lo.cc:5 mad.hi.cc:5 madc:6", "left")
def _carry(b: Builder, i: Instruction, site: Site) -> Run:
    """add.cc, addc, sub.cc, subc, mad.cc and madc: of unsigned words, with the carry in and out."""
    base, *modifiers, kind = i.op.split(".")
    if kind not in ("u32", "s32", "b32", "u64", "s64"):
        raise PtxError("not supported")
    puts = [b.write(target) for target in items_of(i.operands[0])]
    takes_in = base.endswith("c")
    sources = list(i.operands[1:-1] if takes_in else i.operands[1:])
    held = b.read(i.operands[-1], "pred") if takes_in else None
    unsigned = f"u{kind[1:]}"
    product: Any = None
    if base.startswith("mad"):
        product = _PRODUCTS[next(m for m in modifiers if m in ("lo", "hi"))]
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
        result = x - y - into if minus else x + y + into
        low, high = (x, y) if minus else (result, x)
        carry = (low < high) | ((low == high) & (into == 1))
        for put, value in zip(puts, (result, carry), strict=False):
            put(value, mask)

    return run


@instruction("9.7.1", "mul24:5 mad24:6", "left")
def _short(b: Builder, i: Instruction, site: Site) -> Run:
    """mul24 and mad24: of the low 24 bits, the low or the high word of 48."""
    base, half, *modifiers, kind = i.op.split(".")
    saturates = base == "mad24" and half == "hi" and kind == "s32" and modifiers == ["sat"]
    if kind not in ("s32", "u32") or half not in ("lo", "hi") or (modifiers and not saturates):
        raise PtxError("not supported")

    def low24(v: Any) -> Any:
        wide = np.asarray(v).astype(np.int64) & 0xFFFFFF
        return wide - ((wide & 0x800000) << 1) if kind == "s32" else wide

    def value(x: Any, y: Any, z: Any = 0) -> Any:
        product = low24(x) * low24(y) >> (16 if half == "hi" else 0)
        total = np.asarray(product).astype(SEEN[kind]).astype(np.int64) + np.asarray(z).astype(np.int64)
        if saturates:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return np.asarray(total).astype(np.uint32)

    return simple(b, i, kind, value)


# Logic and shifts

_LOGIC: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


@instruction("9.7.8", "and:1 or:2 xor:3 not:4", "logic")
def _logic(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    return simple(b, i, kind, _LOGIC[base])


@instruction("9.7.8", "cnot:5")
def _cnot(b: Builder, i: Instruction, site: Site) -> Run:
    return simple(b, i, parts(i)[1], lambda v: (v == 0).astype(v.dtype))


@instruction("9.7.8", "shl:8 shr:9", "logic")
def _shift(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    if isinstance(i.operands[2], Number) and 0 <= i.operands[2].value < 8 * SEEN[kind].itemsize:
        return simple(b, i, kind, np.left_shift if base == "shl" else np.right_shift)
    return simple(b, i, kind, arith.shift_left if base == "shl" else arith.shift_right, "u32")


@instruction("9.7.8", "shf:7", "logic")
def _funnel(b: Builder, i: Instruction, site: Site) -> Run:
    """shf: the upper (l) or lower (r) word of {b, a} shifted by c."""
    _, side, mode, kind = i.op.split(".")
    if kind != "b32" or side not in ("l", "r") or mode not in ("wrap", "clamp"):
        raise PtxError("not supported")

    def shifted(low: Any, high: Any, amount: Any) -> Any:
        by = amount & np.uint32(31) if mode == "wrap" else np.minimum(amount, np.uint32(32))
        pair, by = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32)), by.astype(np.uint64)
        moved = (pair << by) >> np.uint64(32) if side == "l" else pair >> by
        return (moved & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return simple(b, i, "u32", shifted)


# Of prmt's modes, for each value of the selector's two low bits, the bytes from the lowest on.
_MODES = {
    "f4e": ("0123", "1234", "2345", "3456"),
    "b4e": ("0765", "1076", "2107", "3210"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("0123", "1123", "2223", "3333"),
    "ecr": ("0000", "0111", "0122", "0123"),
    "rc16": ("0101", "2323", "0101", "2323"),
}


@instruction("9.7.9", "prmt:7", "logic")
def _prmt(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")
    if len(words) == 2:
        return simple(b, i, "u32", arith.permute)
    selectors = np.array([int(row[::-1], 16) for row in _MODES[words[2]]], np.uint32)
    return simple(b, i, "u32", lambda x, y, by: arith.permute(x, y, selectors[by & np.uint32(3)]))


@instruction("9.7.8", "lop3:6", "logic")
def _lop3(b: Builder, i: Instruction, site: Site) -> Run:
    """Any logic of three inputs: bit (4x + 2y + z) of the table. The form with a predicate, lop3.or.b32 d|p,
    has in it whether d is not 0, combined with another."""
    table, (modifiers, _) = i.operands[4], parts(i)
    assert isinstance(table, Number)
    reads, rows = (
        [b.read(o, "u32") for o in i.operands[1:4]],
        [r for r in range(8) if int(table.value) >> r & 1],
    )

    def value() -> Any:
        x, y, z = (read() for read in reads)
        result = np.uint32(0)
        for row in rows:
            result = result | ((x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z))
        return np.asarray(result)

    if not modifiers:
        put = b.write(i.operands[0])
        return lambda mask: put(value(), mask)
    combine = {"or": np.logical_or, "and": np.logical_and}[modifiers[0]]
    (put, found), other = (b.write(item) for item in items_of(i.operands[0])), b.read(i.operands[5], "pred")

    def run(mask: Mask | None) -> None:
        result, there = value(), other()
        put(result, mask)
        found(combine(result != 0, there), mask)

    return run


# Fields of bits


@instruction("9.7.1", "bfe:19", "logic")
def _extract(b: Builder, i: Instruction, site: Site) -> Run:
    """bfe: ``length`` bits from bit ``start`` on; above them zeros, or the topmost of them where signed."""
    _, kind = parts(i)
    bits, signed = 8 * SEEN[kind].itemsize, kind[0] == "s"
    one = SEEN[f"u{bits}"].type(1)

    def field_of(v: Any, start: Any, length: Any) -> Any:
        at, n = start & np.uint32(0xFF), length & np.uint32(0xFF)
        there = np.minimum(n, bits - np.minimum(at, np.uint32(bits))).astype(np.uint32)
        low = arith.shift_left(np.broadcast_to(one, np.shape(there)), there) - one
        field = arith.shift_right(v, at) & low
        if signed:
            top = np.minimum(at + np.maximum(n, np.uint32(1)) - np.uint32(1), np.uint32(bits - 1))
            negative = (arith.shift_right(v, top) & one == 1) & (n > 0)
            field = np.where(negative, field | ~low, field)
        return field

    return simple(b, i, f"u{bits}", field_of, "u32")


@instruction("9.7.1", "bfi:20", "logic")
def _insert(b: Builder, i: Instruction, site: Site) -> Run:
    """bfi: the lower ``length`` bits of a at bit ``start`` of b."""
    kind = f"u{parts(i)[1][1:]}"
    one = SEEN[kind].type(1)

    def inserted(a: Any, into: Any, start: Any, length: Any) -> Any:
        at, n = start & np.uint32(0xFF), length & np.uint32(0xFF)
        field = arith.shift_left(arith.shift_left(np.broadcast_to(one, np.shape(n)), n) - one, at)
        return (into & ~field) | (arith.shift_left(a, at) & field)

    return simple(b, i, kind, inserted, kind, "u32")


def _ones(v: Any) -> Any:
    """How many bits of each integer are set. NumPy has bitwise_count from 2.0 on."""
    each = np.ascontiguousarray(v)
    parts = each.view(np.uint8).reshape(*each.shape, each.itemsize)
    return np.unpackbits(parts, axis=-1).sum(axis=-1, dtype=np.int32).reshape(np.shape(v))


@instruction("9.7.1", "popc:14 clz:15 bfind:16")
@instruction("9.7.1", "brev:18", "logic")
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
        return bits - _ones(n)

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
    how = {"popc": _ones, "clz": leading, "brev": reverse}
    return simple(b, i, f"b{bits}", how[base])


@instruction("9.7.1", "szext:21 bmsk:22")
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


@instruction("9.7.1", "fns:17")
def _fns(b: Builder, i: Instruction, site: Site) -> Run:
    """fns: where the n-th bit set lies, from a base up or down."""

    def find(value: Any, start: Any, n: Any) -> Any:
        value, start, n = np.broadcast_arrays(value, start.astype(np.int64), n.astype(np.int64))
        left, step = np.maximum(np.abs(n), 1), np.where(n >= 0, 1, -1)
        found = np.full(n.shape, 0xFFFFFFFF, np.uint32)
        for j in range(32):
            at = start + j * step
            there = (at >= 0) & (at < 32) & ((n != 0) | (j == 0))
            there &= value >> (at & 31).astype(np.uint32) & np.uint32(1) == 1
            left = left - there
            found = np.where(there & (left == 0), at.astype(np.uint32), found)
        return found

    return simple(b, i, "u32", find, "u32", "s32")


# SIMD within a word: two halves or four bytes each for itself, as nvcc emits them for __vabsdiffu4.

_SIMD: dict[str, Any] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


@instruction("9.7.18", " ".join(f"{n}2 {n}4" for n in _SIMD), note="no masks, no selectors")
def _simd(b: Builder, i: Instruction, site: Site) -> Run:
    """vabsdiff4.u32.u32.u32 d, a, b, c: of each element; .sat within its limits; .add: their sum, and c."""
    base, *words = i.op.split(".")
    kinds, last = words[:3], words[3:]
    count = int(base[-1])
    if not set(kinds) <= {"u32", "s32"} or len(kinds) != 3 or last not in ([], ["sat"], ["add"]):
        raise PtxError("not supported")
    operation, size = _SIMD[base[:-1]], 4 // count
    limits = np.iinfo(SEEN[f"{kinds[0][0]}{8 * size}"])

    def value(x: Any, y: Any, rest: Any) -> Any:
        result = operation(_elements(x, kinds[1], count), _elements(y, kinds[2], count))
        if last == ["add"]:
            return (result.sum(axis=1) + rest).astype(np.uint32)
        if last == ["sat"]:
            result = np.clip(result, limits.min, limits.max)
        return np.ascontiguousarray(result.astype(f"u{size}")).view(np.uint32)[:, 0]

    return simple(b, i, "u32", value)

"""Fields of bits, dot products of bytes, narrow loads: against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptxsan.rig import Array, results

RANDOM = np.random.default_rng(2)
WORDS = np.r_[[0, 1, 0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0x12345678], RANDOM.integers(0, 2**32, 58)]
WORDS = WORDS.astype(np.uint32)
OTHERS = np.roll(WORDS, 7)
FIELDS = RANDOM.integers(0, 40, 64).astype(np.uint32)
LENGTHS = np.roll(FIELDS, 3)
FIRST = "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];\n"
LAST = "st.global.u32 [%rd6], %r14;"
MASK = 0xFFFFFFFF


def signed(v: int, bits: int = 32) -> int:
    return v - (1 << bits) if v >> (bits - 1) & 1 else v


def four(code: str, *columns: Array) -> list[int]:
    """%r14 of a code that has four words in %r10 to %r13."""
    return [int(v) for v in results(FIRST + code + LAST, *columns)]


def rows(*columns: Array) -> list[tuple[int, ...]]:
    return [tuple(int(v) for v in row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_bfe(kind: str) -> None:
    def want(a: int, at: int, n: int) -> int:
        """As the PTX ISA writes it."""
        sign = a >> min(at + n - 1, 31) & 1 if kind == "s32" and n else 0
        return sum((a >> at + i & 1 if i < n and at + i <= 31 else sign) << i for i in range(32))

    columns = WORDS, FIELDS, LENGTHS
    assert four(f"bfe.{kind} %r14, %r10, %r11, %r12;\n", *columns) == [want(*row) for row in rows(*columns)]


def test_bfi() -> None:
    def want(a: int, b: int, at: int, n: int) -> int:
        field = ((1 << n) - 1) << at & MASK
        return b & ~field & MASK | a << at & field

    columns = WORDS, OTHERS, FIELDS, LENGTHS
    code = "bfi.b32 %r14, %r10, %r11, %r12, %r13;\n"
    assert four(code, *columns) == [want(*row) for row in rows(*columns)]


@pytest.mark.parametrize("side", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_shf(side: str, mode: str) -> None:
    def want(a: int, b: int, c: int) -> int:
        n = c & 31 if mode == "wrap" else min(c, 32)
        return ((b << 32 | a) << n >> 32 if side == "l" else (b << 32 | a) >> n) & MASK

    columns = WORDS, OTHERS, FIELDS
    code = f"shf.{side}.{mode}.b32 %r14, %r10, %r11, %r12;\n"
    assert four(code, *columns) == [want(*row) for row in rows(*columns)]


def test_counts_and_reversals() -> None:
    values = [int(w) for w in WORDS]
    assert four("clz.b32 %r14, %r10;\n", WORDS) == [32 - w.bit_length() for w in values]
    assert four("popc.b32 %r14, %r10;\n", WORDS) == [w.bit_count() for w in values]
    assert four("brev.b32 %r14, %r10;\n", WORDS) == [int(f"{w:032b}"[::-1], 2) for w in values]
    assert four("bfind.u32 %r14, %r10;\n", WORDS) == [(w.bit_length() - 1) & MASK for w in values]
    assert four("cnot.b32 %r14, %r10;\n", WORDS) == [int(w == 0) for w in values]
    wide = "mov.b64 %rd7, {%r10, %r11};\nclz.b64 %r14, %rd7;\n"
    assert four(wide, WORDS, OTHERS) == [64 - (b << 32 | a).bit_length() for a, b in rows(WORDS, OTHERS)]


def test_sad() -> None:
    columns = WORDS, OTHERS, FIELDS
    want = [(c + abs(signed(a) - signed(b))) & MASK for a, b, c in rows(*columns)]
    assert four("sad.s32 %r14, %r10, %r11, %r12;\n", *columns) == want


@pytest.mark.parametrize("kinds", ["s32.s32", "u32.u32", "s32.u32", "u32.s32"])
def test_dp4a(kinds: str) -> None:
    def part(v: int, i: int, kind: str) -> int:
        byte = v >> 8 * i & 0xFF
        return signed(byte, 8) if kind == "s32" else byte

    def want(a: int, b: int, c: int) -> int:
        one, two = kinds.split(".")
        return (c + sum(part(a, i, one) * part(b, i, two) for i in range(4))) & MASK

    columns = WORDS, OTHERS, np.roll(WORDS, 3)
    code = f"dp4a.{kinds} %r14, %r10, %r11, %r12;\n"
    assert four(code, *columns) == [want(*row) for row in rows(*columns)]


@pytest.mark.parametrize("half", ["lo", "hi"])
def test_dp2a(half: str) -> None:
    def want(a: int, b: int, c: int) -> int:
        at = 0 if half == "lo" else 16
        products = (signed(a >> 16 * i & 0xFFFF, 16) * signed(b >> at + 8 * i & 0xFF, 8) for i in range(2))
        return (c + sum(products)) & MASK

    columns = WORDS, OTHERS, FIELDS
    code = f"dp2a.{half}.s32.s32 %r14, %r10, %r11, %r12;\n"
    assert four(code, *columns) == [want(*row) for row in rows(*columns)]


def test_bytes_are_extended_as_they_are_loaded() -> None:
    code = "ld.global.{} %rs1, [%rd4+1];\ncvt.{}.{} %r14, %rs1;\n"
    of = [int(w) >> 8 & 0xFF for w in WORDS]
    assert four(code.format("s8", "s32", "s16"), WORDS) == [signed(b, 8) & MASK for b in of]
    assert four(code.format("u8", "u32", "u16"), WORDS) == of
    straight = "ld.global.s8 %r14, [%rd4+1];\n"
    assert four(straight, WORDS) == [signed(b, 8) & MASK for b in of]


def test_vectors_of_bytes_and_of_halves() -> None:
    code = "ld.global.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [%rd4];\n"
    code += "".join(f"cvt.u32.u16 %r1{i}, %rs{i};\n" for i in (1, 2, 3, 4))
    shift = "shl.b32 %r11, %r11, 24;\nshl.b32 %r12, %r12, 16;\nshl.b32 %r13, %r13, 8;\n"
    join = "or.b32 %r14, %r14, %r11;\nor.b32 %r14, %r14, %r12;\nor.b32 %r14, %r14, %r13;\n"
    assert four(code + shift + join, WORDS) == [
        int.from_bytes(int(w).to_bytes(4, "big"), "little") for w in WORDS
    ]
    code = "ld.global.v2.s16 {%rs1, %rs2}, [%rd4];\nmul.wide.s16 %r14, %rs1, %rs2;\n"
    want = [signed(w & 0xFFFF, 16) * signed(w >> 16, 16) & MASK for w in map(int, WORDS)]
    assert four(code, WORDS) == want


def test_products_of_signed_words() -> None:
    columns = WORDS, OTHERS, FIELDS
    want = [(signed(a) * signed(b) + c) & MASK for a, b, c in rows(*columns)]
    assert four("mad.lo.s32 %r14, %r10, %r11, %r12;\n", *columns) == want
    wide = (
        FIRST + "cvt.s64.s32 %rd7, %r12;\nmad.wide.s32 %rd8, %r10, %r11, %rd7;\nst.global.u64 [%rd6], %rd8;"
    )
    want = [(signed(a) * signed(b) + signed(c)) & (2**64 - 1) for a, b, c in rows(*columns)]
    assert [int(v) for v in results(wide, *columns, wide=True)] == want


BOTH = "mov.b64 %rd7, {%r10, %r11};\nmov.b64 %rd8, {%r12, %r13};\n"


@pytest.mark.parametrize("op", ["add", "sub"])
def test_a_chain_of_carries_is_one_number(op: str) -> None:
    """Of 64 bits in words, with the carry out of the highest one; and with a carry into 64 bits at once."""
    columns = WORDS, OTHERS, FIELDS, np.roll(WORDS, 13)
    sign = 1 if op == "add" else -1
    wide = [((b << 32 | a), (d << 32 | c)) for a, b, c, d in rows(*columns)]
    chain = f"{op}.cc.u32 %r14, %r10, %r12;\n{op}c.cc.u32 %r15, %r11, %r13;\n{op}c.u32 %r16, 0, 0;\n"
    assert four(chain, *columns) == [(x + sign * y) & MASK for x, y in wide]
    assert four(chain + "mov.u32 %r14, %r15;\n", *columns) == [(x + sign * y) >> 32 & MASK for x, y in wide]
    carried = [sign * ((x + sign * y) >> 64 != 0) & MASK for x, y in wide]
    assert four(chain + "mov.u32 %r14, %r16;\n", *columns) == carried
    chain = BOTH + f"{op}.cc.u64 %rd9, %rd7, %rd8;\n{op}c.cc.u64 %rd9, %rd7, %rd8;\ncvt.u32.u64 %r14, %rd9;\n"
    want = [(x + sign * (y + ((x + sign * y) >> 64 != 0))) & MASK for x, y in wide]
    assert four(chain, *columns) == want


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_a_chain_of_products(kind: str) -> None:
    """A 32-bit product added to 64 bits."""
    number = signed if kind == "s32" else int
    columns = WORDS, OTHERS, FIELDS, np.roll(WORDS, 13)
    chain = f"mad.lo.cc.{kind} %r14, %r10, %r11, %r12;\nmadc.hi.{kind} %r15, %r10, %r11, %r13;\n"
    total = [number(a) * number(b) + (d << 32 | c) for a, b, c, d in rows(*columns)]
    assert four(chain, *columns) == [t & MASK for t in total]
    assert four(chain + "mov.u32 %r14, %r15;\n", *columns) == [t >> 32 & MASK for t in total]


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_products_of_24_bits(kind: str) -> None:
    def number(v: int) -> int:
        return signed(v & 0xFFFFFF, 24) if kind == "s32" else v & 0xFFFFFF

    columns = WORDS, OTHERS, FIELDS
    for half, shift in (("lo", 0), ("hi", 16)):
        products = [number(a) * number(b) >> shift for a, b, _ in rows(*columns)]
        assert four(f"mul24.{half}.{kind} %r14, %r10, %r11;\n", *columns) == [p & MASK for p in products]
        sums = [(p + int(c)) & MASK for p, c in zip(products, FIELDS, strict=True)]
        assert four(f"mad24.{half}.{kind} %r14, %r10, %r11, %r12;\n", *columns) == sums


@pytest.mark.parametrize("kind", ["u64", "s64"])
def test_the_upper_half_of_128_bits(kind: str) -> None:
    def number(v: int) -> int:
        return signed(v, 64) if kind == "s64" else v

    columns = WORDS, OTHERS, FIELDS, np.roll(WORDS, 13)
    want = [number(b << 32 | a) * number(d << 32 | c) >> 64 for a, b, c, d in rows(*columns)]
    code = BOTH + f"mul.hi.{kind} %rd9, %rd7, %rd8;\n"
    assert four(code + "cvt.u32.u64 %r14, %rd9;\n", *columns) == [w & MASK for w in want]
    code += "shr.u64 %rd9, %rd9, 32;\n"
    assert four(code + "cvt.u32.u64 %r14, %rd9;\n", *columns) == [w >> 32 & MASK for w in want]


# What each mode of prmt picks for a selector of 0 to 3, bytes from the highest on, as the PTX ISA has it.
PERMUTED = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", PERMUTED)
def test_modes_of_prmt(mode: str) -> None:
    def want(a: int, b: int, c: int) -> int:
        data = (b << 32 | a).to_bytes(8, "little")
        return int.from_bytes(bytes(data[int(j)] for j in PERMUTED[mode][c & 3]), "big")

    columns = WORDS, OTHERS, FIELDS
    code = f"prmt.b32.{mode} %r14, %r10, %r11, %r12;\n"
    assert four(code, *columns) == [want(*row) for row in rows(*columns)]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_extended_fields_and_masks(mode: str) -> None:
    def extended(a: int, n: int, sign: bool) -> int:
        if n >= 32 and mode == "clamp":
            return a
        n %= 32
        low = a & (1 << n) - 1
        return (signed(low, n) if sign and n else low) & MASK

    def masked(at: int, n: int) -> int:
        if mode == "wrap":
            at, n = at % 32, n % 32
        return ((1 << n) - 1) << at & MASK if at < 32 else 0

    both = rows(WORDS, FIELDS)
    assert four(f"szext.{mode}.s32 %r14, %r10, %r11;\n", WORDS, FIELDS) == [
        extended(a, n, True) for a, n in both
    ]
    assert four(f"szext.{mode}.u32 %r14, %r10, %r11;\n", WORDS, FIELDS) == [
        extended(a, n, False) for a, n in both
    ]
    code = f"bmsk.{mode}.b32 %r14, %r10, %r11;\n"
    assert four(code, FIELDS, LENGTHS) == [masked(at, n) for at, n in rows(FIELDS, LENGTHS)]


def test_fns_finds_the_nth_bit_from_a_base() -> None:
    def want(bits: int, base: int, n: int) -> int:
        n = signed(n)
        if n == 0:
            return base if bits >> base & 1 else MASK
        way = range(base, 32) if n > 0 else range(base, -1, -1)
        there = [at for at in way if bits >> at & 1]
        return there[abs(n) - 1] if len(there) >= abs(n) else MASK

    columns = WORDS, FIELDS % 32, (LENGTHS % 9 - 4).astype(np.uint32)
    assert four("fns.b32 %r14, %r10, %r11, %r12;\n", *columns) == [want(*row) for row in rows(*columns)]


def test_slct_and_lop3_with_a_predicate() -> None:
    columns = WORDS, OTHERS, FIELDS, np.roll(WORDS, 5)
    want = [a if signed(d) >= 0 else b for a, b, _, d in rows(*columns)]
    assert four("slct.b32.s32 %r14, %r10, %r11, %r13;\n", *columns) == want
    as_floats = [np.uint32(v) for v in (0, 0x80000000, 0x7FC00000, 0x3F800000, 0xBF800000)]
    ones, zeros = np.ones(5, np.uint32), np.zeros(5, np.uint32)
    code = "mov.b32 %f1, %r12;\nslct.b32.f32 %r14, %r10, %r11, %f1;\n"
    assert four(code, ones, zeros, np.array(as_floats)) == [1, 1, 0, 1, 0]
    code = "setp.lt.s32 %p1, %r13, 0;\nlop3.or.b32 _|%p2, %r10, %r11, %r12, 0x80, %p1;\n"
    code += "selp.u32 %r14, 1, 0, %p2;\n"
    assert four(code, *columns) == [int(a & b & c != 0 or signed(d) < 0) for a, b, c, d in rows(*columns)]


def test_saturated_sums_and_halves() -> None:
    columns = WORDS, OTHERS
    clamped = [max(min(signed(a) + signed(b), 2**31 - 1), -(2**31)) & MASK for a, b in rows(*columns)]
    assert four("add.sat.s32 %r14, %r10, %r11;\n", *columns) == clamped
    relu = [max(min(signed(a), signed(b)), 0) for a, b in rows(*columns)]
    assert four("min.relu.s32 %r14, %r10, %r11;\n", *columns) == relu
    assert four("min.s32.relu %r14, %r10, %r11;\n", *columns) == relu

    def halves(a: int, b: int) -> int:
        each = [max(signed(v >> s & 0xFFFF, 16) for v in (a, b)) & 0xFFFF for s in (0, 16)]
        return each[1] << 16 | each[0]

    assert four("max.s16x2 %r14, %r10, %r11;\n", *columns) == [halves(*row) for row in rows(*columns)]


def test_bytes_of_a_word_each_for_itself() -> None:
    columns = WORDS, OTHERS, FIELDS

    def octets(v: int) -> list[int]:
        return list(v.to_bytes(4, "little"))

    pairs = [(octets(a), octets(b), c) for a, b, c in rows(*columns)]
    apart = [[abs(x - y) for x, y in zip(a, b, strict=True)] for a, b, _ in pairs]
    code = "vabsdiff4.u32.u32.u32{} %r14, %r10, %r11, %r12;\n"
    assert four(code.format(""), *columns) == [int.from_bytes(bytes(d), "little") for d in apart]
    sums = [sum(d) + c for d, (_, _, c) in zip(apart, pairs, strict=True)]
    assert four(code.format(".add"), *columns) == sums
    clipped = [bytes(min(x + y, 255) for x, y in zip(a, b, strict=True)) for a, b, _ in pairs]
    code = "vadd4.u32.u32.u32.sat %r14, %r10, %r11, %r12;\n"
    assert four(code, *columns) == [int.from_bytes(d, "little") for d in clipped]

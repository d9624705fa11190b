"""Fields of bits, dot products of bytes, narrow loads: against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.emulated.rig import Array, results

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

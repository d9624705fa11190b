"""Arithmetic to the bit, through PTX, against fractions and Python's integers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxsan.rounding.modifiers import fma64
from tests.ptxsan.exact import BF16, CANONICAL, FP16, FP32, Format, fma, pattern, single, value
from tests.ptxsan.rig import results

EDGES32: tuple[int, ...] = (
    0,
    0x80000000,
    1,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x3F800000,
    0xBF800000,
    0x3F800001,
)
EDGES32 += (0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x33800000)
EDGES32 += (0x3F801000, 0x3F803000, 0xBF801000, 0x7F7FF000)  # ties of TF32
EDGES16 = (
    0,
    0x8000,
    1,
    0x03FF,
    0x0400,
    0x3C00,
    0xBC00,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x7E00,
    0x3C01,
    0x1400,
)
INTEGERS = (0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFF, 0x10000)


def words(edges: tuple[int, ...], bits: int) -> st.SearchStrategy[list[int]]:
    """Patterns for 32 lanes: edges, any bits, and values of like exponents, where sums cancel and tie."""
    near = st.integers(0, 255).map(lambda low: (0x3F800000 | low) if bits == 32 else (0x3C00 | low))
    one = st.one_of(st.sampled_from(edges), st.integers(0, (1 << bits) - 1), near)
    return st.lists(one, min_size=32, max_size=32)


FLOATS, HALVES, WORDS = words(EDGES32, 32), words(EDGES16, 16), words(INTEGERS, 32)
SIGN = 0x80000000
CHECKED = settings(max_examples=25, deadline=None, derandomize=True)


def hexes(found: object) -> list[str]:
    return [f"{int(bits):#010x}" for bits in np.asarray(found)]


def load(count: int) -> str:
    return "".join(f"ld.global.f32 %f{i}, [%rd4+{4 * i}];\n" for i in range(count))


@CHECKED
@given(FLOATS, FLOATS, FLOATS)
def test_fma_rounds_once(a: list[int], b: list[int], c: list[int]) -> None:
    body = load(3) + "fma.rn.f32 %f4, %f0, %f1, %f2;\nst.global.f32 [%rd6], %f4;"
    want = [fma(x, y, z, FP32) for x, y, z in zip(a, b, c, strict=True)]
    assert hexes(results(body, a, b, c)) == hexes(want)


def test_fma_where_rounding_twice_goes_wrong() -> None:
    """(1 + 2⁻²³)·(1 − 2⁻²³) is 1 − 2⁻⁴⁶: scaled, half a unit of an odd FP32 value less what float64 loses."""
    a, b, c = 0x39800001, 0x397FFFFE, 0x3F800001
    columns = [[a, a ^ SIGN], [b, b], [c, c ^ SIGN]]
    body = load(3) + "fma.rn.f32 %f4, %f0, %f1, %f2;\nst.global.f32 [%rd6], %f4;"
    assert hexes(results(body, *columns)) == hexes([c, c ^ SIGN])
    assert np.float32(single(a) * single(b) + single(c)) != single(c)  # what rounding twice would give


@pytest.mark.parametrize("instruction", ["add.f32", "sub.f32", "mul.f32", "min.f32", "max.f32", "fma.rn.f32"])
def test_every_pair_and_triple_of_edges(instruction: str) -> None:
    count = 3 if instruction.startswith("fma") else 2
    columns = list(zip(*itertools.product(EDGES32, repeat=count), strict=True))
    operands = ", ".join(f"%f{i}" for i in range(count))
    body = load(count) + f"{instruction} %f4, {operands};\nst.global.f32 [%rd6], %f4;"
    reference = FLOAT_OPERATIONS[instruction]
    assert hexes(results(body, *columns)) == hexes([reference(*each) for each in zip(*columns, strict=True)])


def _add(a: int, b: int) -> int:
    return fma(a, 0x3F800000, b, FP32)


def _mul(a: int, b: int) -> int:
    x, y = value(a, FP32), value(b, FP32)
    if any(isinstance(v, float) and v != 0 for v in (x, y)):
        return pattern(
            math.prod(float(v) if isinstance(v, float) else math.copysign(1, v) for v in (x, y)), FP32
        )
    return pattern(Fraction(x) * Fraction(y), FP32, negative_zero=bool((a ^ b) >> 31))


def _min(a: int, b: int) -> int:
    x, y = single(a), single(b)
    if math.isnan(x) or math.isnan(y):
        return CANONICAL[FP32] if math.isnan(x) and math.isnan(y) else (b if math.isnan(x) else a)
    if x == y == 0:
        return a | b
    return a if x <= y else b


def _max(a: int, b: int) -> int:
    if math.isnan(single(a)) or math.isnan(single(b)):
        return _min(a, b)
    return _min(a ^ SIGN, b ^ SIGN) ^ SIGN


FLOAT_OPERATIONS: dict[str, Callable[..., int]] = {
    "add.f32": _add,
    "sub.f32": lambda a, b: _add(a, b ^ SIGN) if not math.isnan(single(b)) else CANONICAL[FP32],
    "mul.f32": _mul,
    "mul.rn.f32": _mul,
    "min.f32": _min,
    "max.f32": _max,
    "fma.rn.f32": lambda a, b, c: fma(a, b, c, FP32),
}


@CHECKED
@given(FLOATS, FLOATS)
@pytest.mark.parametrize("instruction", ["add.f32", "sub.f32", "mul.f32", "mul.rn.f32", "min.f32", "max.f32"])
def test_arithmetic_of_two(instruction: str, a: list[int], b: list[int]) -> None:
    body = load(2) + f"{instruction} %f4, %f0, %f1;\nst.global.f32 [%rd6], %f4;"
    reference = FLOAT_OPERATIONS[instruction]
    assert hexes(results(body, a, b)) == hexes([reference(x, y) for x, y in zip(a, b, strict=True)])


@CHECKED
@given(HALVES, HALVES, HALVES)
@pytest.mark.parametrize(("kind", "form"), [("f16", FP16), ("bf16", BF16)])
def test_narrow_fma_rounds_once(kind: str, form: Format, a: list[int], b: list[int], c: list[int]) -> None:
    body = "".join(f"ld.global.u16 %rs{i}, [%rd4+{4 * i}];\n" for i in range(3))
    body += f"fma.rn.{kind} %rs4, %rs0, %rs1, %rs2;\nst.global.u16 [%rd6], %rs4;"
    want = [fma(x, y, z, form) for x, y, z in zip(a, b, c, strict=True)]
    assert hexes(results(body, a, b, c)) == hexes(want)


@CHECKED
@given(FLOATS)
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize(("kind", "form"), [("f16", FP16), ("bf16", BF16)])
def test_conversion_to_a_narrow_float(kind: str, form: Format, mode: str, a: list[int]) -> None:
    body = load(1) + f"cvt.{mode}.{kind}.f32 %rs1, %f0;\nst.global.u16 [%rd6], %rs1;"
    assert hexes(results(body, a)) == hexes([pattern(value(x, FP32), form, mode) for x in a])


@CHECKED
@given(FLOATS)
def test_tf32_ties_go_away_from_zero(a: list[int]) -> None:
    body = load(1) + "cvt.rna.tf32.f32 %r10, %f0;\nst.global.u32 [%rd6], %r10;"

    def reference(bits: int) -> int:
        if bits & 0x7F800000 == 0x7F800000:
            return bits & 0xFFFFE000
        return (bits + (1 << 12)) & 0xFFFFE000

    assert hexes(results(body, a)) == hexes([reference(x) for x in a])


@CHECKED
@given(WORDS)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_integers_to_float(kind: str, mode: str, a: list[int]) -> None:
    body = f"ld.global.u32 %r10, [%rd4];\ncvt.{mode}.f32.{kind} %f1, %r10;\nst.global.f32 [%rd6], %f1;"
    numbers = [x - (1 << 32) if kind == "s32" and x >> 31 else x for x in a]
    assert hexes(results(body, a)) == hexes([pattern(Fraction(n), FP32, mode) for n in numbers])


@CHECKED
@given(FLOATS)
@pytest.mark.parametrize(("mode", "rounded"), [("rzi", math.trunc), ("rni", round), ("rmi", math.floor)])
def test_float_to_integer_clamps(mode: str, rounded: Callable[[float], int], a: list[int]) -> None:
    def reference(bits: int) -> int:
        x = single(bits)
        if math.isnan(x):
            return 0
        whole = rounded(x) if math.isfinite(x) else (1 << 40 if x > 0 else -(1 << 40))
        return min(max(whole, -(1 << 31)), (1 << 31) - 1) & 0xFFFFFFFF

    body = load(1) + f"cvt.{mode}.s32.f32 %r10, %f0;\nst.global.u32 [%rd6], %r10;"
    assert hexes(results(body, a)) == hexes([reference(x) for x in a])


def signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def _divided(x: int, y: int) -> int:
    return math.trunc(Fraction(x, y))


INTEGER_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.s32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.s32": lambda a, b: signed(a) * signed(b) >> 32,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "min.s32": lambda a, b: min(signed(a), signed(b)),
    "max.u32": max,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: signed(a) >> min(b, 31),
    "div.s32": lambda a, b: _divided(signed(a), signed(b)) if b else -1,
    "div.u32": lambda a, b: a // b if b else -1,
    "rem.s32": lambda a, b: signed(a) - signed(b) * _divided(signed(a), signed(b)) if b else a,
    "rem.u32": lambda a, b: a % b if b else a,
}


@CHECKED
@given(WORDS, WORDS)
@pytest.mark.parametrize("instruction", INTEGER_OPERATIONS)
def test_integers_wrap(instruction: str, a: list[int], b: list[int]) -> None:
    body = "ld.global.u32 %r10, [%rd4];\nld.global.u32 %r11, [%rd4+4];\n"
    body += f"{instruction} %r12, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    reference = INTEGER_OPERATIONS[instruction]
    want = [reference(x, y) & 0xFFFFFFFF for x, y in zip(a, b, strict=True)]
    assert hexes(results(body, a, b)) == hexes(want)


@CHECKED
@given(WORDS, WORDS)
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_wide_products(kind: str, a: list[int], b: list[int]) -> None:
    body = "ld.global.u32 %r10, [%rd4];\nld.global.u32 %r11, [%rd4+4];\n"
    body += f"mul.wide.{kind} %rd7, %r10, %r11;\nst.global.u64 [%rd6], %rd7;"
    seen = signed if kind == "s32" else int
    want = [seen(x) * seen(y) & (1 << 64) - 1 for x, y in zip(a, b, strict=True)]
    assert [int(v) for v in results(body, a, b, wide=True)] == want


@CHECKED
@given(WORDS, WORDS, WORDS)
def test_permuted_bytes(a: list[int], b: list[int], c: list[int]) -> None:
    body = "".join(f"ld.global.u32 %r1{i}, [%rd4+{4 * i}];\n" for i in range(3))
    body += "prmt.b32 %r20, %r10, %r11, %r12;\nst.global.u32 [%rd6], %r20;"

    def reference(x: int, y: int, selector: int) -> int:
        data, out = (y << 32 | x).to_bytes(8, "little"), 0
        for i in range(4):
            nibble = selector >> 4 * i & 15
            byte = data[nibble & 7]
            out |= (0xFF if nibble & 8 and byte & 128 else 0 if nibble & 8 else byte) << 8 * i
        return out

    assert hexes(results(body, a, b, c)) == hexes([reference(*each) for each in zip(a, b, c, strict=True)])


COMPARED: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x < y or x > y,
    "lt": lambda x, y: x < y,
    "ge": lambda x, y: x >= y,
    "equ": lambda x, y: not (x < y or x > y),
    "neu": lambda x, y: x != y,
    "gtu": lambda x, y: not x <= y,
    "num": lambda x, y: x == x and y == y,
    "nan": lambda x, y: x != x or y != y,
}


@CHECKED
@given(FLOATS, FLOATS)
@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_of_floats_with_nan(name: str, a: list[int], b: list[int]) -> None:
    body = load(2) + f"setp.{name}.f32 %p1, %f0, %f1;\nselp.b32 %r10, 1, 0, %p1;\nst.global.u32 [%rd6], %r10;"
    want = [COMPARED[name](single(x), single(y)) for x, y in zip(a, b, strict=True)]
    assert [bool(v) for v in results(body, a, b)] == want


@CHECKED
@given(FLOATS)
def test_a_nan_that_is_only_moved_keeps_its_bits(a: list[int]) -> None:
    body = load(1) + "mov.f32 %f3, %f0;\nmul.f32 %f5, %f0, %f0;\nst.global.f32 [%rd6], %f3;"
    assert hexes(results(body, a)) == hexes(a)


def test_narrow_loads_fill_by_sign_or_zeros() -> None:
    body = "ld.global.s8 %r10, [%rd4+1];\nld.global.u16 %r11, [%rd4];\nshl.b32 %r11, %r11, 8;\n"
    body += "xor.b32 %r12, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    assert hexes(results(body, [0x8080])) == hexes([0xFFFFFF80 ^ 0x808000])


def test_packing_and_unpacking_of_registers() -> None:
    body = "ld.global.u32 %r10, [%rd4];\nmov.b32 {%rs1, %rs2}, %r10;\nmov.b32 %r11, {%rs2, %rs1};\n"
    body += "mov.b64 %rd7, {%r11, %r10};\nst.global.u64 [%rd6], %rd7;"
    assert int(results(body, [0x12345678], wide=True)[0]) == 0x1234567856781234


@CHECKED
@given(FLOATS, FLOATS, FLOATS)
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_fma_add_and_sub_in_one_direction(mode: str, a: list[int], b: list[int], c: list[int]) -> None:
    one = 0x3F800000
    body = load(3) + f"fma.{mode}.f32 %f4, %f0, %f1, %f2;\nst.global.f32 [%rd6], %f4;"
    rows = list(zip(a, b, c, strict=True))
    assert hexes(results(body, a, b, c)) == hexes([fma(x, y, z, FP32, mode) for x, y, z in rows])
    body = load(2) + f"add.{mode}.f32 %f4, %f0, %f1;\nst.global.f32 [%rd6], %f4;"
    assert hexes(results(body, a, b)) == hexes([fma(x, one, y, FP32, mode) for x, y, _ in rows])
    body = load(2) + f"mul.{mode}.f32 %f4, %f0, %f1;\nst.global.f32 [%rd6], %f4;"
    zero = [(x ^ y) & SIGN for x, y, _ in rows]  # which does not change the sign of a product that is zero
    want = [fma(x, y, z, FP32, mode) for (x, y, _), z in zip(rows, zero, strict=True)]
    assert hexes(results(body, a, b)) == hexes(want)


def test_fma_where_the_registers_are_declared_as_bits() -> None:
    """As in inline assembly: what they hold is FP32 all the same."""
    body = "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd4];\nfma.rn.f32 %r14, %r10, %r11, %r12;\n"
    body += "add.f32 %r14, %r14, %r12;\nst.global.b32 [%rd6], %r14;"
    columns = [list(np.array([v], np.float32).view(np.uint32)) for v in (3, 5, 0.5)]
    assert results(body, *columns).view(np.float32) == 16


DOUBLES = st.floats(allow_nan=False, allow_infinity=False, width=64)


@CHECKED
@given(st.lists(st.tuples(DOUBLES, DOUBLES, DOUBLES), min_size=8, max_size=8), st.integers(0, 52))
def test_fma64_rounds_once(rows: list[tuple[float, float, float]], shift: int) -> None:
    # Sums that cancel to what the product lost, too.
    rows += [(x, y, -(x * y)) for x, y, _ in rows] + [(x, 1 + 2.0**-shift, -x) for x, _, _ in rows]
    x, y, z = (np.array(column) for column in zip(*rows, strict=True))
    with np.errstate(all="ignore"):
        finite = np.isfinite(z)
        found = fma64(x[finite], y[finite], z[finite])
    for a, b, c, got in zip(x[finite], y[finite], z[finite], found, strict=True):
        total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        try:
            want = float(total)
        except OverflowError:
            want = math.inf if total > 0 else -math.inf
        assert float(got) == want


def test_fma64_in_a_kernel() -> None:
    body = "ld.global.v2.f64 {%fd1, %fd2}, [%rd4];\nneg.f64 %fd3, %fd2;\n"
    body += "fma.rn.f64 %fd4, %fd1, %fd1, %fd3;\nst.global.f64 [%rd6], %fd4;"
    x = 1 + 2.0**-30
    pair = np.array([x, x * x]).view(np.uint32)  # the square is short of 2⁻⁶⁰
    assert results(body, *([int(w)] for w in pair), wide=True).view(np.float64) == 2.0**-60

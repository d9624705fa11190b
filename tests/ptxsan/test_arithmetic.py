"""Fused multiply-adds to the bit, through PTX, against fractions; moves, narrow loads and pairs.

What every instruction gives is compared with a GPU's in tests/test_instructions.py: here are the operands
that chance does not bring."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptxsan
from ptxsan.rounding import fma64
from tests.ptxsan import rig
from tests.ptxsan.exact import BF16, CANONICAL, FP16, FP32, Format, fma, pattern, value
from tests.ptxsan.rig import Array, results

EDGES32: tuple[int, ...] = (0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000)
EDGES32 += (0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFC12345, 0x33800000)
EDGES32 += (0x3F800001, 0x3F801000, 0x3F803000, 0xBF801000, 0x7F7FF000)
EDGES16: tuple[int, ...] = (0, 0x8000, 1, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00)
EDGES16 += (0x7E00, 0x3C01, 0x1400)


def words(edges: tuple[int, ...], bits: int) -> st.SearchStrategy[list[int]]:
    """Patterns for 32 lanes: edges, any bits, and values of like exponents, where sums cancel and tie."""
    near = st.integers(0, 255).map(lambda low: (0x3F800000 | low) if bits == 32 else (0x3C00 | low))
    one = st.one_of(st.sampled_from(edges), st.integers(0, (1 << bits) - 1), near)
    return st.lists(one, min_size=32, max_size=32)


FLOATS, HALVES = words(EDGES32, 32), words(EDGES16, 16)
SIGN = 0x80000000
CHECKED = settings(max_examples=25, deadline=None, derandomize=True)


def single(bits: int) -> float:
    return float(value(bits, FP32))


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
@given(HALVES, HALVES, HALVES)
@pytest.mark.parametrize(("kind", "form"), [("f16", FP16), ("bf16", BF16)])
def test_narrow_fma_rounds_once(kind: str, form: Format, a: list[int], b: list[int], c: list[int]) -> None:
    body = "".join(f"ld.global.u16 %rs{i}, [%rd4+{4 * i}];\n" for i in range(3))
    body += f"fma.rn.{kind} %rs4, %rs0, %rs1, %rs2;\nst.global.u16 [%rd6], %rs4;"
    want = [fma(x, y, z, form) for x, y, z in zip(a, b, c, strict=True)]
    assert hexes(results(body, a, b, c)) == hexes(want)


@CHECKED
@given(FLOATS)
def test_a_nan_that_is_only_moved_keeps_its_bits(a: list[int]) -> None:
    body = load(1) + "mov.f32 %f3, %f0;\nmul.f32 %f5, %f0, %f0;\nst.global.f32 [%rd6], %f3;"
    assert hexes(results(body, a)) == hexes(a)


def test_narrow_loads_fill_by_sign_or_zeros() -> None:
    body = "ld.global.s8 %r10, [%rd4+1];\nld.global.u16 %r11, [%rd4];\nshl.b32 %r11, %r11, 8;\n"
    body += "xor.b32 %r12, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    assert hexes(results(body, [0x8080])) == hexes([0xFFFFFF80 ^ 0x808000])


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


WORDS = np.r_[[0, 1, 0x80000000, 0xFFFFFFFF], np.random.default_rng(2).integers(0, 2**32, 60)].astype(
    np.uint32
)


def signed(v: int, bits: int) -> int:
    return v - (1 << bits) if v >> (bits - 1) & 1 else v


def four(code: str, column: Array) -> list[int]:
    body = "ld.global.u32 %r10, [%rd4];\n" + code + "st.global.u32 [%rd6], %r14;"
    return [int(v) for v in results(body, column)]


def test_bytes_are_extended_as_they_are_loaded() -> None:
    code = "ld.global.{} %rs1, [%rd4+1];\ncvt.{}.{} %r14, %rs1;\n"
    of = [int(w) >> 8 & 0xFF for w in WORDS]
    assert four(code.format("s8", "s32", "s16"), WORDS) == [signed(b, 8) & 0xFFFFFFFF for b in of]
    assert four(code.format("u8", "u32", "u16"), WORDS) == of
    straight = "ld.global.s8 %r14, [%rd4+1];\n"
    assert four(straight, WORDS) == [signed(b, 8) & 0xFFFFFFFF for b in of]


def test_vectors_of_bytes_and_of_halves() -> None:
    code = "ld.global.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [%rd4];\n"
    code += "".join(f"cvt.u32.u16 %r1{i}, %rs{i};\n" for i in (1, 2, 3, 4))
    shift = "shl.b32 %r11, %r11, 24;\nshl.b32 %r12, %r12, 16;\nshl.b32 %r13, %r13, 8;\n"
    join = "or.b32 %r14, %r14, %r11;\nor.b32 %r14, %r14, %r12;\nor.b32 %r14, %r14, %r13;\n"
    assert four(code + shift + join, WORDS) == [
        int.from_bytes(int(w).to_bytes(4, "big"), "little") for w in WORDS
    ]
    code = "ld.global.v2.s16 {%rs1, %rs2}, [%rd4];\nmul.wide.s16 %r14, %rs1, %rs2;\n"
    want = [signed(w & 0xFFFF, 16) * signed(w >> 16, 16) & 0xFFFFFFFF for w in map(int, WORDS)]
    assert four(code, WORDS) == want


PAIRS = [np.array(v, np.float16).view(np.uint32) for v in ([1, 5, -2, 0], [2, 5, -3, np.nan])]


def test_a_pair_that_all_lanes_share_with_pairs_of_their_own() -> None:
    body = "ld.global.u32 %r10, [%rd4];\nmov.b32 %r11, 1006632960;\n"  # (0, 1)
    body += "fma.rn.f16x2 %r12, %r10, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    found = np.ascontiguousarray(results(body, PAIRS[0])).view(np.float16)
    assert list(found) == [1, 26, 4, 1]


DIVIDED = (0, 1, -1, 2, -2, 3, 7, -7, 16, 17, 641, 2**16 - 1, 2**30, 2**31 - 1, -(2**31), -(2**31) + 1)


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_quotients_are_cut_and_remainders_have_the_sign_of_the_dividend(kind: str) -> None:
    """Of all but those by zero and of the least number by −1, which are undefined in C."""
    bits = int(kind[1:])
    pairs = [(a, b) for a, b in itertools.product(DIVIDED, repeat=2) if b and (a, b) != (-(2**31), -1)]
    if kind[0] == "u":
        pairs = [(a % 2**bits, b % 2**bits) for a, b in pairs]
    words = np.array([[v % 2**bits & 0xFFFFFFFF, v % 2**bits >> 32] for pair in pairs for v in pair])
    register = "r1" if bits == 32 else "rd1"
    body = f"ld.global.b{bits} %{register}0, [%rd4];\nld.global.b{bits} %{register}1, [%rd4+8];\n"
    for base in ("div", "rem"):
        code = f"{base}.{kind} %{register}2, %{register}0, %{register}1;\n"
        code += f"st.global.b{bits} [%rd6], %{register}2;"
        found = results(body + code, *words.reshape(-1, 4).T, wide=True)
        quotients = [math.trunc(Fraction(a, b)) for a, b in pairs]
        want = quotients if base == "div" else [a - b * q for (a, b), q in zip(pairs, quotients, strict=True)]
        assert [int(v) % 2**bits for v in found] == [w % 2**bits for w in want]


BY_ZERO = """
extern "C" __global__ void by_zero(const {T}* a, {T}* out, const {T}* b, int chosen)
{{
    const int x = threadIdx.x;
    if (x < 5) {{
        const {T} q = a[x] / b[x];
        out[x] = chosen && b[x] == 0 ? 0 : q;
        out[8 + x] = a[x] % b[x];
    }}
}}
"""


@pytest.mark.parametrize("name", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_a_division_by_zero_gives_what_an_h100_gives_and_is_noted(name: str) -> None:
    """Of 64 bits nvcc divides 32 where both numbers have no more: then the 32 ones of these."""
    dtype, short = np.dtype(name), {"int16": "short", "uint16": "unsigned short"}
    c = short.get(name, {"int32": "int", "uint32": "unsigned", "int64": "long long"}.get(name, "size_t"))
    a = np.array([0, 7, 9, np.iinfo(dtype).max, 11, 3, 3, 3], dtype)
    given = (a, ptxsan.Empty(16, dtype), np.array([0, 0, 2, 0, 0, 0, 0, 0], dtype), 0)
    result = ptxsan.run(BY_ZERO.format(T=c), grid=1, block=8, arguments=given)
    ones = int(np.array(-1).astype(dtype))
    few = 2**32 - 1 if dtype.itemsize == 8 else ones
    assert result.arrays[1][:5].tolist() == [few, few, 4, ones, few]
    assert result.arrays[1][8:13].tolist() == [few, few, 1, ones, few]
    assert not result.hazards
    said = "thread (0, 0, 0) of block (0, 0, 0) divides by 0"
    assert any(said in note.message for note in result.notes)
    twos = (a, ptxsan.Empty(16, dtype), np.full(8, 2, dtype), 0)
    assert not ptxsan.run(BY_ZERO.format(T=c), grid=1, block=8, arguments=twos).notes


@pytest.mark.parametrize("words", ["", "rn", "rz.ftz", "rm", "rp.ftz"])
@pytest.mark.parametrize("base", ["add", "sub", "mul", "fma"])
def test_two_fp32_in_a_register_are_as_one_each(base: str, words: str) -> None:
    if base == "fma" and not words:
        words = "rn"
    op = ".".join(filter(None, (base, words)))
    rows = list(itertools.product(EDGES32, repeat=2))
    a, b = ([row[i] for row in rows] for i in (0, 1))
    third = ", %rd8" if base == "fma" else ""
    body = "ld.global.v2.b64 {%rd7, %rd8}, [%rd4];\n"
    body += f"{op}.f32x2 %rd9, %rd7, %rd8{third};\nst.global.b64 [%rd6], %rd9;"
    both = results(body, a, b, b, a, wide=True)
    one = load(2) + f"{op}.f32 %f4, %f0, %f1{', %f1' if third else ''};\nst.global.f32 [%rd6], %f4;"
    assert hexes(both & 0xFFFFFFFF) == hexes(results(one, a, b))
    assert hexes(both >> np.uint64(32)) == hexes(results(one, b, a))


SMALL = [0, -0.0, 0.0625, 0.1875, -0.25, 0.25, 0.3, 0.75, 1, 1.0625, 1.25, -1.75, 2.5, 3.5, 5, 5.1, -6]
SMALL += [7.25, 7.75, 0.03125, 27, 28, 30, -1e9, math.inf, math.nan]


# OCP MX formats: without infinity and NaN, which become the largest number.
TINY = {"e3m2": ml_dtypes.float6_e3m2fn, "e2m3": ml_dtypes.float6_e2m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("kind", TINY)
def test_floats_of_6_and_4_bits_there_and_back(kind: str) -> None:
    def nearest(x: Array) -> Array:
        return np.where(np.isnan(x), np.inf, x).astype(TINY[kind]).view(np.uint8)

    register, bits = ("%b1", 4) if kind == "e2m1" else ("%rs1", 8)
    body = ".reg .b8 %b1;\nld.global.v2.f32 {%f1, %f2}, [%rd4];\n"
    body += f"cvt.rn.satfinite.{kind}x2.f32 {register}, %f1, %f2;\n"
    small = np.array(SMALL, np.float32)
    columns = np.ones_like(small).view(np.uint32), small.view(np.uint32)
    store = f"cvt.u32.u{2 * bits} %r10, {register};\nst.global.u32 [%rd6], %r10;"
    got = results(body + store, *columns)
    assert hexes(got & (1 << bits) - 1) == hexes(nearest(small))
    assert set((got >> bits).tolist()) == {int(nearest(np.ones(1))[0])}
    back = body + f"cvt.rn.f16x2.{kind}x2 %r10, {register};\nst.global.u32 [%rd6], %r10;"
    halves = np.ascontiguousarray(results(back, *columns)).view(np.float16).reshape(-1, 2)
    assert (halves[:, 1] == 1).all()
    assert hexes(nearest(halves[:, 0])) == hexes(nearest(small))
    got = results(body.replace("satfinite.", "satfinite.relu.") + store, *columns) & (1 << bits) - 1
    assert hexes(got[2:]) == hexes(nearest(np.where(small < 0, 0, small))[2:])


@pytest.mark.parametrize(
    ("mode", "want"),
    [("rz", [127, 127, 128, 0, 0, 0, 1, 254, 254, 255]), ("rp", [127, 128, 128, 0, 0, 1, 1, 254, 254, 255])],
)
def test_scales_are_powers_of_two(mode: str, want: list[int]) -> None:
    """ue8m0: of 2⁻¹²⁷ the code is 0, of NaN 255; no more than 2¹²⁷."""
    x = np.array([1, 1.5, -2, 0, 2.0**-127, 1.5 * 2.0**-127, 2.0**-126, 3e38, np.inf, np.nan], np.float32)
    body = f"ld.global.v2.f32 {{%f1, %f2}}, [%rd4];\ncvt.{mode}.satfinite.ue8m0x2.f32 %rs1, %f1, %f2;\n"
    columns = np.full(len(x), 0x40000000, np.uint32), x.view(np.uint32)
    got = results(body + "st.global.u16 [%rd6], %rs1;", *columns)
    assert (got & 0xFF).tolist() == want
    assert set((got >> 8).tolist()) == {128}
    got = results(body.replace(".satfinite", "") + "st.global.u16 [%rd6], %rs1;", *columns)
    assert (got & 0xFF).tolist() == [*want[:7], 254 + (mode == "rp"), 255, 255]
    got = results(body + "cvt.rn.bf16x2.ue8m0x2 %r10, %rs1;\nst.global.u32 [%rd6], %r10;", *columns)
    bf16 = ((got & 0xFFFF) << 16).view(np.float32)
    assert bf16[:-1].tolist() == [2.0 ** (code - 127) for code in want[:-1]]
    assert np.isnan(bf16[-1])


@pytest.mark.parametrize(
    ("op", "operands", "gives"),
    [
        ("mul.rn.ftz.f32", [0xBF7FFFFF, 0x80800000], 0),
        ("mul.rn.ftz.f32", [0x3F7FFFFF, 0x00800000], 0),
        ("mul.rn.f32", [0x3F7FFFFF, 0x00800000], 0x00800000),
        ("div.rm.ftz.f32", [0x00800000, 0xBF800001], 0x80000000),
        ("mul.rn.ftz.f16x2", [0xB9E78400, 0x3DF13BFF], 0xBC628000),
        ("mul.rn.ftz.sat.f16x2", [0x0860BBFF, 0x28468400], 0),
        ("fma.rn.ftz.f16x2", [0xB97CBBFF, 0xB6EB0400, 0xBC0003FF], 0xB9A18000),
        # Just below the smallest normal number, to which it rounds with any exponent: it stays.
        ("fma.rm.ftz.f32", [0x17800000, 0x17800000, 0x80800000], 0x80800000),
        # NaN
        *((f"cvt.rzi.{to}.f64", [0x7FF8000000000000], 0x80000000) for to in ("s32", "u32")),
        ("cvt.rn.f32.f64", [0x7FF8000000000001], 0x7FC00000),
        ("cvt.rz.f32.f64", [0xFFF0000000000001], 0xFFC00000),
        ("cvt.rn.ftz.f32.f64", [0xFFFFFFFFFFFFFFFF], 0xFFFFFFFF),
        ("cvt.rn.f16.f64", [0xFFF0000000000001], 0xFE00),
        ("cvt.rz.f16.f64", [0x7FF8000000000000], 0x7E00),
        ("cvt.ftz.f32.f32", [0xFF800001], 0x7FFFFFFF),
        ("cvt.rna.tf32.f32", [0xFFFFFFFF], 0xFFFFE000),
        ("cvt.rna.tf32.f32", [0xFF800001], 0xFF800000),
        ("cvt.rna.satfinite.tf32.f32", [0x7FBFFFFF], 0x7FBFC000),
        ("cvt.rna.satfinite.tf32.f32", [0x7F800000], 0x7F7FE000),
        ("cvt.rn.tf32.f32", [0xFF800001], 0x7FFFE000),
        ("cvt.rz.tf32.f32", [0x7FC00000], 0x7FFFE000),
        ("cvt.rn.relu.tf32.f32", [0xFFFFFFFF], 0x7FFFE000),
    ],
)
def test_bits_that_the_isa_leaves_open(op: str, operands: list[int], gives: int) -> None:
    """Operands and results of an H200: what would be normal only with more exponents is flushed; the patterns
    of NaN."""
    sort, kind = ("fd", "f64") if op.endswith("f64") else ("r", "u32") if "f16x2" in op else ("f", "f32")
    to = "rs" if ".f16." in op else "r" if re.search(r"f16x2|\.[su]32|tf32", op) else "f"
    store, names = (
        {"rs": "u16", "r": "u32", "f": "f32"}[to],
        [f"%{sort}{1 + i}" for i in range(len(operands))],
    )
    body = "".join(f"ld.global.{kind} {name}, [%rd4+{4 * i}];\n" for i, name in enumerate(names))
    body += f"{op} %{to}9, {', '.join(names)};\nst.global.{store} [%rd6], %{to}9;"
    words = [word for v in operands for word in ([v & 0xFFFFFFFF, v >> 32] if sort == "fd" else [v])]
    assert hex(results(body, *([word] for word in words))[0]) == hex(gives)


@pytest.mark.parametrize(
    ("op", "exact", "relative", "absolute"),
    [
        ("ex2.approx.f32", np.exp2, 2.0**-22, 0),
        ("rcp.approx.ftz.f32", lambda v: 1 / v, 2.0**-23, 0),
        ("rsqrt.approx.f32", lambda v: 1 / np.sqrt(v), 2.0**-22.9, 0),
        ("sin.approx.f32", np.sin, 0, 2.0**-20.5),
        ("lg2.approx.f32", np.log2, 2.0**-22, 2.0**-22),
        ("tanh.approx.f32", np.tanh, 2.0**-11, 0),
    ],
)
def test_approximate_results_that_are_off_by_their_bounds(
    op: str, exact: Any, relative: float, absolute: float
) -> None:
    """Up or down, the same for a seed; as near as FP32 allows where nobody asks."""
    x = np.linspace(0.5, 2, 256, dtype=np.float32)
    body = "mul.wide.u32 %rd1, %r1, 4; add.s64 %rd2, %rd11, %rd1; ld.global.f32 %f1, [%rd2];"
    body += f"{op} %f2, %f1; add.s64 %rd3, %rd10, %rd1; st.global.f32 [%rd3], %f2;"
    text = rig.program(body, 1)

    def run(inexact: int | None) -> Any:
        result = ptxsan.run(text, grid=1, block=256, arguments=[np.zeros_like(x), x], inexact=inexact)
        assert result.clean
        return result.arrays[0].astype(np.float64)

    want = exact(x.astype(np.float64))
    bound = np.maximum(np.abs(want) * relative, absolute)
    rounding = (np.abs(want) + bound) * 2.0**-24
    assert (np.abs(run(None) - want) <= rounding).all()
    off = run(5) - want
    assert (np.abs(off) <= bound * (1 + 2.0**-20)).all()
    assert ((np.abs(off) >= bound - 2 * rounding) | (want == 0)).all()
    assert (off > 0).any()
    assert (off < 0).any()
    assert (run(5) == want + off).all()
    assert (run(6) != want + off).any()

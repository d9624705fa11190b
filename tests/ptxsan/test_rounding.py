"""Rounding in every direction, of every type, against fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest

from ptxsan.rounding.modifiers import directed64
from tests.ptxsan.exact import BF16, FP16, FP32, Format, fma, pattern, value
from tests.ptxsan.rig import Array, results

FP64 = Format(53, -1022, 1023, 64)
MODES = ("rn", "rz", "rm", "rp")
RANDOM = np.random.default_rng(3)
SINGLES = np.r_[
    np.array(
        [0, -0.0, 1, -1, 3, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38, 1.1754942e-38], np.float32
    ),
    (RANDOM.standard_normal(60) * 2.0 ** RANDOM.integers(-140, 120, 60)).astype(np.float32),
    RANDOM.standard_normal(40).astype(np.float32),
].view(np.uint32)
PARTNERS = np.roll(SINGLES, 17)
DOUBLES = [
    *(0.0, -0.0, 1.0, -1.0, 3.0, 5e-324, -5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 2.0**-60),
    *(RANDOM.standard_normal(60) * 2.0 ** RANDOM.integers(-60, 60, 60)).tolist(),
]


def hexes(found: Iterable[int | None]) -> list[str]:
    return [f"{int(bits):#x}" for bits in found if bits is not None]


def quotient(a: int, b: int, mode: str, form: Format = FP32) -> int | None:
    """a / b of finite operands, not by 0; None for others."""
    x, y = value(a, form), value(b, form)
    if any(isinstance(v, float) and not math.isfinite(v) for v in (x, y)) or not y:
        return None
    negative = bool((a ^ b) >> (form.bits - 1))
    return pattern(Fraction(x) / Fraction(y), form, mode, negative_zero=negative)


def same_where_known(found: Array, want: list[int | None]) -> None:
    kept = [i for i, w in enumerate(want) if w is not None]
    assert len(kept) > 40
    assert hexes(found[kept]) == hexes([want[i] for i in kept])


@pytest.mark.parametrize("mode", MODES)
def test_quotients_of_fp32(mode: str) -> None:
    body = "ld.global.v2.f32 {%f1, %f2}, [%rd4];\n"
    got = results(body + f"div.{mode}.f32 %f3, %f1, %f2;\nst.global.f32 [%rd6], %f3;", SINGLES, PARTNERS)
    rows = zip(SINGLES.tolist(), PARTNERS.tolist(), strict=True)
    same_where_known(got, [quotient(a, b, mode) for a, b in rows])
    got = results(body + f"rcp.{mode}.f32 %f3, %f1;\nst.global.f32 [%rd6], %f3;", SINGLES, PARTNERS)
    same_where_known(got, [quotient(0x3F800000, a, mode) for a in SINGLES.tolist()])


@pytest.mark.parametrize("mode", MODES)
def test_roots_of_fp32(mode: str) -> None:
    """The nearest pattern on the side that the mode asks for, by squares."""
    x = np.abs(SINGLES.view(np.float32))
    x = x[np.isfinite(x) & (x > 0)]
    body = f"ld.global.f32 %f1, [%rd4];\nsqrt.{mode}.f32 %f3, %f1;\nst.global.f32 [%rd6], %f3;"
    for v, r in zip(x, results(body, x.view(np.uint32)).view(np.float32), strict=True):
        exact, below, above = (
            Fraction(float(v)),
            *(Fraction(float(np.nextafter(r, np.float32(way)))) for way in (-np.inf, np.inf)),
        )
        root = Fraction(float(r))
        if mode == "rp":
            assert below**2 < exact <= root**2
        elif mode == "rn":
            assert ((root + below) / 2) ** 2 < exact < ((root + above) / 2) ** 2
        else:
            assert root**2 <= exact < above**2


def exactly(name: str, mode: str, a: int, b: int = 0, c: int = 0) -> int | None:
    """Of patterns of float64; None where it is not finite."""
    one, minus = 0x3FF0000000000000, 0x8000000000000000
    if name in ("div", "rcp"):
        return quotient(a, b, mode, FP64) if name == "div" else quotient(one, a, mode, FP64)
    x, y, z = {
        "add": (a, one, b),
        "sub": (a, one, b ^ minus),
        "mul": (a, b, (a ^ b) & minus),
        "fma": (a, b, c),
    }[name]
    return fma(x, y, z, FP64, mode)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "div", "rcp"])
def test_float64_in_one_direction(name: str, mode: str) -> None:
    count = {"fma": 3, "rcp": 1}.get(name, 2)
    columns = [np.roll(np.array(DOUBLES), 7 * i) for i in range(count)]
    if count == 2:
        rows = np.array(list(itertools.product(DOUBLES[:16], repeat=2)))
        columns = [np.r_[column, rows[:, i]] for i, column in enumerate(columns)]
    got = directed64(name, mode)(*columns).view(np.uint64)
    rows_of = zip(*(c.view(np.uint64).tolist() for c in columns), strict=True)
    want = [exactly(name, mode, *operands) for operands in rows_of]
    same_where_known(got, want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_roots_of_float64_in_one_direction(mode: str) -> None:
    x = np.abs(np.array(DOUBLES)[2:])
    for v, r in zip(x.tolist(), directed64("sqrt", mode)(x).tolist(), strict=True):
        low, high = (r, math.nextafter(r, math.inf)) if mode != "rp" else (math.nextafter(r, -math.inf), r)
        assert Fraction(low) ** 2 <= Fraction(v) <= Fraction(high) ** 2
        assert Fraction(r) ** 2 == v or Fraction(low) ** 2 < v < Fraction(high) ** 2


def test_float64_arithmetic_in_a_kernel() -> None:
    body = "ld.global.v2.f64 {%fd1, %fd2}, [%rd4];\n"
    pair = [[int(w)] for w in np.array([1.0, 3.0]).view(np.uint32)]
    for op, want in (
        ("div.rp", 0x3FD5555555555556),
        ("div.rz", 0x3FD5555555555555),
        ("mul.rm", 0x4008000000000000),
    ):
        code = f"{op}.f64 %fd3, %fd1, %fd2;\nst.global.f64 [%rd6], %fd3;"
        assert hexes(results(body + code, *pair, wide=True)) == hexes([want])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "form"), [("f16", FP16), ("bf16", BF16)])
def test_fp32_to_a_narrow_float(kind: str, form: Format, mode: str) -> None:
    body = f"ld.global.f32 %f1, [%rd4];\ncvt.{mode}.{kind}.f32 %rs1, %f1;\nst.global.u16 [%rd6], %rs1;"
    assert hexes(results(body, SINGLES)) == hexes(
        [pattern(value(x, FP32), form, mode) for x in SINGLES.tolist()]
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "form"), [("f16", FP16), ("bf16", BF16), ("f32", FP32)])
def test_integers_of_64_bits_to_floats_round_once(kind: str, form: Format, mode: str) -> None:
    numbers = [
        0,
        1,
        2049,
        2**24 + 1,
        (1 << 62) + 1,
        (1 << 63) - 1,
        (0x101 << 54) + 1,
        (0x1008 << 50) + 1,
        65519,
        65520,
    ]
    columns = [[n & 0xFFFFFFFF for n in numbers], [n >> 32 for n in numbers]]
    stored, register = ("f32", "%f1") if kind == "f32" else ("u16", "%rs1")
    body = f"ld.global.u64 %rd7, [%rd4];\ncvt.{mode}.{kind}.u64 {register}, %rd7;\n"
    body += f"st.global.{stored} [%rd6], {register};"
    assert hexes(results(body, *columns)) == hexes([pattern(Fraction(n), form, mode) for n in numbers])


TO_WHOLE: dict[str, Callable[[float], int]] = {
    "rni": round,
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
}


@pytest.mark.parametrize("mode", TO_WHOLE)
def test_whole_numbers_in_a_float(mode: str) -> None:
    x = np.array([0.5, -0.5, 1.5, -2.5, 2.75, -0.0, 1e30, -7.2], np.float32)
    body = f"ld.global.f32 %f1, [%rd4];\ncvt.{mode}.f32.f32 %f3, %f1;\nst.global.f32 [%rd6], %f3;"
    got = results(body, x.view(np.uint32)).view(np.float32)
    assert list(got) == [TO_WHOLE[mode](float(v)) for v in x]
    assert np.signbit(got[5])


def test_tf32_to_nearest_even_and_toward_zero() -> None:
    x = np.array([0x3F801000, 0x3F803000, 0xBF801001, 0x3F800FFF, 0x7F7FFFFF], np.uint32)
    body = "ld.global.f32 %f1, [%rd4];\ncvt.{}.tf32.f32 %r10, %f1;\nst.global.u32 [%rd6], %r10;"
    even = [0x3F800000, 0x3F804000, 0xBF802000, 0x3F800000, 0x7F800000]
    assert hexes(results(body.format("rn"), x)) == hexes(even)
    assert hexes(results(body.format("rz"), x)) == hexes([v & 0xFFFFE000 for v in x.tolist()])
    assert hexes(results(body.format("rna.satfinite"), x)[4:]) == hexes([0x7F7FE000])


EIGHTS = np.array(
    [0, -0.0, 1, 1.0625, 1.1875, -1.1875, 448, 464, 465, 1e9, -1e9, 2**-9, 2**-10, np.nan], np.float32
)


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("e4m3x2", [0, 0x80, 0x38, 0x38, 0x3A, 0xBA, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 1, 0, 0x7F]),
        ("e5m2x2", [0, 0x80, 0x3C, 0x3C, 0x3D, 0xBD, 0x5F, 0x5F, 0x5F, 0x7B, 0xFB, 0x18, 0x14, 0x7F]),
    ],
)
def test_floats_of_8_bits_there_and_back(kind: str, want: list[int]) -> None:
    body = f"ld.global.v2.f32 {{%f1, %f2}}, [%rd4];\ncvt.rn.satfinite.{kind}.f32 %rs1, %f1, %f2;\n"
    upper = np.ones(len(EIGHTS), np.float32)
    got = results(body + "st.global.u16 [%rd6], %rs1;", upper.view(np.uint32), EIGHTS.view(np.uint32))
    assert hexes(got & 0xFF) == hexes(want)
    assert set((got >> 8).tolist()) == {0x38 if kind == "e4m3x2" else 0x3C}
    back = body + f"cvt.rn.f16x2.{kind} %r10, %rs1;\nst.global.u32 [%rd6], %r10;"
    found = results(back, upper.view(np.uint32), EIGHTS.view(np.uint32))
    halves = np.ascontiguousarray(found).view(np.float16).reshape(-1, 2)
    assert list(halves[:, 1]) == [1] * len(EIGHTS)
    assert list(halves[2:7, 0]) == [1, 1, 1.25, -1.25, 448]


def test_pairs_with_relu_and_integers_that_are_packed() -> None:
    body = "ld.global.v2.f32 {%f1, %f2}, [%rd4];\ncvt.rn.relu.bf16x2.f32 %r10, %f1, %f2;\n"
    body += "st.global.u32 [%rd6], %r10;"
    columns = [np.array(v, np.float32).view(np.uint32) for v in ([-1.0, 2.0], [3.0, -0.0])]
    assert hexes(results(body, *columns)) == hexes([0x00004040, 0x40000000])
    body = "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];\n"
    body += "cvt.pack.sat.s8.s32.b32 %r14, %r10, %r11, %r12;\nst.global.u32 [%rd6], %r14;"
    words = [np.array([v & 0xFFFFFFFF], np.uint32) for v in (300, -5, 0x1234)]
    assert hexes(results(body, *words)) == hexes([0x12347FFB])

"""Functions of FP32: rounded ones against fractions, approximate ones within the error of the PTX ISA."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.ptxsan.rig import Array, results

EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 0.5, 3e-39],
    np.float32,
)
RANDOM = np.random.default_rng(1)
SPREAD = (RANDOM.standard_normal(500) * 2.0 ** RANDOM.integers(-100, 100, 500)).astype(np.float32)
NEAR = (RANDOM.standard_normal(500) * 4).astype(np.float32)
NAN = 0x7FFFFFFF


def f32(values: Sequence[float]) -> Array:
    return np.array(values, np.float32)


def of_one(op: str, x: Array) -> Array:
    body = f"ld.global.f32 %f1, [%rd4];\n{op} %f2, %f1;\nst.global.f32 [%rd6], %f2;"
    return results(body, x.view(np.uint32)).view(np.float32)


def of_two(op: str, x: Array, y: Array) -> Array:
    body = "ld.global.v2.f32 {%f1, %f2}, [%rd4];\n"
    body += f"{op} %f3, %f1, %f2;\nst.global.f32 [%rd6], %f3;"
    return results(body, x.view(np.uint32), y.view(np.uint32)).view(np.float32)


def math_of(function: Callable[[float], float], x: Array) -> Array:
    """In Python's own math, by element; NaN outside its domain."""

    def one(v: float) -> float:
        try:
            return function(v)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return np.array([one(float(v)) for v in x])


# Relative and absolute error of the PTX ISA, §9.7.3.
BOUNDS: dict[str, tuple[Callable[[float], float], float, float]] = {
    "ex2.approx.f32": (lambda v: 2.0**v, 2**-22, 2**-149),
    "lg2.approx.f32": (lambda v: math.log2(v) if v else -math.inf, 2**-22, 2**-22),
    "tanh.approx.f32": (math.tanh, 2**-11, 0),
    "sin.approx.f32": (math.sin, 0, 2**-20.5),
    "cos.approx.f32": (math.cos, 0, 2**-20.5),
    "sqrt.approx.f32": (math.sqrt, 2**-23, 0),
    "rsqrt.approx.f32": (lambda v: 1 / math.sqrt(v), 2**-22.9, 0),
    "rcp.approx.f32": (lambda v: 1 / v, 2**-23, 2**-149),
}


@pytest.mark.parametrize("op", BOUNDS)
def test_an_approximation_is_within_its_error(op: str) -> None:
    function, relative, absolute = BOUNDS[op]
    x = (
        np.r_[NEAR, np.abs(NEAR), SPREAD]
        if op[:3] not in ("sin", "cos")
        else np.tile(NEAR, 2)[np.tile(np.abs(NEAR), 2) < math.pi]
    )
    got, want = of_one(op, x), math_of(function, x)
    good = np.isfinite(want) & (np.abs(want) < 3.4e38)
    assert good.sum() > 400
    got, want = got[good], want[good]
    bound = relative * np.abs(want) + absolute
    assert (np.abs(got.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize(
    ("op", "want"),
    [
        # Of 0, −0, 1, −1, ∞, −∞, NaN: the tables of the PTX ISA.
        ("ex2.approx.ftz.f32", [1, 1, 2, 0.5, np.inf, 0, np.nan]),
        ("lg2.approx.ftz.f32", [-np.inf, -np.inf, 0, np.nan, np.inf, np.nan, np.nan]),
        ("rcp.approx.ftz.f32", [np.inf, -np.inf, 1, -1, 0, -0.0, np.nan]),
        ("rcp.rn.f32", [np.inf, -np.inf, 1, -1, 0, -0.0, np.nan]),
        ("sqrt.approx.ftz.f32", [0, -0.0, 1, np.nan, np.inf, np.nan, np.nan]),
        ("sqrt.rn.f32", [0, -0.0, 1, np.nan, np.inf, np.nan, np.nan]),
        ("rsqrt.approx.ftz.f32", [np.inf, -np.inf, 1, np.nan, 0, np.nan, np.nan]),
        ("tanh.approx.f32", [0, -0.0, np.float32(math.tanh(1)), np.float32(math.tanh(-1)), 1, -1, np.nan]),
        ("abs.f32", [0, 0, 1, 1, np.inf, np.inf, np.nan]),
        ("neg.f32", [-0.0, 0, -1, 1, -np.inf, np.inf, np.nan]),
    ],
)
def test_special_values(op: str, want: list[float]) -> None:
    got, expected = of_one(op, EDGES[:7]), np.array(want, np.float32)
    assert np.array_equal(got, expected, equal_nan=True)
    assert list(np.signbit(got[:6])) == list(np.signbit(expected[:6])) or "nan" in str(expected[:6])


def test_subnormals_are_flushed_with_ftz_only() -> None:
    tiny = EDGES[[7, 8, 9]]
    assert list(of_one("rcp.approx.ftz.f32", tiny[:2])) == [np.inf, -np.inf]
    # 1 / 2⁻¹²⁶ is 2¹²⁶: of the largest subnormal a little more.
    assert list(of_one("rcp.approx.f32", tiny[2:])) == [np.float32(1 / float(tiny[2]))]
    assert list(of_two("add.ftz.f32", tiny, np.zeros(3, np.float32)).view(np.uint32)) == [0, 0, 0]
    assert list(of_two("add.f32", tiny, np.zeros(3, np.float32))) == list(tiny)
    assert list(of_two("mul.ftz.f32", tiny[:2], np.full(2, 2, np.float32)).view(np.uint32)) == [0, 1 << 31]
    # The result too.
    assert of_two("mul.ftz.f32", f32([2.0**-100]), f32([2.0**-30])) == 0
    assert of_two("mul.f32", f32([2.0**-100]), f32([2.0**-30])) == 2.0**-130


def test_saturated_results() -> None:
    x = f32([-1, 0.25, 0.75, np.inf, np.nan, -np.inf])
    got = of_two("add.sat.f32", x, np.full(6, 0.5, np.float32))
    assert list(got) == [0, 0.75, 1, 1, 0, 0]


@pytest.mark.parametrize("op", ["div.rn.f32", "div.full.f32", "div.approx.f32", "div.approx.ftz.f32"])
def test_quotients(op: str) -> None:
    x, y = NEAR, np.where(NEAR[::-1] == 0, np.float32(1), NEAR[::-1])
    exact = x.astype(np.float64) / y.astype(np.float64)
    got = of_two(op, x, y).astype(np.float64)
    assert (np.abs(got - exact) <= np.abs(exact) * (2**-24 if "rn" in op else 2**-22)).all()
    ends = of_two(op, f32([1, -1, 0, np.inf]), f32([0, 0, 0, np.inf]))
    assert list(ends[:2]) == [np.inf, -np.inf]
    assert np.isnan(ends[2:]).all()


@pytest.mark.parametrize("op", ["min", "max"])
def test_the_rules_of_nan(op: str) -> None:
    x, y = f32([np.nan, 1, np.nan, -0.0, 0.0]), f32([1, np.nan, np.nan, 0.0, -0.0])
    got = of_two(f"{op}.f32", x, y)
    assert list(got[:2]) == [1, 1]
    assert got[2:3].view(np.uint32) == NAN
    assert list(np.signbit(got[3:])) == [op == "min"] * 2
    kept = of_two(f"{op}.NaN.f32", x, y)
    assert list(kept[:3].view(np.uint32)) == [NAN] * 3
    halves = f32([np.nan, 1, np.nan, 2])[:, None], f32([1, np.nan, np.nan, 3])[:, None]
    columns = [np.tile(h.astype(np.float16), 2).view(np.uint32).ravel() for h in halves]
    body = "ld.global.v2.u32 {%r10, %r11}, [%rd4];\n"
    body += f"{op}.f16x2 %r12, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    found = np.ascontiguousarray(results(body, *columns)).view(np.float16).reshape(-1, 2)
    assert np.array_equal(found[:, 0], [1, 1, np.nan, 2 if op == "min" else 3], equal_nan=True)
    assert np.array_equal(found[:, 0], found[:, 1], equal_nan=True)


def test_copysign_takes_the_sign_of_the_first() -> None:
    """PTX ISA §9.7.3.4: copysign d, a, b is |b| with the sign of a."""
    x, y = f32([-1, 2, -0.0, np.nan]), f32([3, -4, 5, -6])
    assert list(of_two("copysign.f32", x, y)) == [-3, 4, -5, 6]


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("finite", [1, 1, 0, 0, 1]),
        ("infinite", [0, 0, 1, 0, 0]),
        ("number", [1, 1, 1, 0, 1]),
        ("notanumber", [0, 0, 0, 1, 0]),
        ("normal", [1, 1, 0, 0, 0]),
        ("subnormal", [0, 0, 0, 0, 1]),
    ],
)
def test_testp(mode: str, flags: list[int]) -> None:
    x = f32([0, 1, np.inf, np.nan, 1e-45])
    body = f"ld.global.f32 %f1, [%rd4];\ntestp.{mode}.f32 %p1, %f1;\nselp.u32 %r10, 1, 0, %p1;\n"
    assert list(results(body + "st.global.u32 [%rd6], %r10;", x.view(np.uint32))) == flags


@pytest.mark.parametrize(("kind", "bound"), [("f16", 2**-10.987), ("bf16", 2**-8)])
def test_tanh_of_halves(kind: str, bound: float) -> None:
    x = NEAR[np.abs(NEAR) > 0.01]
    body = f"ld.global.f32 %f1, [%rd4];\ncvt.rn.{kind}.f32 %rs1, %f1;\ncvt.f32.{kind} %f3, %rs1;\n"
    body += (
        f"tanh.approx.{kind} %rs2, %rs1;\ncvt.f32.{kind} %f2, %rs2;\nst.global.v2.f32 [%rd6], {{%f2, %f3}};"
    )
    pairs = results(body, x.view(np.uint32), wide=True).view(np.float32).reshape(-1, 2)
    assert (np.abs(pairs[:, 0] - np.tanh(pairs[:, 1].astype(np.float64))) <= bound).all()


def test_halves_of_both_kinds_to_and_from_memory() -> None:
    """cvt, packed and not, and loads and stores of 16 bits."""
    x = f32([1.0009766, -2.5, 65520, 1e-8, np.nan])
    body = """
    ld.global.v2.f32 {%f1, %f2}, [%rd4];
    cvt.rn.f16x2.f32 %r10, %f1, %f2;
    cvt.rn.bf16.f32 %rs1, %f1;
    st.global.u32 [%rd6], %r10;
    st.global.b16 [%rd6+4], %rs1;
    ld.global.u16 %rs2, [%rd6+4];
    st.global.u16 [%rd6+6], %rs2;
"""
    words = results(body, x.view(np.uint32), (-x).view(np.uint32), wide=True)
    halves = words.view(np.uint16).reshape(-1, 4)
    with np.errstate(over="ignore"):
        # The first source is the upper half.
        assert np.array_equal(halves[:4, 1].view(np.float16), x[:4].astype(np.float16))
        assert np.array_equal(halves[:4, 0].view(np.float16), (-x[:4]).astype(np.float16))
    assert list(halves[4, :2]) == [0x7FFF, 0x7FFF]
    assert list(halves[:, 2]) == [0x3F80, 0xC020, 0x4780, 0x322C, 0x7FFF]
    assert list(halves[:, 3]) == list(halves[:, 2])


def test_conversions_that_clamp() -> None:
    body = "ld.global.s32 %r10, [%rd4];\ncvt.sat.s8.s32 %rs1, %r10;\ncvt.s32.s8 %r11, %rs1;\n"
    found = results(body + "st.global.u32 [%rd6], %r11;", np.array([127, 128, -128, -129, 5], np.int32))
    assert list(found.view(np.int32)) == [127, 127, -128, -128, 5]
    body = "ld.global.f32 %f1, [%rd4];\ncvt.sat.f32.f32 %f2, %f1;\nst.global.f32 [%rd6], %f2;"
    x = f32([-2, 0.5, 3, np.nan])
    assert list(results(body, x.view(np.uint32)).view(np.float32)) == [0, 0.5, 1, 0]
    body = "ld.global.v2.f32 {%f1, %f2}, [%rd4];\ncvt.rn.relu.f16x2.f32 %r10, %f1, %f2;\n"
    body += "st.global.u32 [%rd6], %r10;"
    found = results(body, f32([-1]).view(np.uint32), f32([2]).view(np.uint32))
    assert list(found.view(np.float16)) == [2, 0]


PAIRS = [np.array(v, np.float16).view(np.uint32) for v in ([1, 5, -2, 0], [2, 5, -3, np.nan])]


def test_comparisons_of_pairs_of_halves() -> None:
    body = "ld.global.v2.u32 {%r10, %r11}, [%rd4];\nset.ge.f16x2.f16x2 %r12, %r10, %r11;\n"
    found = results(body + "st.global.u32 [%rd6], %r12;", *PAIRS)
    assert list(np.ascontiguousarray(found).view(np.float16)) == [0, 1, 1, 0]
    body = "ld.global.v2.u32 {%r10, %r11}, [%rd4];\nsetp.ge.f16x2 %p1|%p2, %r10, %r11;\n"
    body += "selp.u32 %r12, 1, 0, %p1;\nselp.u32 %r13, 2, 0, %p2;\nor.b32 %r12, %r12, %r13;\n"
    assert list(results(body + "st.global.u32 [%rd6], %r12;", *PAIRS)) == [2, 1]


def test_set_of_numbers() -> None:
    x, y = f32([1, 2, np.nan]).view(np.uint32), f32([2, 1, 1]).view(np.uint32)
    load = "ld.global.v2.f32 {%f1, %f2}, [%rd4];\n"
    words = results(load + "set.lt.u32.f32 %r10, %f1, %f2;\nst.global.u32 [%rd6], %r10;", x, y)
    assert list(words) == [0xFFFFFFFF, 0, 0]
    ones = results(load + "set.gtu.f32.f32 %f3, %f1, %f2;\nst.global.f32 [%rd6], %f3;", x, y)
    assert list(ones.view(np.float32)) == [0, 1, 1]


def test_comparisons_with_ftz_take_subnormals_for_zero() -> None:
    body = "ld.global.f32 %f1, [%rd4];\nsetp.gt{}.f32 %p1, %f1, 0f00000000;\nselp.u32 %r10, 1, 0, %p1;\n"
    body += "st.global.u32 [%rd6], %r10;"
    tiny = f32([1e-45, 1e-30]).view(np.uint32)
    assert list(results(body.replace("{}", ""), tiny)) == [1, 1]
    assert list(results(body.replace("{}", ".ftz"), tiny)) == [0, 1]


def test_a_pair_that_all_lanes_share_with_pairs_of_their_own() -> None:
    body = "ld.global.u32 %r10, [%rd4];\nmov.b32 %r11, 1006632960;\n"  # (0, 1)
    body += "fma.rn.f16x2 %r12, %r10, %r10, %r11;\nst.global.u32 [%rd6], %r12;"
    found = np.ascontiguousarray(results(body, PAIRS[0])).view(np.float16)
    assert list(found) == [1, 26, 4, 1]


def test_comparisons_that_are_combined_with_a_predicate() -> None:
    body = "ld.global.v2.u32 {%r10, %r11}, [%rd4];\nsetp.eq.u32 %p1, %r1, 3;\n"
    code = "set.lt.xor.u32.f16x2 %r12, %r10, %r11, %p1;\n".replace("u32.f16x2", "f16x2.f16x2")
    ones, twos = ([0x3C003C00] * 4, [0x40003C00] * 4)
    got = results(body + code + "st.global.u32 [%rd6], %r12;", ones, twos)
    assert [f"{int(v):08x}" for v in got] == ["3c000000"] * 3 + ["00003c00"]
    code = (
        "setp.lt.or.f16x2 %p2|%p3, %r10, %r11, %p1;\nselp.u32 %r12, 1, 0, %p2;\nselp.u32 %r13, 2, 0, %p3;\n"
    )
    got = results(body + code + "or.b32 %r12, %r12, %r13;\nst.global.u32 [%rd6], %r12;", ones, twos)
    assert [int(v) for v in got] == [2, 2, 2, 3]
    code = "set.gt.and.u32.s32 %r12, %r11, %r10, %p1;\nst.global.u32 [%rd6], %r12;"
    assert [int(v) for v in results(body + code, ones, twos)] == [0, 0, 0, 0xFFFFFFFF]

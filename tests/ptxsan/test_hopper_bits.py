"""Bits that the PTX ISA leaves open, as an H200 gives them; the operands and results are of one."""

from __future__ import annotations

import pytest

from tests.ptxsan.rig import results


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
    ],
)
def test_what_only_wants_exponents_is_flushed(op: str, operands: list[int], gives: int) -> None:
    sort, kind = ("r", "u32") if "f16" in op else ("f", "f32")
    names = [f"%{sort}{10 + i}" for i in range(len(operands))]
    body = "".join(f"ld.global.{kind} {name}, [%rd4+{4 * i}];\n" for i, name in enumerate(names))
    body += f"{op} %{sort}20, {', '.join(names)};\nst.global.{kind} [%rd6], %{sort}20;"
    assert hex(results(body, *([v] for v in operands))[0]) == hex(gives)


@pytest.mark.parametrize(
    ("op", "value", "gives"),
    [
        *((f"cvt.rzi.{to}.f64", 0x7FF8000000000000, 0x80000000) for to in ("s32", "u32")),
        ("cvt.rn.f32.f64", 0x7FF8000000000001, 0x7FC00000),
        ("cvt.rz.f32.f64", 0xFFF0000000000001, 0xFFC00000),
        ("cvt.rn.ftz.f32.f64", 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF),
        ("cvt.rn.f16.f64", 0xFFF0000000000001, 0xFE00),
        ("cvt.rz.f16.f64", 0x7FF8000000000000, 0x7E00),
    ],
)
def test_nans_of_float64(op: str, value: int, gives: int) -> None:
    to = "rs9" if ".f16." in op else "f20" if ".f32." in op else "r20"
    store = {"rs9": "u16", "f20": "f32", "r20": "u32"}[to]
    body = "ld.global.u32 %r10, [%rd4];\nld.global.u32 %r11, [%rd4+4];\nmov.b64 %rd10, {%r10, %r11};\n"
    body += f"mov.b64 %fd1, %rd10;\n{op} %{to}, %fd1;\nst.global.{store} [%rd6], %{to};"
    assert hex(results(body, [value & 0xFFFFFFFF], [value >> 32])[0]) == hex(gives)


@pytest.mark.parametrize(
    ("op", "value", "gives"),
    [
        ("cvt.ftz.f32.f32", 0xFF800001, 0x7FFFFFFF),
        ("cvt.rna.tf32.f32", 0xFFFFFFFF, 0xFFFFE000),
        ("cvt.rna.tf32.f32", 0xFF800001, 0xFF800000),
        ("cvt.rna.satfinite.tf32.f32", 0x7FBFFFFF, 0x7FBFC000),
        ("cvt.rna.satfinite.tf32.f32", 0x7F800000, 0x7F7FE000),
        ("cvt.rn.tf32.f32", 0xFF800001, 0x7FFFE000),
        ("cvt.rz.tf32.f32", 0x7FC00000, 0x7FFFE000),
        ("cvt.rn.relu.tf32.f32", 0xFFFFFFFF, 0x7FFFE000),
    ],
)
def test_nans_of_fp32(op: str, value: int, gives: int) -> None:
    to, kind = ("r20", "u32") if "tf32" in op else ("f20", "f32")
    body = f"ld.global.f32 %f1, [%rd4];\n{op} %{to}, %f1;\nst.global.{kind} [%rd6], %{to};"
    assert hex(results(body, [value])[0]) == hex(gives)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_a_product_that_overflows_is_less_than_infinity(mode: str) -> None:
    body = "ld.global.u32 %r10, [%rd4];\nmov.b64 %rd10, {0, %r10};\nmov.b64 %fd1, %rd10;\n"
    body += f"fma.{mode}.f64 %fd4, %fd1, 0d7FEFFFFFFFFFFFFF, 0d7FF0000000000000;\n"
    body += "mov.b64 {%r16, %r17}, %fd4;\nst.global.u32 [%rd6], %r17;"
    assert hex(results(body, [0xBFF50000])[0]) == "0x7ff00000"

"""Bits that the PTX ISA leaves open, as an H200 gives them; the operands and results are of one."""

from __future__ import annotations

import re

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
def test_bits(op: str, operands: list[int], gives: int) -> None:
    """What would be normal only with more exponents is flushed; the patterns of NaN."""
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


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_a_product_that_overflows_is_less_than_infinity(mode: str) -> None:
    body = "ld.global.u32 %r10, [%rd4];\nmov.b64 %rd10, {0, %r10};\nmov.b64 %fd1, %rd10;\n"
    body += f"fma.{mode}.f64 %fd4, %fd1, 0d7FEFFFFFFFFFFFFF, 0d7FF0000000000000;\n"
    body += "mov.b64 {%r16, %r17}, %fd4;\nst.global.u32 [%rd6], %r17;"
    assert hex(results(body, [0xBFF50000])[0]) == "0x7ff00000"

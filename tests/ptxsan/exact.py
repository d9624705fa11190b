"""Arithmetic by fractions: what IEEE 754 says a result is, without a floating-point unit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class Format(NamedTuple):
    """Significand bits with the hidden one, smallest exponent of a normal number, largest exponent, bits, and
    what NumPy calls it."""

    precision: int
    smallest: int
    largest: int
    bits: int
    dtype: Any


FP32, FP16 = Format(24, -126, 127, 32, np.float32), Format(11, -14, 15, 16, np.float16)
BF16 = Format(8, -126, 127, 16, ml_dtypes.bfloat16)
CANONICAL = {FP32: 0x7FFFFFFF, FP16: 0x7FFF, BF16: 0x7FFF}


def value(bits: int, form: Format) -> Fraction | float:
    """A pattern's value: a fraction, or an infinity or NaN as a float; −0.0 stays a float."""
    held = float(np.array([bits], f"u{form.bits // 8}").view(form.dtype)[0])  # exact in FP64
    return Fraction(held) if math.isfinite(held) and held else held


def pattern(exact: Fraction | float, form: Format, mode: str = "rn", negative_zero: bool = False) -> int:
    """The pattern that a value rounds to: rn, rz, rm or rp."""
    fraction_bits, sign_bit = form.precision - 1, 1 << (form.bits - 1)
    infinity = ((1 << (form.bits - form.precision)) - 1) << fraction_bits
    if isinstance(exact, float):
        if math.isnan(exact):
            return CANONICAL[form]
        if math.isinf(exact):
            return infinity | (sign_bit if exact < 0 else 0)
        if exact == 0:
            return sign_bit if math.copysign(1, exact) < 0 else 0
        exact = Fraction(exact)
    if not exact:
        return sign_bit if negative_zero else 0
    negative, magnitude = exact < 0, abs(exact)
    exponent = max(_log2(magnitude), form.smallest)
    scaled = magnitude / Fraction(2) ** (exponent - fraction_bits)
    whole, rest = divmod(scaled, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    significand = int(whole) + up
    if significand >> form.precision:
        significand, exponent = significand >> 1, exponent + 1
    if exponent > form.largest:
        away = mode == "rn" or (mode == "rm" and negative) or (mode == "rp" and not negative)
        bits = infinity if away else infinity - 1
    elif significand >> fraction_bits:
        bits = (exponent - form.smallest + 1 << fraction_bits) + significand - (1 << fraction_bits)
    else:
        bits = significand
    return bits | (sign_bit if negative else 0)


def _log2(magnitude: Fraction) -> int:
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if magnitude >= Fraction(2) ** guess else guess - 1


def fma(a: int, b: int, c: int, form: Format, mode: str = "rn") -> int:
    """a·b + c, rounded once; the sign of an exact zero is that of IEEE 754, §6.3."""
    x, y, z = (value(bits, form) for bits in (a, b, c))
    if any(isinstance(v, float) and v != 0 for v in (x, y, z)):
        # An infinity or a NaN: the arithmetic of float64 has the same rules.
        plain = [float(v) if isinstance(v, float) else math.copysign(1.0, v) for v in (x, y, z)]
        product = plain[0] * plain[1]
        return pattern(product + plain[2], form)
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    sign = math.copysign(1, float(_sign(x))) * math.copysign(1, float(_sign(y)))
    both = (sign < 0, math.copysign(1, float(_sign(z))) < 0)
    return pattern(exact, form, mode, negative_zero=any(both) if mode == "rm" else all(both))


def _sign(v: Fraction | float) -> float:
    return v if isinstance(v, float) else (-1.0 if v < 0 else 1.0)

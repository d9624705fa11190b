"""Fused multiply-adds, rounded once, of FP32 and of float64 values.

A fused multiply-add rounds once. The product of two FP32 values is exact in float64; the sum is rounded to
float64 and then to FP32, which differs from one rounding only where the float64 sum is inexact and lies
midway between two FP32 values, or where the result is subnormal. Those cases go by rounding to odd
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd", IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

Value = Any  # A NumPy array over lanes, or a NumPy scalar that is the same in every lane.

F32, F64 = np.float32, np.float64
_INT64_MIN = np.iinfo(np.int64).min
_LOW_BITS = 64 - 29  # a float64 has 29 significand bits more than an FP32


class FusedMultiplyAdd:
    """fma.rn.f32 over so many lanes."""

    def __init__(self, lanes: int) -> None:
        # Room that is used again and again stays in the nearest cache.
        self._sum, self._low = np.empty(lanes), np.empty(lanes, np.int64)
        self._bits, self._rounded = self._sum.view(np.int64), np.empty(lanes, F32)

    def __call__(self, a: Value, b: Value, c: Value) -> Value:
        """a·b + c of float64 values that FP32 holds, rounded once, to nearest even, to such a value.

        Needs np.errstate(under="raise"): the flag of the processor tells of subnormal results.
        """
        if a.shape == b.shape == c.shape == self._sum.shape:
            s = np.add(np.multiply(a, b, out=self._sum), c, out=self._sum)
            low, r = np.left_shift(self._bits, _LOW_BITS, out=self._low), self._rounded
        else:
            s = np.asarray(a * b + c)
            low, r = s.view(np.int64) << _LOW_BITS, np.empty(s.shape, F32)
        try:
            np.copyto(r, s, casting="same_kind")
        except FloatingPointError:
            return _once(a, b, c).astype(F64)
        # Midway between two FP32 values: the bits below its significand are a one and 28 zeros.
        if np.minimum.reduce(low, axis=None) == _INT64_MIN:
            midway = low == _INT64_MIN
            exact = [np.broadcast_to(v, low.shape)[midway] for v in (a, b, c)]
            r[midway] = _once(*exact)
        return r.astype(F64)


def _once(a: Value, b: Value, c: Value) -> Value:
    with np.errstate(all="ignore"):
        return fma_odd(a, b, c).astype(F32)


def fma_odd(a: Value, b: Value, c: Value) -> Value:
    """a·b + c in float64, rounded to odd, where a·b is exact: rounding it again is as rounding once."""
    with np.errstate(all="ignore"):
        p = np.multiply(a, b)
        s = p + c
        # The error of the sum, exactly: TwoSum of Knuth, TAOCP vol. 2, §4.2.2.
        back = s - p
        error = (p - (s - back)) + (c - back)
        nudge = np.isfinite(s) & (error != 0) & ((s.view(np.int64) & 1) == 0)
        return np.where(nudge, np.nextafter(s, np.copysign(np.inf, error)), s)


def fma_once(a: Value, b: Value, c: Value) -> Value:
    """a·b + c of FP32 values, rounded once."""
    return _once(*(np.asarray(v).astype(F64) for v in (a, b, c)))


def fma64(a: Value, b: Value, c: Value) -> Value:
    """a·b + c of float64 values, rounded once: Boldo and Melquiond's algorithm, of TwoSum, Dekker's product
    and one addition rounded to odd; by fractions where an exponent is too large or too small for it."""
    a, b, c = np.broadcast_arrays(*(np.asarray(v, F64) for v in (a, b, c)))
    with np.errstate(all="ignore"):
        high, low = _two_product(a, b)
        t, u = _two_sum(c, low)
        v, w = _two_sum(high, t)
        odd = u + w
        error = _two_sum(u, w)[1]
        nudge = (error != 0) & ((odd.view(np.int64) & 1) == 0)
        r = np.asarray(v + np.where(nudge, np.nextafter(odd, np.copysign(np.inf, error)), odd))
        sizes = np.abs(np.stack([a, b, c]))
        extreme = ((sizes != 0) & ((sizes < 2.0**-400) | (sizes > 2.0**400))).any(axis=0)
        # A product that overflows is still less than an infinite c.
        plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c)
        exact = (a == 0) | (b == 0) | ~np.isfinite(plain)
    r = np.where(exact, plain, r)
    for at in np.flatnonzero(extreme & np.isfinite(sizes).all(axis=0)):
        total = Fraction(float(a.flat[at])) * Fraction(float(b.flat[at])) + Fraction(float(c.flat[at]))
        r.flat[at] = _nearest64(total) if total else plain.flat[at]
    return np.where(np.isnan(r), F64(np.nan), r)


def _nearest64(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float(np.inf if value > 0 else -np.inf)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """Knuth's: the sum and its error."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def _two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """Dekker's: the product and its error."""
    p = a * b
    halves = []
    for v in (a, b):
        scaled = v * (2.0**27 + 1)
        upper = scaled - (scaled - v)
        halves.append((upper, v - upper))
    (x, y), (z, w) = halves
    return p, y * w - (((p - x * z) - y * z) - x * w)

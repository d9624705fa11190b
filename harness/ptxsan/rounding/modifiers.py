"""Fused multiply-adds, rounded once, of FP32 and of float64 values.

A fused multiply-add rounds once. The product of two FP32 values is exact in float64; the sum is rounded to
float64 and then to FP32, which differs from one rounding only where the float64 sum is inexact and lies
midway between two FP32 values, or where the result is subnormal. Those cases go by rounding to odd
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd", IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.rounding import fma_odd, round_narrow

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


# float64 and narrow floats rounded in one direction: rz, rm or rp, in place of to nearest.
#
# The result to nearest is moved by one unit where it lies on the wrong side of the exact one. Which side that
# is comes of fractions, an element at a time: nothing that is done often rounds so.


_NEAREST: dict[str, Callable[..., Value]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": fma64,
    "div": np.divide,
    "rcp": lambda v: 1 / v,
    "sqrt": np.sqrt,
}


def _side(name: str, operands: list[float], near: float) -> int:
    """Whether the exact result is below (−1), at (0) or above (1) the one to nearest."""
    exact = [Fraction(v) for v in operands]
    if math.isinf(near):
        return -1 if near > 0 else 1  # of finite operands: it was rounded there
    r = Fraction(near)
    if name == "div":  # a / b against r: a against r·b, the other way round where b is negative
        a, b = exact
        return _sign(a - r * b) * _sign(b)
    if name == "rcp":
        return _sign(1 - r * exact[0]) * _sign(exact[0])
    if name == "sqrt":
        return _sign(exact[0] - r * r)
    if name == "sub":
        return _sign(exact[0] - exact[1] - r)
    product = exact[0] * exact[1] if name in ("mul", "fma") else exact[0]
    return _sign(product + (exact[-1] if name in ("add", "fma") else 0) - r)


def _sign(v: Fraction) -> int:
    return (v > 0) - (v < 0)


def directed64(name: str, mode: str) -> Callable[..., Value]:
    """add, sub, mul, fma, div, rcp or sqrt of float64 values, rounded rz, rm or rp."""

    def run(*given: Value) -> Value:
        operands = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in given))
        with np.errstate(all="ignore"):
            near = np.array(_NEAREST[name](*operands))
        flat = near.reshape(-1)
        for i, values in enumerate(zip(*(v.reshape(-1).tolist() for v in operands), strict=True)):
            r = float(flat[i])
            if not all(map(math.isfinite, values)) or math.isnan(r):
                continue
            if (name == "div" and values[1] == 0) or (name == "rcp" and values[0] == 0):
                continue
            flat[i] = _moved(name, list(values), r, mode)
        return near

    return run


def _moved(name: str, values: list[float], near: float, mode: str) -> float:
    side = _side(name, values, near)
    if side == 0:
        if near == 0 and mode == "rm" and name in ("add", "sub", "fma"):
            first = values[0] * values[1] if name == "fma" else values[0]
            last = -values[-1] if name == "sub" else values[-1]
            return -0.0 if math.copysign(1, first) != math.copysign(1, last) else near
        return near
    negative = near < 0 or (near == 0 and side < 0)
    down = mode == "rm" or (mode == "rz" and not negative)
    if side < 0 and down:
        return math.nextafter(near, -math.inf)
    if side > 0 and not down:
        return math.nextafter(near, math.inf)
    return near


def narrow(values: Value, dtype: Any, mode: str) -> Value:
    """float64 or FP32 values to float16 or bfloat16, rounded rn, rz, rm or rp; NaN becomes 0x7FFF."""
    values = np.asarray(values)
    near = round_narrow(values, dtype)
    if mode == "rn":
        return near
    with np.errstate(all="ignore"):
        side = np.sign(values.astype(np.float64) - near.astype(np.float64))
    bits = near.view(np.uint16)
    negative = np.where(near == 0, side < 0, bits >> 15 == 1)
    down = {"rm": True, "rp": False, "rz": ~negative}[mode]
    move = np.isfinite(values) & (((side < 0) & down) | ((side > 0) & ~np.asarray(down)))
    # A step away from zero is one bit more; zero has neighbours of its own.
    away = np.where(negative, side < 0, side > 0)
    step = (bits + np.where(away, 1, -1)).astype(np.uint16)
    step = np.where(near == 0, np.where(side < 0, np.uint16(0x8001), np.uint16(1)), step)
    return np.where(move, step, bits).view(dtype)


# What modifiers such as .approx, .ftz, .sat and .NaN make of an operation.


def approximate(function: Any) -> Any:
    """A function of float64 values as one of FP32 values, its result rounded to FP32."""

    def run(*operands: arith.Value) -> arith.Value:
        with np.errstate(all="ignore"):
            r = np.asarray(function(*(np.asarray(v).astype(np.float64) for v in operands))).astype(np.float32)
        return arith.canonical_if_any(r)

    return run


# The smallest normal numbers.
_SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def canonical(operation: Any) -> Any:
    """An operation on FP32 values whose NaNs are the one that the hardware makes."""
    return lambda *operands: arith.canonical(operation(*operands))


def flush(values: arith.Value) -> arith.Value:
    """Subnormal values to zeros of their sign (.ftz)."""
    zero, tiny = values.dtype.type(0), _SMALLEST[values.dtype.name]
    return np.where(np.abs(values) < values.dtype.type(tiny), np.copysign(zero, values), values)


def flushing(operation: Any, exact: Any = None, mode: str = "rn") -> Any:
    """An operation with .ftz. ``exact`` is the same of float64 values, ``mode`` how its result is rounded.

    An H200 tells subnormal results after rounding, but as if the exponent had no limit: a result that rounds
    up to the smallest normal number for want of exponents alone, such as (1 − 2⁻²⁴)·2⁻¹²⁶, is zero, too.
    """

    def run(*operands: arith.Value) -> arith.Value:
        flushed = [flush(v) for v in operands]
        r = flush(operation(*flushed))
        tiny = _SMALLEST[r.dtype.name]
        smallest = np.abs(r) == r.dtype.type(tiny)
        if exact is None or not smallest.any():
            return r
        with np.errstate(all="ignore"):  # as multiples of the smallest, where no exponent is wanting
            units = exact(*(np.asarray(v).astype(np.float64) for v in flushed)) / tiny
            single = r.dtype == np.float32
            rounded = arith.float64_to_float32(units, mode) if single else narrow(units, r.dtype, mode)
        return np.where(smallest & (np.abs(rounded) < 1), np.copysign(r.dtype.type(0), r), r)

    return run


def saturating(operation: Any) -> Any:
    """An operation with .sat: its result in [0, 1], NaN being 0."""

    def run(*operands: arith.Value) -> arith.Value:
        r = operation(*operands)
        return np.where(r > 0, np.minimum(r, r.dtype.type(1)), r.dtype.type(0))

    return run


def not_negative(operation: Any) -> Any:
    """An operation with .relu: negative results are 0, NaN stays."""

    def run(*operands: arith.Value) -> arith.Value:
        r = operation(*operands)
        return np.where((r > 0) | np.isnan(r), r, r.dtype.type(0))

    return run


def finite(operation: Any, dtype: Any) -> Any:
    """An operation with .satfinite: its result no further from 0 than the dtype's largest number."""
    bits = {"float16": 0x7BFF, "bfloat16": 0x7F7F}[np.dtype(dtype).name]

    def run(*operands: arith.Value) -> arith.Value:
        r = operation(*operands)
        return np.where(np.isinf(r), np.copysign(np.uint16(bits).view(dtype), r), r)

    return run


def extremum(base: str, modifiers: Collection[str]) -> Any:
    """min or max of two or three values, with .NaN, NaN where an input is one, .abs, of magnitudes, and
    .xorsign, with the product of the signs (§9.7.3.11)."""
    of_two = arith.minimum if base == "min" else arith.maximum

    def run(*operands: arith.Value) -> arith.Value:
        values = [np.abs(v) for v in operands] if "abs" in modifiers else list(operands)
        r = values[0]
        for v in values[1:]:
            r = of_two(r, v)
        if "xorsign" in modifiers:
            minus = np.signbit(operands[0]) ^ np.signbit(operands[1])
            r = np.copysign(r, np.where(minus, -1, 1).astype(r.dtype))
        if "NaN" in modifiers:
            for v in operands:
                r = np.where(np.isnan(v), r.dtype.type(np.nan), r)
        return r

    return run

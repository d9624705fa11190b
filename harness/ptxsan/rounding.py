"""Arithmetic to the bit, as the PTX ISA (version 9.0, §9.7) defines it: pure functions on NumPy values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Value = Any  # A NumPy array over lanes, or a NumPy scalar that is the same in every lane.

F32, F64 = np.float32, np.float64
NAN = F32(np.uint32(0x7FFFFFFF).view(np.float32))


def canonical(r: Value) -> Value:
    """FP32 results with every NaN the one that the hardware makes."""
    return np.where(np.isnan(r), NAN, r)


def canonical_if_any(r: Value) -> Value:
    # A sum is NaN where one of its terms is: one look in place of one at each lane.
    total = np.add.reduce(r, axis=None)
    return canonical(r) if total != total else r


def of_float32(operation: Any) -> Any:
    """An operation of NumPy on FP32 values, without its warnings, and with the NaN of the hardware."""

    def run(*operands: Value) -> Value:
        with np.errstate(all="ignore"):
            return canonical_if_any(operation(*operands))

    return run


def minimum(a: Value, b: Value) -> Value:
    """Of any floating type, the other operand where one is NaN; −0 is below +0."""
    return _zeros(np.fmin(a, b), a, b, np.signbit(a) | np.signbit(b))


def maximum(a: Value, b: Value) -> Value:
    """Of any floating type, the other operand where one is NaN; +0 is above −0."""
    return _zeros(np.fmax(a, b), a, b, np.signbit(a) & np.signbit(b))


def _zeros(r: Value, a: Value, b: Value, negative: Value) -> Value:
    zero = r.dtype.type(0)
    return np.where((a == 0) & (b == 0), np.where(negative, -zero, zero), r)


def directed(a: Value, b: Value, c: Value, mode: str) -> Value:
    """a·b + c of FP32 values rounded once, toward zero (rz), down (rm) or up (rp)."""
    a, b, c = (np.asarray(v).astype(F64) for v in (a, b, c))
    exact = fma_odd(a, b, c)
    r = float64_to_float32(exact, mode)
    if mode == "rm":
        # Where the terms cancel, or are zeros of two signs.
        with np.errstate(all="ignore"):
            r = np.where((exact == 0) & (np.signbit(a * b) != np.signbit(c)), F32(-0.0), r)
    return r


def round_narrow(values: Value, dtype: Any) -> Value:
    """float64 or FP32 values to float16 or bfloat16, to nearest even; NaN becomes 0x7FFF.

    ml_dtypes goes through FP32 on the way to bfloat16, so float64 is first rounded to odd there.
    """
    values = np.asarray(values)
    with np.errstate(all="ignore"):
        if dtype == ml_dtypes.bfloat16 and values.dtype == F64:
            values = _odd32(values)
        bits = values.astype(dtype).view(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), bits).view(dtype)


def _odd32(values: Value) -> Value:
    r = values.astype(F32)
    even = (r.view(np.int32) & 1) == 0
    nudge = np.isfinite(r) & (r != values) & even
    toward = np.where(values > r, F32(np.inf), F32(-np.inf))
    return np.where(nudge, np.nextafter(r, toward), r)


def tf32(values: Value, mode: str = "rna") -> Value:
    """FP32 to TF32 (cvt.rna.tf32.f32), 10 explicit significand bits, the rest 0: to nearest, ties away from
    zero (rna) or to even (rn), or toward zero (rz). As an H200 has it, rna cuts a NaN as if it were a number,
    to infinity where its upper bits are 0; the others give 0x7FFFE000."""
    bits: Value = np.asarray(values, F32).view(np.uint32)
    even = (bits >> np.uint32(13) & np.uint32(1)) + np.uint32(0xFFF)
    half = {"rna": np.uint32(1 << 12), "rn": even, "rz": np.uint32(0)}[mode]
    with np.errstate(over="ignore"):
        rounded = (bits + half) & np.uint32(0xFFFFE000)
    special = (bits & np.uint32(0x7F800000)) == 0x7F800000
    r = np.where(special, bits & np.uint32(0xFFFFE000), rounded)
    if mode != "rna":
        r = np.where(special & ((bits & np.uint32(0x007FFFFF)) != 0), np.uint32(0x7FFFE000), r)
    return r.view(F32)


def integers_to_float32(values: Value, mode: str) -> Value:
    """Integers to FP32; ``mode`` is rn, rz, rm or rp."""
    near = np.asarray(values).astype(F32)  # at once, of 64 bits too: the cast is the processor's
    return near if mode == "rn" else _direct(near, values, mode)


def float64_to_float32(values: Value, mode: str) -> Value:
    """float64 to FP32; ``mode`` is rn, rz, rm or rp."""
    with np.errstate(all="ignore"):
        near = np.asarray(values).astype(F32)
    return canonical(near if mode == "rn" else _direct(near, values, mode))


def _direct(near: Value, exact: Value, mode: str) -> Value:
    """The neighbour of ``near`` that lies on the side of ``exact`` that the mode asks for."""
    # Both sides fit in Python's integers and in longdouble, 64 significand bits of it on x86.
    difference = np.sign(near.astype(np.longdouble) - np.asarray(exact).astype(np.longdouble))
    with np.errstate(all="ignore"):
        down, up = np.nextafter(near, F32(-np.inf)), np.nextafter(near, F32(np.inf))
        floor, ceiling = np.where(difference > 0, down, near), np.where(difference < 0, up, near)
        if mode == "rm":
            return floor
        if mode == "rp":
            return ceiling
        return np.where(np.asarray(exact) < 0, ceiling, floor)


def nans_of_float64(r: Value, values: Value) -> Value:
    """``r``, where a float64 value is NaN, its sign and the upper bits of its significand: cvt's."""
    bits, width = values.view(np.uint64), 8 * r.dtype.itemsize
    exponent = {"float16": 5, "bfloat16": 8, "float32": 8}[r.dtype.name]
    unsigned = np.dtype(f"u{r.dtype.itemsize}")
    held = width - 1 - exponent
    kept = (bits >> np.uint64(52 - held)) & np.uint64((1 << held) - 1)
    quiet = ((2 << exponent) - 1) << (held - 1)  # the exponent's bits and the first of the significand
    nans = (bits >> np.uint64(63)) << np.uint64(width - 1) | np.uint64(quiet) | kept
    return np.where(np.isnan(values), nans.astype(unsigned), r.view(unsigned)).view(r.dtype)


_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def float_to_integer(values: Value, dtype: Any, mode: str) -> Value:
    """float to an integer dtype; out of range clamps, NaN is 0, or 0x80… where either has 64 bits; ``mode``
    is rni …"""
    limits, wide = np.iinfo(dtype), np.asarray(values).dtype == F64
    values = _ROUND[mode](np.asarray(values).astype(F64))
    nan = np.isnan(values)
    low, high = values <= float(limits.min), values >= float(limits.max)
    with np.errstate(all="ignore"):
        r = np.where(nan | low | high, 0.0, values).astype(dtype)
    r = np.where(low, dtype(limits.min), np.where(high, dtype(limits.max), r))
    top = dtype(1 << (limits.bits - 1)) if limits.min == 0 else dtype(limits.min)
    of_nan = top if wide or limits.bits == 64 else dtype(0)
    return np.where(nan, of_nan, r)


def shift_left(a: Value, amount: Value) -> Value:
    """Bits past the width are lost; shifts past it give 0. ``amount`` is unsigned 32 bits."""
    bits = a.dtype.itemsize * 8
    return np.where(amount < bits, a << np.minimum(amount, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Value, amount: Value) -> Value:
    """Arithmetic for signed, logical for unsigned values; shifts past the width fill all with the sign."""
    bits = a.dtype.itemsize * 8
    if a.dtype.kind == "i":
        return a >> np.minimum(amount, bits - 1).astype(a.dtype)
    return np.where(amount < bits, a >> np.minimum(amount, bits - 1).astype(a.dtype), a.dtype.type(0))


def divide(a: Value, b: Value) -> Value:
    """Integer quotient, truncated; by 0 all ones, as an H100 gives."""
    a, b = np.asarray(a), np.asarray(b)
    with np.errstate(all="ignore"):
        safe = np.where(b == 0, b.dtype.type(1), b)
        q = a // safe
        if a.dtype.kind == "i":
            q = q + ((q < 0) & (q * safe != a))
    return np.where(b == 0, ~a.dtype.type(0), q)


def remainder(a: Value, b: Value) -> Value:
    """a − b·divide(a, b); by 0 all ones, as an H100 gives."""
    a, b = np.asarray(a), np.asarray(b)
    with np.errstate(all="ignore"):
        return np.where(b == 0, ~a.dtype.type(0), a - b * divide(a, b))


def high_product(a: Value, b: Value) -> Value:
    """Upper half of the product of integers of 16 to 64 bits."""
    a, b = np.asarray(a), np.asarray(b)
    kind, size = a.dtype.kind, a.dtype.itemsize
    if size < 8:
        wide = np.dtype(f"{kind}{2 * size}").type
        return ((a.astype(wide) * b.astype(wide)) >> wide(8 * size)).astype(a.dtype)
    x, y, low, half = a.view(np.uint64), b.view(np.uint64), np.uint64(0xFFFFFFFF), np.uint64(32)
    middle = (x >> half) * (y & low) + ((x & low) * (y & low) >> half)
    other = (x & low) * (y >> half) + (middle & low)
    high = (x >> half) * (y >> half) + (middle >> half) + (other >> half)
    if kind == "i":  # a negative factor stands for itself less 2⁶⁴
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.view(a.dtype)


def permute(a: Value, b: Value, selector: Value) -> Value:
    """prmt.b32: byte i of the result is the byte of {b, a} that selector nibble i names; bit 3 repeats
    its sign."""
    pair = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    selector = selector.astype(np.uint64)
    result: Value = np.uint64(0)
    for i in range(4):
        nibble = (selector >> np.uint64(4 * i)) & np.uint64(0xF)
        byte = (pair >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(0xFF)
        sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        result = result | (np.where(nibble & np.uint64(8), sign, byte) << np.uint64(8 * i))
    return result.astype(np.uint32)


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


# Fused multiply-adds
#
# The product of two FP32 values is exact in float64; the sum is rounded to float64 and then to FP32, which
# differs from one rounding only where the float64 sum is inexact and lies midway between two FP32 values, or
# where the result is subnormal. Those cases go by rounding to odd (Boldo and Melquiond, "Emulation of FMA and
# correctly rounded sums: proved algorithms using rounding to odd", IEEE Transactions on Computers 57, 2008).

_INT64_MIN = np.iinfo(np.int64).min
_LOW_BITS = 64 - 29  # a float64 has 29 significand bits more than an FP32


def fma_once(a: Value, b: Value, c: Value) -> Value:
    """a·b + c of FP32 values, rounded once."""
    a, b, c = (np.asarray(v).astype(F64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        s = np.asarray(a * b + c)
        # Midway between two FP32 values: the bits below its significand are a one and 28 zeros.
        midway = s.view(np.int64) << _LOW_BITS == _INT64_MIN
        if midway.any() or ((np.abs(s) < 2.0**-126) & (s != 0)).any():
            s = fma_odd(a, b, c)
        return s.astype(F32)


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

    def run(*operands: Value) -> Value:
        with np.errstate(all="ignore"):
            r = np.asarray(function(*(np.asarray(v).astype(np.float64) for v in operands))).astype(np.float32)
        return canonical_if_any(r)

    return run


# The smallest normal numbers.
_SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}


def flush(values: Value) -> Value:
    """Subnormal values to zeros of their sign (.ftz)."""
    zero, tiny = values.dtype.type(0), _SMALLEST[values.dtype.name]
    return np.where(np.abs(values) < values.dtype.type(tiny), np.copysign(zero, values), values)


def flushing(operation: Any, exact: Any = None, mode: str = "rn") -> Any:
    """An operation with .ftz. ``exact`` is the same of float64 values, ``mode`` how its result is rounded.

    An H200 tells subnormal results after rounding, but as if the exponent had no limit: a result that rounds
    up to the smallest normal number for want of exponents alone, such as (1 − 2⁻²⁴)·2⁻¹²⁶, is zero, too.
    """

    def run(*operands: Value) -> Value:
        flushed = [flush(v) for v in operands]
        r = flush(operation(*flushed))
        tiny = _SMALLEST[r.dtype.name]
        smallest = np.abs(r) == r.dtype.type(tiny)
        if exact is None or not smallest.any():
            return r
        with np.errstate(all="ignore"):  # as multiples of the smallest, where no exponent is wanting
            units = exact(*(np.asarray(v).astype(np.float64) for v in flushed)) / tiny
            single = r.dtype == np.float32
            rounded = float64_to_float32(units, mode) if single else narrow(units, r.dtype, mode)
        return np.where(smallest & (np.abs(rounded) < 1), np.copysign(r.dtype.type(0), r), r)

    return run


def saturating(operation: Any) -> Any:
    """An operation with .sat: its result in [0, 1], NaN being 0."""

    def run(*operands: Value) -> Value:
        r = operation(*operands)
        return np.where(r > 0, np.minimum(r, r.dtype.type(1)), r.dtype.type(0))

    return run


def not_negative(operation: Any) -> Any:
    """An operation with .relu: negative results are 0, NaN stays."""

    def run(*operands: Value) -> Value:
        r = operation(*operands)
        return np.where((r > 0) | np.isnan(r), r, r.dtype.type(0))

    return run


def finite(operation: Any, dtype: Any) -> Any:
    """An operation with .satfinite: its result no further from 0 than the dtype's largest number."""
    bits = {"float16": 0x7BFF, "bfloat16": 0x7F7F}[np.dtype(dtype).name]

    def run(*operands: Value) -> Value:
        r = operation(*operands)
        return np.where(np.isinf(r), np.copysign(np.uint16(bits).view(dtype), r), r)

    return run


def extremum(base: str, modifiers: Collection[str]) -> Any:
    """min or max of two or three values, with .NaN, NaN where an input is one, .abs, of magnitudes, and
    .xorsign, with the product of the signs (§9.7.3.11)."""
    of_two = minimum if base == "min" else maximum

    def run(*operands: Value) -> Value:
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

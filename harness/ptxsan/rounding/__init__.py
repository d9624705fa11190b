"""Arithmetic to the bit, as the PTX ISA (version 9.0, §9.7) defines it: pure functions on NumPy values."""

from __future__ import annotations

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


def add32(a: Value, b: Value) -> Value:
    return _float32(np.add, a, b)


def sub32(a: Value, b: Value) -> Value:
    return _float32(np.subtract, a, b)


def mul32(a: Value, b: Value) -> Value:
    return _float32(np.multiply, a, b)


def div32(a: Value, b: Value) -> Value:
    return _float32(np.divide, a, b)


def sqrt32(a: Value) -> Value:
    return _float32(np.sqrt, a)


def _float32(operation: Any, *operands: Value) -> Value:
    with np.errstate(all="ignore"):
        r = operation(*operands)
    return canonical_if_any(r)


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
    near = _round_integers(np.asarray(values))
    return near if mode == "rn" else _direct(near, values, mode)


def _round_integers(values: Value) -> Value:
    """To nearest even, at once: NumPy's cast of a 64-bit integer to FP32 is the processor's."""
    return values.astype(F32)


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
    """Integer quotient, truncated; all ones by 0, as the hardware gives."""
    a, b = np.asarray(a), np.asarray(b)
    with np.errstate(all="ignore"):
        safe = np.where(b == 0, b.dtype.type(1), b)
        q = a // safe
        if a.dtype.kind == "i":
            q = q + ((q < 0) & (q * safe != a))
    return np.where(b == 0, a.dtype.type(-1) if a.dtype.kind == "i" else ~a.dtype.type(0), q)


def remainder(a: Value, b: Value) -> Value:
    """a − b·divide(a, b); a by 0."""
    a, b = np.asarray(a), np.asarray(b)
    with np.errstate(all="ignore"):
        return np.where(b == 0, a, a - b * divide(a, b))


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

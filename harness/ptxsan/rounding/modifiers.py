"""What modifiers such as .approx, .ftz, .sat and .NaN make of an operation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
from ptxsan.rounding.directed import narrow


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

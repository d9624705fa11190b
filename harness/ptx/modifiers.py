"""What .approx, .ftz, .sat and .NaN make of an operation on FP32 values."""

from __future__ import annotations

from typing import Any

import numpy as np

import harness.ptx.arithmetic as arith


def approximate(function: Any) -> Any:
    """A function of float64 values as one of FP32 values, its result rounded to FP32."""

    def run(*operands: arith.Value) -> arith.Value:
        with np.errstate(all="ignore"):
            r = np.asarray(function(*(np.asarray(v).astype(np.float64) for v in operands))).astype(np.float32)
        return arith.canonical_if_any(r)

    return run


def flush(values: arith.Value) -> arith.Value:
    """Subnormal FP32 values to zeros of their sign (.ftz)."""
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)


def flushing(operation: Any) -> Any:
    """An operation on FP32 values with .ftz."""
    return lambda *operands: flush(operation(*(flush(v) for v in operands)))


def saturating(operation: Any) -> Any:
    """An operation on FP32 values with .sat: its result in [0, 1], NaN being 0."""

    def run(*operands: arith.Value) -> arith.Value:
        r = operation(*operands)
        return np.where(r > 0, np.minimum(r, np.float32(1)), np.float32(0))

    return run


def or_nan(operation: Any) -> Any:
    """min and max with .NaN: NaN where an input is one."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), arith.NAN, operation(a, b))

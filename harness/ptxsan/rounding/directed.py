"""float64 and narrow floats rounded in one direction: rz, rm or rp, in place of to nearest.

The result to nearest is moved by one unit where it lies on the wrong side of the exact one. Which side that
is comes of fractions, an element at a time: nothing that is done often rounds so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ptxsan.rounding.arithmetic import round_narrow
from ptxsan.rounding.fma import fma64

Value = Any  # A NumPy array over lanes, or a NumPy scalar that is the same in every lane.

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

"""Quotients, roots, exponentials: rounded ones to the bit, approximate ones within the ISA's error.

An approximate result here is made in float64 and rounded to FP32, so its error is half a unit in the last
place, or that of float64's own function, below the bounds of the PTX ISA (§9.7.3): div.full 2 ulp, div.approx
2 ulp for |b| in [2⁻¹²⁶, 2¹²⁶], rcp.approx 1 ulp, sqrt.approx 2⁻²³ relative, rsqrt.approx 2⁻²²·⁹ relative,
sin and cos.approx 2⁻²⁰·⁵ absolute in [−π, π], ex2.approx 2 ulp, lg2.approx 2⁻²² absolute in [0.5, 2] and 1
ulp of 2⁻²² relative elsewhere, tanh.approx 2⁻¹¹ relative. A GPU's bits are others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.isa.floating import MODES
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known, only, parts, quiet, simple
from ptxsan.rounding.directed import directed64

_ONE = np.float32(1)
# From FP32 values in float64 to float64.
_APPROXIMATE: dict[str, Any] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rcp": lambda v: 1 / v,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: 1 / np.sqrt(v),
    "div": np.divide,
}
# Rounded ones in float64, to be rounded on in any direction: it has more than twice the bits of FP32, so no
# quotient or root of FP32 values comes to lie on one that it is not.
_ROUNDED: dict[str, Any] = {"rcp": lambda v: 1 / v, "sqrt": np.sqrt, "div": np.divide}


def _divided(x: Any, y: Any) -> Any:
    """div.approx: of divisors above 2¹²⁶ the reciprocal is taken for 0."""
    r = np.divide(x, y)
    large = np.isfinite(y) & (np.abs(y) > 2.0**126)
    return np.where(large, np.where(np.isfinite(x), np.copysign(0.0, r), np.nan), r)


def _function(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    mode = next((m for m in modifiers if m in MODES), None)
    if kind == "f64":
        return _double(b, i, base, modifiers, mode)
    only(modifiers, {mode, "ftz"} if mode and base in _ROUNDED else {"approx", "full", "ftz"})
    if "full" in modifiers and base != "div":
        raise PtxError("not supported")
    if mode == "rn":
        operation = {"rcp": lambda v: arith.div32(_ONE, v), "sqrt": arith.sqrt32, "div": arith.div32}[base]
    elif mode:
        operation = _directed(_ROUNDED[base], mode)
    else:
        exact = _divided if base == "div" and "approx" in modifiers else _APPROXIMATE[base]
        operation = modify.approximate(exact)
    if "ftz" in modifiers:
        operation = modify.flushing(operation, _ROUNDED[base], mode) if mode else modify.flushing(operation)
    return simple(b, i, kind, operation)


def _directed(function: Any, mode: str) -> Any:
    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            wide = function(*(np.asarray(v).astype(np.float64) for v in operands))
            return arith.float64_to_float32(wide, mode)

    return run


def _double(b: Builder, i: Instruction, base: str, modifiers: list[str], mode: str | None) -> Run:
    """Rounded div, rcp and sqrt; approximate rcp and rsqrt, of which the .ftz forms look at the upper word
    alone and give one (§9.7.3.14 and §9.7.3.17)."""
    if modifiers == [mode] and base in _ROUNDED:
        assert mode is not None
        return simple(b, i, "f64", quiet(_ROUNDED[base]) if mode == "rn" else directed64(base, mode))
    if modifiers == ["approx", "ftz"] and base in ("rcp", "rsqrt"):
        upper, function = np.uint64(0xFFFFFFFF00000000), _APPROXIMATE[base]

        def gross(v: Any) -> Any:
            with np.errstate(all="ignore"):
                r = modify.flush(function(modify.flush((v.view(np.uint64) & upper).view(np.float64))))
            return (np.asarray(r).view(np.uint64) & upper).view(np.float64)

        return simple(b, i, "f64", gross)
    if modifiers != ["approx"] or base != "rsqrt":
        raise PtxError("not supported")
    return simple(b, i, "f64", quiet(_APPROXIMATE["rsqrt"]))


TABLE: dict[str, Known] = {
    "div": Known(_function, "9.7.3.8"),
    "rcp": Known(_function, "9.7.3.13"),
    "sqrt": Known(_function, "9.7.3.15"),
    "rsqrt": Known(_function, "9.7.3.16"),
    "sin": Known(_function, "9.7.3.18"),
    "cos": Known(_function, "9.7.3.19"),
    "lg2": Known(_function, "9.7.3.20"),
    "ex2": Known(_function, "9.7.3.21"),
    "tanh": Known(_function, "9.7.3.22"),
}

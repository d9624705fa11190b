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

import harness.ptx.arithmetic as arith
import harness.ptx.modifiers as modify
from harness.ptx.builder import Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import Known, only, parts, quiet, simple
from harness.ptx.syntax import Instruction, PtxError

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
_ROUNDED: dict[str, Any] = {
    "rcp": lambda v: arith.div32(_ONE, v),
    "sqrt": arith.sqrt32,
    "div": arith.div32,
}
_DOUBLE: dict[str, Any] = {"rcp": lambda v: 1 / v, "sqrt": np.sqrt, "div": np.divide}


def _function(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    if kind == "f64":
        if modifiers != ["rn"]:
            raise PtxError("only the rounded forms are supported")
        return simple(b, i, kind, quiet(_DOUBLE[base]))
    rounded = "rn" in modifiers
    only(modifiers, {"rn", "ftz"} if rounded else {"approx", "full", "ftz"})
    if "full" in modifiers and base != "div":
        raise PtxError("not supported")
    operation = _ROUNDED[base] if rounded else modify.approximate(_APPROXIMATE[base])
    return simple(b, i, kind, modify.flushing(operation) if "ftz" in modifiers else operation)


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

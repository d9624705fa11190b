"""Arithmetic of FP32 and FP64 to the bit (PTX ISA §9.7.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, Number, PtxError
from ptxsan.lanes import Mask
from ptxsan.machine import SEEN, Builder, Known, Run, only, parts, quiet, simple
from ptxsan.native import library
from ptxsan.rounding.modifiers import directed64, fma64, fma_once

MODES = ("rn", "rz", "rm", "rp")
_ONE = np.float32(1)
_SINGLE: dict[str, Any] = {"add": arith.add32, "sub": arith.sub32, "mul": arith.mul32}
_DOUBLE: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    """Of FP32 with .ftz, subnormal inputs and results are zeros of their sign; .sat clamps to [0, 1]."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    mode = next((m for m in modifiers if m in MODES), "rn")
    if kind == "f64":
        only(modifiers, set(MODES))
        return simple(b, i, kind, quiet(_DOUBLE[base]) if mode == "rn" else directed64(base, mode))
    only(modifiers, {*MODES, "ftz", "sat"})
    operation = _SINGLE[base] if mode == "rn" else _directed(base, mode)
    if "ftz" in modifiers:
        operation = modify.flushing(operation, _DOUBLE[base], mode)
    return simple(b, i, kind, modify.saturating(operation) if "sat" in modifiers else operation)


def _extremum(b: Builder, i: Instruction, site: Site) -> Run:
    """min and max, of FP32 also of three values."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz", "NaN", "xorsign", "abs"} if kind == "f32" else set())
    operation = modify.extremum(base, modifiers)
    if kind == "f64":
        return simple(b, i, kind, operation)
    canonical = modify.canonical(operation)
    return simple(b, i, kind, modify.flushing(canonical) if "ftz" in modifiers else canonical)


def _directed(base: str, mode: str) -> Any:
    """add, sub and mul rounded in one direction."""
    if base == "mul":
        return lambda x, y: arith.float64_to_float32(x.astype(np.float64) * y.astype(np.float64), mode)
    if base == "sub":
        return lambda x, y: arith.directed(x, _ONE, np.negative(y), mode)
    return lambda x, y: arith.directed(x, _ONE, y, mode)


def _sign(b: Builder, i: Instruction, site: Site) -> Run:
    """neg and abs: of the bits, NaN included."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz"} if kind == "f32" else set())
    bits = 8 * SEEN[kind].itemsize
    flip = SEEN[f"b{bits}"].type(1 << (bits - 1))

    def operation(v: Any) -> Any:
        if "ftz" in modifiers:
            v = modify.flush(v.view(np.float32)).view(np.uint32)
        return v ^ flip if base == "neg" else v & ~flip

    return simple(b, i, f"b{bits}", operation)


def _copysign(b: Builder, i: Instruction, site: Site) -> Run:
    """copysign d, a, b: the magnitude of b with the sign of a (§9.7.3.4)."""
    _, kind = parts(i)
    bits = 8 * SEEN[kind].itemsize
    sign = SEEN[f"b{bits}"].type(1 << (bits - 1))
    return simple(b, i, f"b{bits}", lambda of, magnitude: (of & sign) | (magnitude & ~sign))


def _testp(b: Builder, i: Instruction, site: Site) -> Run:
    _, how, _ = i.op.split(".")
    tests: dict[str, Any] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & ((np.abs(v) >= np.finfo(v.dtype).tiny) | (v == 0)),
        "subnormal": lambda v: (v != 0) & (np.abs(v) < np.finfo(v.dtype).tiny),
    }
    return simple(b, i, parts(i)[1], tests[how])


def _fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if kind == "f64":
        only(modifiers, set(MODES))
        mode = next((m for m in modifiers if m in MODES), "rn")
        return simple(b, i, kind, fma64 if mode == "rn" else directed64("fma", mode))
    only(modifiers, {*MODES, "ftz", "sat"})
    of_f32 = all(isinstance(o, Number) or b.kind(o) == "f32" for o in i.operands)
    if set(modifiers) != {"rn"} or not of_f32 or library():  # what is left to NumPy then is rare
        return _fma_of(b, i, modifiers)
    registers, wide = b.state.registers, b.state.wide
    slots = [b.constant(b.read(o, "f32")()) if isinstance(o, Number) else b.slot(o) for o in i.operands[1:]]
    x, y, z = slots
    d = b.slot(i.operands[0])
    state, widen = b.state, np.float64

    def run(mask: Mask | None) -> None:
        p, q, s = wide[x], wide[y], wide[z]
        if p is None:
            p = wide[x] = registers[x].astype(widen)
        if q is None:
            q = wide[y] = registers[y].astype(widen)
        if s is None:
            s = wide[z] = registers[z].astype(widen)
        r = state.fma(p, q, s)
        if mask is None:
            registers[d], wide[d] = None, r
        else:
            registers[d] = np.where(mask.bits, arith.canonical(r.astype(np.float32)), state.value(d))
            wide[d] = None

    return run


def _fma_of(b: Builder, i: Instruction, modifiers: list[str]) -> Run:
    """fma with .ftz or .sat, rounded in one direction, or of registers that are declared as bits."""
    mode = next(m for m in modifiers if m in MODES)

    def once(x: Any, y: Any, z: Any) -> Any:
        if mode == "rn":
            return arith.canonical(fma_once(x, y, z))
        return arith.directed(x, y, z, mode)

    operation = modify.flushing(once, arith.fma_odd, mode) if "ftz" in modifiers else once
    return simple(b, i, "f32", modify.saturating(operation) if "sat" in modifiers else operation)


# Quotients, roots, exponentials: rounded ones to the bit, approximate ones within the ISA's error.
#
# An approximate result here is made in float64 and rounded to FP32, so its error is half a unit in the last
# place, or that of float64's own function, below the bounds of the PTX ISA (§9.7.3): div.full 2 ulp,
# div.approx 2 ulp for |b| in [2⁻¹²⁶, 2¹²⁶], rcp.approx 1 ulp, sqrt.approx 2⁻²³ relative, rsqrt.approx
# 2⁻²²·⁹ relative, sin and cos.approx 2⁻²⁰·⁵ absolute in [−π, π], ex2.approx 2 ulp, lg2.approx 2⁻²² absolute
# in [0.5, 2] and 1 ulp of 2⁻²² relative elsewhere, tanh.approx 2⁻¹¹ relative. A GPU's bits are others.


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
        operation = _directed_function(_ROUNDED[base], mode)
    else:
        exact = _divided if base == "div" and "approx" in modifiers else _APPROXIMATE[base]
        operation = modify.approximate(exact)
    if "ftz" in modifiers:
        operation = modify.flushing(operation, _ROUNDED[base], mode) if mode else modify.flushing(operation)
    return simple(b, i, kind, operation)


def _directed_function(function: Any, mode: str) -> Any:
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


# Arithmetic of two FP32 values in a 64-bit register, f32x2 (PTX ISA §9.7.3, sm_100 and later).


def _pair(b: Builder, i: Instruction, site: Site) -> Run:
    """Each element rounded once; a sum is a·1 + b."""
    base, (modifiers, _) = i.op.split(".")[0], parts(i)
    only(modifiers, {*MODES, "ftz"})
    mode = next((m for m in modifiers if m in MODES), "rn")

    def once(x: Any, y: Any, z: Any) -> Any:
        if mode == "rn":
            return arith.canonical(fma_once(x, y, z))
        return arith.directed(x, y, z, mode)

    def operation(*v: Any) -> Any:
        if base == "fma":
            return once(*v)
        if base == "mul":
            wide = v[0].astype(np.float64) * v[1].astype(np.float64)
            return arith.float64_to_float32(wide, mode)
        return once(v[0], _ONE, v[1] if base == "add" else np.negative(v[1]))

    exact = {"fma": arith.fma_odd, "mul": np.multiply, "add": np.add, "sub": np.subtract}[base]
    whole = modify.flushing(operation, exact, mode) if "ftz" in modifiers else operation
    put, reads = b.write(i.operands[0]), [b.read(o, "b64") for o in i.operands[1:]]

    def run(mask: Mask | None) -> None:
        pairs = [np.ascontiguousarray(read()).reshape(-1, 1).view(np.float32) for read in reads]
        put(np.ascontiguousarray(whole(*pairs).astype(np.float32)).view(np.uint64)[:, 0], mask)

    return run


PAIRS: dict[str, Known] = {
    "add": Known(_pair, "9.7.3.3"),
    "sub": Known(_pair, "9.7.3.4"),
    "mul": Known(_pair, "9.7.3.5"),
    "fma": Known(_pair, "9.7.3.6"),
}


TABLE: dict[str, Known] = {
    "testp": Known(_testp, "9.7.3.1"),
    "copysign": Known(_copysign, "9.7.3.2"),
    "add": Known(_arithmetic, "9.7.3.3"),
    "sub": Known(_arithmetic, "9.7.3.4"),
    "mul": Known(_arithmetic, "9.7.3.5"),
    "fma": Known(_fma, "9.7.3.6"),
    "mad": Known(_fma, "9.7.3.7"),
    "abs": Known(_sign, "9.7.3.9"),
    "neg": Known(_sign, "9.7.3.10"),
    "min": Known(_extremum, "9.7.3.11"),
    "max": Known(_extremum, "9.7.3.12"),
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

"""Arithmetic of floats to the bit (PTX ISA §9.7.3 to §9.7.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, PtxError
from ptxsan.machine import SEEN, Builder, Run, only, parts, quiet, simple
from ptxsan.machine.table import instruction
from ptxsan.rounding import directed64, fma64, fma_odd, fma_once

MODES = ("rn", "rz", "rm", "rp")
_ONE = np.float32(1)
_EXACT: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _mode_of(modifiers: Collection[str]) -> str:
    """How a result is rounded, to nearest even where nothing says so."""
    return next((m for m in modifiers if m in MODES), "rn")


def _fused(mode: str) -> Any:
    """a·b + c of FP32 values, rounded once."""
    if mode == "rn":
        return lambda x, y, z: arith.canonical(fma_once(x, y, z))
    return lambda x, y, z: arith.directed(x, y, z, mode)


@instruction("9.7.3", "add:3 sub:4 mul:5", "sum pairs")
def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    """Of FP32 with .ftz, subnormal inputs and results are zeros of their sign; .sat clamps to [0, 1]."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    mode = _mode_of(modifiers)
    if kind == "f64":
        only(modifiers, set(MODES))
        return simple(b, i, kind, quiet(_EXACT[base]) if mode == "rn" else directed64(base, mode))
    operation = arith.of_float32(_EXACT[base]) if mode == "rn" else _directed(base, mode)
    return _single(b, i, operation, _EXACT[base])


def _single(b: Builder, i: Instruction, operation: Any, exact: Any) -> Run:
    """Of FP32, or of each of the two in registers of 64 bits (f32x2, sm_100 and later)."""
    modifiers, kind = parts(i)
    only(modifiers, {*MODES, "ftz"} | ({"sat"} if kind == "f32" else set()))
    if "ftz" in modifiers:
        operation = arith.flushing(operation, exact, _mode_of(modifiers))
    if kind == "f32":
        return simple(b, i, kind, arith.saturating(operation) if "sat" in modifiers else operation)
    return simple(b, i, "b64", lambda *given: _in_pairs(operation, SEEN["f32"], given))


def _in_pairs(operation: Any, dtype: Any, given: Sequence[Any]) -> Any:
    """Of words of two values each. A pair is a row, that one which all lanes share goes with each."""
    rows = (np.ascontiguousarray(v).reshape(-1, 1).view(dtype) for v in given)
    words = np.ascontiguousarray(operation(*rows)).view(f"u{2 * dtype.itemsize}")[:, 0]
    return words if any(np.ndim(v) for v in given) else words[0]


@instruction("9.7.3", "min:11 max:12")
def _extremum(b: Builder, i: Instruction, site: Site) -> Run:
    """min and max, of FP32 also of three values."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz", "NaN", "xorsign", "abs"} if kind == "f32" else set())
    operation = arith.extremum(base, modifiers)
    if kind == "f64":
        return simple(b, i, kind, operation)
    canonical = arith.of_float32(operation)
    return simple(b, i, kind, arith.flushing(canonical) if "ftz" in modifiers else canonical)


def _directed(base: str, mode: str) -> Any:
    """add, sub and mul rounded in one direction."""
    if base == "mul":
        return lambda x, y: arith.float64_to_float32(x.astype(np.float64) * y.astype(np.float64), mode)
    if base == "sub":
        return lambda x, y: arith.directed(x, _ONE, np.negative(y), mode)
    return lambda x, y: arith.directed(x, _ONE, y, mode)


@instruction("9.7.3", "abs:9 neg:10")
def _sign(b: Builder, i: Instruction, site: Site) -> Run:
    """neg and abs: of the bits, NaN included."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz"} if kind == "f32" else set())
    bits = 8 * SEEN[kind].itemsize
    flip = SEEN[f"b{bits}"].type(1 << (bits - 1))

    def operation(v: Any) -> Any:
        if "ftz" in modifiers:
            v = arith.flush(v.view(np.float32)).view(np.uint32)
        return v ^ flip if base == "neg" else v & ~flip

    return simple(b, i, f"b{bits}", operation)


@instruction("9.7.3", "copysign:2")
def _copysign(b: Builder, i: Instruction, site: Site) -> Run:
    """copysign d, a, b: the magnitude of b with the sign of a (§9.7.3.4)."""
    _, kind = parts(i)
    bits = 8 * SEEN[kind].itemsize
    sign = SEEN[f"b{bits}"].type(1 << (bits - 1))
    return simple(b, i, f"b{bits}", lambda of, magnitude: (of & sign) | (magnitude & ~sign))


@instruction("9.7.3", "testp:1", "compares")
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


@instruction("9.7.3", "mad:7", "sum")
@instruction("9.7.3", "fma:6", "sum pairs")
def _fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    mode = _mode_of(modifiers)
    if kind == "f64":
        only(modifiers, set(MODES))
        return simple(b, i, kind, fma64 if mode == "rn" else directed64("fma", mode))
    return _single(b, i, _fused(mode), fma_odd)


# Quotients, roots, exponentials: rounded ones to the bit, approximate ones within the ISA's error.
#
# An approximate result here is made in float64 and rounded to FP32, so its error is half a unit in the last
# place, or that of float64's own function, below the bounds of the PTX ISA (§9.7.3): div.full 2 ulp,
# div.approx 2 ulp for |b| in [2⁻¹²⁶, 2¹²⁶], rcp.approx 1 ulp, sqrt.approx 2⁻²³ relative, rsqrt.approx
# 2⁻²²·⁹ relative, sin and cos.approx 2⁻²⁰·⁵ absolute in [−π, π], ex2.approx 2 ulp, lg2.approx 2⁻²² absolute
# in [0.5, 2] and 1 ulp of 2⁻²² relative elsewhere, tanh.approx 2⁻¹¹ relative. A GPU's bits are others.
# A launch may ask for results that are off by those bounds, up or down by a seed and the operands' bits.


# From FP32 values in float64 to float64.
_APPROXIMATE: dict[str, Any] = {
    **{"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt},
    **{"rcp": lambda v: 1 / v, "rsqrt": lambda v: 1 / np.sqrt(v), "div": np.divide},
}
# In float64, to be rounded on in any direction: it has more than twice the bits of FP32, so no quotient or
# root of FP32 values comes to lie on one that it is not.
_ROUNDED = {base: _APPROXIMATE[base] for base in ("rcp", "sqrt", "div")}


# Relative and absolute bounds of the error; an ulp is up to 2⁻²³.
_BOUNDS = {
    **dict.fromkeys(("ex2", "div"), (2.0**-22, 0.0)),
    **dict.fromkeys(("rcp", "sqrt"), (2.0**-23, 0.0)),
    **dict.fromkeys(("sin", "cos"), (0.0, 2.0**-20.5)),
    **{"lg2": (2.0**-22, 2.0**-22), "rsqrt": (2.0**-22.9, 0.0), "tanh": (2.0**-11, 0.0)},
}


def _off(b: Builder, base: str, exact: Any) -> Any:
    """The function, off by its bound where the launch asks for that. Zeros stay, and what is not finite."""
    state, (relative, absolute) = b.state, _BOUNDS[base]

    def run(*operands: Any) -> Any:
        r = exact(*operands)
        if state.inexact is None:
            return r
        bits = np.asarray(operands[0], np.float64).view(np.uint64) >> np.uint64(29)  # those of FP32
        mixed = (bits + np.uint64(state.inexact)) * np.uint64(0x9E3779B97F4A7C15)
        size = np.abs(r)
        bound = np.maximum(size * relative, absolute) - size * 2.0**-24  # which it is rounded by
        off = np.where(mixed >> np.uint64(63), 1, -1) * bound
        return np.where(np.isfinite(r) & (r != 0), r + off, r)

    return run


def _divided(x: Any, y: Any) -> Any:
    """div.approx: of divisors above 2¹²⁶ the reciprocal is taken for 0."""
    r = np.divide(x, y)
    large = np.isfinite(y) & (np.abs(y) > 2.0**126)
    return np.where(large, np.where(np.isfinite(x), np.copysign(0.0, r), np.nan), r)


@instruction("9.7.3", "div:8 rcp:13 sqrt:15 rsqrt:16 sin:18 cos:19 lg2:20 ex2:21 tanh:22")
def _function(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    mode = next((m for m in modifiers if m in MODES), None)
    if kind == "f64":
        return _double(b, i, base, modifiers)
    only(modifiers, {mode, "ftz"} if mode and base in _ROUNDED else {"approx", "full", "ftz"})
    if "full" in modifiers and base != "div":
        raise PtxError("not supported")
    if mode == "rn":
        one = (lambda v: np.divide(_ONE, v)) if base == "rcp" else _ROUNDED[base]
        operation = arith.of_float32(one)
    elif mode:
        operation = _directed_function(_ROUNDED[base], mode)
    else:
        exact = _divided if base == "div" and "approx" in modifiers else _APPROXIMATE[base]
        operation = arith.approximate(_off(b, base, exact))
    if "ftz" in modifiers:
        operation = arith.flushing(operation, _ROUNDED[base], mode) if mode else arith.flushing(operation)
    return simple(b, i, kind, operation)


def _directed_function(function: Any, mode: str) -> Any:
    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            wide = function(*(np.asarray(v).astype(np.float64) for v in operands))
            return arith.float64_to_float32(wide, mode)

    return run


def _double(b: Builder, i: Instruction, base: str, modifiers: list[str]) -> Run:
    """Rounded div, rcp and sqrt; approximate rcp and rsqrt, of which the .ftz forms look at the upper word
    alone and give one (§9.7.3.14 and §9.7.3.17)."""
    if base in _ROUNDED and len(modifiers) == 1 and modifiers[0] in MODES:
        mode = modifiers[0]
        return simple(b, i, "f64", quiet(_ROUNDED[base]) if mode == "rn" else directed64(base, mode))
    if modifiers == ["approx", "ftz"] and base in ("rcp", "rsqrt"):
        upper, function = np.uint64(0xFFFFFFFF00000000), _APPROXIMATE[base]

        def gross(v: Any) -> Any:
            with np.errstate(all="ignore"):
                r = arith.flush(function(arith.flush((v.view(np.uint64) & upper).view(np.float64))))
            return (np.asarray(r).view(np.uint64) & upper).view(np.float64)

        return simple(b, i, "f64", gross)
    if modifiers != ["approx"] or base != "rsqrt":
        raise PtxError("not supported")
    return simple(b, i, "f64", quiet(_APPROXIMATE["rsqrt"]))


# float16 and bfloat16, one or two a register


@instruction("9.7.4", "add:1 sub:2 mul:3", "sum")
def _narrow_arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    if modifiers[-1:] == ["f32"]:
        return _mixed(b, i, modifiers[:-1], kind)
    only(modifiers, {"rn", "ftz", "sat"} if "bf" not in kind else {"rn"})
    return _narrow(b, i, kind, modifiers, _EXACT[base])


@instruction("9.7.4", "min:7 max:8")
def _narrow_extremum(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz", "NaN", "xorsign", "abs"})
    return _narrow(b, i, kind, modifiers, arith.extremum(base, modifiers))


@instruction("9.7.4", "fma:4", "sum")
def _narrow_fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if modifiers[-1:] == ["f32"]:
        return _mixed(b, i, modifiers[:-1], kind)
    only(modifiers, {"rn", "ftz", "sat", "relu"} if "bf" not in kind else {"rn", "relu"})
    return _narrow(b, i, kind, modifiers, fma_odd)


def _mixed(b: Builder, i: Instruction, modifiers: list[str], kind: str) -> Run:
    """add, sub and fma of FP32 with narrow inputs but for the last (§9.7.5): widened, which is exact."""
    base, one = i.op.split(".")[0], np.float32(1)
    only(modifiers, {*MODES, "sat"})
    multiply_add = _fused(_mode_of(modifiers))

    def operation(*operands: Any) -> Any:
        x, *rest, z = (np.asarray(v).astype(np.float32) for v in operands)
        return multiply_add(x, rest[0] if rest else one, np.negative(z) if base == "sub" else z)

    kinds = [*[kind] * (len(i.operands) - 2), "f32"]
    return simple(b, i, kind, arith.saturating(operation) if "sat" in modifiers else operation, *kinds[1:])


@instruction("9.7.4", "neg:5 abs:6")
def _narrow_sign(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz"} if "bf" not in kind else set())
    packed = kind.endswith("x2")
    flip: Any = np.uint32(0x80008000) if packed else np.uint16(0x8000)
    operation = (lambda v: v ^ flip) if base == "neg" else (lambda v: v & ~flip)
    if "ftz" in modifiers:
        return _narrow(b, i, kind, modifiers, np.negative if base == "neg" else np.abs)
    return simple(b, i, "b32" if packed else "b16", operation)


@instruction("9.7.4", "tanh:9 ex2:10")
def _narrow_function(b: Builder, i: Instruction, site: Site) -> Run:
    """tanh.approx and ex2.approx: of float64, rounded; the ISA's bounds are 2⁻¹⁰·⁹⁸⁷ (f16), 2⁻⁸ (bf16) and
    2⁻⁹·⁹ (ex2.f16), 2⁻⁷ (ex2.bf16)."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"approx", "ftz"})
    ftz = ["ftz"] if "ftz" in modifiers and base == "ex2" else []
    return _narrow(b, i, kind, ftz, np.tanh if base == "tanh" else np.exp2)


def _narrow(b: Builder, i: Instruction, kind: str, modifiers: Collection[str], exact: Any) -> Run:
    """By an operation of float64, which has more than twice their bits, so that rounding twice is as rounding
    once."""
    element, packed = kind.removesuffix("x2"), kind.endswith("x2")
    dtype = SEEN[element]

    def once(*values: Any) -> Any:
        return arith.round_narrow(exact(*(v.astype(np.float64) for v in values)), dtype)

    whole = arith.flushing(once, exact) if "ftz" in modifiers else once
    for name, change in (("sat", arith.saturating), ("relu", arith.not_negative)):
        if name in modifiers:
            whole = change(whole)

    def operation(*given: Any) -> Any:
        with np.errstate(all="ignore"):
            if not packed:
                return whole(*map(np.asarray, given)).view(np.uint16)
            return _in_pairs(whole, dtype, given)

    return simple(b, i, "b32" if packed else element, operation)

"""Arithmetic of FP32 and FP64 to the bit (PTX ISA §9.7.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
import ptxsan.rounding.fma as fma
import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, Number
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import Known, only, parts, quiet, simple
from ptxsan.native.build import library
from ptxsan.rounding.directed import directed64

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
        return simple(b, i, kind, fma.fma64 if mode == "rn" else directed64("fma", mode))
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
            return arith.canonical(fma.fma_once(x, y, z))
        return arith.directed(x, y, z, mode)

    operation = modify.flushing(once, fma.fma_odd, mode) if "ftz" in modifiers else once
    return simple(b, i, "f32", modify.saturating(operation) if "sat" in modifiers else operation)


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
}

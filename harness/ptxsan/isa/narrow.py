"""Arithmetic of float16 and bfloat16, one or two a register (PTX ISA §9.7.4 and §9.7.5)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction
from ptxsan.isa.floating import MODES
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import Known, only, parts, simple
from ptxsan.rounding.fma import fma_odd, fma_once

_TWO: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    if modifiers[-1:] == ["f32"]:
        return _mixed(b, i, modifiers[:-1], kind)
    only(modifiers, {"rn", "ftz", "sat"} if "bf" not in kind else {"rn"})
    return _narrow(b, i, kind, modifiers, _TWO[base])


def _extremum(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz", "NaN", "xorsign", "abs"})
    return _narrow(b, i, kind, modifiers, modify.extremum(base, modifiers))


def _fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if modifiers[-1:] == ["f32"]:
        return _mixed(b, i, modifiers[:-1], kind)
    only(modifiers, {"rn", "ftz", "sat", "relu"} if "bf" not in kind else {"rn", "relu"})
    return _narrow(b, i, kind, modifiers, None)


def _mixed(b: Builder, i: Instruction, modifiers: list[str], kind: str) -> Run:
    """add, sub and fma of FP32 with narrow inputs but for the last (§9.7.5): widened, which is exact."""
    base = i.op.split(".")[0]
    only(modifiers, {*MODES, "sat"})
    mode = next((m for m in modifiers if m in MODES), "rn")
    one = np.float32(1)

    def operation(*operands: Any) -> Any:
        x, *rest, z = (np.asarray(v).astype(np.float32) for v in operands)
        y = rest[0] if rest else one
        z = np.negative(z) if base == "sub" else z
        return arith.canonical(fma_once(x, y, z)) if mode == "rn" else arith.directed(x, y, z, mode)

    if "sat" in modifiers:
        operation = modify.saturating(operation)
    put, reads = b.write(i.operands[0]), [b.read(o, kind) for o in i.operands[1:-1]]
    reads.append(b.read(i.operands[-1], "f32"))
    return lambda mask: put(operation(*(read() for read in reads)), mask)


def _sign(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"ftz"} if "bf" not in kind else set())
    packed = kind.endswith("x2")
    flip: Any = np.uint32(0x80008000) if packed else np.uint16(0x8000)
    operation = (lambda v: v ^ flip) if base == "neg" else (lambda v: v & ~flip)
    if "ftz" in modifiers:
        return _narrow(b, i, kind, modifiers, np.negative if base == "neg" else np.abs)
    return simple(b, i, "b32" if packed else "b16", operation)


def _function(b: Builder, i: Instruction, site: Site) -> Run:
    """tanh.approx and ex2.approx: of float64, rounded; the ISA's bounds are 2⁻¹⁰·⁹⁸⁷ (f16), 2⁻⁸ (bf16) and
    2⁻⁹·⁹ (ex2.f16), 2⁻⁷ (ex2.bf16)."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"approx", "ftz"})
    ftz = ["ftz"] if "ftz" in modifiers and base == "ex2" else []
    return _narrow(b, i, kind, ftz, np.tanh if base == "tanh" else np.exp2)


def _narrow(b: Builder, i: Instruction, kind: str, modifiers: Collection[str], operation: Any) -> Run:
    """float16 and bfloat16, one or two a register; ``operation`` None is the fused multiply-add."""
    element = kind.removesuffix("x2")
    dtype, packed = SEEN[element], kind.endswith("x2")
    put, reads = b.write(i.operands[0]), [b.read(o, "b32" if packed else element) for o in i.operands[1:]]

    exact = operation or fma_odd

    def once(*values: Any) -> Any:
        # float64 has more than twice their bits, so that rounding twice is as rounding once.
        return arith.round_narrow(exact(*(v.astype(np.float64) for v in values)), dtype)

    whole = modify.flushing(once, exact) if "ftz" in modifiers else once
    for name, change in (("sat", modify.saturating), ("relu", modify.not_negative)):
        if name in modifiers:
            whole = change(whole)

    def values() -> list[Any]:
        found = [np.asarray(read()) for read in reads]
        # A pair is a row, that one which all lanes share goes with each.
        return [np.ascontiguousarray(v).reshape(-1, 1).view(dtype) for v in found] if packed else found

    def run(mask: Mask | None) -> None:
        with np.errstate(all="ignore"):
            r = whole(*values())
        put(np.ascontiguousarray(r).view(np.uint32)[:, 0] if packed else r.view(np.uint16), mask)

    return run


TABLE: dict[str, Known] = {
    "add": Known(_arithmetic, "9.7.4.1"),
    "sub": Known(_arithmetic, "9.7.4.2"),
    "mul": Known(_arithmetic, "9.7.4.3"),
    "fma": Known(_fma, "9.7.4.4"),
    "neg": Known(_sign, "9.7.4.5"),
    "abs": Known(_sign, "9.7.4.6"),
    "min": Known(_extremum, "9.7.4.7"),
    "max": Known(_extremum, "9.7.4.8"),
    "tanh": Known(_function, "9.7.4.9"),
    "ex2": Known(_function, "9.7.4.10"),
}

"""Arithmetic of two FP32 values in a 64-bit register, f32x2 (PTX ISA §9.7.3, sm_100 and later)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding.arithmetic as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction
from ptxsan.isa.floating import MODES
from ptxsan.lanes import Mask
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known, only, parts
from ptxsan.rounding.fma import fma_odd, fma_once

_ONE = np.float32(1)


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

    exact = {"fma": fma_odd, "mul": np.multiply, "add": np.add, "sub": np.subtract}[base]
    whole = modify.flushing(operation, exact, mode) if "ftz" in modifiers else operation
    put, reads = b.write(i.operands[0]), [b.read(o, "b64") for o in i.operands[1:]]

    def run(mask: Mask | None) -> None:
        pairs = [np.ascontiguousarray(read()).reshape(-1, 1).view(np.float32) for read in reads]
        put(np.ascontiguousarray(whole(*pairs).astype(np.float32)).view(np.uint64)[:, 0], mask)

    return run


TABLE: dict[str, Known] = {
    "add": Known(_pair, "9.7.3.3"),
    "sub": Known(_pair, "9.7.3.4"),
    "mul": Known(_pair, "9.7.3.5"),
    "fma": Known(_pair, "9.7.3.6"),
}

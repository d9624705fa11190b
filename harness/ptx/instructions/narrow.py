"""Arithmetic of float16 and bfloat16, one or two a register (PTX ISA §9.7.4 and §9.7.5)."""

from __future__ import annotations

from typing import Any

import numpy as np

import harness.ptx.arithmetic as arith
import harness.ptx.modifiers as modify
from harness.ptx.builder import SEEN, Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import Known, only, parts, simple
from harness.ptx.lanes import Mask
from harness.ptx.syntax import Instruction

# float64 has more than twice their bits, so that rounding twice is as rounding once.
_TWO: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": arith.minimum,
    "max": arith.maximum,
}


def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    """min and max with .NaN are NaN where an input is."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    extremum = base in ("min", "max")
    only(modifiers, {"NaN"} if extremum else {"rn"})
    operation = _TWO[base]
    if "NaN" in modifiers:
        operation = modify.or_nan(operation)
    return _narrow(b, i, kind, operation)


def _fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    only(modifiers, {"rn", "relu"})
    return _narrow(b, i, kind, None, relu="relu" in modifiers)


def _sign(b: Builder, i: Instruction, site: Site) -> Run:
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, set())
    packed = kind.endswith("x2")
    flip: Any = np.uint32(0x80008000) if packed else np.uint16(0x8000)
    operation = (lambda v: v ^ flip) if base == "neg" else (lambda v: v & ~flip)
    return simple(b, i, "b32" if packed else "b16", operation)


def _function(b: Builder, i: Instruction, site: Site) -> Run:
    """tanh.approx and ex2.approx: of float64, rounded; the ISA's bounds are 2⁻¹⁰·⁹⁸⁷ (f16), 2⁻⁸ (bf16) and
    2⁻⁹·⁹ (ex2.f16), 2⁻⁷ (ex2.bf16)."""
    base, (modifiers, kind) = i.op.split(".")[0], parts(i)
    only(modifiers, {"approx", "ftz"})
    return _narrow(b, i, kind, np.tanh if base == "tanh" else np.exp2)


def _narrow(b: Builder, i: Instruction, kind: str, operation: Any, relu: bool = False) -> Run:
    """float16 and bfloat16, one or two a register; ``operation`` None is the fused multiply-add."""
    element = kind.removesuffix("x2")
    dtype, packed = SEEN[element], kind.endswith("x2")
    put, reads = b.write(i.operands[0]), [b.read(o, "b32" if packed else element) for o in i.operands[1:]]

    def values() -> list[Any]:
        found = [np.asarray(read()) for read in reads]
        # A pair is a row, that one which all lanes share goes with each.
        return [np.ascontiguousarray(v).reshape(-1, 1).view(dtype) for v in found] if packed else found

    def run(mask: Mask | None) -> None:
        with np.errstate(all="ignore"):
            if operation is None:
                x, y, z = values()
                r = arith.narrow_fma(x, y, z, dtype)
            else:
                # float64 has more than twice their bits, so that rounding twice is as rounding once.
                r = arith.round_narrow(operation(*(v.astype(np.float64) for v in values())), dtype)
        if relu:
            r = np.where(np.isnan(r) | (r > 0), r, dtype.type(0))
        put(np.ascontiguousarray(r).view(np.uint32)[:, 0] if packed else r.view(np.uint16), mask)

    return run


TABLE: dict[str, Known] = {
    "add": Known(_arithmetic, "9.7.4.1"),
    "sub": Known(_arithmetic, "9.7.4.2"),
    "mul": Known(_arithmetic, "9.7.4.3"),
    "fma": Known(_fma, "9.7.4.4"),
    "neg": Known(_sign, "9.7.4.5"),
    "abs": Known(_sign, "9.7.4.6"),
    "min": Known(_arithmetic, "9.7.4.7"),
    "max": Known(_arithmetic, "9.7.4.8"),
    "tanh": Known(_function, "9.7.4.9"),
    "ex2": Known(_function, "9.7.4.10"),
}

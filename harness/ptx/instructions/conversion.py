"""Conversions between types (PTX ISA §9.7.9, cvt)."""

from __future__ import annotations

from typing import Any

import numpy as np

import harness.ptx.arithmetic as arith
import harness.ptx.modifiers as modify
from harness.ptx.builder import SEEN, STORED, Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import FLOATS, Known, only
from harness.ptx.lanes import Mask
from harness.ptx.syntax import Instruction, PtxError

_NARROW: dict[str, Any] = {"rn": arith.round_narrow, "rz": arith.truncate_narrow}


def _cvt(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")[1:]
    target, source = words[-2:]
    modes = words[:-2]
    put = b.write(i.operands[0])
    if target == "tf32":
        if modes[:1] != ["rna"]:
            raise PtxError("only cvt.rna.tf32.f32 is supported")
        one = b.read(i.operands[1], source)
        return lambda mask: put(arith.tf32(one()), mask)
    if target in ("f16x2", "bf16x2"):
        high, low = b.read(i.operands[1], source), b.read(i.operands[2], source)
        if source != "f32":
            raise PtxError("only from f32 is supported")
        convert = _conversion(target[:-2], source, modes)

        def pack(mask: Mask | None) -> None:
            first, second = (convert(np.asarray(v())).view(np.uint16).astype(np.uint32) for v in (low, high))
            put(first | (second << np.uint32(16)), mask)

        return pack
    one = b.read(i.operands[1], source)
    convert = _conversion(target, source, modes)
    register = STORED[b.kind(i.operands[0])]

    def run(mask: Mask | None) -> None:
        value = convert(np.asarray(one()))
        if value.dtype.kind in "iu" and value.dtype.itemsize != register.itemsize:
            value = value.astype(register)
        put(value, mask)

    return run


def _conversion(target: str, source: str, modes: list[str]) -> Any:
    to = SEEN[target]
    rounding = next((m for m in modes if m[:2] in ("rn", "rz", "rm", "rp")), "rn")
    only(modes, {rounding, "sat", "ftz", "relu"})
    convert = _plain_conversion(target, source, rounding)
    if "ftz" in modes and "f32" in (source, target):
        convert = _flushed(convert, source, target)
    if "relu" in modes:
        convert = _relu(convert)
    if "sat" in modes and target in FLOATS:
        return modify.saturating(convert)
    if "sat" in modes and source not in FLOATS:
        return lambda v: _clamped(v, to).astype(to)
    return convert  # from a float, integers are clamped anyhow


def _plain_conversion(target: str, source: str, rounding: str) -> Any:
    to, of = SEEN[target], SEEN[source]
    if source not in FLOATS and target not in FLOATS:
        return lambda v: v.astype(to)
    if source in FLOATS and target not in FLOATS:
        return lambda v: arith.float_to_integer(v, to.type, rounding)
    if target == "f32" and source == "f64":
        return lambda v: arith.float64_to_float32(v, rounding)
    if target == "f32" and source not in FLOATS:
        return lambda v: arith.integers_to_float32(v, rounding)
    if target in ("f16", "bf16"):
        if rounding not in _NARROW:
            raise PtxError("only rounding to nearest or toward zero is supported")
        wide, narrow = np.float64 if source not in FLOATS else of, _NARROW[rounding]
        return lambda v: narrow(v.astype(wide), to)
    if rounding in ("rni", "rzi", "rmi", "rpi") and target == source == "f32":
        return lambda v: {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding](v)
    return lambda v: v.astype(to)


def _flushed(convert: Any, source: str, target: str) -> Any:
    def run(v: Any) -> Any:
        r = convert(modify.flush(v) if source == "f32" else v)
        return modify.flush(r) if target == "f32" else r

    return run


def _relu(convert: Any) -> Any:
    """Negative results become 0."""

    def run(v: Any) -> Any:
        r = convert(v)
        return np.where(r < 0, r.dtype.type(0), r)

    return run


def _clamped(v: Any, to: Any) -> Any:
    """Integers within the limits of another type."""
    held, limits = np.iinfo(v.dtype), np.iinfo(to)
    return np.clip(v, v.dtype.type(max(held.min, limits.min)), v.dtype.type(min(held.max, limits.max)))


TABLE: dict[str, Known] = {"cvt": Known(_cvt, "9.7.9.21")}

"""Conversions of two or more numbers a register (PTX ISA §9.7.9.21 f., cvt and cvt.pack).

Pairs of f16, bf16 and the formats of 8 bits and less; integers packed with saturation. Rounding by random
bits (.rs) is not known.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import ptxsan.rounding.modifiers as modify
from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, STORED, Builder, Run
from ptxsan.machine.common import Known, only
from ptxsan.rounding.directed import narrow

_HALVES: dict[str, Any] = {"f16x2": SEEN["f16"], "bf16x2": SEEN["bf16"]}
# Each element's dtype, its bits, and how many a field of a register spans.
_MINI: dict[str, tuple[Any, int]] = {
    "e4m3x2": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2x2": (ml_dtypes.float8_e5m2, 8),
    "e3m2x2": (ml_dtypes.float6_e3m2fn, 8),
    "e2m3x2": (ml_dtypes.float6_e2m3fn, 8),
    "e2m1x2": (ml_dtypes.float4_e2m1fn, 4),
    "ue8m0x2": (ml_dtypes.float8_e8m0fnu, 8),
}
PACKED = {*_HALVES, *_MINI}


def packed(b: Builder, i: Instruction, modes: list[str], target: str, source: str) -> Run:
    """cvt to or from a pair; of two sources the second is the lower element."""
    put, reads = b.write(i.operands[0]), [b.read(o, _register(source)) for o in i.operands[1:]]
    if len(reads) != (2 if source == "f32" else 1) or not (source == "f32" or source in PACKED):
        raise PtxError("not supported")
    convert, unpack, pack = _element(target, modes), _unpacker(source), _packer(target)
    register = STORED[b.kind(i.operands[0])]

    def run(mask: Mask | None) -> None:
        values = [np.asarray(read()) for read in reads]
        low, high = (values[1], values[0]) if len(values) == 2 else unpack(values[0])
        word = pack(convert(low), convert(high))
        put(word.astype(register if register.itemsize != word.dtype.itemsize else word.dtype), mask)

    return run


def _register(kind: str) -> str:
    """How a register that holds values of a type is read."""
    if kind == "f32":
        return "f32"
    return "b32" if kind in _HALVES else "b16" if _MINI[kind][1] == 8 else "b8"


def _element(target: str, modes: list[str]) -> Any:
    rounding = next((m for m in modes if m[:2] in ("rn", "rz", "rp")), "rn")
    only(modes, {rounding, "relu", "satfinite"})
    if target in _HALVES:
        to = _HALVES[target]

        def convert(v: Any) -> Any:
            return narrow(v.astype(np.float32), to, rounding)

        if "satfinite" in modes:
            convert = modify.finite(convert, to)
    elif target == "ue8m0x2":
        return lambda v: _scale(v.astype(np.float32), rounding)
    else:
        to = _MINI[target][0]
        if rounding != "rn" or "satfinite" not in modes:
            raise PtxError("not supported")

        def convert(v: Any) -> Any:
            return _small(v.astype(np.float32), to)

    return modify.not_negative(convert) if "relu" in modes else convert


def _small(v: Any, to: Any) -> Any:
    """FP32 to a format of 8 bits or less, to nearest even, no more than its largest; NaN is its own, or the
    largest number where it has none."""
    limits = ml_dtypes.finfo(to)  # type: ignore[no-untyped-call]
    largest = np.float32(limits.max)
    with np.errstate(all="ignore"):
        r = np.clip(np.where(np.isnan(v), largest, v), -largest, largest).astype(to)
    if to in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        r = np.where(np.isnan(v), np.uint8(0x7F), r.view(np.uint8)).view(to)
    return r


def _scale(v: Any, rounding: str) -> Any:
    """FP32 to an exponent of 8 bits: toward zero or up, of its magnitude; NaN is 0xFF."""
    bits = np.abs(v).view(np.uint32)
    exponent = bits >> np.uint32(23)
    if rounding == "rp":
        above = np.minimum(exponent + np.uint32(1), np.uint32(254))
        exponent = np.where(bits & np.uint32(0x7FFFFF), above, exponent)
    exponent = np.where(np.isnan(v), np.uint32(255), np.minimum(exponent, np.uint32(254)))
    return exponent.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


def _unpacker(source: str) -> Any:
    """From a word to its elements, the lower one first."""
    if source == "f32":
        return None
    bits = 16 if source in _HALVES else _MINI[source][1]
    of = _HALVES[source] if source in _HALVES else _MINI[source][0]
    narrow_word = np.uint16 if source in _HALVES else np.uint8

    def run(word: Any) -> Any:
        low = word.dtype.type((1 << bits) - 1)
        return tuple((word >> word.dtype.type(s) & low).astype(narrow_word).view(of) for s in (0, bits))

    return run


def _packer(target: str) -> Any:
    bits = 16 if target in _HALVES else _MINI[target][1]
    element, word = ("u2", np.dtype(np.uint32)) if target in _HALVES else ("u1", np.dtype(np.uint16))

    def run(low: Any, high: Any) -> Any:
        x, y = (np.asarray(v).view(element).astype(word) for v in (low, high))
        return x | np.left_shift(y, word.type(bits))

    return run


def _cvt_pack(b: Builder, i: Instruction, site: Site) -> Run:
    """cvt.pack.sat: two s32 saturated to narrow integers, the second one lower; above them the bits of c."""
    _, _, _, kind, *_ = i.op.split(".")
    bits, signed = int(kind[1:]), kind[0] == "s"
    if bits not in (2, 4, 8, 16) or i.op.split(".")[2] != "sat":
        raise PtxError("not supported")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    put, (a, c) = b.write(i.operands[0]), (b.read(o, "s32") for o in i.operands[1:3])
    rest = b.read(i.operands[3], "u32") if len(i.operands) > 3 else None
    field, up = np.uint32((1 << bits) - 1), np.uint32(bits)

    def run(mask: Mask | None) -> None:
        first, second = (
            np.clip(read(), low, high).astype(np.int32).view(np.uint32) & field for read in (a, c)
        )
        word = first << up | second
        if rest is not None:
            word = word | (rest() << (up + up))
        put(word, mask)

    return run


TABLE: dict[str, Known] = {"cvt.pack": Known(_cvt_pack, "9.7.9.22")}

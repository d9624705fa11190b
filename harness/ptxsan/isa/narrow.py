"""Arithmetic of float16 and bfloat16, one or two a register (PTX ISA §9.7.4 and §9.7.5)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np

import ptxsan.rounding as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, PtxError
from ptxsan.isa.floating import MODES
from ptxsan.lanes import Mask
from ptxsan.machine import SEEN, STORED, Builder, Known, Run, only, parts, simple
from ptxsan.rounding import fma_odd
from ptxsan.rounding.modifiers import fma_once, narrow

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


# Conversions of two or more numbers a register (PTX ISA §9.7.9.21 f., cvt and cvt.pack).
#
# Pairs of f16, bf16 and the formats of 8 bits and less; integers packed with saturation. Rounding by random
# bits (.rs) is not known.


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


def cvt_pack(b: Builder, i: Instruction, site: Site) -> Run:
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
    "cvt.pack": Known(cvt_pack, "9.7.9.22"),
}

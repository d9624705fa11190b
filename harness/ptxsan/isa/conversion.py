"""Conversions between numbers of a register each, moves between registers, and of addresses between state
spaces (PTX ISA §9.7.9)."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, Operand, PtxError, Vector
from ptxsan.lanes import Mask, full
from ptxsan.machine import FLOATS, SEEN, STORED, Builder, Run, items_of, only, parts, simple
from ptxsan.machine.memory import CONSTANT, LOCAL, PARAMETER, SHARED
from ptxsan.machine.table import instruction
from ptxsan.rounding import directed64, narrow

_WHOLE: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@instruction("9.7.9", "cvt:21", note="not `.rs` (random bits), no scaled formats but `ue8m0x2`")
def _cvt(b: Builder, i: Instruction, site: Site) -> Run:
    *modes, target, source = i.op.split(".")[1:]
    if target in _PACKED or source in _PACKED:
        return _packed(b, i, modes, target, source)
    if target == "tf32":
        return simple(b, i, source, _tf32(source, modes))
    convert, register = conversion(target, source, modes), STORED[b.kind(i.operands[0])]

    def operation(v: Any) -> Any:
        value = convert(np.asarray(v))
        if value.dtype.kind in "iu" and value.dtype.itemsize != register.itemsize:
            value = value.astype(register)
        return value

    return simple(b, i, source, operation)


def _tf32(source: str, modes: list[str]) -> Any:
    """rna, ties away from zero, or rn and rz; .satfinite gives none beyond the largest number."""
    if source != "f32" or not modes or modes[0] not in ("rna", "rn", "rz"):
        raise PtxError("not supported")
    only(modes[1:], {"relu", "satfinite"})

    def convert(v: Any) -> Any:
        r = arith.tf32(np.asarray(v), modes[0])
        if "relu" in modes:
            r = np.where((r > 0) | np.isnan(r), r, np.float32(0))
        if "satfinite" in modes:  # one unit less, also of a NaN: an H200 does not tell them apart
            special = ~np.isfinite(r)
            r = np.where(special, r.view(np.uint32) - np.uint32(0x2000), r.view(np.uint32)).view(np.float32)
        return r

    return convert


def conversion(target: str, source: str, modes: list[str]) -> Any:
    """A function of values of one type to those of another, with these modifiers."""
    to = SEEN[target]
    rounding = next((m for m in modes if m[:2] in ("rn", "rz", "rm", "rp")), "rn")
    only(modes, {rounding, "sat", "ftz", "relu", "satfinite"})
    convert = _plain_conversion(target, source, rounding)
    if "ftz" in modes and "f32" in (source, target):
        convert = _flushed(convert, source, target)
    if "satfinite" in modes:
        convert = arith.finite(convert, to)
    if "relu" in modes:
        convert = arith.not_negative(convert)
    if "sat" in modes and target in FLOATS:
        return arith.saturating(convert)
    if "sat" in modes and source not in FLOATS:
        return lambda v: clamped(v, to).astype(to)
    return convert  # from a float, integers are clamped anyhow


def _plain_conversion(target: str, source: str, rounding: str) -> Any:
    to = SEEN[target]
    if source not in FLOATS and target not in FLOATS:
        return lambda v: v.astype(to)
    if source in FLOATS and target not in FLOATS:
        return lambda v: arith.float_to_integer(v, to.type, rounding)
    if rounding in _WHOLE:  # of a float to a float: a whole number
        if target != source:
            raise PtxError("not supported")
        if target in ("f16", "bf16"):
            return lambda v: narrow(_WHOLE[rounding](v.astype(np.float64)), to, "rn")
        return lambda v: arith.canonical(_WHOLE[rounding](v)) if target == "f32" else _WHOLE[rounding](v)
    if target == "f32" and source == "f64":
        return lambda v: arith.nans_of_float64(arith.float64_to_float32(v, rounding), v)
    if target == "f32" and source not in FLOATS:
        return lambda v: arith.integers_to_float32(v, rounding)
    if target == "f64" and source not in FLOATS:
        return (lambda v: v.astype(to)) if rounding == "rn" else lambda v: _integers_to_float64(v, rounding)
    if target in ("f16", "bf16") and source == "f64":
        return lambda v: arith.nans_of_float64(narrow(v, to, rounding), v)
    if target in ("f16", "bf16"):
        wide = np.float64 if source not in FLOATS else np.float32
        return lambda v: narrow(_sticky(v).astype(wide), to, rounding)
    if (target, source) == ("f32", "f16"):
        return lambda v: arith.canonical(v.astype(to))
    return lambda v: v.astype(to)


def _sticky(v: Any) -> Any:
    """Integers that float64 may not hold, with all bits that it would lose in one: rounding it on is as
    rounding once."""
    if v.dtype.kind not in "iu" or v.dtype.itemsize < 8:
        return v
    low = v.dtype.type(0xFFF)
    large = np.abs(v.astype(np.float64)) >= 2.0**53
    return np.where(large & (v & low != 0), (v & ~low) | v.dtype.type(0x800), v)


def _integers_to_float64(v: Any, rounding: str) -> Any:
    """In one direction: the sum of the upper and the lower word."""
    low = (v & v.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return directed64("add", rounding)((v - (v & v.dtype.type(0xFFFFFFFF))).astype(np.float64), low)


def _flushed(convert: Any, source: str, target: str) -> Any:
    def run(v: Any) -> Any:
        r = convert(arith.flush(v) if source == "f32" else v)
        if source == target:  # without .ftz it is a move
            r = arith.canonical(r)
        return arith.flush(r) if target == "f32" else r

    return run


def clamped(v: Any, to: Any) -> Any:
    """Integers within the limits of another type."""
    held, limits = np.iinfo(v.dtype), np.iinfo(to)
    return np.clip(v, v.dtype.type(max(held.min, limits.min)), v.dtype.type(min(held.max, limits.max)))


@instruction("9.7.9", "mov:3", "move")
def _mov(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    target, source = i.operands
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack(b, target, source, kind)
    put, one = b.write(target), b.read(source, kind)
    return lambda mask: put(one(), mask)


def _pack(b: Builder, target: Operand, source: Operand, kind: str) -> Run:
    """mov of a vector into a wider register, or out of one: (lanes or 1, elements) as one word each."""
    wide, state = SEEN[kind], b.state
    count = len((target if isinstance(target, Vector) else source).items)  # type: ignore[union-attr]
    element = f"b{8 * wide.itemsize // count}"
    if isinstance(target, Vector):
        puts, read = [b.write(item) for item in target.items], b.read(source, kind)

        def unpack(mask: Mask | None) -> None:
            columns = np.ascontiguousarray(read()).reshape(-1, 1).view(SEEN[element]).T
            for put, column in zip(puts, np.ascontiguousarray(columns), strict=True):
                put(column if len(column) > 1 else column[0], mask)

        return unpack
    reads, put = [b.read(item, element) for item in items_of(source)], b.write(target)

    def pack(mask: Mask | None) -> None:
        values = [np.asarray(read()) for read in reads]
        lanes = state.lanes if any(v.ndim for v in values) else 1
        word = np.stack([full(v, lanes) for v in values], axis=1).view(wide)[:, 0]
        put(word if lanes > 1 else word[0], mask)

    return pack


@instruction("9.7.9", "cvta:20", "move", note="not of parameters but tensor maps")
def _cvta(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, _ = parts(i)
    space = modifiers[-1]
    base = {"global": 0, "shared": SHARED, "local": LOCAL, "const": CONSTANT, "param": PARAMETER}.get(space)
    if base is None:
        raise PtxError("not supported")
    if base == 0:
        return simple(b, i, "s64", lambda v: v)
    if modifiers[0] == "to":
        return simple(b, i, "s64", lambda v: v & np.int64(LOCAL - 1))
    return simple(b, i, "s64", lambda v: v | np.int64(base))


@instruction("9.7.9", "isspacep:19")
def _isspacep(b: Builder, i: Instruction, site: Site) -> Run:
    """Whether a generic address lies in a state space."""
    space = i.op.split(".")[1].split("::")[0]
    upper = {"global": 0, "shared": SHARED, "local": LOCAL, "const": CONSTANT}.get(space)
    if upper is None:
        raise PtxError("not supported")
    size = LOCAL.bit_length() - 1
    return simple(b, i, "s64", lambda v: np.asarray(v >> np.int64(size) == upper >> size))


@instruction("9.7.9", "createpolicy:18", note="a hint: does nothing")
def _policy(b: Builder, i: Instruction, site: Site) -> Run:
    """createpolicy: a cache policy, which nothing here looks at."""
    put = b.write(i.operands[0])
    return lambda mask: put(np.int64(0), mask)


# Two or more numbers a register: pairs of f16, bf16 and the formats of 8 bits and less; integers packed with
# saturation. Rounding by random bits (.rs) is not known.

# By the type of a pair: the dtype of an element, and the bits of its field.
_PACKED: dict[str, tuple[Any, int]] = {
    **{"f16x2": (SEEN["f16"], 16), "bf16x2": (SEEN["bf16"], 16)},
    "e4m3x2": (np.dtype(ml_dtypes.float8_e4m3fn), 8),
    "e5m2x2": (np.dtype(ml_dtypes.float8_e5m2), 8),
    "e3m2x2": (np.dtype(ml_dtypes.float6_e3m2fn), 8),
    "e2m3x2": (np.dtype(ml_dtypes.float6_e2m3fn), 8),
    "e2m1x2": (np.dtype(ml_dtypes.float4_e2m1fn), 4),
    "ue8m0x2": (np.dtype(ml_dtypes.float8_e8m0fnu), 8),
}


def _packed(b: Builder, i: Instruction, modes: list[str], target: str, source: str) -> Run:
    """cvt to or from a pair; of two sources the second is the lower element."""
    if len(i.operands) != (3 if source == "f32" else 2) or not (source == "f32" or source in _PACKED):
        raise PtxError("not supported")
    convert, (to, bits) = _element(target, modes), _PACKED[target]
    word = np.dtype(np.uint32 if bits == 16 else np.uint16)
    register = STORED[b.kind(i.operands[0])]

    def operation(*given: Any) -> Any:
        values = [np.asarray(v) for v in given]
        if len(values) == 1:
            of, wide = _PACKED[source]
            ones = values[0].dtype.type((1 << wide) - 1)
            shifts = (values[0].dtype.type(wide), values[0].dtype.type(0))
            values = [(values[0] >> by & ones).astype(f"u{of.itemsize}").view(of) for by in shifts]
        high, low = (np.asarray(convert(v)).view(f"u{to.itemsize}").astype(word) for v in values)
        both = low | np.left_shift(high, word.type(bits))
        return both.astype(register) if register.itemsize != word.itemsize else both

    return simple(b, i, "f32" if source == "f32" else f"b{2 * _PACKED[source][1]}", operation)


def _element(target: str, modes: list[str]) -> Any:
    rounding = next((m for m in modes if m[:2] in ("rn", "rz", "rp")), "rn")
    only(modes, {rounding, "relu", "satfinite"})
    if target == "ue8m0x2":
        return lambda v: _scale(v.astype(np.float32), rounding, 254 if "satfinite" in modes else 255)
    to, bits = _PACKED[target]
    convert: Any = lambda v: narrow(v.astype(np.float32), to, rounding)  # noqa: E731
    if bits < 16:
        if rounding != "rn" or "satfinite" not in modes:
            raise PtxError("not supported")
        convert = lambda v: _small(v.astype(np.float32), to.type)  # noqa: E731
    elif "satfinite" in modes:
        convert = arith.finite(convert, to)
    return arith.not_negative(convert) if "relu" in modes else convert


def _small(v: Any, to: Any) -> Any:
    """FP32 to a format of 8 bits or less, to nearest even, no more than its largest; NaN is its own, or the
    largest number where it has none."""
    largest = np.float32(ml_dtypes.finfo(to).max)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        r = np.clip(np.where(np.isnan(v), largest, v), -largest, largest).astype(to)
    if to in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        r = np.where(np.isnan(v), np.uint8(0x7F), r.view(np.uint8)).view(to)
    return r


def _scale(v: Any, rounding: str, largest: int) -> Any:
    """FP32 to an exponent of 8 bits, 0 for 2⁻¹²⁷: toward zero or up, of its magnitude; NaN is 0xFF."""
    bits = np.abs(v).view(np.uint32)
    exponent = bits >> np.uint32(23)
    if rounding == "rp":
        over = (bits & np.uint32(0x7FFFFF)) > np.where(exponent > 0, np.uint32(0), np.uint32(0x400000))
        exponent = exponent + over.astype(np.uint32)
    exponent = np.where(np.isnan(v), np.uint32(255), np.minimum(exponent, np.uint32(largest)))
    return exponent.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


@instruction("9.7.9", "cvt.pack:22")
def _cvt_pack(b: Builder, i: Instruction, site: Site) -> Run:
    """cvt.pack.sat: two s32 saturated to narrow integers, the second one lower; above them the bits of c."""
    _, _, saturates, kind, *_ = i.op.split(".")
    bits, signed = int(kind[1:]), kind[0] == "s"
    if bits not in (2, 4, 8, 16) or saturates != "sat":
        raise PtxError("not supported")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def word(a: Any, c: Any, *rest: Any) -> Any:
        first, second = (
            np.clip(v, low, high).astype(np.int32).view(np.uint32) & np.uint32((1 << bits) - 1)
            for v in (a, c)
        )
        above = rest[0] << np.uint32(2 * bits) if rest else np.uint32(0)
        return first << np.uint32(bits) | second | above

    return simple(b, i, "s32", word, "s32", "u32")

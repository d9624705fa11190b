"""Conversions between numbers of a register each (PTX ISA §9.7.9.21, cvt); pairs are in packed.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptxsan.rounding as arith
import ptxsan.rounding.modifiers as modify
from ptxsan.checks import Site
from ptxsan.frontend import Instruction, Operand, PtxError, Vector
from ptxsan.isa.narrow import PACKED, cvt_pack, packed
from ptxsan.lanes import Mask, full
from ptxsan.machine import FLOATS, SEEN, STORED, WIDEST, Builder, Known, Run, only, parts
from ptxsan.machine.memory import CONSTANT, LOCAL, PARAMETER, SHARED
from ptxsan.rounding.modifiers import directed64, narrow

_WHOLE: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _cvt(b: Builder, i: Instruction, site: Site) -> Run:
    *modes, target, source = i.op.split(".")[1:]
    if target in PACKED or source in PACKED:
        return packed(b, i, modes, target, source)
    put, one = b.write(i.operands[0]), b.read(i.operands[1], source)
    if target == "tf32":
        tf32 = _tf32(source, modes)
        return lambda mask: put(tf32(np.asarray(one())), mask)
    convert = conversion(target, source, modes)
    register = STORED[b.kind(i.operands[0])]

    def run(mask: Mask | None) -> None:
        value = convert(np.asarray(one()))
        if value.dtype.kind in "iu" and value.dtype.itemsize != register.itemsize:
            value = value.astype(register)
        put(value, mask)

    return run


def _tf32(source: str, modes: list[str]) -> Any:
    """rna, ties away from zero, or rn and rz; .satfinite gives none beyond the largest number."""
    if source != "f32" or not modes or modes[0] not in ("rna", "rn", "rz"):
        raise PtxError("not supported")
    only(modes[1:], {"relu", "satfinite"})

    def convert(v: Any) -> Any:
        r = arith.tf32(v, modes[0])
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
        convert = modify.finite(convert, to)
    if "relu" in modes:
        convert = modify.not_negative(convert)
    if "sat" in modes and target in FLOATS:
        return modify.saturating(convert)
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
        r = convert(modify.flush(v) if source == "f32" else v)
        if source == target:  # without .ftz it is a move
            r = arith.canonical(r)
        return modify.flush(r) if target == "f32" else r

    return run


def clamped(v: Any, to: Any) -> Any:
    """Integers within the limits of another type."""
    held, limits = np.iinfo(v.dtype), np.iinfo(to)
    return np.clip(v, v.dtype.type(max(held.min, limits.min)), v.dtype.type(min(held.max, limits.max)))


# Moves between registers, and of addresses between state spaces (PTX ISA §9.7.9).


def _mov(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    target, source = i.operands
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack(b, target, source, kind)
    put, one = b.write(target), b.read(source, kind)
    if kind == "f32" and b.kind(target) == b.kind(source) == "f32":
        registers, wide = b.state.registers, b.state.wide
        d, s = b.slot(target), b.slot(source)

        def move(mask: Mask | None) -> None:
            if mask is None:
                registers[d], wide[d] = registers[s], wide[s]
            else:
                put(one(), mask)

        return move
    return lambda mask: put(one(), mask)


def _pack(b: Builder, target: Operand, source: Operand, kind: str) -> Run:
    """mov of a vector into a wider register, or out of one."""
    if kind == "b128":
        return _pack_words(b, target, source)
    bits = 8 * SEEN[kind].itemsize
    if isinstance(target, Vector):
        count = len(target.items)
        narrow, puts = np.dtype(f"u{bits // count // 8}"), [b.write(item) for item in target.items]
        read = b.read(source, f"b{bits}")

        def unpack(mask: Mask | None) -> None:
            value = read()
            for j, put in enumerate(puts):
                put((value >> value.dtype.type(j * bits // count)).astype(narrow), mask)

        return unpack
    assert isinstance(source, Vector)
    count = len(source.items)
    wide, reads = np.dtype(f"u{bits // 8}"), [b.read(item, f"b{bits // count}") for item in source.items]
    put = b.write(target)

    def pack(mask: Mask | None) -> None:
        value = wide.type(0)
        for j, read in enumerate(reads):
            value = value | (read().astype(wide) << wide.type(j * bits // count))
        put(value, mask)

    return pack


def _pack_words(b: Builder, target: Operand, source: Operand) -> Run:
    """Two words of 64 bits and a register of 128."""
    if isinstance(target, Vector):
        puts, read = [b.write(item) for item in target.items], b.read(source, "b128")

        def unpack(mask: Mask | None) -> None:
            words = np.ascontiguousarray(read()).reshape(-1, 1).view(np.uint64)
            for put, word in zip(puts, np.ascontiguousarray(words.T), strict=True):
                put(full(word if len(word) > 1 else word[0], b.state.lanes), mask)

        return unpack
    assert isinstance(source, Vector)
    put, reads, state = b.write(target), [b.read(item, "b64") for item in source.items], b.state

    def pack(mask: Mask | None) -> None:
        words = np.stack([full(read(), state.lanes) for read in reads], axis=1)
        put(np.ascontiguousarray(words).view(WIDEST)[:, 0], mask)

    return pack


def _cvta(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, _ = parts(i)
    space = modifiers[-1]
    base = {"global": 0, "shared": SHARED, "local": LOCAL, "const": CONSTANT, "param": PARAMETER}.get(space)
    if base is None:
        raise PtxError("not supported")
    put, one = b.write(i.operands[0]), b.read(i.operands[1], "s64")
    if base == 0:
        return lambda mask: put(one(), mask)
    if modifiers[0] == "to":
        return lambda mask: put(one() & np.int64(LOCAL - 1), mask)
    return lambda mask: put(one() | np.int64(base), mask)


def _isspacep(b: Builder, i: Instruction, site: Site) -> Run:
    """Whether a generic address lies in a state space."""
    space = i.op.split(".")[1].split("::")[0]
    upper = {"global": 0, "shared": SHARED, "local": LOCAL, "const": CONSTANT}.get(space)
    if upper is None:
        raise PtxError("not supported")
    put, one, size = b.write(i.operands[0]), b.read(i.operands[1], "s64"), LOCAL.bit_length() - 1
    return lambda mask: put(np.asarray(one() >> np.int64(size) == upper >> size), mask)


def _policy(b: Builder, i: Instruction, site: Site) -> Run:
    """createpolicy: a cache policy, which nothing here looks at."""
    put = b.write(i.operands[0])
    return lambda mask: put(np.int64(0), mask)


TABLE: dict[str, Known] = {
    "cvt": Known(_cvt, "9.7.9.21"),
    "cvt.pack": Known(cvt_pack, "9.7.9.22"),
    "createpolicy": Known(_policy, "9.7.9.18"),
    "isspacep": Known(_isspacep, "9.7.9.19"),
    "mov": Known(_mov, "9.7.9.3"),
    "cvta": Known(_cvta, "9.7.9.20"),
}

"""Moves between registers, and of addresses between state spaces (PTX ISA §9.7.9)."""

from __future__ import annotations

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, Operand, PtxError, Vector
from ptxsan.lanes import Mask, full
from ptxsan.machine.builder import SEEN, WIDEST, Builder, Run
from ptxsan.machine.common import Known, parts
from ptxsan.machine.memory import CONSTANT, LOCAL, PARAMETER, SHARED


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
    "createpolicy": Known(_policy, "9.7.9.18"),
    "isspacep": Known(_isspacep, "9.7.9.19"),
    "mov": Known(_mov, "9.7.9.3"),
    "cvta": Known(_cvta, "9.7.9.20"),
}

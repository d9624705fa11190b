"""A PTX module as data: operands, instructions with their lines, variables, entries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ptxsan.frontend.places import Place


class PtxError(Exception):
    """PTX that cannot be read or executed. One line: what is wrong, and at which line."""


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Number:
    """An immediate; ``bits`` is its pattern where the text gave one (0f3F800000), else None."""

    value: int | float
    bits: int | None = None


@dataclass(frozen=True)
class Name:
    """A variable, a label, or a special register such as %tid.x."""

    text: str


@dataclass(frozen=True)
class Address:
    """[base + offset] in bytes."""

    base: Register | Name | None
    offset: int


@dataclass(frozen=True)
class Vector:
    items: tuple[Operand, ...]


Operand = Register | Number | Name | Address | Vector


def registers_in(operands: Iterable[Operand]) -> list[Register]:
    """Those that operands are made of, also as the base of an address."""
    found: list[Register] = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand)
        elif isinstance(operand, Vector):
            found += registers_in(operand.items)
        elif isinstance(operand, Address) and isinstance(operand.base, Register):
            found.append(operand.base)
    return found


def register_names(operands: Iterable[Operand]) -> list[str]:
    """The names of those."""
    return [register.name for register in registers_in(operands)]


@dataclass(frozen=True)
class Link:
    """A first value that is the address of another variable: at byte ``at``, of ``name``, plus ``offset``."""

    at: int
    name: str
    offset: int


@dataclass(frozen=True)
class Variable:
    """A variable of a state space: ``size`` in bytes, 0 for dynamic shared memory; ``data`` its first
    bytes, with the addresses of other variables, ``links``, to be filled in."""

    name: str
    space: str
    size: int
    align: int
    data: bytes = b""
    links: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """One instruction. ``guard`` is (predicate register, negated), ``line`` the line in the PTX, ``source``
    the place in the .cu file, as far as the compiler named it."""

    op: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None
    line: int
    source: Place
    text: str


@dataclass
class Entry:
    """A kernel: parameters as (name, type) in order, a struct's type being "b8[24]", types of registers by
    name, its code and labels, which are indices into the code; names of the module's functions. ``target``
    such as "sm_90a"; ``limits`` are its performance-tuning directives with their numbers, such as "maxntid":
    (256, 1, 1)."""

    name: str
    parameters: list[tuple[str, str]]
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()
    target: str = ""
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def cluster(self) -> tuple[int, int, int]:
        """The blocks of a cluster."""
        x, y, z = (*self.limits.get("reqnctapercluster", ()), 1, 1, 1)[:3]
        return x, y, z

    @property
    def capability(self) -> int:
        """Of its target: 90 of sm_90a; 0 where it names none."""
        digits = re.match(r"sm_(\d+)", self.target)
        return int(digits[1]) if digits else 0


_SIZES = {"pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2}
_SIZES |= {"b32": 4, "u32": 4, "s32": 4, "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16}


def size_of(kind: str, line: int = 0) -> int:
    """Bytes of a fundamental type such as "f32", of this line. Raises PtxError for an unknown one."""
    if kind not in _SIZES:
        raise PtxError(f"PTX line {line}: unknown type .{kind}" if line else f"unknown type .{kind}")
    return _SIZES[kind]


def parameter_bytes(kind: str) -> int:
    """Bytes of a parameter that is a struct, of a type such as "b8[24]"; 0 for one that is a number."""
    unit, _, count = kind.partition("[")
    return size_of(unit) * int(count.rstrip("]")) if count else 0

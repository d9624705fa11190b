"""Where the instructions of a module come from, as its .loc and .file directives say (PTX ISA §11.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

# Headers that come with the compiler or a library: what called them says more.
_LIBRARY = re.compile(r"/(cuda[^/]*|nvidia|cutlass[^/]*|cute|triton/language)/")


@dataclass(frozen=True)
class SourceLocation:
    """A place in the source. ``line``: the line of the .cu file, 0 if unknown; for code inlined from a
    header, the line of the call. ``header``: file and line in the header, such as "tile.cuh:12"; empty for
    code of the .cu file itself."""

    line: int = 0
    header: str = ""

    def __bool__(self) -> bool:
        return bool(self.line or self.header)

    def at(self, source: str) -> tuple[str, int]:
        """File and line: in ``source``, the .cu file, or else in the header; "" and 0 if both are unknown."""
        if self.line or not self.header:
            return (source if self.line else ""), self.line
        file, _, line = self.header.rpartition(":")
        return file, int(line)

    def text(self, source: str) -> str:
        """The location as text. ``source``: the name of the .cu file. Empty if nothing is known."""
        if self.line:
            return f"{source}:{self.line}" + (f" in {self.header}" if self.header else "")
        return f"{self.header}, included by {source}" if self.header else ""


def files_of(text: str) -> dict[str, str]:
    """The paths of the files that a PTX module names, by their numbers."""
    return dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"\n]*)"', text, re.MULTILINE))


class Places:
    """Reads the .loc directives of a PTX module in their order. ``source``: name of the .cu file; by default
    the first .file of the module."""

    def __init__(self, text: str = "", source: str = "") -> None:
        self._files: Mapping[str, str] = files_of(text)
        named = [number for number, path in self._files.items() if PurePath(path).name == source]
        self._main = next(iter(named), "" if source and self._files else "1")
        self._called: dict[tuple[str, str], SourceLocation] = {}  # what called the code inlined at a place

    def read(self, directive: str, before: SourceLocation) -> SourceLocation:
        """The location that a .loc directive names. ``before``: the location of the previous instruction."""
        at = re.match(r"\.loc\s+(\d+)\s+(\d+)", directive)
        if at is None:
            return before
        file, line = at.groups()
        by = re.search(r"\binlined_at\s+(\d+)\s+(\d+)", directive)
        if file == self._main and line != "0":
            return SourceLocation(int(line))
        called = self._at(by[1], by[2]) if by else SourceLocation()
        if line == "0":
            return called or before
        self._called[file, line] = called
        return SourceLocation(called.line or before.line, self._header(file, line) or called.header)

    def _at(self, file: str, line: str) -> SourceLocation:
        """A place that code is inlined at; of a library's the one that called it."""
        if file == self._main:
            return SourceLocation(int(line))
        called = self._called.get((file, line), SourceLocation())
        return SourceLocation(called.line, self._header(file, line) or called.header)

    def _header(self, file: str, line: str) -> str:
        path = self._files.get(file, "")
        return f"{PurePath(path).name}:{line}" if path and not _LIBRARY.search(path) else ""


# A PTX module as data: operands, instructions with their lines, variables, entries.
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
    source: SourceLocation
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


# What PTX declares: variables with their first values, parameters, functions.


FUNCTION = 1 << 59  # addresses of functions begin there; no buffer lies so high, and no other state space
_LARGEST = 1 << 20  # bytes of a variable: those of shared, local and constant memory are far smaller
Event = tuple[str, str, int]  # kind, text and line of what the reader finds


@dataclass(frozen=True)
class Function:
    """A function of the module: results and parameters as (name, type), and what stands in its braces."""

    name: str
    results: list[tuple[str, str]]
    parameters: list[tuple[str, str]]
    events: list[Event]

    @classmethod
    def of(cls, head: str, events: list[Event], line: int) -> Function | None:
        """Of a header such as ".func (.param .b32 r) name (.param .b32 a)"; None for one that is not read."""
        match = re.search(
            r"\.func\s*(?:\.\w+\s+)*(?:\(([^()]*)\)\s*)?([\w$]+)\s*(?:\(([^()]*)\))?", head, re.DOTALL
        )
        if not match:
            return None
        try:
            return cls(match[2], parameters(match[1] or "", line), parameters(match[3] or "", line), events)
        except PtxError:
            return None

    @property
    def signature(self) -> tuple[list[int], list[int]]:
        """The bytes of its results and of its parameters."""
        return signature(self.results, self.parameters)


def signature(
    results: Sequence[tuple[str, str]], given: Sequence[tuple[str, str]]
) -> tuple[list[int], list[int]]:
    """The bytes of each."""
    sizes = [[parameter_bytes(kind) or size_of(kind) for _, kind in each] for each in (results, given)]
    return sizes[0], sizes[1]


def linked(variable: Variable, addresses: Mapping[str, int]) -> Variable:
    """The variable with the addresses of functions in place."""
    data, links = bytearray(variable.data), []
    for link in variable.links:
        if link.name in addresses:
            data[link.at : link.at + 8] = (addresses[link.name] + link.offset).to_bytes(8, "little")
        else:
            links.append(link)
    return replace(variable, data=bytes(data), links=tuple(links))


_BRACKET = re.compile(r"[{\[()\]}]")


def split_commas(text: str) -> list[str]:
    """Operands, those in braces, brackets or parentheses whole."""
    if not _BRACKET.search(text):
        return [item.strip() for item in text.split(",")] if text.strip() else []
    items, depth, start = [], 0, 0
    for found in re.finditer(r"[{\[()\]},]", text):
        position, char = found.start(), found[0]
        if char != ",":
            depth += 1 if char in "{[(" else -1
        elif not depth:
            items.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*items, last] if last or items else []


def parameters(text: str, line: int) -> list[tuple[str, str]]:
    """Name and type of each parameter in a header; a struct's type is "b8[24]"."""
    found = []
    for item in split_commas(text):
        match = re.search(
            r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.(?!align)\w+\s+|\.align\s+\d+\s+)*([\w$]+)"
            r"(\[\d+\])?\s*$",
            item,
        )
        if not match:
            raise PtxError(f"PTX line {line}: cannot read the parameter {item[:60]!r}")
        size_of(match[1], line)
        found.append((match[2], match[1] + (match[3] or "")))
    return found


def variables(body: str, line: int) -> list[Variable]:
    """The variables that a statement declares, with what the PTX gives them; [] where it declares none."""
    match = re.match(
        r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|local|global|const|param)\s+"
        r"(?:\.attribute\([^)]*\)\s+)?(?:\.align\s+(\d+)\s+)?(?:\.(v[248])\s+)?"
        r"\.(\w+)\s+(?:\.align\s+(\d+)\s+)?(.*)$",
        body,
        re.DOTALL,
    )
    if not match:
        return []
    space, align, wide, kind, later, rest = match.groups()
    try:
        unit = size_of(kind, line) * int((wide or "v1")[1:])
    except PtxError:  # a texture, or what later PTX has: a kernel that uses it is told that it is unknown
        return []
    items = split_commas(rest) if "=" not in rest else [rest]  # names with their extents and values
    return [_variable(item, space, unit, int(align or later or unit), line) for item in items]


def _variable(item: str, space: str, unit: int, align: int, line: int) -> Variable:
    match = re.match(r"([\w$]+)((?:\s*\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$", item, re.DOTALL)
    if not match:
        raise PtxError(f"PTX line {line}: cannot read the variable {item[:60]!r}")
    name, extents, values = match.groups()
    count = 1
    for extent in re.findall(r"\[\s*(\d*)\s*\]", extents):
        count *= int(extent or 0)
    if align < 1 or align & (align - 1):
        raise PtxError(f"PTX line {line}: {name} is aligned to {align} bytes, which is no power of two")
    if unit * count > _LARGEST and space != "global":
        raise PtxError(f"PTX line {line}: {name} of {unit * count} bytes is more than .{space} can hold")
    data, links = _values(values or "", unit, name, line)
    if len(data) > unit * count:
        raise PtxError(f"PTX line {line}: {name} has more initial values than room")
    return Variable(name, space, unit * count, align, data, links)


def _values(text: str, unit: int, name: str, line: int) -> tuple[bytes, tuple[Link, ...]]:
    """Bytes, and where among them the addresses of other variables go: generic(name)+4."""
    data, links = b"", []
    for value in split_commas(text.strip(" {}\n\t")):
        if real := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", value):
            number = int(real[1], 16)
        elif re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", value):
            number = int(value.rstrip("U"), 0)
        elif link := re.fullmatch(r"(?:generic\(([\w$]+)\)|([\w$]+))\s*(?:([+-])\s*(\d+))?", value):
            offset = int(link[4] or 0) * (-1 if link[3] == "-" else 1)
            links.append(Link(len(data), link[1] or link[2], offset))
            number = 0
        else:
            raise PtxError(f"PTX line {line}: cannot read the initial values of {name}")
        data += (number % (1 << 8 * unit)).to_bytes(unit, "little")
    return data, tuple(links)

"""What PTX declares: variables with their first values, parameters, functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ptxsan.frontend.syntax import Link, PtxError, Variable, size_of

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


def split_commas(text: str) -> list[str]:
    """Operands, those in braces, brackets or parentheses whole."""
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
    return [_variable(item, space, unit, int(align or later or unit), line) for item in _items(rest)]


def _items(rest: str) -> Iterator[str]:
    """Names with their extents and values: of several in one statement each."""
    yield from split_commas(rest) if "=" not in rest else [rest]


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

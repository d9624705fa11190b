"""PTX text to data: entries, parameters, registers, variables, instructions with their lines.

Knows the grammar of the PTX ISA (version 9.0, §4), not the meaning of an instruction.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from harness.ptx.carry import CARRY, with_carry
from harness.ptx.syntax import (
    Address,
    Entry,
    Instruction,
    Name,
    Number,
    Operand,
    PtxError,
    Register,
    Variable,
    Vector,
    size_of,
)

_LARGEST = 1 << 20  # bytes of a variable: those of shared, local and constant memory are far smaller
_LINE_DIRECTIVES = ("version", "target", "address_size", "file", "loc")


def parse(text: str, entry: str) -> Entry:
    """The kernel of this name. Raises PtxError for text that is not PTX or has no such kernel."""
    outside: list[Variable] = []
    found: Entry | None = None
    reader = _Reader(text)
    for kind, body, line in reader:
        if kind == "statement" and (variable := _variable(body, line)):
            outside.append(variable)
        elif kind == "open" and (head := re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", body, re.DOTALL)):
            if head[1] == entry:
                parameters = _parameters(head[2] or "", line)
                found = _Body(Entry(head[1], parameters), reader).read(line)
            else:
                reader.skip_scope(line)
        elif kind == "open":
            reader.skip_scope(line)
        elif kind == "close":
            raise PtxError(f"PTX line {line}: a }} that closes nothing")
    if found is None:
        raise PtxError(f"the PTX has no entry {entry}")
    found.variables[:0] = outside
    return found


class _Reader:
    """Splits text into statements, labels, and scopes that open and close, each with its line.

    A brace within a statement is a vector operand; one at its start, or after a header, is a scope.
    """

    def __init__(self, text: str) -> None:
        # Comments go, their line ends stay; what looks like one in a string (the path of a .file) stays.
        text = re.sub(r'("[^"\n]*")|/\*.*?\*/|//[^\n]*', _uncommented, text, flags=re.DOTALL)
        # Debug information is no PTX; that of -lineinfo is strings of bytes.
        self._text = re.sub(r"\.section\b[^{}\n]*\s*\{[^{}]*\}", _line_ends, text)
        self._events = self._split()

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return self

    def __next__(self) -> tuple[str, str, int]:
        return next(self._events)

    def skip_scope(self, line: int) -> None:
        depth = 1
        for kind, _, _ in self:
            depth += {"open": 1, "close": -1}.get(kind, 0)
            if not depth:
                return
        raise PtxError(f"PTX line {line}: the {{ is never closed")

    def _split(self) -> Iterator[tuple[str, str, int]]:
        start, line, quoted, braces = 0, 1, False, 0
        text = self._text
        for position, char in enumerate(text):
            if char == '"':
                quoted = not quoted
            if quoted:
                continue
            if char == "\n":
                if text[start:position].lstrip().removeprefix(".").startswith(_LINE_DIRECTIVES):
                    yield "line", text[start:position].strip(), line
                    start = position + 1
                line += 1
                continue
            if char not in ";{}:":
                continue
            piece = text[start:position].strip()
            if char == ";":
                if piece:
                    yield "statement", piece, line
            elif char == ":":
                if not re.fullmatch(r"[$\w]+", piece):
                    continue
                yield "label", piece, line
            elif char == "{":
                if piece and not piece.startswith(
                    (".visible", ".entry", ".func", ".weak", ".section", ".extern .func")
                ):
                    braces += 1
                    continue
                yield "open", piece, line
            else:
                if braces:
                    braces -= 1
                    continue
                if piece:
                    raise PtxError(f"PTX line {line}: no ; after {piece[:40]!r}")
                yield "close", "", line
            start = position + 1
        if text[start:].strip():
            raise PtxError(f"PTX line {line}: the text ends within {text[start:].strip()[:40]!r}")


class _Body:
    """What stands between the braces of an entry. Registers of an inner scope get names of their own."""

    def __init__(self, entry: Entry, reader: _Reader) -> None:
        self._entry, self._reader = entry, reader
        self._scopes: list[dict[str, str]] = [{}]
        self._inner = 0
        self._source = 0

    def read(self, first: int) -> Entry:
        for kind, body, line in self._reader:
            if kind == "open":
                self._inner += 1
                self._scopes.append({})
            elif kind == "close":
                self._scopes.pop()
                if not self._scopes:
                    if not self._entry.code:
                        raise PtxError(f"PTX line {first}: entry {self._entry.name} has no instructions")
                    self._check_labels()
                    return self._entry
            elif kind == "label":
                self._entry.labels[body] = len(self._entry.code)
            elif kind == "line":
                self._source = _source_line(body) or self._source
            elif body.startswith("."):
                self._directive(body, line)
            else:
                self._entry.code.append(self._instruction(body, line))
        raise PtxError(f"PTX line {first}: entry {self._entry.name} is never closed")

    def _check_labels(self) -> None:
        for instruction in self._entry.code:
            if instruction.op.startswith("bra"):
                target = instruction.operands[-1] if instruction.operands else None
                if not isinstance(target, Name) or target.text not in self._entry.labels:
                    raise PtxError(f"PTX line {instruction.line}: {instruction.text}: there is no such label")

    def _directive(self, body: str, line: int) -> None:
        if match := re.match(r"\.reg\s*\.(\w+)\s+(.+)$", body, re.DOTALL):
            size_of(match[1], line)
            for item in match[2].split(","):
                self._declare(item.strip(), match[1], line)
        elif variable := _variable(body, line):
            self._entry.variables.append(variable)
        elif not body.startswith((".pragma", ".param")):
            raise PtxError(f"PTX line {line}: unknown directive {body[:60]!r}")

    def _declare(self, item: str, kind: str, line: int) -> None:
        ranged = re.fullmatch(r"(%?[\w$]+)<(\d+)>", item)
        if ranged and int(ranged[2]) > 1_000_000:
            raise PtxError(f"PTX line {line}: {item}: more registers than a kernel can have")
        names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [item]
        for name in names:
            own = f"{name}@{self._inner}" if len(self._scopes) > 1 else name
            self._scopes[-1][name] = own
            self._entry.registers[own] = kind

    def _instruction(self, body: str, line: int) -> Instruction:
        text = " ".join(body.split())
        match = re.fullmatch(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?", text)
        if not match:
            raise PtxError(f"PTX line {line}: not an instruction: {text[:80]!r}")
        try:
            guard = (self._register(match[2]).name, bool(match[1])) if match[2] else None
            operands = tuple(self._operand(item) for item in _split_commas(match[4] or ""))
        except (ValueError, OverflowError, struct.error):
            raise PtxError(f"PTX line {line}: cannot read the operands of {text[:80]!r}") from None
        if (carried := with_carry(match[3], operands)) is not operands:
            self._entry.registers[CARRY.name] = "pred"
        return Instruction(match[3], carried, guard, line, self._source, text)

    def _register(self, name: str) -> Register:
        operand = self._operand(name)
        if not isinstance(operand, Register):
            raise ValueError(name)
        return operand

    def _operand(self, text: str) -> Operand:
        if text.startswith(("{", "(")):
            if text[-1] != {"{": "}", "(": ")"}[text[0]]:
                raise ValueError(text)
            return Vector(tuple(self._operand(item) for item in _split_commas(text[1:-1])))
        if text.startswith("["):
            match = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
            if not match:
                raise ValueError(text)
            base = self._operand(match[1])
            offset = int(match[2], 0) if match[2] else 0
            if isinstance(base, Number):
                return Address(None, int(base.value) + offset)
            if not isinstance(base, Register | Name):
                raise ValueError(text)
            return Address(base, offset)
        for scope in reversed(self._scopes):
            if text in scope:
                return Register(scope[text])
        if match := re.fullmatch(r"0([fFdD])([0-9a-fA-F]+)", text):
            bits = int(match[2], 16)
            form, width = ("<f", 4) if match[1] in "fF" else ("<d", 8)
            return Number(float(struct.unpack(form, bits.to_bytes(width, "little"))[0]), bits)
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return Number(int(text.rstrip("U"), 16 if "x" in text.lower() else 10))
        if re.fullmatch(r"%?[\w$.]+(\|%?\w+)?", text):
            if "|" in text:
                return Vector(tuple(self._operand(item) for item in text.split("|")))
            return Name(text)
        raise ValueError(text)


def _uncommented(match: re.Match[str]) -> str:
    return match[1] or _line_ends(match)


def _line_ends(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _source_line(directive: str) -> int:
    """The line of the .cu file, which is file 1, that a .loc names; of what is inlined from a header, the
    line that calls it; 0 where it names none."""
    places = re.findall(r"(?:^\.loc|\binlined_at)\s+(\d+)\s+(\d+)", directive)
    return next((int(line) for file, line in places if file == "1" and line != "0"), 0)


def _split_commas(text: str) -> list[str]:
    """Operands, those in braces, brackets or parentheses whole."""
    items, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and not depth:
            items.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*items, last] if last or items else []


def _parameters(text: str, line: int) -> list[tuple[str, str]]:
    parameters = []
    for item in _split_commas(text):
        match = re.search(
            r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.(?!align)\w+\s+|\.align\s+\d+\s+)*([\w$]+)"
            r"(\[\d+\])?\s*$",
            item,
        )
        if not match:
            raise PtxError(f"PTX line {line}: cannot read the parameter {item[:60]!r}")
        size_of(match[1], line)
        parameters.append((match[2], match[1] + (match[3] or "")))
    return parameters


def _variable(body: str, line: int) -> Variable | None:
    match = re.match(
        r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?"
        r"\.(\w+)\s+([\w$]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
        body,
        re.DOTALL,
    )
    if not match:
        return None
    unit = size_of(match[3], line)
    count = 1
    for extent in re.findall(r"\[(\d*)\]", match[5]):
        count *= int(extent or 0)
    align = int(match[2] or unit)
    if align < 1 or align & (align - 1):
        raise PtxError(f"PTX line {line}: {match[4]} is aligned to {align} bytes, which is no power of two")
    if unit * count > _LARGEST and match[1] != "global":
        raise PtxError(
            f"PTX line {line}: {match[4]} of {unit * count} bytes is more than .{match[1]} can hold"
        )
    data = b""
    if match[6]:
        try:
            values = [int(v, 0) for v in match[6].strip(" {}\n\t").split(",")]
            data = b"".join((v % (1 << 8 * unit)).to_bytes(unit, "little") for v in values)
        except ValueError:
            raise PtxError(f"PTX line {line}: cannot read the initial values of {match[4]}") from None
        if len(data) > unit * count:
            raise PtxError(f"PTX line {line}: {match[4]} has more initial values than room")
    return Variable(match[4], match[1], unit * count, align, data)

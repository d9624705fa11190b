"""Vector loads that nvcc left in two, joined as ptxas joins them.

nvcc (13.0.88) may load the second half of a vector by an instruction of its own, right after one for the
whole vector of which only the first half is read. Whether it does so depends, in a large kernel, on where its
tables lie in memory, and so on the lengths of paths; ptxas makes one load of both, and the same binary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, compress

from ptxsan.frontend import (
    FUNCTION,
    Address,
    Entry,
    Event,
    Function,
    Instruction,
    Number,
    Operand,
    Places,
    PtxError,
    Register,
    Variable,
    Vector,
    linked,
    parameters,
    register_names,
    size_of,
    variables,
)
from ptxsan.frontend.body import DEPTHS, Body, TooLongError

_AS_WRITTEN = {"volatile", "mmio", "relaxed", "acquire"}  # loads that others can observe
_ADDS = {"add.s32", "add.u32", "add.s64", "add.u64"}


@dataclass(frozen=True)
class _Load:
    """A load: its place in the code, all that must be the same of two, the bytes from there to its first
    element, and what it fills."""

    at: int
    same: tuple[object, ...]
    offset: int
    width: int
    items: tuple[Operand, ...]


def join_halves(entry: Entry) -> None:
    """Joins a load to the one before it, if that reads the same bytes into registers that stand nowhere else
    in the entry, and nothing but additions of constants stands between the two."""
    code, starts = entry.code, set(entry.labels.values())
    standing = Counter(name for instruction in code for name in register_names(instruction.operands))
    loads = (i for i in code if i.op.startswith("ld."))
    if all(standing[name] > 1 for i in loads for name in register_names(i.operands[:1])):
        return  # all that is loaded is read
    bases, kept = _Bases(), [True] * len(code)
    before: _Load | None = None
    between: set[str] = set()
    for at, instruction in enumerate(code):
        if at in starts:
            before, bases = None, _Bases()
        load = bases.load(at, instruction)
        items = _joined(before, load, standing) if before and load else ()
        if before and items and between.isdisjoint(register_names(items)):
            operands = (Vector(items), *code[before.at].operands[1:])
            code[before.at] = replace(code[before.at], operands=operands)
            before, kept[at] = replace(before, items=items), False
        elif _sum(instruction):
            between.update(register_names(instruction.operands))
        else:
            before, between = load, set()
        bases.write(instruction)
    moved = [0, *accumulate(kept)]
    entry.labels.update({name: moved[at] for name, at in entry.labels.items()})
    code[:] = compress(code, kept)


def _joined(whole: _Load, part: _Load, standing: Counter[str]) -> tuple[Operand, ...]:
    """What one load has to fill to do the work of both; () where it would have to fill two registers by the
    same bytes, or read others."""
    first, rest = divmod(part.offset - whole.offset, whole.width)
    end = first + len(part.items)
    if whole.same != part.same or rest or first < 0 or end > len(whole.items):
        return ()
    unread = all(standing[name] == 1 for name in register_names(whole.items[first:end]))
    return (*whole.items[:first], *part.items, *whole.items[end:]) if unread else ()


class _Bases:
    """What the addresses in registers are, in straight-line code: another register's value plus a constant,
    where one was added."""

    def __init__(self) -> None:
        self._writes: Counter[str] = Counter()  # a register that is written again has another value
        self._sums: dict[str, tuple[tuple[str, int], int]] = {}

    def load(self, at: int, instruction: Instruction) -> _Load | None:
        base, *modifiers = instruction.op.split(".")
        if base != "ld" or _AS_WRITTEN.intersection(modifiers) or len(instruction.operands) < 2:
            return None
        target, address, *policy = instruction.operands
        if not isinstance(address, Address) or not isinstance(address.base, Register):
            return None
        value, offset = self._value(address.base.name)
        guard = instruction.guard and (*instruction.guard, self._writes[instruction.guard[0]])
        what = tuple(m for m in modifiers if m not in ("v2", "v4", "v8"))
        width = size_of(instruction.op.rsplit(".", 1)[-1], instruction.line)
        items = target.items if isinstance(target, Vector) else (target,)
        return _Load(at, (what, value, guard, *policy), address.offset + offset, width, items)

    def write(self, instruction: Instruction) -> None:
        """Follows what an instruction writes, which is its first operand if anything is."""
        found = None
        if added := _sum(instruction):
            value, offset = self._value(added[0])
            found = value, offset + added[1]
        for name in register_names(instruction.operands[:1]):
            self._writes[name] += 1
            self._sums.pop(name, None)
            if found:
                self._sums[name] = found

    def _value(self, name: str) -> tuple[tuple[str, int], int]:
        return self._sums.get(name, ((name, self._writes[name]), 0))


def _sum(instruction: Instruction) -> tuple[str, int] | None:
    """The register and the constant that an instruction adds, in all lanes; nothing of another one."""
    if instruction.op not in _ADDS or instruction.guard is not None or len(instruction.operands) != 3:
        return None
    _, source, added = instruction.operands
    if not isinstance(source, Register) or not isinstance(added, Number):
        return None
    return source.name, int(added.value)


# PTX text to data: the reader, which finds statements and scopes, and the module around an entry.
#
# Knows the grammar of the PTX ISA (version 9.0, §4), not the meaning of an instruction.


_LINE_DIRECTIVES = ("version", "target", "address_size", "file", "loc")


def parse(text: str, entry: str, source: str = "") -> Entry:
    """The kernel of this name, with the functions that it calls in their places. Nothing else of the text is
    looked at. ``source``: name of the .cu file; without it, the first that the text names.

    Raises PtxError for text that is not PTX or has no such kernel.
    """
    outside: list[Variable] = []
    functions: dict[str, Function] = {}
    found: tuple[Entry, list[Event], int] | None = None
    reader = _Reader(text)
    target = ""
    for kind, body, line in reader:
        if kind == "line" and (named := re.match(r"\.target\s+(\w+)", body)):
            target = named[1]
        elif kind == "statement" and body.startswith("."):
            outside += variables(body, line)
        elif kind == "open":
            events = reader.scope(line)
            if head := re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", body, re.DOTALL):
                if head[1] == entry:
                    kernel = Entry(
                        head[1], parameters(head[2] or "", line), limits=_limits(body[head.end() :])
                    )
                    found = kernel, events, line
            elif function := Function.of(body, events, line):
                functions[function.name] = function
        elif kind == "close":
            raise PtxError(f"PTX line {line}: a }} that closes nothing")
    if found is None:
        raise PtxError(f"the PTX has no entry {entry}")
    kernel, body_events, line = found
    kernel.functions, kernel.target = frozenset(functions), target
    addresses = {name: FUNCTION + 16 * (1 + n) for n, name in enumerate(functions)}
    taken = {link.name for v in outside for link in v.links}
    taken |= set(re.findall(r"\bmov\.[bus]64\s+[%\w]+\s*,\s*([\w$]+)\s*;", text)) if functions else set()
    outside = [linked(v, addresses) for v in outside]
    for depth in DEPTHS:
        whole = replace(kernel, registers={}, variables=[], code=[], labels={})
        try:
            Body(whole, functions, Places(text, source), depth, addresses, taken).read(body_events, line)
            break
        except TooLongError:
            if depth == DEPTHS[-1]:
                raise
    kernel = whole
    join_halves(kernel)
    # nvcc puts the shared memory of all kernels of a file outside; a kernel has what it names, as ptxas says.
    texts = "\n".join(i.text for i in kernel.code) if any(v.space == "shared" for v in outside) else ""
    words = set(re.findall(r"[\w$]+", texts))
    kernel.variables[:0] = [v for v in outside if v.space != "shared" or v.name in words]
    return kernel


def _limits(directives: str) -> dict[str, tuple[int, ...]]:
    """What the directives after an entry's head say of its launches."""
    found = re.findall(
        r"\.((?:max|req)ntid|minnctapersm|maxnreg|reqnctapercluster)\s+(\d+(?:\s*,\s*\d+)*)", directives
    )
    return {name: tuple(int(n) for n in numbers.split(",")) for name, numbers in found}


class _Reader:
    """Splits text into statements, labels, and scopes that open and close, each with its line.

    A brace within a statement is a vector operand; one at its start, or after a header, is a scope.
    """

    def __init__(self, text: str) -> None:
        # Comments go, their line ends stay; what looks like one in a string (the path of a .file) stays.
        # The text of other compilers than nvcc may end without a line end, or with C's own.
        text = text.rstrip("\0") + "\n"
        text = re.sub(r'("[^"\n]*")|/\*.*?\*/|//[^\n]*', _uncommented, text, flags=re.DOTALL)
        # Debug information is no PTX; that of -lineinfo is strings of bytes.
        self._text = re.sub(r"\.section\b[^{}\n]*\s*\{[^{}]*\}", _line_ends, text)
        self._events = self._split()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def scope(self, line: int) -> list[Event]:
        """What stands up to the } of a { at this line."""
        depth, events = 1, list[Event]()
        for event in self:
            depth += {"open": 1, "close": -1}.get(event[0], 0)
            if not depth:
                return events
            events.append(event)
        raise PtxError(f"PTX line {line}: the {{ is never closed")

    def _split(self) -> Iterator[Event]:
        start, line, quoted, braces = 0, 1, False, 0
        text = self._text
        for found in re.finditer(r'["\n;{}:]', text):
            position, char = found.start(), found[0]
            if char == '"':
                quoted = not quoted
            if quoted or char == '"':
                continue
            if char == "\n":
                if text[start:position].lstrip().removeprefix(".").startswith(_LINE_DIRECTIVES):
                    yield "line", text[start:position].strip(), line
                    start = position + 1
                line += 1
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


def _uncommented(match: re.Match[str]) -> str:
    return match[1] or _line_ends(match)


def _line_ends(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")

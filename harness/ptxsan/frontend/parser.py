"""PTX text to data: the reader, which finds statements and scopes, and the module around an entry.

Knows the grammar of the PTX ISA (version 9.0, §4), not the meaning of an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ptxsan.frontend.body import Body
from ptxsan.frontend.declarations import Event, Function, parameters, variables
from ptxsan.frontend.halves import join_halves
from ptxsan.frontend.places import Places
from ptxsan.frontend.syntax import Entry, PtxError, Variable

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
    Body(kernel, functions, Places(text, source)).read(body_events, line)
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

"""Where the instructions of a module come from, as its .loc and .file directives say (PTX ISA §11.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

# Headers that come with the compiler or a library: what called them says more.
_LIBRARY = re.compile(r"/(cuda[^/]*|nvidia|cutlass[^/]*|cute)/")


@dataclass(frozen=True)
class Place:
    """``line`` of the .cu file, 0 where none is known: of what is inlined from a header, the line that calls
    it; ``header``: file and line there, such as "tile.cuh:12", empty for code of the .cu file itself."""

    line: int = 0
    header: str = ""

    def __bool__(self) -> bool:
        return bool(self.line or self.header)

    def text(self, source: str) -> str:
        """In words, ``source`` being the name of the .cu file; empty where nothing is known."""
        if self.line:
            return f"{source}:{self.line}" + (f" in {self.header}" if self.header else "")
        return f"{self.header}, included by {source}" if self.header else ""


class Places:
    """Reads the .loc directives of a module in their order. ``source``: name of the .cu file; without one it
    is the module's first."""

    def __init__(self, text: str = "", source: str = "") -> None:
        found = re.findall(r'^\s*\.file\s+(\d+)\s+"([^"\n]*)"', text, re.MULTILINE)
        self._files: Mapping[str, str] = dict(found)
        named = [number for number, path in found if PurePath(path).name == source]
        self._main = next(iter(named), "" if source and found else "1")
        self._called: dict[tuple[str, str], int] = {}  # lines of the .cu file, by places inlined there

    def read(self, directive: str, before: Place) -> Place:
        """The place that a .loc names; ``before`` is that of the instruction before it."""
        at = re.match(r"\.loc\s+(\d+)\s+(\d+)", directive)
        if at is None:
            return before
        file, line = at.groups()
        by = re.search(r"\binlined_at\s+(\d+)\s+(\d+)", directive)
        if file == self._main and line != "0":
            return Place(int(line))
        called = 0
        if by is not None:
            called = int(by[2]) if by[1] == self._main else self._called.get((by[1], by[2]), 0)
        if line == "0":
            return Place(called) if called else before
        self._called[file, line] = called
        return Place(called or before.line, self._header(file, line))

    def _header(self, file: str, line: str) -> str:
        path = self._files.get(file, "")
        return f"{PurePath(path).name}:{line}" if path and not _LIBRARY.search(path) else ""

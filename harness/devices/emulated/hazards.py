"""What the emulated device sees go wrong, and where: a site is an instruction in the text of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.devices.emulated.ptx import Instruction


class Trap(Exception):
    """A hazard after which the launch cannot go on. ``check`` is a stable name such as bounds."""

    def __init__(self, check: str, what: str, site: Site | None, lane: int) -> None:
        super().__init__(what)
        self.check, self.what, self.site, self.lane = check, what, site, lane


@dataclass
class Site:
    """An instruction, what its accesses looked like before, and its counters where they are kept."""

    instruction: Instruction
    patterns: list[Any] = field(default_factory=list)
    counters: Any = None

    def count_global(self, buffer: str, element: Any, width: int, mask: Any) -> None:
        if self.counters is not None:
            self.counters.touch_global(self.instruction, buffer, element, width, mask)

    def count_shared(self, pattern: Any) -> None:
        if self.counters is not None:
            self.counters.touch_shared(self.instruction, pattern)

    def where(self, source: str) -> str:
        """PTX line, and the line of the .cu file where the compiler named it."""
        i = self.instruction
        place = f"PTX line {i.line}"
        return f"{source}:{i.source} ({place}: {i.text})" if i.source else f"{place}: {i.text}"

"""What goes wrong in a launch, and where: a site is an instruction in the text of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from ptxsan.frontend.places import Place
from ptxsan.frontend.syntax import Instruction


@dataclass(frozen=True)
class Hazard:
    """Something that went wrong: a stable ``check`` (bounds, misaligned, uninit, race, barrier, hang,
    trap, unsupported), the ``launch`` of the batch, one line of ``message``: who, what, at which line;
    ``line``: that of the .cu file, 0 where it is not known."""

    check: str
    launch: int
    message: str
    line: int = 0


@dataclass
class Report:
    """What a batch of launches did: ``hazards``, whether one of them ``stopped`` it, and lanes ×
    instructions executed. ``notes`` are no errors: what CUDA C++ leaves undefined, but PTX defines,
    and undefined values on which nothing depends.
    ``printed`` is what threads printed, as (launch, text)."""

    hazards: list[Hazard] = field(default_factory=list)
    notes: list[Hazard] = field(default_factory=list)
    stopped: bool = False
    lane_instructions: int = 0
    printed: list[tuple[int, str]] = field(default_factory=list)


class Observer(Protocol):
    """Who counts what instructions do: ``Counters``."""

    def touch_global(
        self, instruction: Instruction, kind: str, buffer: str, address: Any, width: int, mask: Any
    ) -> None: ...

    def touch_shared(self, instruction: Instruction, kind: str, pattern: Any) -> None: ...

    def touch_guard(self, instruction: Instruction, mask: Any) -> None: ...


class Trap(Exception):
    """A hazard after which the launch cannot go on. ``check`` is a stable name such as bounds."""

    def __init__(self, check: str, what: str, site: Site | None, lane: int) -> None:
        super().__init__(what)
        self.check, self.what, self.site, self.lane = check, what, site, lane


@dataclass
class Site:
    """An instruction, what its accesses looked like before, and who counts them where they are counted."""

    instruction: Instruction
    patterns: list[Any] = field(default_factory=list)
    counters: Observer | None = None

    def count_global(self, kind: str, buffer: str, address: Any, width: int, mask: Any) -> None:
        """A load, store or copy of ``width`` bytes at the addresses (n,) of the active lanes."""
        if self.counters is not None:
            self.counters.touch_global(self.instruction, kind, buffer, address, width, mask)

    def count_shared(self, kind: str, pattern: Any) -> None:
        if self.counters is not None:
            self.counters.touch_shared(self.instruction, kind, pattern)

    def count_guard(self, mask: Any) -> None:
        """Of the active lanes of its block of code, the guard of the instruction let these through."""
        if self.counters is not None:
            self.counters.touch_guard(self.instruction, mask)

    def where(self, source: str, known: Place) -> str:
        """PTX line, and the place in the .cu file ``source`` where it is known."""
        i = self.instruction
        place = f"PTX line {i.line}: {i.text}"
        return f"{known.text(source)} ({place})" if known else place


class Tell(Protocol):
    """Notes a hazard after which the launch goes on, as an error or, with ``note``, as a note."""

    def __call__(self, check: str, what: str, site: Site | None, lane: int, note: bool = False) -> None: ...

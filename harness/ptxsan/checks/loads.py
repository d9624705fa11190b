"""Registers that a tcgen05.ld in flight still sets (PTX ISA §9.7.16.6.4.5).

Who reads one waits for it, as for any register; nothing else may be done with it before the tcgen05.wait::ld.
Once a warp has read all that a load gives it, the load has happened, but PTX takes no other order from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.frontend import Instruction, register_names
from ptxsan.lanes import WARP, Array, Mask

Run = Callable[[Mask | None], None]


class LoadedRegisters:
    """Of one kernel; ``watched`` are the registers that its loads set. ``report`` and ``used``, which is told
    of warps (n,) and of each how many loads it had begun with the one that it has read whole, are set by the
    machine."""

    OF_BLOCKS = ("_warps", "_of", "_left", "_place", "_begun", "_loads")

    def __init__(self, code: Sequence[Instruction]) -> None:
        loads = [i for i in code if i.op.startswith("tcgen05.ld")]
        self.watched = {name for i in loads for name in register_names(i.operands[:1])}
        self.report: Any = None
        self.used: Callable[[Array, Array], None] = lambda warps, places: None
        self.enter(WARP)

    def enter(self, lanes: int) -> None:
        """So many lanes run from now on."""
        self._warps = lanes // WARP
        self._begun = np.zeros(self._warps, np.int64)
        self._loads = 0
        self._of: dict[str, Array] = {}  # the load in flight by register and warp, 0 for none
        self._left: dict[int, Array] = {}  # registers of a load that a warp has not read
        self._place: dict[int, Array] = {}  # of a load among those of each warp

    def _at(self, mask: Mask | None) -> Array:
        return np.ones(self._warps, bool) if mask is None else mask.warps

    def wait(self, mask: Mask | None) -> None:
        """tcgen05.wait::ld."""
        at = self._at(mask)
        for held in self._of.values():
            held[at] = 0
        for number, left in list(self._left.items()):
            left[at] = 0
            if not left.any():
                del self._left[number], self._place[number]

    def watch(self, i: Instruction, writes: int, site: Site, run: Run) -> Run:
        """The instruction, with what it touches looked at first."""
        to, of = register_names(i.operands[:writes]), register_names(i.operands[writes:])
        reads, changes = (sorted(self.watched.intersection(names)) for names in (of, to))
        if i.op.startswith("tcgen05.ld"):
            return lambda mask: self._load(to, site, run, mask)
        if not reads and not changes:
            return run

        def touching(mask: Mask | None) -> None:
            at = self._at(mask)
            for name in reads:
                self._read(name, at)
            for name in changes:
                self._check(name, at, site)
            run(mask)

        return touching

    def _load(self, names: list[str], site: Site, run: Run, mask: Mask | None) -> None:
        at = self._at(mask)
        for name in names:
            self._check(name, at, site)
        run(mask)
        self._loads += 1
        self._begun[at] += 1
        self._left[self._loads] = np.where(at, len(names), 0)
        self._place[self._loads] = self._begun.copy()
        for name in names:
            self._of.setdefault(name, np.zeros(self._warps, np.int64))[at] = self._loads

    def _read(self, name: str, at: Array) -> None:
        held = self._of.get(name)
        if held is None or not (here := at & (held > 0)).any():
            return
        for number in np.unique(held[here]).tolist():
            warps = np.flatnonzero(here & (held == number))
            left = self._left[number]
            left[warps] -= 1
            if len(done := warps[left[warps] == 0]):
                self.used(done, self._place[number][done])
        held[here] = 0

    def _check(self, name: str, at: Array, site: Site) -> None:
        held = self._of.get(name)
        if held is not None and (bad := at & (held > 0)).any():
            what = f"sets {name.split('@')[0]}, which a tcgen05.ld in flight sets: no tcgen05.wait::ld before"
            self.report("race", what, site, int(np.argmax(bad)) * WARP)

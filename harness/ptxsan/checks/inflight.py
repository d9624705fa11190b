"""Registers that a wgmma in flight still reads or writes, and those touched without a wgmma.fence (PTX ISA
§9.7.15.4).

A warp must not touch the accumulators of a wgmma before it has waited for its group, nor change a fragment
of A. Of what it touched otherwise, a wgmma.fence has to stand before the next wgmma. A move hands on what a
register is: nvcc copies accumulators from name to name, and ptxas gives them one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, Register, Vector, register_names
from ptxsan.lanes import WARP, Array, Mask

Run = Callable[[Mask | None], None]


def is_move(i: Instruction) -> bool:
    return i.op.startswith("mov.") and len(i.operands) == 2 and isinstance(i.operands[0], Register)


class InFlight:
    """Of one kernel; ``watched`` are the registers that its wgmmas use, and those they are moved from and
    to."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        used = [i for i in code if i.op.startswith("wgmma.mma_async")]
        self.watched = {
            name
            for i in used
            for o in i.operands[:2]
            if isinstance(o, Vector)
            for name in register_names([o])
        }
        moves = [
            (register_names([i.operands[0]]), register_names([i.operands[1]]))
            for i in code
            if used and is_move(i)
        ]
        size = -1
        while used and size != len(self.watched):
            size = len(self.watched)
            for to, source in moves:
                if self.watched & {*to, *source}:
                    self.watched |= {*to, *source}
        self.report: Any = None
        self.enter(WARP)

    def enter(self, lanes: int) -> None:
        """So many lanes run from now on."""
        self._warps = lanes // WARP
        self._now = 1
        self._of_d: dict[str, Array] = {}  # the group, from 1, by register and warp
        self._of_a: dict[str, Array] = {}
        self._touched: dict[str, Array] = {}  # when
        self._committed, self._done, self._fenced, self._started = np.zeros((4, self._warps), np.int64)

    def _at(self, mask: Mask | None) -> Array:
        return np.ones(self._warps, bool) if mask is None else mask.warps

    # What orders

    def fence(self, mask: Mask | None) -> None:
        self._now += 1
        self._fenced[self._at(mask)] = self._now

    def commit(self, mask: Mask | None) -> None:
        self._committed[self._at(mask)] += 1

    def wait(self, most: int, mask: Mask | None) -> None:
        at = self._at(mask)
        self._done[at] = np.maximum(self._done, self._committed - most)[at]

    # What touches

    def watch(self, i: Instruction, writes: int, site: Site, run: Run) -> Run:
        """The instruction, with what it touches looked at first."""
        if i.op.startswith("wgmma.mma_async"):
            return self._mma(i, site, run)
        to, of = register_names(i.operands[:writes]), register_names(i.operands[writes:])
        mine = self.watched & {*to, *of}
        if not mine:
            return run
        if is_move(i):
            return lambda mask: self._move(to, of, site, run, mask)
        reads, changes = ([n for n in names if n in self.watched] for names in (of, to))

        def touching(mask: Mask | None) -> None:
            at = self._at(mask)
            self._now += 1
            for name in (*reads, *changes):
                self._check(self._of_d, name, at, site)
                self._put(self._touched, name, at, self._now)
            for name in changes:
                self._check(self._of_a, name, at, site)
            run(mask)

        return touching

    def _move(self, to: list[str], of: list[str], site: Site, run: Run, mask: Mask | None) -> None:
        at = self._at(mask)
        for name in to:
            source = of[0] if of else ""
            if not self._in_flight(self._of_d, source, at).any():
                self._check(self._of_d, name, at, site)
            for marks in (self._of_d, self._touched):
                held = marks.get(source)
                self._put(marks, name, at, 0 if held is None else held[at])
        run(mask)

    def _mma(self, i: Instruction, site: Site, run: Run) -> Run:
        out = register_names(i.operands[:1])
        fragments = register_names(i.operands[1:2]) if isinstance(i.operands[1], Vector) else []

        def started(mask: Mask | None) -> None:
            at = self._at(mask)
            last = np.zeros(self._warps, np.int64)
            for name in (*out, *fragments):
                last = np.maximum(last, self._touched.get(name, 0))
            # A fence since the last wgmma counts, even if nvcc has moved what touches past it.
            bad = at & ((self._fenced == 0) | ((last > self._fenced) & (self._started > self._fenced)))
            if bad.any():
                what = "uses registers that were accessed since the last wgmma.fence"
                self.report("race", what, site, int(np.argmax(bad)) * WARP)
            run(mask)
            self._now += 1
            self._started[at] = self._now
            for marks, names in ((self._of_d, out), (self._of_a, fragments)):
                for name in names:
                    self._put(marks, name, at, (self._committed + 1)[at])

        return started

    def _put(self, marks: dict[str, Array], name: str, at: Array, value: Any) -> None:
        if name not in marks:
            marks[name] = np.zeros(self._warps, np.int64)
        marks[name][at] = value

    def _in_flight(self, marks: dict[str, Array], name: str, at: Array) -> Array:
        held = marks.get(name)
        return np.zeros(1, bool) if held is None else at & (held > self._done)

    def _check(self, marks: dict[str, Array], name: str, at: Array, site: Site) -> None:
        bad = self._in_flight(marks, name, at)
        if bad.any():
            what = f"touches {name.split('@')[0]}, which a wgmma in flight uses: no wgmma.wait_group before"
            self.report("race", what, site, int(np.argmax(bad)) * WARP)

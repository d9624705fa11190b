"""Who read an element of global memory last: a plain write by another thread races with that."""

from __future__ import annotations

import numpy as np

from ptxsan.checks import site_of, time_of
from ptxsan.checks.order import Order
from ptxsan.frontend import Address, Entry, Instruction, Name, Operand, Register, Vector, register_names
from ptxsan.lanes import Array
from ptxsan.native import library

_ELSEWHERE = {
    "shared",
    "param",
    "const",
    "nc",
}  # words of accesses to what no store changes


class Readers:
    """Of the elements of a buffer: the last two threads that plainly read each cell of ``cell`` bytes, of so
    many ``size`` bytes: one of them is another than the one that writes."""

    def __init__(self, size: int, cell: int) -> None:
        self._cell = cell
        self._keep(np.zeros((size // cell, 4), np.int64))

    def _keep(self, cells: Array) -> None:
        """What is noted of each cell lies together: as often as not it is far from that of the others."""
        self._all = cells
        self._who = cells[:, ::2].T  # the number of the thread, 0 for none
        self._when = cells[:, 1::2].T

    def _refine(self, width: int) -> int:
        """How many cells an element of ``width`` bytes has."""
        if width < self._cell:
            self._keep(np.repeat(self._all, self._cell // width, axis=0))
            self._cell = width
        return width // self._cell

    def note(self, element: Array, width: int, numbers: Array, stamp: int) -> None:
        """Threads of these numbers (n,) read elements (n,) of ``width`` bytes, one after another."""
        n = self._refine(width)
        if (native := library()) is not None:
            native.note_readers(self._all, element, numbers, n, stamp)
            return
        cells = element[:, None] * n + np.arange(n)
        before = self._who[0, cells]
        other = before != numbers[:, None]
        self._who[1, cells] = np.where(other, before, self._who[1, cells])
        self._when[1, cells] = np.where(other, self._when[0, cells], self._when[1, cells])
        self._who[0, cells], self._when[0, cells] = numbers[:, None], stamp
        # Where several read one cell at once, the last of them but one is the other.
        i, j = np.nonzero(self._who[0, cells] != numbers[:, None])
        self._who[1, cells[i, j]], self._when[1, cells[i, j]] = numbers[i], stamp

    def clash(
        self, element: Array, width: int, numbers: Array, lanes: Array, order: Order
    ) -> tuple[int, int, int]:
        """Position, reader and its site's number of the first element that another thread than the one which
        writes it now has read, and nothing orders between; or (−1, 0, 0)."""
        n, native = self._refine(width), library()
        if native is not None and not native.read_by_others(self._all, element, numbers, n):
            return -1, 0, 0
        cells = element[:, None] * n + np.arange(n)
        for who, when in zip(self._who[:, cells], self._when[:, cells], strict=True):
            bad = (who != 0) & (who != numbers[:, None])
            for j in np.flatnonzero(bad.any(axis=0)).tolist():
                late = bad[:, j] & order.unordered(lanes, who[:, j], time_of(when[:, j]))
                if late.any():
                    i = int(np.argmax(late))
                    return i, int(who[i, j]), site_of(int(when[i, j]))
        return -1, 0, 0


def read_and_written(entry: Entry) -> frozenset[str]:
    """The parameters and module variables through which a kernel, by its text, both loads and stores.
    Addresses that it loads itself, or gets in a struct, are not followed."""
    names = [name for name, kind in entry.parameters if "[" not in kind]
    names += [variable.name for variable in entry.variables if variable.space == "global"]
    came = {name: 1 << at for at, name in enumerate(names)}  # a bit for each name
    bases = [_base(i) for i in entry.code]
    passed, moves = ("ld.param", "ld.local", "st.local"), []
    for base, i in zip(bases, entry.code, strict=True):
        if base is None or i.op.startswith(passed):
            to = _named(i.operands[:1]) if i.op.startswith("st.local") else register_names(i.operands[:1])
            moves.append((to, _named(i.operands[1:])))
    changed = True
    while changed:
        changed = False
        for targets, sources in moves:
            given = 0
            for source in sources:
                given |= came.get(source, 0)
            for target in targets if given else ():
                if given & ~came.get(target, 0):
                    came[target], changed = came.get(target, 0) | given, True
    found = [0, 0]  # loaded through, and stored
    for base, i in zip(bases, entry.code, strict=True):
        if base is not None and not _ELSEWHERE.intersection(i.op.replace("::", ".").split(".")):
            found[not i.op.startswith("ld")] |= came.get(base, 0)
    return frozenset(name for at, name in enumerate(names) if found[0] & found[1] & 1 << at)


def _named(operands: tuple[Operand, ...]) -> list[str]:
    """The names that operands are made of: registers, and variables."""
    found: list[str] = []
    for operand in operands:
        if isinstance(operand, Register):
            found.append(operand.name)
        elif isinstance(operand, Vector):
            found += register_names(operand.items)
        elif isinstance(operand, Name):
            found.append(operand.text)
        elif isinstance(operand, Address) and operand.base is not None:
            found.append(operand.base.name if isinstance(operand.base, Register) else operand.base.text)
    return found


def _base(i: Instruction) -> str | None:
    """Of a load, a store or an atomic the register or variable of its address; None for any other."""
    kind = i.op.split(".")[0]
    if kind not in ("ld", "st", "atom", "red") or ".local" in i.op or ".param" in i.op:
        return None
    operand = i.operands[0 if kind in ("st", "red") else 1]
    if not isinstance(operand, Address) or operand.base is None:
        return ""
    return operand.base.name if isinstance(operand.base, Register) else operand.base.text

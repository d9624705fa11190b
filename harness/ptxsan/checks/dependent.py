"""Programmatic dependent launch (PTX ISA §9.7.13.13).

What the launch before wrote is there only once a thread has executed griddepcontrol.wait, or comes after one
that has, past a barrier of its block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ptxsan.checks.order import Order
from ptxsan.lanes import Array, Geometry


class Numbered(Protocol):
    """What is asked of a buffer: its number, and the bytes of an element."""

    number: int
    item: int


class Dependence:
    """Of a launch that may begin before the one before it has ended. ``written``: pairs of the number of a
    buffer, and which of its elements a launch wrote, (elements,) bool."""

    def __init__(self, written: Sequence[tuple[int, Array]]) -> None:
        self._written: dict[int, Array] = {}
        for number, marks in written:
            self._written[number] = marks | self._written.get(number, False)
        self._waited: dict[int, int] = {}  # when, by the number of a thread in the grid
        self._first: dict[int, int] = {}  # by block the number of the thread that waited first

    def wait(self, numbers: Array, threads: int, order: Order) -> None:
        """These threads (n,) execute griddepcontrol.wait."""
        for number in numbers.tolist():
            self._waited.setdefault(number, order.clock)
            self._first.setdefault((number - 1) // threads, number)
        order.tick()

    def early(
        self, buffer: Numbered, element: Array, width: int, lanes: Array, geometry: Geometry, order: Order
    ) -> int:
        """Position of the first of these elements (n,) of ``width`` bytes that was written before and that a
        lane (n,) accesses without a wait; −1 for none."""
        written, item = self._written.get(buffer.number), buffer.item
        if written is None:
            return -1
        items = (element * width // item)[:, None] + np.arange(max(1, width // item))
        bad = written[np.minimum(items, len(written) - 1)].any(axis=1)
        if not bad.any():
            return -1
        numbers = geometry.writer[lanes]
        bad &= ~np.isin(numbers, list(self._waited))
        first = np.array([self._first.get(int(n - 1) // geometry.threads, 0) for n in numbers], np.int64)
        when = np.array([self._waited.get(int(n), 0) for n in first], np.int64)
        bad &= (first == 0) | order.unordered(lanes, first, when)
        return int(np.argmax(bad)) if bad.any() else -1

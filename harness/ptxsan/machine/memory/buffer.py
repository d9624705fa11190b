"""A buffer in global memory: its bytes, its bounds, and which thread wrote each byte last.

Buffers lie far apart in the 64-bit address space, so an access out of bounds never hits another buffer. In a
batch of launches, each launch has its own copy of every buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxsan.checks import site_of, time_of
from ptxsan.checks.order import Order
from ptxsan.checks.readers import Readers
from ptxsan.checks.undefined import Shadow
from ptxsan.lanes import Array, Geometry
from ptxsan.machine.memory import agreed, rewrites
from ptxsan.native import library

BUFFER, _LAUNCH = 50, 40  # address bits: buffer above launch above offset


class Buffer:
    """A matrix in global memory, one copy for each launch of a batch.

    ``values``: one array (rows, columns) for each launch. ``pitch``: bytes from one row to the next, at least
    those of a row; the bytes between rows are out of bounds. ``known``: one bool array (rows, columns) for
    each launch, True where the element is initialised; None if all are. ``flat``: the buffer is a vector, and
    messages say name[i]. ``start``: elements between a 256-byte boundary and the first element. ``output``:
    the host reads the buffer after the launch, if it is writable. ``divided``: among the blocks; no two of
    them may write one element, not even the same value.
    """

    def __init__(
        self,
        name: str,
        number: int,
        values: Sequence[Array],
        pitch: int | None = None,
        known: Sequence[Array] | None = None,
        writable: bool = False,
        flat: bool = False,
        start: int = 0,
        output: bool = True,
        divided: bool = False,
    ) -> None:
        self.name, self.number, self.writable, self._flat = name, number, writable, flat
        self._divided = divided
        rows, columns = values[0].shape
        self.item = values[0].dtype.itemsize
        self.width = columns * self.item
        self.rows, self.pitch = rows, pitch or self.width
        self.size = (rows - 1) * self.pitch + self.width if rows and columns else 0
        self._offset = start * self.item  # in memory and in storage: what is aligned there is so here
        self.base = ((number + 1) << BUFFER) + self._offset
        # Stored rows of a sparse matrix are aligned as those of the matrix are.
        self._row = self.width
        if self.pitch != self.width:
            self._row = -(-self.width // 16) * 16 + self.pitch % 16
        self._stride = -(-(self._offset + rows * self._row) // 16) * 16 + 16  # bytes of storage a launch
        self.bytes = np.zeros(self._stride * len(values), np.uint8)
        self._dtype = values[0].dtype
        for i, array in enumerate(values):
            self._rows(i)[:, : self.width] = np.ascontiguousarray(array).view(np.uint8)
        self._unit = self.item  # bytes of which it is known whether they hold something
        self._known: Array | None = None
        if known is not None and not all(each.all() for each in known):
            self._known = np.zeros((len(values), self._stride // self.item), bool)
            for i, each in enumerate(known):
                held = self._known[i, start : start + rows * self._row // self.item].reshape(rows, -1)
                held[:, :columns] = each
            self._known = self._known.ravel()
        me = weakref.proxy(self)
        self.shadow = Shadow(self.bytes, lambda: me._all_known(), lambda: me._unit, lambda: None)
        if output and writable:
            self.shadow.place = lambda at: str(me.element(at // me.item, me.item))
        self._cell = self.item  # bytes of which one writer is known
        self._writer: Array | None = None
        self._when: Array | None = None
        self._volatile: Array | None = None  # written by a volatile store
        self._narrow: Array | None = None  # written by an atomic of .cta scope
        self._bulk: Array | None = None  # written by the async proxy
        self.readers: Readers | None = None  # where a kernel reads and writes it
        self._geometry: Geometry | None = None
        self.first: Any = 0
        self._start: Any = 0

    def address(self, launch: int) -> int:
        return self.base + (launch << _LAUNCH)

    def put(self, launch: int, at: int, address: int) -> None:
        """Writes an address into the initial values, at byte ``at``."""
        self.bytes[launch * self._stride + at :][:8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)

    def values(self, launch: int) -> Array:
        """The current values of a launch's copy, (rows, columns)."""
        return np.ascontiguousarray(self._rows(launch)[:, : self.width]).view(self._dtype)

    def _rows(self, launch: int) -> Array:
        """The stored rows of a launch, in bytes."""
        at = launch * self._stride + self._offset
        return self.bytes[at : at + self.rows * self._row].reshape(self.rows, self._row)

    def enter(self, geometry: Geometry) -> None:
        """Addresses and storage of each lane's own copy."""
        self._geometry = geometry
        launches = geometry.launches
        if (launches == launches[0]).all():
            self.first, self._start = self.address(int(launches[0])), int(launches[0]) * self._stride
            self._start += self._offset
        else:
            self.first = self.base + (geometry.launch.astype(np.int64) << _LAUNCH)
            self._start = geometry.launch.astype(np.int64) * self._stride + self._offset
        self._of_lanes = [np.atleast_1d(np.asarray(each, np.int64)) for each in (self.first, self._start)]

    def locate(self, address: Array, lanes: Array, width: int, spread: bool) -> tuple[Array, int]:
        """Storage elements of ``width`` bytes of these lanes (n,), and the first position out of bounds; −1
        for none, −2 where they may not be aligned. The addresses are theirs, or ``spread`` over all lanes."""
        if (native := library()) is not None and address.dtype == np.int64:
            element, flat = np.empty(len(lanes), np.int64), self.pitch == self.width
            rows = (1, self.size, self.size, 0) if flat else (self.rows, self.width, self.pitch, self._row)
            if not native.global_places(address, spread, *self._of_lanes, lanes, *rows, width, element):
                return element, -1
        address = address[lanes] if spread else address
        first, start = self.first, self._start
        if isinstance(first, np.ndarray):
            first, start = first[lanes], start[lanes]
        relative = address - first
        shift = width.bit_length() - 1
        if self.pitch == self.width:
            bad = -2
            if relative.size and int(relative.view(np.uint64).max()) > self.size - width:
                bad = int(np.argmax(relative.view(np.uint64) > np.uint64(max(0, self.size - width))))
                bad = bad if self.size >= width else 0
            return (relative + start) >> shift, bad
        row, column = np.divmod(relative, self.pitch)
        out = (row < 0) | (row >= self.rows) | (column + width > self.width)
        where = row * self._row + column + start
        return where >> shift, int(np.argmax(out)) if out.any() else -2

    def explain(self, address: int, launch: int, width: int) -> str:
        """Where an address that is out of bounds lies."""
        offset = address - self.address(launch)
        if offset < 0:
            return f"{-offset} bytes before the start of {self.name}"
        if offset + width > self.size:
            return f"{max(0, offset - self.size)} bytes past the end of {self.name} ({self.size} bytes)"
        row, column = divmod(offset, self.pitch)
        return f"{self.name}, row {row}, {column - self.width} bytes past the end of the row"

    def element(self, element: int, width: int) -> str:
        """A storage element as a coordinate."""
        at = element * width % self._stride - self._offset
        row, column = divmod(at // self.item, max(1, self._row // self.item))
        return f"{self.name}[{column}]" if self._flat else f"{self.name}({row}, {column})"

    def missing(self, element: int, width: int) -> str:
        """The first coordinate within a storage element that holds nothing."""
        first = element * width // self._unit
        known = self._all_known()[first : first + max(1, width // self._unit)]
        return self.element((first + int(np.argmin(known))) * self._unit // self.item, self.item)

    def unknown(self, element: Array, width: int) -> Array | None:
        """Which of the elements hold something that nobody wrote; None for none of them."""
        if self._known is None:
            return None
        native = library() if width >= self._unit else None
        if native is not None and native.all_set(self._known, element, width // self._unit):
            return None
        if width <= self._unit:
            known = self._known.take(element // (self._unit // width))
        else:
            n = width // self._unit
            known = np.asarray(self._known.reshape(-1, n).take(element, axis=0).all(axis=1))
        return None if known.all() else ~known

    def _all_known(self) -> Array:
        if self._known is None:
            self._known = np.ones(len(self.bytes) // self._unit, bool)
        return self._known

    def mark(
        self,
        element: Array,
        width: int,
        writers: Array,
        lanes: Array,
        order: Order,
        stamp: int,
        values: Array | None = None,
        narrow: bool = False,
    ) -> tuple[int, int, int, int, bool] | None:
        """Notes who wrote; (position, writer, other writer, number of the other's site, whether it is
        harmless) of the first write over another thread's that nothing orders, one that is not harmless if
        there is any. Harmless is the same value, of a divided buffer by a thread of the same block.

        Writers of atomics are negative, and clash with none of their kind, unless one of the two is
        ``narrow``, of .cta scope, and the other of another block (PTX ISA §8.7.1, morally strong); those
        without ``values`` count as writing others."""
        if width < self._cell:
            self._refine(width)
        if self._writer is None or self._when is None:
            self._writer = np.zeros(len(self.bytes) // self._cell, np.int64)
            self._when = np.zeros(len(self._writer), np.int64)
        clash = None
        n, native = width // self._cell, None if narrow or self._narrow is not None else library()
        done = native is not None and not native.claim(
            self._writer, self._when, element, np.ascontiguousarray(writers), n, stamp
        )
        for j in range(0 if done else n):
            at = element * n + j
            before = self._writer[at]
            bad = _differ(before, writers) | self._strange(at, np.abs(writers), narrow)
            if bad.any():
                bad &= order.unordered(lanes, np.abs(before), time_of(self._when[at]))
                seen = np.flatnonzero(bad & (before < 0))
                bad[seen] = ~order.observed(
                    self.number, element[seen] * width, lanes[seen], time_of(self._when[at[seen]])
                )
            earlier = self._when[at]
            self._writer[at] = writers
            self._when[at] = stamp
            self._note_narrow(at, narrow)
            after = self._writer[at]
            twice = _differ(after, writers) | self._strange(at, np.abs(writers), narrow)
            if (clash is None or clash[-1]) and (bad | twice).any():
                harmless = np.zeros(len(element), bool)
                if values is not None:
                    known = (before > 0) & rewrites(self.bytes, element, width, values)
                    harmless = (writers > 0) & (~bad | known) & (~twice | agreed(element, values))
                    if self._divided and self._geometry is not None:
                        threads = self._geometry.threads
                        harmless &= (writers - 1) // threads == (np.where(bad, before, after) - 1) // threads
                worse = (bad | twice) & ~harmless
                i = int(np.argmax(worse if worse.any() else bad | twice))
                against = int(before[i] if bad[i] else after[i])
                site = site_of(int(earlier[i]) if bad[i] else stamp)
                clash = (i, abs(int(writers[i])), abs(against), site, bool(harmless[i]))
        if self._known is not None:
            if width < self._unit:
                self._known = np.repeat(self._known, self._unit // width)
                self._unit = width
            n = width // self._unit
            self._known[element if n == 1 else (element[:, None] * n + np.arange(n)).ravel()] = True
        return clash

    def _refine(self, width: int) -> None:
        """From now on writers are told apart for so many bytes."""
        if self._writer is not None and self._when is not None:
            self._writer = np.repeat(self._writer, self._cell // width)
            self._when = np.repeat(self._when, self._cell // width)
        if self._volatile is not None:
            self._volatile = np.repeat(self._volatile, self._cell // width)
        if self._narrow is not None:
            self._narrow = np.repeat(self._narrow, self._cell // width)
        if self._bulk is not None:
            self._bulk = np.repeat(self._bulk, self._cell // width)
        self._cell = width

    def note_volatile(self, element: Array, width: int, volatile: bool) -> None:
        """Elements that were just written, by volatile stores or by others."""
        if volatile and self._volatile is None and self._writer is not None:
            self._volatile = np.zeros(len(self._writer), bool)
        if self._volatile is not None:
            self._volatile.reshape(-1, max(1, width // self._cell))[element] = volatile

    def watch(self) -> None:
        """From now on it is known who reads what."""
        self.readers = Readers(len(self.bytes), self.item)

    def note_bulk(self, element: Array, width: int, bulk: bool) -> None:
        """The same of elements that the async proxy has written, or the generic one."""
        if bulk and self._bulk is None and self._writer is not None:
            self._bulk = np.zeros(len(self._writer), bool)
        if self._bulk is not None:
            self._bulk.reshape(-1, max(1, width // self._cell))[element] = bulk

    def unfenced(self, element: Array, width: int, lanes: Array, order: Order) -> tuple[int, int, int]:
        """Position, writer and its site's number of the first element that the generic proxy wrote, and that
        no fence has shown to the async proxy; or (−1, 0, 0)."""
        if self._writer is None or self._when is None:
            return -1, 0, 0
        writer, when = (self._cells(each, element, width) for each in (self._writer, self._when))
        bad = writer != 0
        if self._bulk is not None:
            bad &= ~self._cells(self._bulk, element, width)
        if not bad.any():
            return -1, 0, 0
        bad &= ~order.shown(np.repeat(lanes[:, None], bad.shape[1], axis=1), np.abs(writer), time_of(when))
        i, j = np.unravel_index(int(np.argmax(bad)), bad.shape)
        return (int(i), abs(int(writer[i, j])), site_of(int(when[i, j]))) if bad.any() else (-1, 0, 0)

    def _cells(self, of: Array, element: Array, width: int) -> Array:
        """What is noted of the cells of each element, (n, cells)."""
        n = max(1, width // self._cell)
        return of.reshape(-1, n).take(element if n > 1 else element // (self._cell // width), axis=0)

    def last_writes(self, element: Array, width: int) -> tuple[Array, Array]:
        """Who wrote the cells of these elements last in this launch, by number, 0 for nobody, and when."""
        if self._writer is None or self._when is None:
            return np.zeros(1, np.int64), np.zeros(1, np.int64)
        writer, when = (self._cells(each, element, width).ravel() for each in (self._writer, self._when))
        return np.abs(writer), np.asarray(time_of(when))

    def _note_narrow(self, at: Array, narrow: bool) -> None:
        """Cells that were just written, by atomics of .cta scope or otherwise."""
        if narrow and self._narrow is None and self._writer is not None:
            self._narrow = np.zeros(len(self._writer), bool)
        if self._narrow is not None:
            self._narrow[at] = narrow

    def _strange(self, at: Array, numbers: Array, narrow: bool) -> Array:
        """For which threads, by their numbers, the last write of a cell was an atomic of another block, and
        it or what they do now is of .cta scope."""
        if self._writer is None or not (narrow or self._narrow is not None):
            return np.zeros(len(at), bool)
        assert self._geometry is not None
        before, threads = self._writer[at], self._geometry.threads
        other = (before < 0) & ((-before - 1) // threads != (numbers - 1) // threads)
        return np.asarray(other & (narrow | (False if self._narrow is None else self._narrow[at])))

    def unordered(
        self,
        element: Array,
        width: int,
        lanes: Array,
        order: Order,
        atomic: bool,
        sees: bool = False,
        narrow: bool = False,
    ) -> tuple[int, int, int]:
        """Position, writer and its site's number of the first element that another thread wrote and nothing
        orders before this read, or (−1, 0, 0). Of an ``atomic`` read only writes that are not count, nor
        volatile ones of a read that ``sees`` those; but atomics do that are strange to it (``mark``)."""
        if self._writer is None or self._when is None:
            return -1, 0, 0
        n = max(1, width // self._cell)
        element = element if width >= self._cell else element // (self._cell // width)
        numbers = order.numbers(lanes)
        native = None if narrow or self._narrow is not None else library()
        if native is not None and not native.disputed(self._writer, element, numbers, n, int(atomic)):
            return -1, 0, 0
        if native is not None and order.follows(self._writer, self._when, element, lanes, n, atomic):
            return -1, 0, 0
        writer = self._writer.reshape(-1, n).take(element, axis=0)
        if atomic:
            keep = writer > 0
            if narrow or self._narrow is not None:
                cells = element[:, None] * n + np.arange(n)
                keep |= np.stack([self._strange(at, numbers, narrow) for at in cells.T], axis=1)
            writer = np.where(keep, writer, 0)
        if sees and self._volatile is not None:
            writer = np.where(self._volatile.reshape(-1, n).take(element, axis=0), 0, writer)
        if not writer.any():
            return -1, 0, 0
        when = self._when.reshape(-1, n).take(element, axis=0)
        # Nearly always one thread wrote all of an element, at once.
        alike = n == 1 or bool((writer == writer[:, :1]).all() and (when == when[:, :1]).all())
        for j in range(1 if alike else n):
            bad = order.unordered(lanes, np.abs(writer[:, j]), time_of(when[:, j]))
            if bad.any():
                i = int(np.argmax(bad))
                return i, abs(int(writer[i, j])), site_of(int(when[i, j]))
        return -1, 0, 0

    def initialised(self, launch: int) -> Array:
        """Which elements hold a value, every byte of them, (rows, columns) bool."""
        return self._wholly(launch, self._known, self._unit, True)

    def first_written(self, element: Array, width: int) -> int:
        """Position of the first element of which some thread has written a part; −1 for none."""
        if self._writer is None:
            return -1
        n = max(1, width // self._cell)
        element = element if width >= self._cell else element // (self._cell // width)
        found = self._writer.reshape(-1, n).take(element, axis=0).any(axis=1)
        return int(np.argmax(found)) if found.any() else -1

    def written(self, launch: int) -> Array:
        """Which elements some thread has written, every byte of them, (rows, columns) bool."""
        return self._wholly(launch, self._writer, self._cell, False)

    def _wholly(self, launch: int, marks: Array | None, width: int, default: bool) -> Array:
        """Which elements have a mark on each of their parts of ``width`` bytes, (rows, columns) bool; all or
        none where there are no marks."""
        rows, stored, columns = self.rows, self._row // self.item, self.width // self.item
        if marks is None:
            return np.full((rows, columns), default)
        at, n = (launch * self._stride + self._offset) // width, self.item // width
        held = marks[at : at + rows * stored * n].reshape(rows, stored, n)
        return np.asarray((held[:, :columns] != 0).all(axis=2))


def _differ(one: Array, other: Array) -> Array:
    """Writers of which one must not write over the other."""
    return np.asarray((one != 0) & (np.abs(one) != np.abs(other)) & ((one > 0) | (other > 0)))

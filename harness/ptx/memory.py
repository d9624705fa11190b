"""Global and local memory: every access checked against the very buffer it belongs to.

Buffers lie far apart in a 64-bit address space, so an index that runs out of one ends in no other. A batch
of launches has a copy of each buffer for every launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import Array, Geometry, Mask, full
from harness.ptx.parser import Variable

SLOT = 20  # address bits of a shared or constant variable, apart like the buffers
LOCAL, SHARED = 1 << 61, 1 << 62  # generic addresses of local and of shared memory start there
_BUFFER, _LAUNCH = 50, 40  # address bits: buffer above launch above offset
UNSIGNED: dict[int, Any] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


# A word of 32 bits, (1,), to what an atomic makes of it, for the lane at a place among the active ones.
Change = Callable[[int, Array], Array]


def gather(storage: Array, element: Array, width: int) -> Array:
    """Elements of ``width`` bytes of a byte storage: (n,), or (n, width / 4) words where wider than one."""
    if width <= 4:
        return np.asarray(storage.view(UNSIGNED[width]).take(element))
    return storage.view(np.uint32).reshape(-1, width // 4).take(element, axis=0)


def scatter(storage: Array, element: Array, width: int, values: Array) -> None:
    """Set elements, shaped as ``gather`` gives them."""
    if width <= 4:
        storage.view(UNSIGNED[width])[element] = values
    else:
        storage.view(np.uint32).reshape(-1, width // 4)[element] = values


def update(storage: Array, element: Array, change: Change) -> Array:
    """Words of 32 bits, changed one after another; what was there before, (n,) uint32."""
    words, before = storage.view(np.uint32), np.empty(len(element), np.uint32)
    for i, at in enumerate(element):
        before[i] = words[at]
        words[at : at + 1] = change(i, words[at : at + 1])
    return before


def divide(kinds: Array, mask: Mask | None) -> Iterator[tuple[Array, Mask]]:
    """The lanes of each kind, ``kinds`` (n,) being those of the active ones: places among those, and mask."""
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        bits = of_kind if mask is None else np.zeros_like(mask.bits)
        if mask is not None:
            bits[mask.index[of_kind]] = True
        yield np.flatnonzero(of_kind), Mask(bits)


class Buffer:
    """A matrix in global memory, of every launch of a batch: rows of which ``pitch`` bytes apart only the
    first ``width`` exist where the matrix is sparse.

    ``values`` (rows, columns) arrays, one a launch; ``known`` (rows, columns) bool for each, which elements
    hold something that the kernel may read, None where all do.
    """

    def __init__(
        self,
        name: str,
        number: int,
        values: Sequence[Array],
        pitch: int | None = None,
        known: Sequence[Array] | None = None,
        writable: bool = False,
    ) -> None:
        self.name, self.writable = name, writable
        rows, columns = values[0].shape
        self.item = values[0].dtype.itemsize
        self.width = columns * self.item
        self.rows, self.pitch = rows, pitch or self.width
        self.size = (rows - 1) * self.pitch + self.width if rows and columns else 0
        self.base = (number + 1) << _BUFFER
        # Stored rows of a sparse matrix are aligned as those of the matrix are.
        self._row = self.width if self.pitch == self.width else -(-self.width // 16) * 16
        self._stride = -(-rows * self._row // 16) * 16 + 16  # bytes of storage a launch
        self.bytes = np.zeros(self._stride * len(values), np.uint8)
        self._dtype = values[0].dtype
        for i, array in enumerate(values):
            self._rows(i)[:, : self.width] = np.ascontiguousarray(array).view(np.uint8)
        self._known: Array | None = None
        if known is not None and not all(each.all() for each in known):
            self._known = np.zeros((len(values), self._stride // self.item), bool)
            for i, each in enumerate(known):
                held = self._known[i, : rows * self._row // self.item].reshape(rows, -1)
                held[:, :columns] = each
            self._known = self._known.ravel()
        self._writer: Array | None = None
        self._geometry: Geometry | None = None
        self._first: Any = 0
        self._start: Any = 0

    def address(self, launch: int) -> int:
        return self.base + (launch << _LAUNCH)

    def values(self, launch: int) -> Array:
        """The matrix as it is now, (rows, columns)."""
        return np.ascontiguousarray(self._rows(launch)[:, : self.width]).view(self._dtype)

    def _rows(self, launch: int) -> Array:
        """The stored rows of a launch, in bytes."""
        at = launch * self._stride
        return self.bytes[at : at + self.rows * self._row].reshape(self.rows, self._row)

    def enter(self, geometry: Geometry) -> None:
        """Addresses and storage of each lane's own copy."""
        self._geometry = geometry
        launches = geometry.launches
        if (launches == launches[0]).all():
            self._first, self._start = self.address(int(launches[0])), int(launches[0]) * self._stride
        else:
            self._first = self.base + (geometry.launch.astype(np.int64) << _LAUNCH)
            self._start = geometry.launch.astype(np.int64) * self._stride

    def locate(self, address: Array, index: Array | None, width: int) -> tuple[Array, int]:
        """Storage elements of ``width`` bytes, and the first position out of bounds or −1."""
        first, start = self._first, self._start
        if index is not None and isinstance(first, np.ndarray):
            first, start = first[index], start[index]
        relative = address - first
        shift = width.bit_length() - 1
        if self.pitch == self.width:
            bad = -1
            if relative.size and int(relative.view(np.uint64).max()) > self.size - width:
                bad = int(np.argmax(relative.view(np.uint64) > np.uint64(max(0, self.size - width))))
                bad = bad if self.size >= width else 0
            return (relative + start) >> shift, bad
        row, column = np.divmod(relative, self.pitch)
        out = (row < 0) | (row >= self.rows) | (column + width > self.width)
        where = row * self._row + column + start
        return where >> shift, int(np.argmax(out)) if out.any() else -1

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
        at = element * width % self._stride
        row, column = divmod(at // self.item, max(1, self._row // self.item))
        return f"{self.name}({row}, {column})"

    def unknown(self, element: Array, width: int) -> Array | None:
        """Which of the elements hold something that nobody wrote; None for none of them."""
        if self._known is None:
            return None
        if width <= self.item:
            known = self._known.take(element // (self.item // width))
        else:
            n = width // self.item
            known = np.asarray(self._known.reshape(-1, n).take(element, axis=0).all(axis=1))
        return None if known.all() else ~known

    def mark(self, element: Array, width: int, writers: Array) -> tuple[int, int, int] | None:
        """Notes who wrote; (position, writer, other writer) of the first write over another thread's.

        Writers of atomics are negative, and clash with none of their kind."""
        if self._writer is None:
            self._writer = np.zeros(len(self.bytes) // self.item, np.int64)
        clash = None
        n = max(1, width // self.item)
        for j in range(n):
            at = element * n + j if width >= self.item else element // (self.item // width)
            before = self._writer[at]
            self._writer[at] = writers
            after = self._writer[at]
            bad = _differ(before, writers) | _differ(after, writers)
            if clash is None and bad.any():
                i = int(np.argmax(bad))
                other = before[i] if _differ(before[i], writers[i]) else after[i]
                clash = (i, abs(int(writers[i])), abs(int(other)))
            if self._known is not None:
                self._known[at] = True
        return clash

    def foreign(self, element: Array, width: int, blocks: Array, threads: int, atomic: bool) -> int:
        """The first element that another block wrote in this launch, or −1; but by atomics, for an atomic."""
        if self._writer is None or width < self.item:
            return -1
        n = width // self.item
        writer = self._writer[element * n]
        bad = (writer > 0 if atomic else writer != 0) & ((np.abs(writer) - 1) // threads != blocks)
        return int(np.argmax(bad)) if bad.any() else -1

    def unwritten(self, launch: int, columns: int) -> tuple[int, int, int] | None:
        """Row and column of the first element that no thread wrote, of the first columns, and their count."""
        rows, stored = self.rows, self._row // self.item
        at = launch * self._stride // self.item
        if self._writer is None:
            missing: Any = np.ones((rows, columns), bool)
        else:
            missing = self._writer[at : at + rows * stored].reshape(rows, stored)[:, :columns] == 0
        if not missing.any():
            return None
        row, column = divmod(int(np.argmax(missing)), columns)
        return row, column, int(missing.sum())


def _differ(one: Array, other: Array) -> Array:
    """Writers of which one must not write over the other."""
    return np.asarray((one != 0) & (np.abs(one) != np.abs(other)) & ((one > 0) | (other > 0)))


class GlobalMemory:
    """The buffers of a batch of launches."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers = list(buffers)
        self._geometry: Geometry | None = None
        self.report: Any = None  # (check, text, site, lane) -> None, set by the machine

    def enter(self, geometry: Geometry) -> None:
        self._geometry = geometry
        for buffer in self.buffers:
            buffer.enter(geometry)

    def load(self, site: Site, address: Any, width: int, mask: Mask | None, kind: str = "load") -> Array:
        """Values of the active lanes: (n,) of the width, or (n, width / 4) of 32 bits for a vector.

        ``kind`` copy: on their way to shared memory."""
        resolved = self._resolve(site, address, width, mask)
        if resolved is None:
            active = self._active(address, mask)
            values = np.zeros((len(active), *(() if width <= 4 else (width // 4,))), UNSIGNED[min(width, 4)])
            for at, part in divide(active >> _BUFFER, mask):
                values[at] = self.load(site, address, width, part, kind)
            return values
        buffer, element, active = resolved
        self._check_read(site, buffer, element, width, mask)
        site.count_global(kind, buffer.name, active, width, mask)
        return gather(buffer.bytes, element, width)

    def store(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        """Store values of the active lanes, shaped as ``load`` gives them."""
        resolved = self._resolve(site, address, width, mask)
        if resolved is None:
            for at, part in divide(self._active(address, mask) >> _BUFFER, mask):
                self.store(site, address, width, values[at], part)
            return
        buffer, element, active = resolved
        self._check_write(site, buffer, element, width, mask)
        site.count_global("store", buffer.name, active, width, mask)
        scatter(buffer.bytes, element, width, values)

    def update(self, site: Site, address: Any, mask: Mask | None, change: Change) -> Array:
        """Atomic: each lane's word of 32 bits, one after another; what was there before, (n,) uint32."""
        resolved = self._resolve(site, address, 4, mask)
        if resolved is None:
            raise Trap("unsupported", "an atomic of one warp on several buffers", site, self._lane(0, mask))
        buffer, element, active = resolved
        self._check_read(site, buffer, element, 4, mask, atomic=True)
        self._check_write(site, buffer, element, 4, mask, atomic=True)
        site.count_global("store", buffer.name, active, 4, mask)
        return update(buffer.bytes, element, change)

    def _check_read(
        self, site: Site, buffer: Buffer, element: Array, width: int, mask: Mask | None, atomic: bool = False
    ) -> None:
        assert self._geometry is not None
        unknown = buffer.unknown(element, width)
        if unknown is not None:
            i = int(np.argmax(unknown))
            place = buffer.element(int(element[i]), width)
            what = f"reads {place}, which holds nothing that the kernel may read"
            self.report("uninit", what, site, self._lane(i, mask))
        if buffer.writable:
            threads = self._geometry.threads
            writer = self._geometry.writer if mask is None else self._geometry.writer[mask.index]
            i = buffer.foreign(element, width, (writer - 1) // threads, threads, atomic)
            if i >= 0:
                place = buffer.element(int(element[i]), width)
                what = f"reads {place}, which another block wrote in this launch"
                self.report("race", what, site, self._lane(i, mask))

    def _check_write(
        self, site: Site, buffer: Buffer, element: Array, width: int, mask: Mask | None, atomic: bool = False
    ) -> None:
        assert self._geometry is not None
        if not buffer.writable:
            what = f"writes the input {buffer.element(int(element[0]), width)}"
            raise Trap("bounds", what, site, self._lane(0, mask))
        writers = self._geometry.writer if mask is None else self._geometry.writer[mask.index]
        if clash := buffer.mark(element, width, -writers if atomic else writers):
            i, one, other = clash
            threads = self._geometry.threads
            blocks = [self._block((w - 1) // threads) for w in (one, other)]
            whose = "the same block" if blocks[0] == blocks[1] else f"block {blocks[1]}"
            what = (
                f"writes {buffer.element(int(element[i]), width)}, which another thread of {whose} wrote too"
            )
            self.report("race", what, site, self._lane(i, mask))

    def _block(self, number: int) -> tuple[int, int, int]:
        assert self._geometry is not None
        x, y, _ = self._geometry.grid
        return (number % x, number // x % y, number // (x * y))

    def _lane(self, position: int, mask: Mask | None) -> int:
        return position if mask is None else int(mask.index[position])

    def _active(self, address: Any, mask: Mask | None) -> Array:
        """The addresses of the active lanes."""
        assert self._geometry is not None
        address = full(address, self._geometry.lanes)
        return address if mask is None else np.asarray(address[mask.index])

    def _resolve(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> tuple[Buffer, Array, Array] | None:
        """The buffer, and of each active lane the storage element and the address; None where the lanes
        mean several buffers."""
        assert self._geometry is not None
        address = self._active(address, mask)
        buffer, bad = self._buffer(int(address[0])), 0
        if buffer is not None:
            element, bad = buffer.locate(address, None if mask is None else mask.index, width)
            if bad < 0:
                if width > 1 and (address & (width - 1)).any():
                    i = int(np.argmax((address & (width - 1)) != 0))
                    self._misaligned(site, address, i, width, mask)
                return buffer, element, address
        if (address >> _BUFFER != int(address[0]) >> _BUFFER).any():
            return None
        lane = self._lane(bad, mask)
        launch = int(self._geometry.launch[lane])
        near = self._nearest(int(address[bad]), launch)
        where = near.explain(int(address[bad]), launch, width) if near else "no buffer is anywhere near"
        verb = "writes" if ".st" in f".{site.instruction.op}" or "st." in site.instruction.op[:3] else "reads"
        raise Trap("bounds", f"{verb} {width} bytes at 0x{int(address[bad]):x}, {where}", site, lane)

    def _misaligned(self, site: Site, address: Array, i: int, width: int, mask: Mask | None) -> None:
        what = f"{width}-byte access at 0x{int(address[i]):x} is not aligned to {width} bytes"
        raise Trap("misaligned", what, site, self._lane(i, mask))

    def _buffer(self, address: int) -> Buffer | None:
        number = (address >> _BUFFER) - 1
        return self.buffers[number] if 0 <= number < len(self.buffers) else None

    def _nearest(self, address: int, launch: int) -> Buffer | None:
        """The buffer that an index has run out of, at either end."""
        return min(self.buffers, key=lambda b: abs(address - b.address(launch)), default=None)


class LocalMemory:
    """Memory of a thread's own: spilled registers and arrays that are indexed."""

    def __init__(self, size: int, lanes: int) -> None:
        self._limit, self._size = size, -(-size // 16) * 16
        self.bytes = np.zeros(self._size * lanes, np.uint8)
        self._known = np.zeros(self._size * lanes, bool)
        self._row = np.arange(lanes, dtype=np.int64) * self._size

    def locate(self, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        """Storage offsets of the active lanes. Traps out of bounds and misaligned accesses."""
        address = full(address, len(self._row)).astype(np.int64)
        rows = self._row
        if mask is not None:
            address, rows = address[mask.index], rows[mask.index]
        for check, bad, what in (
            ("bounds", (address < 0) | (address + width > self._limit), "out of the bounds of local memory"),
            ("misaligned", (address & (width - 1)) != 0, f"not aligned to {width} bytes"),
        ):
            if bad.any():
                i = int(np.argmax(bad))
                lane = i if mask is None else int(mask.index[i])
                raise Trap(
                    check, f"{width}-byte access at local address {int(address[i])} is {what}", site, lane
                )
        return np.asarray(rows + address)

    def load(self, site: Site, address: Any, width: int, mask: Mask | None) -> Array:
        at = self.locate(site, address, width, mask)[:, None] + np.arange(width)
        known = self._known[at].all(axis=1)
        if not known.all():
            i = int(np.argmin(known))
            lane = i if mask is None else int(mask.index[i])
            raise Trap("uninit", "reads local memory that the thread never wrote", site, lane)
        return gather(self.bytes, at[:, 0] // width, width)

    def store(self, site: Site, address: Any, width: int, values: Array, mask: Mask | None) -> None:
        at = self.locate(site, address, width, mask)[:, None] + np.arange(width)
        scatter(self.bytes, at[:, 0] // width, width, values)
        self._known[at] = True


class ConstantMemory:
    """Variables in constant memory, with the values that the PTX gives them; zeros beyond."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._variables = list(variables)
        self._sizes = np.array([v.size for v in variables] or [0], np.int64)
        self._starts = np.r_[0, np.cumsum(-(-self._sizes // 16) * 16)][:-1]
        self._bytes = np.zeros(int((-(-self._sizes // 16) * 16).sum()), np.uint8)
        for start, variable in zip(self._starts, variables, strict=False):
            self._bytes[start : start + len(variable.data)] = np.frombuffer(variable.data, np.uint8)

    def load(self, site: Site, address: Any, width: int, mask: Mask | None, lanes: int) -> Array:
        where = full(address, lanes).astype(np.int64)
        where = where if mask is None else where[mask.index]
        slot, offset = (where >> SLOT) - 1, where & ((1 << SLOT) - 1)
        inside = (slot >= 0) & (slot < len(self._variables))
        slot = np.where(inside, slot, 0)
        inside &= offset + width <= self._sizes[slot]
        for check, good, what in (
            ("bounds", inside, "out of the bounds of its variable"),
            ("misaligned", offset % width == 0, f"not aligned to {width} bytes"),
        ):
            if not good.all():
                i = int(np.argmin(good))
                lane = i if mask is None else int(mask.index[i])
                name = self._variables[int(slot[i])].name
                text = f"reads {width} bytes of constant memory at {name}+{int(offset[i])}, {what}"
                raise Trap(check, text, site, lane)
        return gather(self._bytes, (self._starts[slot] + offset) // width, width)

"""Global memory: every access is checked against the bounds of the buffer that its pointer came from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.checks.clocks import Clocks
from ptxsan.checks.maps import MapFences, Writes
from ptxsan.checks.races import Reading, over_lanes
from ptxsan.checks.undefined import Shadow
from ptxsan.frontend import Variable
from ptxsan.lanes import Array, Geometry, Items, Mask, first_of, full
from ptxsan.machine.memory import Change, changed, divide, gather, readable, scatter, together, update
from ptxsan.machine.memory.buffer import BUFFER, Buffer
from ptxsan.machine.memory.heap import HEAP, Heap
from ptxsan.machine.memory.ordered import PLAIN, RELAXED, Access, OrderedAccesses, Strength

_VARIABLES = 1024  # the number of the first variable; those before are of buffers


class GlobalMemory(OrderedAccesses):
    """The buffers of a batch of launches, and the kernel's __device__ variables.

    ``order``: which accesses of different threads are ordered. ``left``: the bytes of the variables that an
    earlier launch has changed, by name.
    """

    def __init__(
        self,
        buffers: Sequence[Buffer],
        left: Mapping[str, bytes] | None = None,
        heap: Heap | None = None,
    ) -> None:
        super().__init__()
        self.buffers, self._left = list(buffers), left or {}
        self._launches, self.kept = 1, heap  # for the next launch of the module, too
        self._variables: list[Buffer] = []
        self._declared: dict[str, bytes] = {}
        self._of_number = {buffer.number: buffer for buffer in buffers}
        self.objects: dict[int, Any] = {}  # textures and surfaces, by handle
        self.multicast: dict[int, list[int]] = {}  # by number, the addresses of the replicas
        self.changes = 0
        self.maps = MapFences(self.order)  # of tensor maps that the launch changes

    def declare(self, variables: Sequence[Variable], launches: int) -> None:
        """__device__ variables, with the values that the PTX gives them, for each launch its own."""
        self._variables, self._declared = [], {}
        for i, variable in enumerate(variables):
            kind = np.uint8 if variable.size % 4 or variable.align % 4 else np.uint32
            values = np.zeros(variable.size, np.uint8)
            data = self._left.get(variable.name, variable.data)
            values[: len(data)] = np.frombuffer(data, np.uint8)
            rows = [values.view(kind).reshape(1, -1)] * launches
            name = readable(variable.name)
            self._variables.append(Buffer(name, _VARIABLES + i, rows, writable=True, flat=True))
        self._of_number = {buffer.number: buffer for buffer in (*self.buffers, *self._variables)}
        self._launches = launches
        if self.kept is not None:
            self.kept = self._of_number[HEAP] = Heap(1, self.kept)
        number = {variable.name: i for i, variable in enumerate(variables)}
        for variable, buffer in zip(variables, self._variables, strict=True):
            for link in variable.links:
                for launch in range(launches) if link.name in number else ():
                    buffer.put(
                        launch, link.at, self._variables[number[link.name]].address(launch) + link.offset
                    )

        of_each = zip(variables, self._variables, strict=True)
        self._declared = {variable.name: buffer.values(0).tobytes() for variable, buffer in of_each}

    def heap(self) -> Heap:
        """The device's own heap, made when the first malloc asks for it."""
        if self.kept is None:
            self.kept = self._of_number[HEAP] = Heap(self._launches)
            assert self._geometry is not None
            self.kept.enter(self._geometry)
        return self.kept

    def release(self, site: Site, lane: int, address: int) -> None:
        """free, of a lane: also a write to all of the block, which others must not be writing."""
        assert self._geometry is not None
        launch, heap = int(self._geometry.launch[lane]), self.heap()
        block, wrong = heap.release(address, launch, self._geometry.describe(lane))
        if block is None:
            self.report("bounds", wrong, site, lane)
            return
        elements = np.arange(block.start // 4, -(-(block.start + block.size) // 4))
        lanes = np.full(len(elements), lane)
        clash = heap.unordered(elements, 4, lanes, self.order, False)
        if clash[0] >= 0:
            self.race("frees", Access(site, heap, elements, 4, Items(lanes)), *clash)

    def watch(self, numbers: Collection[int], variables: Collection[str]) -> None:
        """Buffers of these numbers, and variables of these names, that the kernel reads and writes."""
        for buffer in self.buffers:
            if buffer.number in numbers and buffer.writable:
                buffer.watch()
        for name, variable in zip(self._declared, self._variables, strict=True):
            if name in variables:
                variable.watch()

    def changed(self) -> dict[str, bytes]:
        """The variables that the first launch left otherwise than it found them, and what they hold."""
        now = zip(self._declared.items(), self._variables, strict=True)
        return {name: b.values(0).tobytes() for (name, was), b in now if b.values(0).tobytes() != was}

    def ahead(self, left: Mapping[str, bytes], launches: int) -> dict[str, bytes]:
        """What variables of 32-bit integers hold after so many launches, each of which changes them by as
        much as the one that has ``left`` them so."""
        found = {}
        for name, now in left.items():
            kind: Any = np.uint8 if len(now) % 4 else np.uint32
            was, then = (np.frombuffer(held, kind) for held in (self._declared[name], now))
            found[name] = (was + (then - was) * kind(launches)).tobytes()
        return found

    def variable(self, i: int) -> Any:
        """The address of a declared variable, for each lane where they differ."""
        first = self._variables[i].first
        return np.int64(first) if isinstance(first, int) else first

    def enter(self, geometry: Geometry, clocks: Clocks | None = None) -> None:
        """These blocks run from now on."""
        self.order.enter(geometry, clocks)
        self._place(geometry)

    def resume(self, geometry: Geometry) -> None:
        """The same of blocks that ran before."""
        self.order.resume()
        self._place(geometry)

    def _place(self, geometry: Geometry) -> None:
        self._geometry = geometry
        for buffer in self._of_number.values():
            buffer.enter(geometry)

    def load(
        self,
        site: Site,
        address: Any,
        width: int,
        mask: Mask | None,
        kind: str = "load",
        how: Strength = PLAIN,
        bulk: bool = False,
    ) -> Array:
        """Values of the active lanes: (n,) of the width, or (n, width / 4) of 32 bits for a vector.

        ``kind`` copy: on their way to shared memory. ``bulk``: by the async proxy."""
        if (sampling := self.undefined.sampling) is not None:
            return np.asarray(sampling.load(self, site, address, width, mask))
        found = []
        for at, access in self._parts(site, address, width, mask):
            _, buffer, element, _, part = access
            if how.strong and how.wide:
                self.order.synchronise(buffer.number, element * width, self._lanes(part), True, False)
            narrow = how.strong and not how.wide
            self.check_read(access, how.strong or site.guesses, how.sees(site), narrow)
            if bulk:
                self.check_proxy("copies", access)
            self._count(kind, access, address)
            found.append((at, gather(buffer.bytes, element, width)))
        return together(found)

    def prepare(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> Callable[[], Reading] | None:
        """A plain load in two parts: what may stop it, and the rest, which happens when it is called. None
        where ``load`` has to do."""
        resolved = self._resolve(site, address, width, mask)
        if resolved is None or len(resolved.buffer.bytes) // width >= 1 << 31:
            return None
        buffer, element = resolved.buffer, resolved.element
        self.check_read(resolved, site.guesses)

        def read() -> Reading:
            self._count("load", resolved, address)
            return buffer.bytes, over_lanes(element, mask)

        return read

    def store(
        self,
        site: Site,
        address: Any,
        width: int,
        values: Array,
        mask: Mask | None,
        how: Strength = PLAIN,
        bulk: bool = False,
        kind: str = "store",
    ) -> None:
        """Store values of the active lanes, shaped as ``load`` gives them. ``bulk``: by the async proxy."""
        if (sampling := self.undefined.sampling) is not None:
            sampling.store(self, site, address, width, values, mask)
            return
        for at, access in self._parts(site, address, width, mask):
            _, buffer, element, _, part = access
            atomic: Any = how.strong and not how.volatile
            if how.strong and how.wide:
                if how.releases:
                    self.order.fence(part)
                lanes = self._lanes(part)
                handed = self.order.synchronise(buffer.number, element * width, lanes, False, True)
                # A volatile store hands over what a fence covers, or is data like any other.
                atomic = atomic | handed
            narrow = how.strong and not how.wide
            if bulk:
                self.check_proxy("copies to", access)
            self.check_write(access, atomic, values[at], narrow)
            buffer.note_volatile(element, width, how.volatile)
            buffer.note_bulk(element, width, bulk)
            self._count(kind, access, address)
            self.changes += 1
            scatter(buffer.bytes, element, width, values[at])

    def update(
        self, site: Site, address: Any, width: int, mask: Mask | None, change: Change, how: Strength = RELAXED
    ) -> Array:
        """Atomic: each lane's word, one after another; what was there before, (n,) unsigned."""
        if (sampling := self.undefined.sampling) is not None:
            return np.asarray(sampling.update(self, site, address, width, mask))
        found = []
        for at, access in self._parts(site, address, width, mask):
            _, buffer, element, _, part = access
            if how.wide:
                if how.releases:
                    self.order.fence(part)
                self.order.synchronise(buffer.number, element * width, self._lanes(part), True, True)
            self.check_read(access, True, True, not how.wide)
            self.check_write(access, True, narrow=not how.wide)
            buffer.note_volatile(element, width, False)
            buffer.note_bulk(element, width, False)
            # Not counted: to the hardware an atomic is no store, and Nsight Compute counts it apart.
            places = range(len(element)) if part is mask else at.tolist()
            found.append((at, update(buffer.bytes, element, width, change, places)))
            self.changes += changed(buffer.bytes, element, width, found[-1][1])
        return together(found)

    def combine(self, site: Site, address: Array, width: int, mask: Items, change: Any) -> None:
        """Atomic, of the async proxy, of places (n,) that differ: ``change`` makes the new words (n,) of the
        old ones."""
        ((_, access),) = self._parts(site, address, width, mask)
        _, buffer, element, _, _ = access
        self.check_read(access, atomic=True)
        self.check_proxy("changes", access)
        self.check_write(access, atomic=True)
        buffer.note_bulk(element, width, True)
        self.changes += 1
        words = buffer.bytes.view(f"u{width}")
        words[element] = change(words[element])

    def last_writes(self, site: Site, address: int, lane: int, size: int) -> tuple[Access, Writes]:
        """So many bytes from an address on; who wrote them last in this launch, and when."""
        where, unit = address + np.arange(0, size, 16), 16
        ((_, access),) = self._parts(site, where, unit, Items(np.full(len(where), lane)))
        return access, access.buffer.last_writes(access.element, unit)

    def check_map(self, site: Site, lane: int, address: int, size: int) -> None:
        """A copy of this lane by a tensor map of so many bytes there."""
        access, writes = self.last_writes(site, address, lane, size)
        if lack := self.maps.missing(lane, address, writes):
            what = f"copies by the tensor map at {access.place(0)}, which this launch wrote, {lack}"
            self.report("race", what, site, lane)

    def places(
        self, site: Site, address: Any, width: int, mask: Mask | None
    ) -> list[tuple[Any, Shadow, Array]]:
        """Of an access that has been checked: places among the active lanes, shadow, and offsets there."""
        parts = self._parts(site, address, width, mask)
        return [(at, access.buffer.shadow, access.element * width) for at, access in parts]

    def outputs(self) -> list[Shadow]:
        """Of the buffers that are read after the launch."""
        return [buffer.shadow for buffer in self.buffers if buffer.shadow.place is not None]

    def _active(self, address: Any, mask: Mask | None) -> Array:
        """The addresses of the active lanes."""
        assert self._geometry is not None
        if isinstance(mask, Items):
            return np.asarray(address)
        address = full(address, self._geometry.lanes)
        return address if mask is None else np.asarray(address[mask.index])

    def _parts(self, site: Site, address: Any, width: int, mask: Mask | None) -> Iterator[tuple[Any, Access]]:
        """The active lanes by buffer: their places among them, and what they access."""
        resolved = self._resolve(site, address, width, mask)
        if resolved is not None:
            yield slice(None), resolved
            return
        for at, part in divide(self._active(address, mask) >> BUFFER, mask):
            of_part = self._resolve(site, address, width, part)
            assert of_part is not None
            yield at, of_part

    def _resolve(self, site: Site, address: Any, width: int, mask: Mask | None) -> Access | None:
        """What the active lanes access; None where they mean several buffers."""
        assert self._geometry is not None
        lanes, spread = self._lanes(mask), not isinstance(mask, Items)
        address = full(address, self._geometry.lanes) if spread else np.asarray(address)
        number = address.item(int(lanes[0]) if spread and mask is not None else 0) >> BUFFER
        buffer, bad = self._of_number.get(number - 1), 0
        if buffer is not None:
            element, bad = buffer.locate(address, lanes, width, spread)
            if bad == -2 and width > 1:
                self._check_alignment(site, address[lanes] if spread else address, width, mask)
            if bad < 0:
                return Access(site, buffer, element, width, mask)
        address = self._active(address, mask)
        if (address >> BUFFER != int(address[0]) >> BUFFER).any():
            return None
        lane = first_of(mask, bad)
        launch = int(self._geometry.launch[lane])
        if (int(address[bad]) >> BUFFER) - 1 in self.multicast:
            raise Trap("bounds", "accesses a multicast object, which only multimem does", site, lane)
        near = self._nearest(int(address[bad]), launch)
        where = near.explain(int(address[bad]), launch, width) if near else "no buffer is anywhere near"
        verb = "writes" if ".st" in f".{site.instruction.op}" or "st." in site.instruction.op[:3] else "reads"
        raise Trap("bounds", f"{verb} {width} bytes at 0x{int(address[bad]):x}, {where}", site, lane)

    def _check_alignment(self, site: Site, address: Array, width: int, mask: Mask | None) -> None:
        """Of addresses (n,) of the active lanes, in the bounds of a buffer."""
        if int(np.bitwise_or.reduce(address)) & (width - 1):
            i = int(np.argmax((address & (width - 1)) != 0))
            what = f"{width}-byte access at 0x{int(address[i]):x} is not aligned to {width} bytes"
            raise Trap("misaligned", what, site, first_of(mask, i))

    def _count(self, kind: str, access: Access, address: Any) -> None:
        """An access, at addresses of which its mask tells the active ones, for counters."""
        site, buffer, _, width, mask = access
        if site.counters is not None:
            site.count_global(kind, buffer.name, self._active(address, mask), width, mask)

    def _nearest(self, address: int, launch: int) -> Buffer | None:
        """The buffer that an index has run out of, at either end."""
        return min(self._of_number.values(), key=lambda b: abs(address - b.address(launch)), default=None)

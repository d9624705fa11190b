"""What is checked of each access to global memory that is within its bounds: who wrote or read before, and
whether that is ordered before now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ptxsan.checks import Site, Trap, stamp
from ptxsan.checks.clocks import Clocks
from ptxsan.checks.dependent import Dependence
from ptxsan.checks.order import Order
from ptxsan.checks.races import SAME
from ptxsan.lanes import Array, Geometry, Mask, first_of
from ptxsan.machine.memory import rewrites
from ptxsan.machine.memory.buffer import Buffer


class Access(NamedTuple):
    """``element``: the elements, of ``width`` bytes, of a buffer that the lanes of a mask access, (n,)."""

    site: Site
    buffer: Buffer
    element: Array
    width: int
    mask: Mask | None

    def place(self, i: int) -> str:
        """Of its i-th lane, for messages."""
        return self.buffer.element(int(self.element[i]), self.width)


@dataclass(frozen=True)
class Strength:
    """How an access takes part in the order of memory (PTX ISA §8.4): strong ones (atomic, relaxed, volatile,
    acquire, release) may be seen by other threads at any time; ``wide``: by other blocks too."""

    strong: bool = False
    volatile: bool = False
    releases: bool = False
    wide: bool = True

    @classmethod
    def of(cls, words: Sequence[str], atomic: bool = False) -> Strength:
        """By the words of an instruction."""
        volatile = "volatile" in words or "mmio" in words
        releases = "release" in words or "acq_rel" in words
        strong = atomic or volatile or releases or "relaxed" in words or "acquire" in words
        return cls(strong, volatile, releases, "cta" not in words)

    def sees(self, site: Site) -> bool:
        """Whether a load may see strong writes of others: a volatile one in a loop that waits for them."""
        return self.strong and (site.polls or not self.volatile)


PLAIN, RELAXED = Strength(), Strength(strong=True)


class OrderedAccesses:
    """Of the blocks that run together."""

    def __init__(self) -> None:
        self.order = Order()
        self.dependence: Dependence | None = None  # of a dependent launch
        self._geometry: Geometry | None = None
        self._sites: dict[int, Site] = {}  # that noted an access, by number
        self.report: Any = None  # Tell, set by the machine
        self.undefined: Any = None  # the undefined values of the launch, set by the machine

    def _stamp(self, site: Site) -> int:
        self._sites[site.number] = site
        return stamp(self.order.clock, site.number)

    def _other(self, number: int, site: Site) -> Site | None:
        """The site of the other access, where it is another one."""
        found = self._sites.get(number)
        return None if found is site else found

    def touch(self, access: Access, writes: bool, atomic: Any) -> None:
        """Each access, before it is checked: for a memory that also knows what other launches touch.
        ``atomic``: of each element, or of all."""

    def check_read(
        self, access: Access, atomic: bool = False, sees: bool = False, narrow: bool = False
    ) -> None:
        self.touch(access, False, atomic)
        site, buffer, element, width, mask = access
        unknown = buffer.unknown(element, width)
        if unknown is not None:
            place = buffer.missing(int(element[np.argmax(unknown)]), width)
            what = f"{place}, which holds nothing that the kernel may read"
            self.undefined.saw(site, what, self._lanes(mask)[unknown])
        if self.dependence is not None:
            self.check_dependence("reads", access)
        if buffer.writable:
            self.check_constant(access)
            lanes = self._lanes(mask)
            clash = buffer.unordered(element, width, lanes, self.order, atomic, sees, narrow)
            if clash[0] >= 0:
                self.race("reads", access, *clash)
            if buffer.readers is not None and not atomic:
                numbers = self.order.numbers(lanes)
                buffer.readers.note(element, width, numbers, self._stamp(site))

    def check_constant(self, access: Access) -> None:
        """ld.global.nc reads what is constant while the kernel runs (PTX ISA §9.7.9.9). Fetches and loads of
        surfaces are outside of the memory model (§8.1): of what the launch wrote, even the thread itself,
        they give undefined data (CUDA C++ Programming Guide, Read/Write Coherency)."""
        site, buffer, element, width, mask = access
        if site.instruction.op.startswith(("tex.", "tld4.", "suld.")):
            how = "through a texture or surface"
        elif ".nc." in site.instruction.op or site.instruction.op.startswith("ldu"):
            how = "as constant (ld.global.nc)"
        else:
            return
        if (i := buffer.first_written(element, width)) >= 0:
            what = f"reads {access.place(i)} {how}, which this launch wrote"
            self.report("race", what, site, first_of(mask, i))

    def wait_for_grids(self, mask: Mask | None) -> None:
        """griddepcontrol.wait: what the launches before wrote is there from now on."""
        if self.dependence is not None and self._geometry is not None:
            numbers = self._geometry.writer[self._lanes(mask)]
            self.dependence.wait(numbers, self._geometry.threads, self.order)

    def check_dependence(self, verb: str, access: Access) -> None:
        assert self.dependence is not None
        assert self._geometry is not None
        site, buffer, element, width, mask = access
        of = buffer, element, width, self._lanes(mask), self._geometry, self.order
        if (i := self.dependence.early(*of)) >= 0:
            what = f"{verb} {access.place(i)}, which the launch before wrote"
            self.report("race", f"{what}, with no griddepcontrol.wait before", site, first_of(mask, i))

    def check_proxy(self, verb: str, access: Access) -> None:
        """What the generic proxy wrote needs a fence.proxy.async before the async proxy accesses it (PTX ISA
        §9.7.9.25.2)."""
        lanes = self._lanes(access.mask)
        clash = access.buffer.unfenced(access.element, access.width, lanes, self.order)
        if clash[0] >= 0:
            self.race(verb, access, *clash, "with no fence.proxy.async between")

    def race(
        self,
        verb: str,
        access: Access,
        i: int,
        writer: int,
        number: int,
        fence: str = "",
        did: str = "wrote",
        note: bool = False,
    ) -> None:
        """Of the i-th lane of an access, with what ``writer``, a thread's number from 1 on, did at the site
        of a ``number``."""
        assert self._geometry is not None
        threads, lane = self._geometry.threads, first_of(access.mask, i)
        block, thread = divmod(writer - 1, threads)
        if block == (int(self._geometry.writer[lane]) - 1) // threads:
            who, missing = f"thread {thread} of the same block", "with no barrier between"
        else:
            who, missing = f"block {self._block(block)}", "with no fence and atomic between"
        if writer == int(self._geometry.writer[lane]):
            who = "it"
        what = f"{verb} {access.place(i)}, which {who} {did} in this launch {fence or missing}"
        before = self._other(number, access.site)
        self.report("race", what + SAME * note, access.site, lane, note=note, before=before)

    def check_write(
        self, access: Access, atomic: Any = False, values: Array | None = None, narrow: bool = False
    ) -> None:
        self.touch(access, True, atomic)
        site, buffer, element, width, mask = access
        assert self._geometry is not None
        if not buffer.writable:
            raise Trap("bounds", f"writes the input {access.place(0)}", site, first_of(mask))
        lanes = self._lanes(mask)
        if self.dependence is not None:
            self.check_dependence("writes", access)
        writers = self._geometry.writer if mask is None else self._geometry.writer[mask.index]
        if buffer.readers is not None and atomic is False:
            i, reader, number = buffer.readers.clash(element, width, writers, lanes, self.order)
            if i >= 0:
                same = values is not None and bool(rewrites(buffer.bytes, element, width, values)[i])
                self.race("writes", access, i, reader, number, did="read", note=same)
        if atomic is not False:
            writers = np.where(atomic, -writers, writers)
        if clash := buffer.mark(
            element, width, writers, lanes, self.order, self._stamp(site), values, narrow
        ):
            i, one, other, number, harmless = clash
            threads = self._geometry.threads
            blocks = [self._block((w - 1) // threads) for w in (one, other)]
            whose = "the same block" if blocks[0] == blocks[1] else f"block {blocks[1]}"
            what = f"writes {access.place(i)}, which another thread of {whose} wrote too"
            before, lane = self._other(number, site), first_of(mask, i)
            self.report("race", what + SAME * harmless, site, lane, note=harmless, before=before)

    def _lanes(self, mask: Mask | None) -> Array:
        assert self._geometry is not None
        return self._geometry.every if mask is None else mask.index

    def _block(self, number: int) -> tuple[int, int, int]:
        assert self._geometry is not None
        x, y, _ = self._geometry.grid
        return (number % x, number // x % y, number // (x * y))


class Flags:
    """What strong stores to shared memory hand on, by place in the storage: fences before them, or releases.
    A strong load that sees one acquires it; a fence of its own is not asked for."""

    def __init__(self, clocks: Clocks | None) -> None:
        assert clocks is not None
        self._clocks = clocks
        self._handed: dict[int, Array] = {}  # (group,) of the clocks

    def acquire(self, places: Array, lanes: Array) -> None:
        """Strong loads, or atomics, of these lanes (n,) at these places (n,)."""
        for at in np.unique(places).tolist() if self._handed else ():
            if (handed := self._handed.get(at)) is not None:
                self._clocks.acquire(lanes[places == at], handed, np.zeros(1, np.int32))

    def release(self, places: Array, lanes: Array, releases: bool, adds: bool = False) -> None:
        """Strong stores; those that are atomics hand on what was handed on there before, too: ``adds``."""
        for at, lane in zip(places.tolist(), lanes.tolist(), strict=True):
            handed, before = self._clocks.published(lane, releases), self._handed.pop(at, None)
            if adds and before is not None:
                handed = before if handed is None else np.maximum(handed, before)
            if handed is not None:
                self._handed[at] = handed
        self._clocks.tick()

"""Streams and events: which launches come before which, and what launches touch that nothing orders.

Launches are executed when they are issued, in that order, which is one of those that streams allow. Two on
different streams with no event and no synchronisation between may also run the other way round, or at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from ptxsan.lanes import Array, first_of
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory
from ptxsan.machine.memory.heap import Heap
from ptxsan.machine.memory.ordered import Access

Clock = dict[int, int]  # by the number of a stream: so many of its launches come before
_READ, _WRITE, _ATOMIC = 1, 2, 4
_AGAINST = np.array([0, _WRITE | _ATOMIC, _READ | _WRITE | _ATOMIC, 0, _READ | _WRITE])  # by kind
_numbers = count(1)
_issued: Clock = {}  # all launches on streams
_waited: Clock = {}  # those that come before whatever is issued next


def _join(into: Clock, other: Clock) -> None:
    for stream, launches in other.items():
        into[stream] = max(into.get(stream, 0), launches)


class Stream:
    """A stream, an argument of a launch: ``kernel[grid, block](x, stream=stream)``. Launches on one stream
    are ordered; on two, only by an event or a synchronisation between. ``number``: from 1 on, for messages.
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.clock: Clock = {}

    def wait(self, event: Event) -> None:
        """What is launched on this stream from now on comes after what the event has recorded
        (cudaStreamWaitEvent). An event that has recorded nothing is not waited for."""
        _join(self.clock, event.clock)

    def synchronize(self) -> None:
        """The host waits for this stream: whatever is launched from now on comes after it."""
        _join(_waited, self.clock)

    def _issue(self) -> Clock:
        """A launch: what comes before it, and itself."""
        _join(self.clock, _waited)
        self.clock[self.number] = _issued[self.number] = self.clock.get(self.number, 0) + 1
        return self.clock.copy()


class Event:
    """A point in a stream that others, or the host, wait for."""

    def __init__(self) -> None:
        self.clock: Clock = {}

    def record(self, stream: Stream) -> None:
        """From now on the event is the point after what has been launched on the stream (cudaEventRecord)."""
        self.clock = stream.clock.copy()

    def synchronize(self) -> None:
        """The host waits for the event: whatever is launched from now on comes after it."""
        _join(_waited, self.clock)


def synchronize() -> None:
    """The host waits for all streams (cudaDeviceSynchronize). A launch without a stream does the same before
    and after, as one on CUDA's legacy default stream."""
    _join(_waited, _issued)


@dataclass(frozen=True)
class Use:
    """What a launch did to one array. ``who``: the kernel and its stream. ``stream``, ``launch``: their
    numbers. ``kinds``: of each byte whether it was read, written or changed by an atomic."""

    who: str
    stream: int
    launch: int
    kinds: Array

    def before(self, clock: Clock) -> bool:
        return self.launch <= clock.get(self.stream, 0)

    def covers(self, older: Use) -> bool:
        """Whether whatever races with an older use races with this one, too."""
        return older.stream == self.stream and not (older.kinds & ~self.kinds).any()


@dataclass
class _Watched:
    """An array or variable of a launch. ``uses``: by launches on streams, to which this one's is added;
    ``others``: those that nothing orders before it; ``kinds``: as those of a Use, of this launch."""

    uses: list[Use]
    others: list[Use]
    kinds: Array


class WatchedMemory(GlobalMemory):
    """Global memory of a launch on a stream. It reports accesses to what another launch touched that nothing
    orders before this one. ``arrays``: earlier uses by the number of a buffer; ``variables``: by name."""

    def __init__(
        self,
        buffers: Sequence[Buffer],
        left: Mapping[str, bytes],
        heap: Heap | None,
        kernel: str,
        stream: Stream,
        arrays: Mapping[int, list[Use]],
        variables: dict[str, list[Use]],
    ) -> None:
        super().__init__(buffers, left, heap)
        self._who, self._stream, self._clock = f"{kernel} on stream {stream.number}", stream, stream._issue()
        self._arrays, self._module = arrays, variables
        self._seen: dict[int, _Watched] = {}

    def record(self) -> None:
        """After the launch: what it did is an earlier use for the next ones. Those that the host has waited
        for are forgotten, and those of its stream that did no more than this one."""
        number = self._stream.number
        for watched in self._seen.values():
            use = Use(self._who, number, self._clock[number], watched.kinds)
            kept = [old for old in watched.uses if not old.before(_waited) and not use.covers(old)]
            watched.uses[:] = [*kept, use]

    def touch(self, access: Access, writes: bool, atomic: Any) -> None:
        site, buffer, element, width, mask = access
        watched = self._watch(buffer)
        if watched is None:
            return
        kinds = np.broadcast_to(np.where(atomic, _ATOMIC, _WRITE if writes else _READ), element.shape)
        at = element[:, None] * width + np.arange(width)
        for one in np.unique(kinds):
            watched.kinds[at[kinds == one]] |= np.uint8(one)
        for use in watched.others:
            met = np.bitwise_or.reduce(use.kinds[at], axis=1) & _AGAINST[kinds]
            if met.any():
                i = int(np.argmax(met != 0))
                verb, did = "reads" if kinds[i] == _READ else "writes", "read" if met[i] == _READ else "wrote"
                what = f"{verb} {access.place(i)}, which {use.who} {did}"
                missing = f"with no event or synchronisation before {self._who}"
                self.report("race", f"{what}, {missing}", site, first_of(mask, i))

    def _watch(self, buffer: Buffer) -> _Watched | None:
        """None for an array of the host, of which a launch has a copy of its own."""
        if (known := self._seen.get(buffer.number)) is None:
            if any(buffer is variable for variable in self._variables):
                uses = self._module.setdefault(buffer.name, [])
            elif (given := self._arrays.get(buffer.number)) is not None:
                uses = given
            else:
                return None
            others = [use for use in uses if not use.before(self._clock)]
            known = _Watched(uses, others, np.zeros(len(buffer.bytes), np.uint8))
            self._seen[buffer.number] = known
        return known

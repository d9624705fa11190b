"""Accesses to tensor memory and what orders them (PTX ISA §9.7.16.6).

All of them are asynchronous. One that tcgen05.commit tracks (mma, cp) is over for who has seen the phase of
the mbarrier complete; one that a tcgen05.wait tracks (ld, st) for who comes after that wait of its warp. Two
accesses of one thread are in order where they form a pipeline (§9.7.16.6.2), or the first one is over; those
of different threads where the first one is over for the second, or they form a pipeline and a
tcgen05.fence::before_thread_sync and an ::after_thread_sync stand on the way (§9.7.16.6.3).

CUTLASS and Triton synchronise with no such fence once an access is over, and PTX says that its usual
mechanisms apply, too: without the fences this is a note.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptxsan.checks import Site
from ptxsan.checks.clocks import Clocks
from ptxsan.frontend import Instruction, register_names
from ptxsan.lanes import WARP, Array, Mask

FENCES = "with no tcgen05.fence::before_thread_sync and ::after_thread_sync between"


@dataclass(eq=False)
class TensorAccess:
    """An access of a ``lane``, or of the warp of which it is the first (ld, st). ``sequence``: its number
    among those of the lane that tcgen05.commit tracks; ``form`` of an mma all that has to be the same of two
    in a pipeline; ``over``: when its warp has waited for it, and ``used`` when it has read all that a load
    gave it, 0 while it has not."""

    site: Site
    kind: str
    lane: int
    when: int
    sequence: int = 0
    form: tuple[Any, ...] = ()
    over: int = 0
    used: int = 0
    number: int = 0  # among all accesses

    @property
    def lanes(self) -> Array:
        """Who takes part."""
        return np.arange(self.lane, self.lane + (WARP if self.kind in ("ld", "st", "dealloc") else 1))

    def precedes(self, other: TensorAccess) -> bool:
        """Whether the two form a pipeline, this one first (§9.7.16.6.2)."""
        if other.kind != "mma" or self.kind not in ("mma", "cp"):
            return False
        return self.form == other.form if self.kind == "mma" else self.form[0] == other.form[0]


class _Places:
    """Operations of one lane, in order, with what each of them is followed by."""

    def __init__(self) -> None:
        self._last: list[int] = []
        self._then: list[int] = []

    def add(self, sequence: int, then: int) -> None:
        if not self._last or self._last[-1] < sequence:
            self._last.append(sequence)
            self._then.append(then)

    def first(self, sequence: int) -> int | None:
        """What follows this operation first."""
        at = bisect_left(self._last, sequence)
        return self._then[at] if at < len(self._last) else None


class Commits:
    """Which phases of mbarriers tell that the asynchronous operations of each lane are over."""

    def __init__(self) -> None:
        self._issued: dict[int, int] = defaultdict(int)  # by lane
        # By lane: phases by the mbarrier's number; operations of other lanes that a pipeline goes on with.
        self._committed: dict[int, dict[int, _Places]] = defaultdict(lambda: defaultdict(_Places))
        self._handed: dict[int, dict[int, _Places]] = defaultdict(lambda: defaultdict(_Places))

    def issue(self, lane: int) -> int:
        """The sequence number of an operation that begins."""
        self._issued[lane] += 1
        return self._issued[lane]

    def commit(self, lane: int, number: int, phase: int) -> None:
        """tcgen05.commit: an arrival for this phase, once all of the lane's operations are over."""
        self._committed[lane][number].add(self._issued[lane], phase)

    def hand_on(self, before: TensorAccess, now: TensorAccess) -> None:
        """Another lane goes on with a pipeline, and so comes after all of it."""
        self._handed[before.lane][now.lane].add(before.sequence, now.sequence)

    def ends(self, access: TensorAccess) -> list[tuple[int, int]]:
        """The first phases of mbarriers that tell of the end of an operation: (number, phase)."""
        found, seen, rest = [], set(), [(access.lane, access.sequence)]
        while rest:
            lane, sequence = rest.pop()
            seen.add(lane)
            for number, places in self._committed[lane].items():
                if (phase := places.first(sequence)) is not None:
                    found.append((number, phase))
            for other, places in self._handed[lane].items():
                if other not in seen and (then := places.first(sequence)) is not None:
                    rest.append((other, then))
        return found


class TensorOrder:
    """Whether an access comes after another one, of the blocks that run together."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks, self.commits = clocks, Commits()

    def missing(self, before: TensorAccess, now: TensorAccess) -> tuple[str, bool]:
        """What is missing between two accesses of the same place, "" for nothing; whether it is a note."""
        pipeline = before.precedes(now)
        if pipeline and before.lane == now.lane:
            return "", False
        if pipeline and self._after(now, self._column(before.lane), before.when):
            self.commits.hand_on(before, now)
            return "", False
        over, fenced = self._ended(before, now)
        if over:
            return ("", False) if fenced or now.kind == "dealloc" else (FENCES, True)
        if pipeline and self._knows(now, before.lanes, before.when):
            return FENCES, False
        # NVIDIA's tutorials depend on the registers of a load alone.
        read = bool(before.used) and not before.over and self._knows(now, before.lanes, before.used)
        return _UNENDED[before.kind], read

    def _ended(self, before: TensorAccess, now: TensorAccess) -> tuple[bool, bool]:
        """Whether an access is over before another one, and whether by fences."""
        if before.kind in ("ld", "st"):
            if not before.over:
                return False, False
            if before.lane // WARP == now.lane // WARP:
                return True, True
            fenced = any(self._after(now, self._column(int(u)), before.over) for u in before.lanes)
            return fenced or self._knows(now, before.lanes, before.over), fenced
        ends = self.commits.ends(before)
        fenced = any(self._after(now, self._clocks.group + number, phase + 1) for number, phase in ends)
        seen = (self._clocks.completed(now.lanes, np.array(n), np.array(p)).any() for n, p in ends)
        return fenced or any(seen), fenced

    def _column(self, lane: int) -> int:
        return lane % self._clocks.group

    def _after(self, now: TensorAccess, column: int, when: int) -> bool:
        """Whether some lane of an access comes, by fences, after what this column of the clocks tells."""
        return bool((self._clocks.after[now.lanes, column] >= when).any())

    def _knows(self, now: TensorAccess, others: Array, when: int) -> bool:
        return bool(self._clocks.knows(now.lanes[:, None], others[None, :], np.array(when)).any())


_TRACKED = "with no wait between for the mbarrier of a tcgen05.commit after it"
_UNENDED = {
    "mma": _TRACKED,
    "cp": _TRACKED,
    "ld": "with no tcgen05.wait::ld between that it knows of",
    "st": "with no tcgen05.wait::st between that it knows of",
}


# Registers that a tcgen05.ld in flight still sets (§9.7.16.6.4.5).
#
# Who reads one waits for it, as for any register; nothing else may be done with it before tcgen05.wait::ld.
# Once a warp has read all that a load gives it, the load has happened; PTX takes no other order from that.
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

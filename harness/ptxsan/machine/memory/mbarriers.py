"""mbarrier objects in shared memory (PTX ISA §9.7.13.15): phases, pending arrivals, bytes still to come.

A phase is complete when no arrival and no byte is outstanding. Copies complete here as they are issued,
which is one of the orders that a GPU may take; who may read what they bring is asked of the clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.checks.clocks import EVER, Clocks, Handed, merge
from ptxsan.lanes import WARP, Array, Geometry, Mask, longest
from ptxsan.machine.memory.shared_memory import SharedMemory

MOST = (1 << 20) - 1  # arrivals of a phase, and bytes at one time


@dataclass(eq=False)
class Seen:
    """Lanes (n,) that have seen the last phase complete, and where and when. ``since``, (n, WARP), is from
    when on each lane of the warp comes after that, by what the warp does together."""

    site: Site
    lanes: Array
    when: int
    since: Array = field(init=False)

    def __post_init__(self) -> None:
        self.since = np.full((len(self.lanes), WARP), EVER)
        self.since[np.arange(len(self.lanes)), self.lanes % WARP] = self.when

    def gather(self, lanes: Array, now: int) -> None:
        met = lanes.reshape(-1, WARP)[self.lanes // WARP]
        late = self.since == EVER
        self.since[met & late & (met & ~late).any(axis=1, keepdims=True)] = now


@dataclass(eq=False)
class Object:
    """One mbarrier: of which cluster, its column in the clocks, where it lies; what its current phase waits
    for.

    ``phase`` counts the phases that are complete; ``arriving`` is what the arrivals of the current one hand
    on, ``released`` what those of complete ones did."""

    number: int
    place: str
    row: int
    who: int
    when: int
    count: int
    first: int = 0  # its phase as it was initialised
    relaxed: bool = False  # some wait saw a phase complete of which the clocks do not tell
    fenced: bool = False
    public: bool = False  # known to the whole cluster, by a fence and a relaxed arrival at its barrier
    live: bool = True
    pending: int = 0
    tx: int = 0
    phase: int = 0
    # Who has seen the last phase complete; what the lanes knew whose copies the current one waits for;
    # whether other blocks arrive, which copies may have kept waiting.
    seen: list[Seen] = field(default_factory=list)
    copied: Handed | None = None
    remote: bool = False
    arriving: Handed | None = None
    released: Handed | None = None
    # The same of arrivals of .cta scope, which hand on to their own block alone, by block.
    arriving_narrow: dict[int, Handed] = field(default_factory=dict)
    released_narrow: dict[int, Handed] = field(default_factory=dict)

    def describe(self) -> str:
        missing = f"{self.pending} of {self.count} arrivals outstanding"
        return f"the mbarrier at {self.place} (phase {self.phase}: {missing}, tx-count {self.tx} bytes)"


Use = tuple[Object, Array]  # an mbarrier, and which lanes (n,) mean it


class MBarriers:
    """Those of the blocks that run together. ``version`` changes with every phase that completes."""

    def __init__(self, shared: SharedMemory, clocks: Clocks, geometry: Geometry, report: Any) -> None:
        self._shared, self._clocks, self._geometry, self._report = shared, clocks, geometry, report
        self._at: dict[int, Object] = {}  # by its place in the storage of all blocks
        self._numbers: dict[int, int] = {}  # columns, by the place in the storage of a cluster
        self._apart: list[Seen] = []  # whose warps have not come together since
        self.version = 0

    # Which one

    def resolve(self, site: Site, address: Any, mask: Mask | None) -> Iterator[Use]:
        """The live mbarriers that these lanes mean. Traps where there is none."""
        for place, lanes in self._places(site, address, mask):
            yield self._live(site, place, lanes), lanes

    def one(self, site: Site, lane: int, address: int, peer: int | None = None) -> Object:
        """The live mbarrier that a lane means, or that of the block of rank ``peer`` at the same place."""
        place = self._shared.layout.locate(site, lane, address, 8)
        if peer is not None:
            size = self._geometry.cluster_size
            row = place // self._shared.layout.row_size // size * size + peer
            place = row * self._shared.layout.row_size + place % self._shared.layout.row_size
        return self._live(site, place, np.array([lane]), copies=True)

    def _live(self, site: Site, place: int, lanes: Array, copies: bool = False) -> Object:
        found = self._at.get(place)
        if found is None or not found.live:
            what = f"uses {self._shared.layout.describe(place)} as an mbarrier, which none was initialised at"
            raise Trap("uninit", what, site, int(lanes[0]))
        self._check_known(site, found, lanes)
        if self._shared.visit is not None:
            self._shared.visit(site, lanes, np.full(len(lanes), found.row), not copies)
        return found

    def _places(self, site: Site, address: Any, mask: Mask | None) -> list[tuple[int, Array]]:
        pattern = self._shared.pattern(site, address, 8, mask)
        places = pattern.element * 8
        if (places == places[0]).all():
            return [(int(places[0]), pattern.lane)]
        return [(int(p), pattern.lane[places == p]) for p in np.unique(places)]

    def _check_known(self, site: Site, m: Object, lanes: Array) -> None:
        bad = ~(m.public | self._clocks.knows(lanes, np.array(m.who), np.array(m.when)))
        if bad.any():
            lane = int(lanes[np.argmax(bad)])
            who = self._geometry.other(m.who, lane)
            what = f"uses the mbarrier at {m.place}, which {who} initialised with no barrier between"
            self._report("race", what, site, lane)

    # Life

    def init(self, site: Site, address: Any, counts: Array, mask: Mask | None) -> None:
        pattern = self._shared.pattern(site, address, 8, mask)
        self._shared.check_write(site, pattern)
        size = self._shared.layout.row_size * self._geometry.cluster_size
        for place, lanes in self._places(site, address, mask):
            number = self._numbers.setdefault(place % size, len(self._numbers))
            self._clocks.grow(len(self._numbers))
            lane, before = int(lanes[0]), self._at.get(place)
            count = int(counts[lane])
            if not 1 <= count <= MOST:
                raise Trap("barrier", f"initialises an mbarrier with a count of {count}", site, lane)
            made = Object(
                number=number,
                place=self._shared.layout.describe(place),
                row=place // self._shared.layout.row_size,
                who=lane,
                when=self._clocks.now,
                count=count,
                pending=count,
            )
            if before is not None:  # the phases of its column go on
                made.phase, made.released = before.phase + (before.phase & 1), before.released
                made.first, made.released_narrow = made.phase, before.released_narrow
            self._at[place] = made
        self._clocks.tick()

    def invalidate(self, site: Site, address: Any, mask: Mask | None) -> None:
        for m, _ in list(self.resolve(site, address, mask)):
            m.live = False

    def fence_init(self, mask: Mask | None) -> None:
        """fence.mbarrier_init: those that these lanes have initialised are visible to all proxies."""
        for m in self._at.values():
            if mask is None or mask.bits[m.who]:
                m.fenced = True

    def publish(self, lanes: Array) -> None:
        """These lanes (n,) have arrived at the barrier of their cluster, relaxed: what they have initialised
        and fenced is known past it."""
        for m in self._at.values():
            m.public |= m.fenced and bool((lanes == m.who).any())

    def inside(self, low: int, high: int) -> Object | None:
        """A live mbarrier within these bytes of the storage."""
        return next((m for p, m in self._at.items() if m.live and p < high and low < p + 8), None)

    def __bool__(self) -> bool:
        return bool(self._at)

    # Phases

    def expect(self, site: Site, m: Object, count: int, lane: int) -> None:
        m.tx += count
        self._check_tx(site, m, lane)

    def _check_tx(self, site: Site, m: Object, lane: int) -> None:
        if abs(m.tx) > MOST:
            raise Trap("barrier", f"brings {m.describe()} out of range, at most {MOST}", site, lane)

    def arrive(
        self,
        site: Site,
        m: Object,
        lanes: Array,
        counts: Array,
        releases: bool = True,
        narrow: bool = False,
    ) -> Array:
        """Arrivals of these lanes, one after another, each so many times; the phase of each, (n,). What a
        ``narrow`` one, of .cta scope, ``releases``, its own block alone may acquire."""
        phases = np.empty(len(lanes), np.int64)
        if (counts == 1).all() and len(lanes) > 1:
            at = 0
            while at < len(lanes):
                part = lanes[at : at + max(1, m.pending)]
                phases[at : at + len(part)] = m.phase
                self._arrive(site, m, part, len(part), releases, narrow)
                at += len(part)
        else:
            for i, (lane, count) in enumerate(zip(lanes.tolist(), counts.tolist(), strict=True)):
                phases[i] = m.phase
                self._arrive(site, m, np.array([lane]), count, releases, narrow)
        self._clocks.tick()
        return phases

    def _arrive(self, site: Site, m: Object, lanes: Array, count: int, releases: bool, narrow: bool) -> None:
        if count > m.pending:
            what = f"arrives {count} times at {m.describe()}, more often than that"
            raise Trap("barrier", what, site, int(lanes[0]))
        if releases and not narrow:
            m.arriving = merge(self._clocks.released(lanes), m.arriving)
        elif releases:
            rows = lanes // self._geometry.threads
            for row in np.unique(rows).tolist():
                handed = self._clocks.released(lanes[rows == row])
                m.arriving_narrow[row] = merge(handed, m.arriving_narrow.get(row))
        elif (passed := self._clocks.passed_by(lanes)) is not None:
            m.arriving = merge(passed, m.arriving)
        m.pending -= count
        m.remote |= bool((lanes // self._geometry.threads != m.row).any())
        self.settle(m)

    def complete(self, site: Site, m: Object, count: int, lane: int) -> int:
        """A copy has brought so many bytes; the phase it counts for."""
        phase = m.phase
        m.tx -= count
        m.copied = merge(self._clocks.released(np.array([lane])), m.copied)
        self._check_tx(site, m, lane)
        self.settle(m)
        return phase

    def settle(self, m: Object) -> None:
        """Complete the phase where nothing is outstanding."""
        if m.pending or m.tx:
            return
        self._check_seen(m)
        m.phase += 1
        m.pending = m.count
        m.released = merge(merge(self._clocks.complete(m.number, m.phase), m.released), m.arriving)
        m.arriving = None
        for row, handed in m.arriving_narrow.items():
            m.released_narrow[row] = merge(handed, m.released_narrow.get(row))
        m.arriving_narrow = {}
        self.version += 1
        self._clocks.tick()

    def check_parity(self, site: Site, m: Object, lanes: Array, parity: Array) -> None:
        """That the phases these lanes ask for by a parity are the current one or the one before it, as PTX
        demands (§9.7.13.15.16). A lane means the first one that it does not know to be complete, or the one
        before that."""
        if m.relaxed:
            return
        known = np.maximum(self._clocks.known[lanes, self._clocks.group + m.number], m.first)
        asked = known - ((known ^ parity) & 1)
        if (late := m.phase - asked > 1).any():
            i = int(np.argmax(late))
            which = f"phase {asked[i] - m.first}" if asked[i] >= m.first else "the phase before the first"
            what = f"waits by parity for {which} of the mbarrier at {m.place}, which is in phase "
            what += f"{m.phase - m.first} by now: a parity tells no phase apart from the one after the next"
            self._report("barrier", what, site, int(lanes[i]))

    def _check_seen(self, m: Object) -> None:
        """That whoever has seen the last phase complete has done so before the next one is, whatever the
        schedule: a slower thread would take the parity of the one after the next for its own."""
        known = np.zeros(self._clocks.group, np.int32)
        for held in (m.arriving, m.copied, *m.arriving_narrow.values()):
            known = known if held is None else longest(known, held[0])
        for seen in () if m.relaxed or m.remote else m.seen:
            warps = seen.lanes % self._clocks.group // WARP * WARP
            late = (known[warps[:, None] + np.arange(WARP)] < seen.since).all(axis=1)
            if late.any():
                what = f"waits for phase {m.phase - 1 - m.first} of the mbarrier at {m.place}, and nothing "
                what += "keeps the next one from completing before this wait: "
                what += "a slower thread would miss its own"
                self._report("barrier", what, seen.site, int(seen.lanes[np.argmax(late)]))
        self._apart = [seen for seen in self._apart if seen not in m.seen]
        m.seen, m.copied = [], None

    def gather(self, lanes: Array) -> None:
        """These lanes, (lanes,) bool, have waited for each other, those of each warp. That orders no memory,
        but what they do next comes after what each has seen."""
        if self._apart:
            self._clocks.tick()
            for seen in self._apart:
                seen.gather(lanes, self._clocks.now)
            self._apart = [seen for seen in self._apart if (seen.since == EVER).any()]

    def observe(self, site: Site, m: Object, lanes: Array, acquires: bool) -> None:
        """These lanes have seen the last phase complete."""
        m.relaxed |= not acquires
        m.seen.append(Seen(site, lanes, self._clocks.now))
        self._apart.append(m.seen[-1])
        if m.released is not None:
            self._clocks.observe(lanes, m.released, acquires)
            if acquires:
                self._clocks.see(lanes, m.number, m.phase)
        for row, handed in m.released_narrow.items():
            if len(own := lanes[lanes // self._geometry.threads == row]):
                self._clocks.observe(own, handed, acquires)

    def check_visible(self, site: Site, m: Object, lane: int) -> None:
        """That the async proxy, which is to complete bytes here for this lane, sees the initialised
        object."""
        who, when = np.array(m.who), np.array(m.when)
        if not m.fenced and not self._clocks.sees(np.array(lane), who, when):
            what = f"copies on the mbarrier at {m.place}, whose initialisation the async proxy need not see: "
            what += "no fence.mbarrier_init or fence.proxy.async"
            # PTX asks for one; cuda::memcpy_async itself does without, which NVIDIA's GPUs allow.
            self._report("race", what, site, lane, note=True)

    def leftovers(self) -> Iterator[Object]:
        """Those that end with bytes announced and not copied, or copied and not announced."""
        return (m for m in self._at.values() if m.live and m.tx)

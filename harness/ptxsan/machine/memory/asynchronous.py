"""From when until when a block's shared memory is there for others: those of its cluster, and copies to it.

Another block may use it once something has shown that the block runs, and the block must not exit before it
knows that the last use is over (PTX ISA §5.1.7); nor while a copy to it is in flight, whoever asked for it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.checks.clocks import Clocks, Handed
from ptxsan.checks.proxy import Actors, AsyncAccess, AsyncProxy
from ptxsan.lanes import WARP, Array, Geometry, Mask
from ptxsan.machine.memory.mbarriers import MBarriers, Object
from ptxsan.machine.memory.shared_memory import SharedMemory
from ptxsan.machine.memory.tensor_memory import TensorMemory

REGISTERS = 65536  # of a multiprocessor


class Lifetimes:
    """Of the shared memory of the blocks that run together; ``met``: how often clusters have."""

    def __init__(self, clocks: Clocks, geometry: Geometry, report: Tell, met: Array) -> None:
        self._clocks, self._geometry, self._report, self._met = clocks, geometry, report, met
        self._left = np.full(geometry.count, geometry.size, np.int64)  # threads that have not exited
        # The last use of a block's shared memory by each lane of its cluster that is not of the block.
        self._used = np.zeros((geometry.count, clocks.group), np.int32)
        self._sites = np.empty(self._used.shape, object)
        self._copies: list[dict[int, tuple[int, int, Site]]] = [{} for _ in range(geometry.count)]

    def visit(self, site: Site, lanes: Array, rows: Array, lasts: bool = True) -> None:
        """These lanes (n,) use the shared memory of these blocks (n,); a copy's end is told otherwise."""
        abroad = np.flatnonzero(rows != lanes // self._geometry.threads)
        for row in np.unique(rows[abroad]).tolist():
            users = lanes[abroad[rows[abroad] == row]]
            if not self._left[row]:
                what = f"uses the shared memory of {self._name(row)}, which has exited"
                self._report("race", what, site, int(users[0]))
            elif not self._met[row // self._geometry.cluster_size]:
                there = self._clocks.knows(users[:, None], self._threads(row), np.array(1)).any(axis=1)
                if not there.all():
                    what = f"uses the shared memory of {self._name(row)} with nothing that shows that it runs"
                    where = int(users[np.argmin(there)])
                    self._report("race", f"{what}: no barrier of the cluster before", site, where)
            if lasts:
                self._used[row, users % self._clocks.group] = self._clocks.now
                self._sites[row, users % self._clocks.group] = site

    def copy(self, site: Site, lane: int, row: int, number: int, phase: int) -> None:
        """A copy to a block's shared memory, of which a phase of the mbarrier of this number tells."""
        self._copies[row][number] = phase, lane, site

    def exit(self, lanes: Array) -> Array:
        """These lanes (n,) have exited; the blocks of which all have by now."""
        rows, counts = np.unique(lanes // self._geometry.threads, return_counts=True)
        self._left[rows] -= counts
        gone = rows[self._left[rows] == 0]
        for row in gone.tolist():
            threads = self._threads(row)
            users = np.flatnonzero(self._used[row])
            over = self._clocks.knows(threads[:, None], users, self._used[row, users]).any(axis=0)
            for user in users[~over].tolist():
                lane = row // self._geometry.cluster_size * self._clocks.group + user
                what = f"uses the shared memory of {self._name(row)}, which may have exited by then"
                self._report("race", f"{what}: no barrier of the cluster after", self._sites[row, user], lane)
            for number, (phase, lane, site) in self._copies[row].items():
                if not self._clocks.completed(threads, np.array(number), np.array(phase)).any():
                    what = f"copies to the shared memory of {self._name(row)}"
                    # Tiles past the end of K, which NVIDIA's own tutorials ask for and do not wait for.
                    self._report("race", f"{what}, which exits without a wait for it", site, lane, note=True)
        return np.asarray(gone)

    def _threads(self, row: int) -> Array:
        return np.arange(row * self._geometry.threads, (row + 1) * self._geometry.threads)

    def _name(self, row: int) -> str:
        return f"block {tuple(int(v) for v in self._geometry.blocks[row])}"


# What a kernel has that uses mbarriers, bulk copies, wgmma or clusters, beside its memories.
#
# Bulk copies work on whole pieces of shared memory: the owner of the storage lends it here as bytes.
class Groups:
    """Operations in the groups that a thread, or a warp of a warpgroup, commits and waits for."""

    def __init__(self) -> None:
        self._open: list[tuple[AsyncAccess, int]] = []
        self._committed: list[list[tuple[AsyncAccess, int]]] = []

    def add(self, operation: AsyncAccess, actor: int) -> None:
        self._open.append((operation, actor))

    def commit(self) -> None:
        self._committed.append(self._open)
        self._open = []

    def wait(self, most: int) -> list[tuple[AsyncAccess, int]]:
        """What is over once at most so many groups are in flight."""
        count = max(0, len(self._committed) - most)
        done = [each for group in self._committed[:count] for each in group]
        self._committed = self._committed[count:]
        return done

    @property
    def unfinished(self) -> Site | None:
        """The instruction of an operation that nobody has waited for."""
        return next((o.site for group in (*self._committed, self._open) for o, _ in group), None)


class Asynchronous:
    """Of the blocks that run together."""

    def __init__(self, shared: SharedMemory, clocks: Clocks, geometry: Geometry, report: Any) -> None:
        assert shared.proxy is not None
        self.clocks, self.geometry, self.report = clocks, geometry, report
        self.proxy: AsyncProxy = shared.proxy
        self.shared = shared
        self.mbarriers = MBarriers(shared, clocks, geometry, report)
        self.clusters = ClusterBarrier(clocks, geometry, self.mbarriers)
        self.tensor: TensorMemory | None = None
        self.lifetimes = Lifetimes(clocks, geometry, report, self.clusters.met)
        if geometry.cluster_size > 1:
            shared.visit = self.lifetimes.visit
        self.bulk: dict[int, Groups] = defaultdict(Groups)  # by lane
        self.warps: dict[int, Groups] = defaultdict(Groups)  # of wgmma, by warp
        self.tiles: dict[Any, Any] = {}  # what the descriptors of wgmma that were met tell, with their blocks
        # A thread's registers by setmaxnreg, by block and warp; 0 where it was not executed.
        self.registers = np.zeros((geometry.count, geometry.threads // WARP), np.int64)
        self.adjusted: dict[int, tuple[Site, Array]] = {}  # how often by each setmaxnreg, by id of its site

    @property
    def version(self) -> int:
        """Changes with whatever a waiting thread may wait for."""
        return self.mbarriers.version + self.clusters.version + (self.tensor.version if self.tensor else 0)

    def exit(self, lanes: Array) -> None:
        """These lanes (n,) have ended."""
        for lane in lanes[np.isin(lanes, list(self.bulk))].tolist() if self.bulk else ():
            if (site := self.bulk[lane].unfinished) is not None:
                what = "exits while its bulk copy may still read shared memory: no cp.async.bulk.wait_group"
                self.report("race", what, site, lane, note=True)
        gone = self.lifetimes.exit(lanes)
        if self.tensor is not None:
            self.tensor.exit(gone)
        self.clusters.exit(lanes)

    def finish(self) -> None:
        """All blocks have ended: what is left over."""
        for m in self.mbarriers.leftovers():
            what = f"ends with {m.describe()}: not as many bytes were copied as were expected"
            self.report("barrier", what, None, m.row * self.geometry.threads)
        for site, times in self.adjusted.values():
            warps = np.arange(times.shape[1])
            most = np.stack([times[:, warps // 4 == group].max(axis=1) for group in warps[::4] // 4], axis=1)
            if (left_out := times < most[:, warps // 4]).any():
                row, warp = np.argwhere(left_out)[0].tolist()
                what = f"is not executed by warp {warp}, while another warp of its warpgroup executes it"
                self.report("barrier", what, site, row * self.geometry.threads + warp * WARP)
        self._registers_that_nobody_gave()

    def _registers_that_nobody_gave(self) -> None:
        """In blocks some of whose warps executed setmaxnreg, others have what a launch can give at most."""
        threads = self.geometry.threads
        rest = np.where(self.registers, self.registers, min(REGISTERS // threads // 8 * 8, 255))
        short = self.registers.any(axis=1) & (rest.sum(axis=1) * WARP > REGISTERS)
        takes = [site for site, _ in self.adjusted.values() if ".inc" in site.instruction.op]
        if takes and short.any():
            row = int(np.argmax(short))
            held = f"{int(rest[row].sum()) * WARP} for the warps of the block, of {REGISTERS}"
            what = f"waits for ever for registers that no warp gives back: {held}"
            self.report("hang", what, takes[0], row * threads)

    # Pieces of shared memory

    def piece(
        self, site: Site, lane: int, address: int, size: int, align: int, peer: int | None = None
    ) -> int:
        """Where so many bytes at this address, of this lane's block or of the ``peer`` of its cluster, start
        in the storage. Traps where they are not all of one variable, or not aligned."""
        if address % align:
            what = f"shared address 0x{address:x} of {site.instruction.op} is not aligned to {align} bytes"
            raise Trap("misaligned", what, site, lane)
        start = self.shared.layout.locate(site, lane, address, size)
        if peer is not None:
            cluster = start // self.shared.layout.row_size // self.geometry.cluster_size
            row = cluster * self.geometry.cluster_size + peer
            start = row * self.shared.layout.row_size + start % self.shared.layout.row_size
        return start

    def cells(self, start: int, size: int) -> Array:
        granule = self.shared.granule
        return np.arange(start // granule, -(-(start + size) // granule))

    def put(
        self,
        site: Site,
        lane: int,
        start: int,
        values: Array,
        m: Object,
        generic: bool = False,
        reduces: bool = False,
    ) -> None:
        """A copy of these bytes (n,) arrives, of which the mbarrier tells; it counts for ``len(values)``.
        ``generic``: by the generic proxy; ``reduces``: as an atomic."""
        if (other := self.mbarriers.inside(start, start + len(values))) is not None:
            self.report("race", f"copies over the mbarrier at {other.place}", site, lane)
        if not generic:
            self.mbarriers.check_visible(site, m, lane)
        self.shared.apply()
        cells = self.cells(start, len(values))
        self.shared.check_idle(site, lane, cells, "copies to")
        self.proxy.write(site, lane, cells, m.number, m.phase, generic, reduces)
        self.lifetimes.copy(site, lane, start // self.shared.layout.row_size, m.number, m.phase)
        self.shared.put(start, cells, values)
        self.mbarriers.complete(site, m, len(values), lane)

    def get(self, site: Site, actors: Actors, cells: Array) -> AsyncAccess:
        """A read of these cells (n,), each once, by the async proxy begins."""
        self.shared.apply()
        lane = int(actors[0][0])
        self.shared.check_idle(site, lane, cells, "reads")
        self.shared.check_written(site, lane, cells)
        return self.proxy.read(site, actors, cells)

    def look(self, site: Site, lane: int, cells: Array) -> None:
        """Check such a read of which nobody waits for the end: the copy's own end tells of it."""
        self.proxy.end(self.get(site, [np.array([lane])], cells), 0)

    # Groups

    def commit_bulk(self, lanes: Array) -> None:
        for lane in lanes.tolist():
            self.bulk[lane].commit()

    def wait_bulk(self, most: int, lanes: Array) -> None:
        for lane in lanes.tolist():
            self._end(self.bulk[lane].wait(most))
        self.clocks.tick()

    def commit_wgmma(self, mask: Mask | None) -> None:
        for warp in self._warps(mask):
            self.warps[int(warp)].commit()

    def wait_wgmma(self, most: int, mask: Mask | None) -> None:
        for warp in self._warps(mask).tolist():
            done = self.warps[warp].wait(most)
            self._end(done)
            if done and done[-1][0].handed is not None:
                self.clocks.acquire(np.arange(warp * WARP, (warp + 1) * WARP), *done[-1][0].handed)
        self.clocks.tick()

    def _warps(self, mask: Mask | None) -> Array:
        return np.arange(self.geometry.lanes // WARP) if mask is None else np.flatnonzero(mask.warps)

    def _end(self, done: list[tuple[AsyncAccess, int]]) -> None:
        for operation, actor in done:
            self.proxy.end(operation, actor)


class ClusterBarrier:
    """barrier.cluster: all threads of a cluster that have not exited arrive, and wait for one another."""

    def __init__(self, clocks: Clocks, geometry: Geometry, mbarriers: MBarriers) -> None:
        self._clocks, self._geometry, self._mbarriers = clocks, geometry, mbarriers
        clusters = geometry.lanes // clocks.group
        living = np.ones(geometry.lanes, bool) if geometry.living is None else geometry.living
        self._alive = living.reshape(clusters, clocks.group).copy()
        self._missing = self._alive.copy()
        self.met = np.zeros(clusters, np.int64)  # how often
        self._mine = np.full(geometry.lanes, -1, np.int64)  # the phase that a lane has arrived at
        self._handed: dict[int, list[Handed]] = defaultdict(list)
        self._released: dict[int, list[Handed]] = {}
        self._relaxed: dict[int, list[Array]] = defaultdict(list)
        self.version = 0

    def arrive(self, site: Site, lanes: Array, releases: bool) -> None:
        if (self._mine[lanes] >= 0).any():
            lane = int(lanes[np.argmax(self._mine[lanes] >= 0)])
            raise Trap("barrier", "arrives at the barrier of the cluster twice without a wait", site, lane)
        for cluster in np.unique(lanes // self._clocks.group):
            here = lanes[lanes // self._clocks.group == cluster]
            self._mine[here] = self.met[cluster]
            self._missing[cluster, here % self._clocks.group] = False
            if releases:
                self._handed[int(cluster)].append(self._clocks.released(here))
            else:
                self._relaxed[int(cluster)].append(here)
            self._settle(int(cluster))
        self._clocks.tick()

    def exit(self, lanes: Array) -> None:
        self._alive.ravel()[lanes] = False
        self._missing.ravel()[lanes] = False
        for cluster in np.unique(lanes // self._clocks.group):
            if (self._mine.reshape(self._alive.shape)[cluster] >= 0).any():
                self._settle(int(cluster))

    def _settle(self, cluster: int) -> None:
        if self._missing[cluster].any():
            return
        self.met[cluster] += 1
        self._missing[cluster] = self._alive[cluster]
        self._released[cluster] = self._handed.pop(cluster, [])
        for lanes in self._relaxed.pop(cluster, []):
            self._mbarriers.publish(lanes)
        self.version += 1

    def ready(self, lanes: Array) -> Array:
        """Which of these lanes (n,) need wait no longer."""
        return np.asarray(self.met[lanes // self._clocks.group] > self._mine[lanes])

    def passed(self, site: Site, lanes: Array) -> None:
        """These lanes (n,) go on."""
        if (self._mine[lanes] < 0).any():
            lane = int(lanes[np.argmax(self._mine[lanes] < 0)])
            raise Trap("barrier", "waits at the barrier of the cluster without having arrived", site, lane)
        self._mine[lanes] = -1
        for cluster in np.unique(lanes // self._clocks.group):
            for handed in self._released.get(int(cluster), []):
                self._clocks.acquire(lanes[lanes // self._clocks.group == cluster], *handed)

    def describe(self, lane: int) -> str:
        missing = int(self._missing[lane // self._clocks.group].sum())
        return f"the barrier of its cluster, where {missing} threads are missing"

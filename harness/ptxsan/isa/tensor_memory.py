"""tcgen05: tensor memory allocated, loaded and stored, and copied to from shared memory (PTX ISA §9.7.16).

A warp i of a warpgroup reaches the lanes 32·i to 32·i + 31 alone (§9.7.16.8.1). Loads and stores happen at
once; who depends on one before the wait is told by checks/tensor.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.checks.proxy import AsyncAccess
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.fragments import Words, whole_warps
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address
from ptxsan.isa.wgmma import OperandLayout, Tile, tile
from ptxsan.lanes import WARP, Array, Items, Mask, full, mask_of
from ptxsan.machine import Builder, Run
from ptxsan.machine.memory.asynchronous import Asynchronous
from ptxsan.machine.memory.tensor_memory import COLUMNS, LANES, UNIT, TensorMemory
from ptxsan.machine.table import instruction

_SWIZZLE = {0: 0, 2: 128, 4: 64, 6: 32}  # bytes, by bits 61 to 63 of a matrix descriptor (§9.7.16.4.1)
_PATTERN = 1024  # bytes, after which the widest swizzle repeats


def tensor(b: Builder) -> TensorMemory:
    """That of the running blocks."""
    found = engine(b).tensor
    assert found is not None
    return found


def group_of(i: Instruction) -> str:
    """cta_group::1 or cta_group::2."""
    return next(word for word in i.op.split(".") if word.startswith("cta_group::"))


def warps_of(b: Builder, mask: Mask | None, site: Site) -> Array:
    """The first lanes of the warps that execute an .aligned instruction; traps where a part of one does."""
    whole_warps(mask, site)
    return lanes_of(b, mask)[::WARP]


def uniform(site: Site, values: Array, first: int, what: str) -> int:
    """What all lanes of a warp give."""
    given = values[first : first + WARP]
    if (given != given[0]).any():
        raise Trap("barrier", f"the threads of a warp give different {what}", site, first)
    return int(given[0])


# Allocation (§9.7.16.7.1)


def _count(site: Site, given: Array, first: int) -> int:
    count = uniform(site, given, first, "numbers of columns")
    if count & (count - 1) or not UNIT <= count <= COLUMNS:
        verb = f"{site.instruction.op.split('.')[1]}ates"
        what = f"{verb} {count} columns, which is no power of two from {UNIT} to {COLUMNS}"
        raise Trap("bounds", what, site, first)
    return count


@instruction("9.7.16", "tcgen05.alloc:7.1", "warp whole once clocks waits", writes=0)
class Alloc:
    """tcgen05.alloc: a Wait for columns, and with cta_group::2 for the warp of the other block."""

    polls = False

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self._b, self._site, self._group = b, site, group_of(i)
        self._at, self._given = shared_address(b, i.operands[0]), b.read(i.operands[1], "u32")

    def _each(self, lanes: Array) -> list[tuple[int, int, int]]:
        """First lane, block and columns of each warp."""
        state = self._b.state
        given = full(self._given(), state.lanes)
        firsts = warps_of(self._b, mask_of(lanes, state.lanes), self._site).tolist()
        return [
            (first, first // state.geometry.threads, _count(self._site, given, first)) for first in firsts
        ]

    def ready(self, lanes: Array) -> Array:
        warp, of, count = np.unique(lanes // WARP, return_inverse=True, return_counts=True)
        good = np.zeros(len(warp), bool)  # where all of a warp is there
        if (whole := count == WARP).any():
            good[whole] = self._have_room(lanes[whole[of]])
        return np.asarray(good[of])

    def _have_room(self, lanes: Array) -> Array:
        """Of each of these warps, in order, whether there are columns for it: one of a block at a time."""
        here, each = tensor(self._b), self._each(lanes)
        there = {row for _, row, _ in each}
        pairs, served = self._group == "cta_group::2", set[int]()
        good = np.zeros(len(each), bool)
        for at, (_, row, count) in enumerate(each):
            if row not in served and here.has_room(row, count) and (not pairs or row ^ 1 in there):
                good[at] = True
                served.add(row)
        return good

    def proceed(self, lanes: Array, said: bool) -> None:
        state, here = self._b.state, tensor(self._b)
        address = full(self._at(), state.lanes)
        for first, row, count in self._each(lanes):
            here.same_group(self._site, first, self._group)
            start = here.allocate(self._site, first, row, count)
            one = mask_of(np.array([first]), state.lanes)
            state.shared.store(self._site, address, 4, np.array([start], np.uint32), one)
            engine(self._b).clocks.show(first)  # Triton has no fence before a copy to the same place
        state.warp_barrier(mask_of(lanes, state.lanes))

    def describe(self, lane: int) -> str:
        given = int(full(self._given(), self._b.state.lanes)[lane])
        others = "all threads of its warp" + (
            ", and of one of the other block" if self._group[-1] == "2" else ""
        )
        return f"{given} free columns of tensor memory and {others}"


@instruction("9.7.16", "tcgen05.dealloc:7.1", "warp whole once clocks", writes=0)
def _dealloc(b: Builder, i: Instruction, site: Site) -> Run:
    address, given = (b.read(operand, "u32") for operand in i.operands)
    state, group = b.state, group_of(i)

    def run(mask: Mask | None) -> None:
        here = tensor(b)
        counts, addresses = (full(read(), state.lanes) for read in (given, address))
        for first in warps_of(b, mask, site).tolist():
            here.same_group(site, first, group)
            count = _count(site, counts, first)
            at = uniform(site, addresses, first, "addresses")
            here.deallocate(site, first, first // state.geometry.threads, at, count)

    return run


@instruction("9.7.16", "tcgen05.relinquish_alloc_permit:7.1", "warp whole once clocks", writes=0)
def _relinquish(b: Builder, i: Instruction, site: Site) -> Run:
    group = group_of(i)

    def run(mask: Mask | None) -> None:
        for first in warps_of(b, mask, site).tolist():
            tensor(b).same_group(site, first, group)
            tensor(b).relinquish(site, first // b.state.geometry.threads)

    return run


# Loads and stores (§9.7.16.8)


@cache
def fragment(shape: str, repeats: int, split: int = 0) -> tuple[Array, Array]:
    """Lane and column, from the address on, of each thread's registers, (32, registers) both (§9.7.16.2.3.1).
    ``split``: columns from the first half to the second one, of .16x32bx2."""
    t, n = np.arange(WARP)[:, None], np.arange(repeats)[None, :]
    if shape == "32x32b":
        lane, column = t + 0 * n, n + 0 * t
    elif shape == "16x32bx2":
        lane, column = t % 16 + 0 * n, t // 16 * split + n
    elif shape == "16x64b":
        lane, column = t % 2 * 8 + t // 4 + 0 * n, t // 2 % 2 + 2 * n
    else:
        words = {"16x128b": 1, "16x256b": 2}[shape]  # neighbours in a row that a thread has
        r = np.arange(2 * words * repeats)[None, :]
        lane = t // 4 + r // words % 2 * 8
        column = t % 4 * words + r % words + r // (2 * words) * 4 * words
    return lane, column


def vector(operand: Operand) -> Vector:
    """One register may stand without braces."""
    return operand if isinstance(operand, Vector) else Vector((operand,))


class _Moved:
    """The cells of a load or store: of each warp (32, registers), or with pairs of columns (32, registers, 2)
    of which a register has the low halves (.pack::16b, .unpack::16b)."""

    def __init__(
        self, b: Builder, i: Instruction, site: Site, address: Operand, more: Operand | None
    ) -> None:
        words = i.op.split(".")  # tcgen05 ld sync aligned 32x32b x64 b32
        self._b, self._site, self._verb = b, site, "reads" if words[1] == "ld" else "writes"
        shape, repeats = words[4], int(words[5].removeprefix("x"))
        self.packs = words[6] in ("pack::16b", "unpack::16b")
        if (more is not None) != (shape == "16x32bx2") or not words[5].startswith("x"):
            raise PtxError("has no such shape")
        split = int(more.value) if isinstance(more, Number) else 0
        self._lane, column = fragment(shape, repeats, 0)
        self.count = column.shape[1]
        self._column = column[..., None] * 2 + np.arange(2) if self.packs else column[..., None]
        if split:
            self._column = self._column + (np.arange(WARP) // 16 * split)[:, None, None]
        self._lanes = 32 if shape == "32x32b" else 16
        self._address = b.address(address)

    def of(self, first: int) -> tuple[int, Array]:
        """The block of a warp, and its cells (32, registers, 1 or 2); traps for those it must not reach."""
        state, here = self._b.state, tensor(self._b)
        at = uniform(self._site, full(self._address(), state.lanes).astype(np.int64), first, "addresses")
        lane, column = at >> 16 & 0xFFFF, at & 0xFFFF
        row, thread = divmod(first, state.geometry.threads)
        quarter = thread // WARP % 4 * WARP
        if not quarter <= lane <= quarter + WARP - self._lanes or lane % self._lanes:
            what = (
                f"{self._verb} lanes {lane} to {lane + self._lanes - 1} of tensor memory; its warp reaches "
            )
            raise Trap("bounds", f"{what}{quarter} to {quarter + WARP - 1} alone", self._site, first)
        columns = column + self._column
        here.check_columns(self._site, first, row, self._verb, np.unique(columns))
        return row, (row * LANES + lane + self._lane[..., None]) * COLUMNS + columns


@instruction("9.7.16", "tcgen05.ld:8.3", "move memory warp whole clocks")
def _ld(b: Builder, i: Instruction, site: Site) -> Run:
    moved = _Moved(b, i, site, i.operands[1], i.operands[2] if len(i.operands) > 2 else None)
    out, state = Words(b, vector(i.operands[0])), b.state
    if out.count != moved.count:
        raise PtxError("another number of registers than its shape has")

    def run(mask: Mask | None) -> None:
        here, words = tensor(b), out.get()
        for first in warps_of(b, mask, site).tolist():
            _, cells = moved.of(first)
            lanes = np.arange(first, first + WARP)
            if (sampling := state.undefined.sampling) is None:
                here.read(here.begin(site, "ld", first), cells)
                here.check_known(site, lanes, cells.reshape(WARP, -1))
                values = here.words[cells]
            else:
                items = Items(np.repeat(lanes, cells[0].size))
                values = sampling.load(here, site, cells.ravel(), 4, items).reshape(cells.shape)
            packed = values[..., 0] & 0xFFFF | values[..., 1] << 16 if moved.packs else values[..., 0]
            words[lanes] = packed
        out.set(words, mask)

    return run


@instruction("9.7.16", "tcgen05.st:8.4", "move warp whole clocks", writes=0)
def _st(b: Builder, i: Instruction, site: Site) -> Run:
    more = i.operands[1] if len(i.operands) > 2 else None
    moved = _Moved(b, i, site, i.operands[0], more)
    given = Words(b, vector(i.operands[-1]))
    if given.count != moved.count:
        raise PtxError("another number of registers than its shape has")

    def run(mask: Mask | None) -> None:
        here, words = tensor(b), given.get()
        for first in warps_of(b, mask, site).tolist():
            _, cells = moved.of(first)
            lanes = np.arange(first, first + WARP)
            values = words[lanes][..., None].view(np.uint32)
            if moved.packs:
                values = np.concatenate([values & 0xFFFF, values >> 16], axis=-1)
            put(b, site, here.begin(site, "st", first) if not sampled(b) else None, cells, values, lanes)

    return run


def sampled(b: Builder) -> bool:
    """Whether an instruction is executed again for its undefined bits."""
    return b.state.undefined.sampling is not None


def put(b: Builder, site: Site, access: Any, cells: Array, words: Array, lanes: Array) -> None:
    """Words for cells, of equal shape, by lanes (n,) of which each has as many, or one all of them."""
    here, sampling = tensor(b), b.state.undefined.sampling
    if sampling is None:
        here.write(access, cells, words)
        return
    items = Items(np.repeat(lanes, cells.size // len(lanes)))
    sampling.store(here, site, cells.ravel(), 4, np.ascontiguousarray(words).ravel(), items)


@instruction("9.7.16", "tcgen05.wait::ld:8.5 tcgen05.wait::st:8.5", "warp whole once clocks", writes=0)
def _wait(b: Builder, i: Instruction, site: Site) -> Run:
    kind = i.op.split(".")[1].removeprefix("wait::")

    def run(mask: Mask | None) -> None:
        tensor(b).wait(kind, warps_of(b, mask, site) // WARP)
        if kind == "ld":
            b.state.loads.wait(mask)

    return run


@instruction(
    "9.7.16",
    "tcgen05.fence::before_thread_sync:11.1 tcgen05.fence::after_thread_sync:11.1",
    "clocks",
    writes=0,
)
def _fence(b: Builder, i: Instruction, site: Site) -> Run:
    before = "before" in i.op

    def run(mask: Mask | None) -> None:
        clocks = engine(b).clocks
        (clocks.before_thread_sync if before else clocks.after_thread_sync)(lanes_of(b, mask))
        clocks.tick()

    return run


# Tiles in shared memory (§9.7.16.4.1), and copies of them (§9.7.16.9.1)


def find(
    here: Asynchronous, site: Site, lane: int, descriptor: int, layout: OperandLayout, peer: int | None = None
) -> tuple[Tile, int]:
    """The tile of a descriptor, and where its first byte lies in the storage, of the lane's block or of the
    ``peer`` of its cluster."""

    def trap(check: str, what: str) -> None:
        raise Trap(check, what, site, lane)

    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    kind, base = descriptor >> 61, descriptor >> 49 & 7
    if descriptor >> 46 & 7 != 1:
        trap("misaligned", f"a matrix descriptor with bits 46 to 48 of {descriptor >> 46 & 7}, and not 1")
    if kind not in _SWIZZLE:
        known = kind == 1
        trap("unsupported" if known else "misaligned", f"a matrix descriptor with swizzling mode {kind}")
    if base or descriptor >> 52 & 1:
        trap("unsupported", "a matrix descriptor with a base offset, or an absolute leading dimension")
    swizzle = _SWIZZLE[kind]
    origin = here.shared.layout.expand(site, lane, start)
    if swizzle and origin >> 7 & (swizzle // 16 - 1):
        what = f"reads a tile at shared address 0x{start:x}, within the pattern of a {swizzle}-byte swizzle"
        here.report("misaligned", f"{what}, with base offset 0", site, lane, note=True)
    found = tile(layout, (leading, stride, swizzle), origin % _PATTERN, here.shared.granule)
    return found, here.piece(site, lane, origin + found.low, found.size, 1, peer)


def bytes_of(b: Builder, layout: OperandLayout, found: tuple[Tile, int]) -> tuple[Array, Array]:
    """The bytes (rows, depth, item) of a tile in shared memory, and the cells they lie in."""
    here, (of_tile, first) = engine(b), found
    units = first + of_tile.places[:, :, None] + np.arange(layout.item)
    sampling = b.state.undefined.sampling
    held = here.shared.storage[units] if sampling is None else sampling.peek(here.shared.shadow, units)
    return held, first // here.shared.granule + of_tile.cells


def look(b: Builder, site: Site, lane: int, access: Any, cells: Array) -> None:
    """An access that tcgen05.commit tracks reads these cells of shared memory."""
    commits = tensor(b).order.commits
    operation: AsyncAccess = engine(b).get(site, [np.array([lane])], cells)
    operation.ends = lambda: commits.ends(access)


_QUARTERS = {
    "": (0, 1, 2, 3),
    "warpx4": (0, 0, 0, 0),
    "warpx2::02_13": (0, 1, 0, 1),
    "warpx2::01_23": (0, 0, 1, 1),
}
_COPIES = {("128x256b", ""), ("128x128b", ""), ("64x128b", "warpx2::02_13"), ("64x128b", "warpx2::01_23")}
_COPIES |= {("32x128b", "warpx4")}


@instruction("9.7.16", "tcgen05.cp:9.1", "move memory warp clocks", writes=0)
def _cp(b: Builder, i: Instruction, site: Site) -> Run:
    words, group = i.op.split("."), group_of(i)  # tcgen05 cp cta_group::1 32x128b warpx4
    shape, spread = words[3], words[4] if len(words) > 4 else ""
    if (shape, spread) not in _COPIES:
        raise PtxError("of this shape or format is not supported")
    rows, size = int(shape.split("x")[0]), int(shape.split("x")[1].removesuffix("b")) // 8
    layout = OperandLayout(rows, size, 1, False)
    address, descriptor, state = b.address(i.operands[0]), b.read(i.operands[1], "u64"), b.state
    # The row of the tile that each lane gets.
    source = np.repeat(_QUARTERS[spread], WARP) * WARP + np.arange(LANES) % WARP

    def run(mask: Mask | None) -> None:
        here = engine(b)
        for lane in lanes_of(b, mask).tolist():
            row = lane // state.geometry.threads
            at, given = (int(full(read(), state.lanes)[lane]) for read in (address, descriptor))
            tensor(b).same_group(site, lane, group)
            if at >> 16:
                raise Trap("bounds", f"copies to lane {at >> 16} of tensor memory, and not to 0", site, lane)
            columns = (at & 0xFFFF) + np.arange(size // 4)
            access = None if sampled(b) else tensor(b).begin(site, "cp", lane, (group,))
            for peer in peers(b, site, lane, group):
                there = row if peer is None else row // 2 * 2 + peer % 2
                tensor(b).check_columns(site, lane, there, "writes", columns)
                values, cells = bytes_of(b, layout, find(here, site, lane, given, layout, peer))
                if access is not None:
                    look(b, site, lane, access, cells)
                held = np.ascontiguousarray(values[source, :, 0]).view(np.uint32)
                to = tensor(b).cells(there, np.arange(LANES), columns)
                put(b, site, access, to, held, np.array([lane]))

    return run


def peers(b: Builder, site: Site, lane: int, group: str) -> list[int | None]:
    """The ranks in its cluster of the blocks that an instruction of a lane is of: None for the own one, with
    cta_group::2 both of the pair, the even one first (§9.7.16.5)."""
    if group == "cta_group::1":
        return [None]
    geometry = b.state.geometry
    row, size = lane // geometry.threads, geometry.cluster_size
    if size % 2:
        raise Trap("barrier", f"is of cta_group::2 in a cluster of {size} blocks: it needs pairs", site, lane)
    if not sampled(b):
        engine(b).lifetimes.visit(site, np.array([lane]), np.array([row ^ 1]))
    rank = row % size // 2 * 2
    return [rank, rank + 1]

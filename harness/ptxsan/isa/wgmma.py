"""wgmma: the product of tiles in shared memory by a warpgroup, asynchronous (PTX ISA §9.7.15).

A tile in shared memory is given by a matrix descriptor: start address, strides, swizzle (§9.7.15.5.1.2).
Products are exact and sums are made in float64, then rounded, as those of mma. The result is in the
registers at once; who touches them before the wait is told by checks/proxy.py. Of a sparse A (§9.7.15.6) a
tile has the half that its metadata keep, which each warp holds for its 16 rows as mma.sp does for its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.fragments import Words, bits_of, elements, registers, tile_products
from ptxsan.isa.mbarrier import engine
from ptxsan.isa.mma import Spread, fragment_places, sparse_products
from ptxsan.isa.tensormap import swizzled
from ptxsan.lanes import WARP, Array, Mask, full, mask_of
from ptxsan.machine import Builder, Run
from ptxsan.machine.memory.asynchronous import Asynchronous
from ptxsan.machine.table import instruction, shape

GROUP = 4 * WARP  # threads of a warpgroup
_SWIZZLE = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes, by bits 62 and 63
_ROW = 16  # bytes, of a core matrix of 8 rows
_PATTERN = 1024  # bytes, after which the widest swizzle repeats
_KINDS = ("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")


@dataclass(frozen=True)
class OperandLayout:
    """Where the elements of a tile of ``rows`` (of M or N) × ``depth`` (of K) lie, from its descriptor."""

    rows: int
    depth: int
    item: int
    transposed: bool  # K is not the contiguous dimension

    def offsets(self, leading: int, stride: int, swizzle: int) -> Array:
        """Bytes from the start address, (rows, depth), before the swizzle (CUTLASS's canonical layouts)."""
        row, k = np.arange(self.rows)[:, None], np.arange(self.depth)[None, :]
        if not self.transposed:
            row_bytes, chunk = swizzle or _ROW, k * self.item
            inside = row % 8 * row_bytes + row // 8 * stride
            # With a swizzle the bytes of K are contiguous.
            return np.asarray(inside + (chunk if swizzle else chunk // _ROW * leading + chunk % _ROW))
        across = row * self.item
        if not swizzle:
            inside = across // _ROW * stride + across % _ROW
            return np.asarray(inside + k % 8 * _ROW + k // 8 * leading)
        inside = across // swizzle * leading + across % swizzle
        return np.asarray(inside + k % 8 * swizzle + k // 8 * stride)


class Tile(NamedTuple):
    """The bytes that a tile has of shared memory: the places of its elements from the first one on, (rows,
    depth), in bytes and in ``items``, where the first one is ``low`` bytes after the start address; how many
    bytes they span; the cells they lie in."""

    places: Array
    items: Array
    low: int
    size: int
    cells: Array


@lru_cache(256)
def tile(layout: OperandLayout, strides: tuple[int, int, int], start: int, granule: int) -> Tile:
    """``strides`` are the leading and the other one and the swizzle of a descriptor, ``start`` the address's
    place in the pattern of the widest swizzle."""
    at = swizzled(start + layout.offsets(*strides), strides[2]) - start
    low, high = int(at.min()), int(at.max()) + layout.item
    return Tile(at - low, (at - low) // layout.item, low, high - low, np.unique((at - low) // granule))


class Shared:
    """A multiplicand in shared memory, by its descriptor in a 64-bit register."""

    def __init__(self, b: Builder, operand: Operand, layout: OperandLayout, site: Site) -> None:
        self._b, self._read, self._layout, self._site = b, b.read(operand, "u64"), layout, site

    def get(self, here: Asynchronous, first: Array) -> tuple[Array, list[Array]]:
        """Of the warpgroups whose first lanes are these (w,): elements as words (w, rows, depth), and the
        cells of each."""
        given, sampling = full(self._read(), self._b.state.lanes), self._b.state.undefined.sampling
        item = self._layout.item
        tiles, cells = [], []
        for lane in first.tolist():
            group = given[lane : lane + GROUP]
            if (group != group[0]).any():
                self._trap("barrier", "the threads of a warpgroup give different descriptors", lane)
            key = id(self), int(group[0]), lane // here.geometry.threads
            if key not in here.tiles:
                here.tiles[key] = self._find(here, int(group[0]), lane)
            found, first_byte = here.tiles[key]
            if sampling is None:
                items = here.shared.storage.view(f"u{item}")
                tiles.append(items[found.items + first_byte // item])
            else:
                units = first_byte + found.places[:, :, None] + np.arange(item)
                tiles.append(sampling.peek(here.shared.shadow, units).view(f"u{item}")[..., 0])
            cells.append(first_byte // here.shared.granule + found.cells)
        return np.stack(tiles), cells

    def _find(self, here: Asynchronous, descriptor: int, lane: int) -> tuple[Tile, int]:
        """The tile of a descriptor, and where its first byte lies in the storage."""
        start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        swizzle, base = _SWIZZLE[descriptor >> 62], descriptor >> 49 & 7
        if base:
            self._trap("unsupported", f"a matrix descriptor with base offset {base}", lane)
        # The address has 18 bits; a variable is found again by what a GPU's would be.
        origin = here.shared.layout.expand(self._site, lane, start)
        if swizzle and origin >> 7 & (swizzle // 16 - 1):
            what = (
                f"reads a tile at shared address 0x{start:x}, within the pattern of a {swizzle}-byte swizzle"
            )
            # PTX asks for a base offset then; the hardware swizzles addresses, as copies by tensor maps do.
            here.report("misaligned", f"{what}, with base offset 0", self._site, lane, note=True)
        if swizzle and not self._layout.transposed and self._layout.depth * self._layout.item > swizzle:
            self._trap("unsupported", f"64 bytes of K in a swizzle of {swizzle}", lane)
        found = tile(self._layout, (leading, stride, swizzle), origin % _PATTERN, here.shared.granule)
        return found, here.piece(self._site, lane, origin + found.low, found.size, 1)

    def _trap(self, check: str, what: str, lane: int) -> None:
        raise Trap(check, what, self._site, lane)


@instruction("9.7.15", "wgmma.mma_async:5.2 wgmma.mma_async.sp:6", "memory warp whole product clocks")
def _mma_async(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # wgmma mma_async sync aligned m64n128k16 f32 f16 f16
    if is_sparse := words[2] == "sp":
        words.pop(2)
    d_kind, a_kind, b_kind = words[5:8]
    if a_kind not in _KINDS or b_kind not in _KINDS or words[1] != "mma_async":
        raise PtxError("of these types is not supported")
    m, n, k = shape(i.op)
    item, operands, held = bits_of(a_kind) // 8, list(i.operands), k // 2 if is_sparse else k
    if m != 64 or n % 8 or not 8 <= n <= 256 or held * item != 32:
        raise PtxError("has no such shape")
    spread = Spread(b, k, a_kind, [operands.pop(3) for _ in range(2)], site) if is_sparse else None
    out, whole = Words(b, operands[0]), d_kind == "s32"
    scale_d = b.read(operands[3], "pred") if len(operands) > 3 else None
    flags = [_immediate(o) for o in operands[4:]]
    in_registers = isinstance(operands[1], Vector)
    signs = [1, 1] if whole else flags[:2]
    turns = ([0] if in_registers else []) + ([] if whole else flags[2:])
    turn_a, turn_b = (*turns, 0, 0)[:2]
    if item != 2 and (turn_a or turn_b):
        raise PtxError("only elements of 16 bits can be transposed")
    right = Shared(b, operands[2], OperandLayout(n, k, item, bool(turn_b)), site)
    left = None if in_registers else Shared(b, operands[1], OperandLayout(64, held, item, bool(turn_a)), site)
    fragments = Words(b, operands[1]) if in_registers else None
    state, places, saturates = b.state, _accumulators(n), "satfinite" in words
    a_places = fragment_places("a", 16, held, 8 * item)

    def a_of(threads: Array) -> Array:
        assert fragments is not None
        values = elements(fragments.get()[threads], a_kind)
        result = np.zeros((len(threads), 4, 16, held))
        result[:, :, a_places[0], a_places[1]] = values.reshape(-1, 4, WARP, a_places[0].shape[1])
        return result.reshape(-1, 64, held)

    def matrix(tiles: Array, kind: str) -> Array:
        return np.asarray(elements(tiles, kind))

    def run(mask: Mask | None) -> None:
        here, first = engine(b), warpgroups(mask, state.lanes, site)
        threads = first[:, None] + np.arange(GROUP)
        y, cells = right.get(here, first)
        if left is not None:
            tiles, more = left.get(here, first)
            x = matrix(tiles, a_kind)
            cells = [_both(one, other) for one, other in zip(cells, more, strict=True)]
        else:
            x = a_of(threads)
        once = state.undefined.sampling is None
        for lane, read in zip(first.tolist(), cells, strict=True) if once else ():
            actors = [np.arange(lane + w * WARP, lane + (w + 1) * WARP) for w in range(4)]
            operation = here.get(site, actors, read)
            # A wgmma needs all four warps: its end shows what each did before.
            operation.handed = here.clocks.released_by(lane, GROUP)
            for w in range(4):
                here.warps[lane // WARP + w].add(operation, w)
        multiplied = x * signs[0], matrix(y, b_kind) * signs[1]
        if spread is None:
            made = tile_products(*multiplied)
        else:
            active = np.ones(state.lanes // WARP, bool) if mask is None else mask.warps
            kept = spread.columns(active).reshape(-1, 64, held)[first // GROUP]
            made = sparse_products(multiplied[0], multiplied[1].transpose(0, 2, 1), kept)
        made = made.reshape(len(first), -1).take(places, axis=1)
        columns = out.columns()
        result = columns.T
        adds = full(True if scale_d is None else scale_d(), state.lanes)[first]
        if adds.any():
            made += np.where(adds[:, None, None], elements(result[threads], d_kind), 0)
        result[threads] = registers(made, d_kind, saturates)
        out.put(columns, None)  # which hold what the other lanes had

    return run


def _both(one: Array, other: Array) -> Array:
    """The cells of two tiles, each once and in order; mostly one tile lies after the other."""
    if one[-1] < other[0]:
        return np.concatenate([one, other])
    return np.concatenate([other, one]) if other[-1] < one[0] else np.union1d(one, other)


def _immediate(operand: Operand) -> int:
    if not isinstance(operand, Number):
        raise PtxError("takes immediate scales and majors")
    return int(operand.value)


def _accumulators(n: int) -> Array:
    """The places in D (64, n) of each thread's elements, (128, n / 2), in the order of the registers."""
    thread, j = np.arange(GROUP)[:, None], np.arange(n // 2)[None, :]
    row = thread // WARP * 16 + thread % WARP // 4 + j // 2 % 2 * 8
    column = j // 4 * 8 + thread % 4 * 2 + j % 2
    return row * n + column


def warpgroups(mask: Mask | None, lanes: int, site: Site) -> Array:
    """The first lanes of the warpgroups that execute an instruction; traps where a part of one does."""
    if lanes % GROUP:
        raise Trap("barrier", "is executed by a block that is not of whole warpgroups", site, 0)
    if mask is None:
        return np.arange(0, lanes, GROUP)
    groups = mask.bits.reshape(-1, GROUP)
    part = groups.any(axis=1) & ~groups.all(axis=1)
    if part.any():
        first = int(np.argmax(part)) * GROUP
        lane = first + int(np.argmax(mask.bits[first : first + GROUP]))
        raise Trap("barrier", "is executed by a part of its warpgroup", site, lane)
    return np.flatnonzero(groups.all(axis=1)) * GROUP


@instruction("9.7.15", "wgmma.fence:", "memory warp whole once clocks waits", writes=0)
class Fence:
    """wgmma.fence: a Wait, at which the warps of a warpgroup meet, as they do at each wgmma."""

    polls = False

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self._b = b

    def ready(self, lanes: Array) -> Array:
        _, group, count = np.unique(lanes // GROUP, return_inverse=True, return_counts=True)
        return np.asarray(count[group] == GROUP)

    def proceed(self, lanes: Array, said: bool) -> None:
        self._b.state.inflight.fence(mask_of(lanes, self._b.state.lanes))

    def describe(self, lane: int) -> str:
        return "the other threads of its warpgroup"


@instruction("9.7.15", "wgmma.commit_group:", "memory warp whole once clocks", writes=0)
def _commit(b: Builder, i: Instruction, site: Site) -> Run:
    def run(mask: Mask | None) -> None:
        engine(b).commit_wgmma(mask)
        b.state.inflight.commit(mask)

    return run


@instruction("9.7.15", "wgmma.wait_group:", "memory warp whole once clocks", writes=0)
def _wait(b: Builder, i: Instruction, site: Site) -> Run:
    (groups,) = i.operands
    assert isinstance(groups, Number)
    most = int(groups.value)

    def run(mask: Mask | None) -> None:
        engine(b).wait_wgmma(most, mask)
        b.state.inflight.wait(most, mask)

    return run

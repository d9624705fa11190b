"""tcgen05.mma and tcgen05.commit: products of tiles, with sums in tensor memory (PTX ISA §9.7.16.10 and 12).

One thread begins a product for its block, or with cta_group::2 for a pair of blocks: each of those has its
rows of A and D, and half the columns of B. By the text of the ISA, never compared with a chip: products are
exact and sums are made in float64, then rounded, as those of mma."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Address, Instruction, Number, PtxError, Vector
from ptxsan.isa.fragments import elements, registers, tile_products
from ptxsan.isa.mbarrier import engine, lanes_of, shared_address
from ptxsan.isa.tensor_memory import bytes_of, find, group_of, look, peers, put, sampled, tensor
from ptxsan.isa.wgmma import OperandLayout
from ptxsan.lanes import WARP, Array, Items, Mask, full
from ptxsan.machine import Builder, Read, Run
from ptxsan.machine.memory.tensor_memory import LANES
from ptxsan.machine.table import instruction
from ptxsan.rounding import round_narrow

# By kind: bytes of an element, and types of D, A and B by their numbers in an instruction descriptor.
_KINDS: dict[str, tuple[int, dict[int, str], dict[int, str]]] = {
    "kind::f16": (2, {0: "f16", 1: "f32"}, {0: "f16", 1: "bf16"}),
    "kind::tf32": (4, {1: "f32"}, {2: "tf32"}),
    "kind::i8": (1, {2: "s32"}, {0: "u8", 1: "s8"}),
    "kind::f8f6f4": (1, {0: "f16", 1: "f32"}, {0: "e4m3", 1: "e5m2"}),
}
_NARROW = {3: "e2m3", 4: "e3m2", 5: "e2m1"}
_DEPTH = 32  # bytes of K
_WHOLE, _SPLIT, _QUARTERED = "128 rows", "64 rows and two halves of N", "16 rows of each 32 lanes"


@dataclass(frozen=True)
class Form:
    """An instruction descriptor (§9.7.16.4.2): types of D, A and B, whether A and B are negated and
    transposed, the rows and columns of D, of all blocks together."""

    kinds: tuple[str, str, str]
    signs: tuple[int, int]
    turns: tuple[bool, bool]
    m: int
    n: int
    saturates: bool


@lru_cache(64)
def decode(kind: str, group: int, value: int) -> Form:
    """Raises PtxError for what is not a form of this kind."""
    _, sums, types = _KINDS[kind]
    numbers = value >> 4 & 3, value >> 7 & 7, value >> 10 & 7
    for number, known in zip(numbers, (sums, types, types), strict=True):
        if number not in known:
            named = _NARROW.get(number, "") if kind == "kind::f8f6f4" and known is types else ""
            raise PtxError(f"{named or f'type {number}'} of .{kind} is not {'supported' if named else 'one'}")
    if value & 0x20800007 | value >> 30 or (kind != "kind::i8" and value >> 3 & 1):
        raise PtxError("bits are set that are 0 of a dense product")
    m, n = (value >> 24 & 31) << 4, (value >> 17 & 63) << 3
    step = 8 * group * (2 if kind == "kind::i8" and (n > 32 or group == 2) else 1)
    if m not in (64 * group, 128 * group) or not step <= n <= 256 or n % step:
        raise PtxError(f"a product of M {m} and N {n} is not one of cta_group::{group}")
    if kind == "kind::i8" and value >> 13 & 3:
        raise PtxError("whole numbers are not negated")
    if kind == "kind::tf32" and value >> 15 & 3:  # by the layout with atoms of 32 bytes alone
        raise PtxError("a transposed matrix of tf32 is not supported")
    return Form(
        (sums[numbers[0]], types[numbers[1]], types[numbers[2]]),
        (-1 if value >> 13 & 1 else 1, -1 if value >> 14 & 1 else 1),
        (bool(value >> 15 & 1), bool(value >> 16 & 1)),
        m,
        n,
        bool(value >> 3 & 1),
    )


def layout(group: int, m: int, n: int) -> tuple[str, Array, int]:
    """How a block has D: its name, the lanes (L,) of its rows, how many columns (§9.7.16.10.5)."""
    if m // group == 128:
        return _WHOLE, np.arange(LANES), n
    if group == 2:
        return _SPLIT, np.arange(LANES), n // 2
    row = np.arange(m)
    return _QUARTERED, row // 16 * WARP + row % 16, n


@dataclass(frozen=True)
class _Operands:
    """What an mma gives in registers: addresses and descriptors, each (lanes,) when read."""

    d: Read
    a: Read
    b: Read
    idesc: Read
    enable: Read
    disable: list[Read]
    scale: int
    in_tensor: bool  # A


def _operands(b: Builder, i: Instruction) -> _Operands:
    given = list(i.operands)
    scale = 0
    if isinstance(given[-1], Number) and len(given) > 5:
        scale = int(given.pop().value)  # type: ignore[union-attr]
    if not 5 <= len(given) <= 6 or not isinstance(given[0], Address):
        raise PtxError("takes [d], a, b, idesc, lanes to leave out, enable-input-d, scale-input-d")
    in_tensor = isinstance(given[1], Address)
    lanes = given[4] if len(given) == 6 else None
    if lanes is not None and not isinstance(lanes, Vector):
        raise PtxError("takes a vector of lanes to leave out")
    return _Operands(
        b.address(given[0]),
        b.address(given[1]) if in_tensor else b.read(given[1], "u64"),
        b.read(given[2], "u64"),
        b.read(given[3], "u32"),
        b.read(given[-1], "pred"),
        [b.read(item, "u32") for item in lanes.items] if isinstance(lanes, Vector) else [],
        scale,
        in_tensor,
    )


@instruction(
    "9.7.16", "tcgen05.mma:10.9.1", "memory clocks", writes=0, note="`kind::f16` to `kind::i8`, dense"
)
class _Mma:
    """tcgen05.mma of the kinds without scales."""

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        words = i.op.split(".")  # tcgen05 mma cta_group::1 kind::f16
        kind = next((word for word in words if word.startswith("kind::")), "")
        if kind not in _KINDS or {*words[2:]} - {
            group_of(i),
            kind,
            "collector::a::discard",
            "collector::a::fill",
        }:
            raise PtxError("of this kind, with scales or with matrices that stay, is not supported")
        self._b, self._site, self._kind, self._group = b, site, kind, int(words[2][-1])
        self._given, self._item = _operands(b, i), _KINDS[kind][0]
        if len(self._given.disable) not in (0, 4 * self._group):
            raise PtxError("leaves out lanes by four registers a block")

    def __call__(self, mask: Mask | None) -> None:
        for lane in lanes_of(self._b, mask).tolist():
            with np.errstate(all="ignore"):
                self._multiply(lane)

    def _value(self, read: Read, lane: int) -> int:
        return int(full(read(), self._b.state.lanes)[lane])

    def _multiply(self, lane: int) -> None:
        b, given, site = self._b, self._given, self._site
        try:
            form = decode(self._kind, self._group, self._value(given.idesc, lane))
        except PtxError as error:
            raise Trap("unsupported", f"an instruction descriptor, {error}", site, lane) from None
        group, at = f"cta_group::{self._group}", self._value(given.d, lane)
        ranks = peers(b, site, lane, group)
        access = None
        if not sampled(b):
            tensor(b).same_group(site, lane, group)
            site.count_flop(2 * form.m * form.n * _DEPTH // self._item)
            shape = group, self._kind, form.m, form.n, form.kinds, at
            access = tensor(b).begin(site, "mma", lane, shape)
        right = (
            np.concatenate([self._tile(lane, rank, form, access, False) for rank in ranks]) * form.signs[1]
        )
        for which, rank in enumerate(ranks):
            row = lane // b.state.geometry.threads
            row = row if rank is None else row // 2 * 2 + which
            name, lanes, columns = layout(self._group, form.m, form.n)
            if given.in_tensor:
                left = self._a_of(lane, row, form, self._lanes(lane, lanes, name, given.a, "A"), access)
            else:
                left = self._tile(lane, rank, form, access, True)
            left = left * form.signs[0]
            if name == _SPLIT:
                upper, lower = (left, left) if len(left) < LANES else (left[: LANES // 2], left[LANES // 2 :])
                halves = np.stack([upper, lower]), np.stack([right[:columns], right[columns:]])
                made = tile_products(*halves).reshape(-1, columns)
            else:
                made = tile_products(left[None], right[None])[0]
            lanes = self._lanes(lane, lanes, name, given.d, "D")
            self._add(lane, row, form, made, lanes, (at & 0xFFFF) + np.arange(columns), which, access)

    def _lanes(self, lane: int, lanes: Array, name: str, address: Read, what: str) -> Array:
        """The lanes of a matrix that begins at an address."""
        first = self._value(address, lane) >> 16 & 0xFFFF
        if first and not (name == _QUARTERED and first == 16):
            raise Trap(
                "bounds", f"has {what} in tensor memory from lane {first} on, and not 0", self._site, lane
            )
        return lanes + first

    def _tile(self, lane: int, rank: int | None, form: Form, access: Any, of_a: bool) -> Array:
        """The elements of A or B that a block has in shared memory, (rows, K)."""
        b, which = self._b, 0 if of_a else 1
        rows = (form.m if of_a else form.n) // self._group
        tile = OperandLayout(rows, _DEPTH // self._item, self._item, form.turns[which])
        descriptor = self._value(self._given.a if of_a else self._given.b, lane)
        held, cells = bytes_of(b, tile, find(engine(b), self._site, lane, descriptor, tile, rank))
        if access is not None:
            look(b, self._site, lane, access, cells)
        values = np.ascontiguousarray(held).view(f"u{self._item}")
        return np.asarray(elements(values, form.kinds[1 + which])[..., 0])

    def _a_of(self, lane: int, row: int, form: Form, lanes: Array, access: Any) -> Array:
        """The elements of A that a block has in these lanes of tensor memory, (rows, K)."""
        if form.turns[0]:
            raise Trap("unsupported", "a transposed A in tensor memory", self._site, lane)
        columns = (self._value(self._given.a, lane) & 0xFFFF) + np.arange(_DEPTH // 4)
        return elements(self._load(lane, row, lanes, columns, "reads", access), form.kinds[1])

    def _load(self, lane: int, row: int, lanes: Array, columns: Array, verb: str, access: Any) -> Array:
        here = tensor(self._b)
        here.check_columns(self._site, lane, row, verb, columns)
        cells = here.cells(row, lanes, columns)
        if access is None:
            items = Items(np.full(cells.size, lane))
            sampling = self._b.state.undefined.sampling
            return np.asarray(sampling.load(here, self._site, cells.ravel(), 4, items).reshape(cells.shape))
        if verb == "reads":
            here.read(access, cells)
            here.check_known(self._site, np.full(len(cells), lane), cells)
        return here.words[cells]

    def _add(
        self,
        lane: int,
        row: int,
        form: Form,
        made: Array,
        lanes: Array,
        columns: Array,
        which: int,
        access: Any,
    ) -> None:
        """D = ``made``, or with enable-input-d D + ``made``, in the lanes that are not left out."""
        b, given, d_kind = self._b, self._given, form.kinds[0]
        tensor(b).check_columns(self._site, lane, row, "writes", columns)
        if given.disable:
            four = [self._value(read, lane) for read in given.disable[4 * which : 4 * which + 4]]
            out = np.array(four, np.uint32)[lanes // WARP] >> (lanes % WARP).astype(np.uint32) & 1
            lanes, made = lanes[out == 0], made[out == 0]
        cells, shade = tensor(b).cells(row, lanes, columns), None
        if self._value(given.enable, lane):
            if access is not None:
                shade = tensor(b).shadow.read(4 * cells.ravel(), 4)
            words = self._load(lane, row, lanes, columns, "writes", access)
            kind = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[d_kind]
            held = words.astype(np.uint16) if d_kind == "f16" else words
            made = made + held.view(kind).astype(np.float64) * 2.0**-given.scale
        if d_kind == "f16":  # one in the low half of each column
            words = round_narrow(made, np.float16).view(np.uint16).astype(np.uint32)
        else:
            words = registers(made, d_kind, form.saturates)
        put(b, self._site, access, cells, words, np.array([lane]))
        if shade is not None:
            tensor(b).taint(self._site, lane, cells.ravel(), shade)


@instruction("9.7.16", "tcgen05.commit:12.1", "once clocks", writes=0)
def _commit(b: Builder, i: Instruction, site: Site) -> Run:
    """tcgen05.commit: an arrival at an mbarrier, or at that of several blocks of the cluster, once what the
    thread has begun is over. It is a before_thread_sync, too."""
    at, group, state = shared_address(b, i.operands[0]), group_of(i), b.state
    ranks = b.read(i.operands[1], "u16") if "multicast::cluster" in i.op.split(".") else None

    def run(mask: Mask | None) -> None:
        barriers, here = engine(b).mbarriers, tensor(b)
        for lane in lanes_of(b, mask).tolist():
            here.same_group(site, lane, group)
            engine(b).clocks.before_thread_sync(np.array([lane]))
            to: list[int | None] = [None]
            if ranks is not None:
                named, size = int(full(ranks(), state.lanes)[lane]), state.geometry.cluster_size
                if not named or named >> size:
                    what = f"tells blocks of mask 0x{named:x} in a cluster of {size}"
                    raise Trap("bounds", what, site, lane)
                to = [rank for rank in range(size) if named >> rank & 1]
            for rank in to:
                m = barriers.one(site, lane, int(full(at(), state.lanes)[lane]), rank)
                here.order.commits.commit(lane, m.number, m.phase)
                barriers.arrive(site, m, np.array([lane]), np.ones(1, np.int64))

    return run

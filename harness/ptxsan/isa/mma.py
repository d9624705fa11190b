"""mma.sync, with the fragments of the PTX ISA (§9.7.14.5): dense, of a sparse A (§9.7.14.6), and with scales
of blocks (§9.7.14.3).

A lane of a warp is in group lane / 4, at place lane mod 4 of it. With p elements a register of 32 bits, the
registers of A hold row "group" and row "group + 8" by turns, columns p·place and further; each pair of
registers is 4·p columns further on. B is the same by columns, eight of them. A sparse A is held as the matrix
of half its columns would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Number, Operand, PtxError, Vector
from ptxsan.isa.fragments import SMALL, Matrix, Product, Words, bits_of, product, whole_warps
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import Builder, Run
from ptxsan.machine.table import instruction
from ptxsan.machine.table import shape as shape_of

_OTHER_WORDS = ("sync", "aligned", "popc", "satfinite", "rn")
_REALS, _BYTES, _NIBBLES = ("f32", "f16"), ("s8", "u8"), ("s4", "u4")
# Multiplicands, and for each shape the sums that they have.
_KNOWN_MMA: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("f16",), ("m16n8k8", "m16n8k16"), _REALS),
    (("bf16",), ("m16n8k8", "m16n8k16"), ("f32",)),
    (("tf32",), ("m16n8k4", "m16n8k8"), ("f32",)),
    (("e4m3", "e5m2"), ("m16n8k16", "m16n8k32"), _REALS),
    (SMALL, ("m16n8k32",), _REALS),  # .kind::f8f6f4 alone
    (_BYTES, ("m8n8k16", "m16n8k16", "m16n8k32"), ("s32",)),
    (_NIBBLES, ("m8n8k32", "m16n8k32", "m16n8k64"), ("s32",)),
    (("b1",), ("m8n8k128", "m16n8k128", "m16n8k256"), ("s32",)),
    (("f64",), ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), ("f64",)),
)


_KNOWN_SPARSE: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("f16",), ("m16n8k16", "m16n8k32"), _REALS),
    (("bf16",), ("m16n8k16", "m16n8k32"), ("f32",)),
    (("tf32",), ("m16n8k8", "m16n8k16"), ("f32",)),
    (SMALL, ("m16n8k64",), _REALS),
    (_BYTES, ("m16n8k32", "m16n8k64"), ("s32",)),
    (_NIBBLES, ("m16n8k64", "m16n8k128"), ("s32",)),
)
# With scales, by kind: the types of elements, the dense shape, and for each type of a scale how many of them
# a row has (PTX ISA §9.7.14.3); the first one by default.
_SCALED: dict[str, tuple[tuple[str, ...], int, dict[str, tuple[str, ...]]]] = {
    "mxf8f6f4": (SMALL, 32, {"ue8m0": ("1X",)}),
    "mxf4": (("e2m1",), 64, {"ue8m0": ("2X",)}),
    "mxf4nvf4": (("e2m1",), 64, {"ue8m0": ("", "2X", "4X"), "ue4m3": ("", "4X")}),
}


Places = tuple[Array, Array]


@cache
def fragment_places(which: str, rows: int, columns: int, bits: int) -> Places:
    """Row and column of each lane's elements, (32, elements), in the order of the registers."""
    group, place = np.arange(WARP) // 4, np.arange(WARP) % 4
    per = max(1, 32 // bits)
    if which == "c":
        where = [(r, c) for r in range(0, rows, 8) for c in (0, 1)]
        return np.stack([group + r for r, _ in where], 1), np.stack([2 * place + c for _, c in where], 1)
    along, across = [], []
    for first in range(0, columns if which == "a" else rows, 4 * per):
        for other in range(0, rows, 8) if which == "a" else (0,):
            for j in range(per):
                along.append(place * per + j + first)
                across.append(group + other)
    pair = np.stack(across, 1), np.stack(along, 1)
    return pair if which == "a" else pair[::-1]


def _quad_places(which: str, layout: str, kind: str) -> Places:
    """Of m8n8k4: four products a warp, each of eight lanes: four and those 16 further. With the rows of the
    four products one under another, those of B side by side."""
    lane = np.arange(WARP)
    upper, quad, i = lane // 16 * 4, lane % 16 // 4, np.arange(8 if which == "c" else 4)
    of_lane = np.broadcast_to((lane % 4 + upper)[:, None], (WARP, len(i)))
    of_item = np.broadcast_to(i, (WARP, len(i)))
    if which == "c" and kind == "f32":
        row = (lane & 1)[:, None] + (i & 2) + upper[:, None]
        column = (i & 4) + (lane & 2)[:, None] + (i & 1)
    elif which == "c" or (which == "a" and layout == "row"):
        row, column = of_lane, of_item
    elif which == "a":
        row, column = of_item + upper[:, None], np.broadcast_to((lane % 4)[:, None], of_item.shape)
    elif layout == "row":
        row, column = np.broadcast_to((lane % 4)[:, None], of_item.shape), of_item + upper[:, None]
    else:
        row, column = of_item, of_lane
    # The products of a warp are told apart by the rows, of B too.
    return row + quad[:, None] * (4 if which == "b" else 8), column


class _Form:
    """An mma by its words: shape, layouts and types (d, a, b, c), its kind and its scales."""

    def __init__(self, op: str) -> None:
        words, (self.m, self.n, self.k) = op.split(".")[1:], shape_of(op)
        self.shape = f"m{self.m}n{self.n}k{self.k}"
        self.operation = next((w for w in words if w in ("xor", "and")), "")
        self.sparse, self.ordered = words[0].startswith("sp"), words[0] == "sp::ordered_metadata"
        self.scaled, self.saturates = "block_scale" in words, "satfinite" in words
        self.kind = next((w.removeprefix("kind::") for w in words if w.startswith("kind::")), "")
        given = [w.removeprefix("scale_vec::") for w in words if w.startswith("scale_vec::")]
        known = ("sp", "sp::ordered_metadata", "block_scale", self.operation, self.shape, *_OTHER_WORDS)
        rest = [w for w in words if w not in known and "::" not in w]
        self.scales = rest.pop() if self.scaled else ""
        self.layouts, self.types = tuple(rest[:2]), tuple(rest[2:])
        if len(self.types) != 4 or not {*self.layouts} <= {"row", "col"}:
            raise PtxError("not supported")
        self.per_row = given[0] if given else ""
        if self.scaled:
            _, _, of_type = _SCALED.get(self.kind, ((), 0, {}))
            sizes = of_type.get(self.scales, ("none",))
            self.per_row = self.per_row or sizes[0]
            if self.per_row not in sizes or not self.per_row:
                raise PtxError("no kind, type and number of scales of the PTX ISA")

    @property
    def known(self) -> bool:
        of_d, of_a, of_b, of_c = self.types
        if self.scaled:
            types, k, _ = _SCALED[self.kind]
            return (
                {of_a, of_b} <= {*types}
                and (self.m, self.n, self.k) == (16, 8, k * (2 if self.sparse else 1))
                and of_c == of_d == "f32"
                and (self.ordered or not self.sparse)
            )
        if self.kind not in ("", "f8f6f4") or (self.kind == "f8f6f4" and not {of_a, of_b} <= {*SMALL}):
            return False
        if {of_a, of_b} & {*SMALL[2:]} and (not self.kind or (self.sparse and not self.ordered)):
            return False
        table = _KNOWN_SPARSE if self.sparse else _KNOWN_MMA
        return any(
            {of_a, of_b} <= {*of} and self.shape in shapes and of_d == of_c and of_d in sums
            for of, shapes, sums in table
        )

    def element(self, kind: str) -> str:
        """How an element is held: of 4 bits without padding in two of the kinds with scales."""
        return "e2m1x2" if self.kind in ("mxf4", "mxf4nvf4") and kind == "e2m1" else kind

    def spread(self, b: Builder, operands: Sequence[Operand], site: Site) -> Spread:
        return Spread(b, self.k, self.element(self.types[1]), operands, site, self.ordered)

    def matrices(self) -> list[Matrix]:
        """A, as it is held, B, C and D."""
        of_d, of_a, of_b, of_c = self.types
        found, held = [], self.k // 2 if self.sparse else self.k
        for which, kind, rows, columns in (
            ("a", of_a, self.m, held),
            ("b", of_b, self.k, self.n),
            ("c", of_c, self.m, self.n),
            ("c", of_d, self.m, self.n),
        ):
            kind = self.element(kind)
            found.append(Matrix(rows, columns, kind, fragment_places(which, rows, columns, bits_of(kind))))
        return found


@instruction("9.7.14", "mma:5.14", "warp whole product", note="scales by the text, not compared with a chip")
@instruction("9.7.14", "mma.sp:6.3 mma.sp::ordered_metadata:6.3", "warp whole product")
def _mma(b: Builder, i: Instruction, site: Site) -> Run:
    """mma sync aligned m16n8k16 row col f32 f16 f16 f32, or with more of these."""
    form, copies, matrices = _form(i.op)
    for operand, matrix in zip(i.operands, (matrices[3], *matrices[:3]), strict=False):
        if not isinstance(operand, Vector) or len(operand.items) != matrix.words:
            raise PtxError("another number of registers than its shape has")
    if not form.sparse and not form.scaled:
        return Product(b, i.operands, matrices, form.operation, form.saturates, site, copies).run
    return _by_parts(b, i.operands, form, matrices, site)


@lru_cache(maxsize=64)
def _form(op: str) -> tuple[_Form, int, list[Matrix]]:
    """Of an mma, how many products a warp makes, and its matrices; most kernels have many of one form."""
    form = _Form(op)
    _, of_a, of_b, _ = form.types
    quads = form.shape == "m8n8k4" and of_a == of_b == "f16" and {form.types[0], form.types[3]} <= {*_REALS}
    plain = form.known and form.layouts == ("row", "col") and (of_a == "b1") == bool(form.operation)
    if not (quads and not form.sparse and not form.scaled and not form.kind) and not plain:
        raise PtxError("no shape, layout and types of the PTX ISA")
    return (form, 4, _quad_matrices(form)) if quads else (form, 1, form.matrices())


def _quad_matrices(form: _Form) -> list[Matrix]:
    sizes = ((form.m, form.k), (form.k, form.n), (form.m, form.n), (form.m, form.n))
    of_d, of_a, of_b, of_c = form.types
    each = zip("abcc", (of_a, of_b, of_c, of_d), (*form.layouts, "", ""), sizes, strict=True)
    return [
        Matrix(4 * rows, columns, kind, _quad_places(which, layout, kind))
        for which, kind, layout, (rows, columns) in each
    ]


# Of a sparse A, and with scales: A is spread over its columns, then both are multiplied by their scales.


def _by_parts(
    b: Builder, operands: Sequence[Operand], form: _Form, matrices: Sequence[Matrix], site: Site
) -> Run:
    words = [Words(b, o) for o in operands[:4]]
    out, *sources = words
    more, state = list(operands[4:]), b.state
    spread = form.spread(b, [more.pop(0) for _ in range(2)], site) if form.sparse else None
    scales = [_Scale(b, form, which, more[n : n + 2], site) for which, n in (("a", 0), ("b", 2))]
    scales = scales if form.scaled else []
    if len(more) != 4 * form.scaled:
        raise PtxError("another number of operands than it has")

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        active = np.ones(state.lanes // WARP, bool) if mask is None else mask.warps
        with np.errstate(all="ignore"):
            a, right, c = (m.decode(w.get()) for w, m in zip(sources, matrices, strict=False))
            columns = None if spread is None else spread.columns(active)
            for scale in scales:
                factors = np.repeat(scale.of(active), form.k // scale.count, axis=-1)
                if scale.which == "b":
                    right = right * factors.transpose(0, 2, 1)
                else:
                    a = a * (factors if columns is None else np.take_along_axis(factors, columns, axis=2))
            if columns is None:
                total = product(a, right, c, matrices[0].kind)
            else:
                total = sparse_products(a, right, columns) + c
            made = matrices[3].encode(total, form.saturates)
        out.set(made, mask)

    return run


def sparse_products(a: Array, right: Array, columns: Array) -> Array:
    """A·B of which A (products, m, k / 2) holds these ``columns``, of its shape; what it does not hold is not
    multiplied, be it NaN in B (products, k, n)."""
    total = np.zeros((*a.shape[:2], right.shape[2]))
    for j in range(a.shape[2]):
        total += a[:, :, j, None] * np.take_along_axis(right, columns[:, :, j, None], axis=1)
    return total


class Spread:
    """The metadata of a sparse A of ``kind`` and ``k`` columns: of each chunk of a row, of 4 columns (2 of
    TF32, 8 of 4 bits), the two places that are held (PTX ISA §9.7.14.6.1); a place is a half of TF32, or two
    columns of 4 bits. They are ``ordered`` where a chunk's second place must be the larger one.

    The lanes of a group hold both its rows: one lane 16 bits of each (of 16 bits and TF32), or by turns."""

    def __init__(
        self, b: Builder, k: int, kind: str, operands: Sequence[Operand], site: Site, ordered: bool = True
    ) -> None:
        self._read, self._state, self._site = b.read(operands[0], "u32"), b.state, site
        self._ordered = ordered
        self._wide, self._pairs, self._tf32 = bits_of(kind) >= 16, bits_of(kind) == 4, kind == "tf32"
        self._size = 2 if self._tf32 else 8 if self._pairs else 4
        self._chunks = k // self._size
        self._lanes = self._chunks // 4  # of each group of four that contribute
        (selector,) = operands[1:]
        if not isinstance(selector, Number) or not 0 <= int(selector.value) * self._lanes < 4:
            raise PtxError("no sparsity selector that its shape has")
        self._first = int(selector.value) * self._lanes

    def _nibbles(self) -> Array:
        """(warps, 16 rows, chunks)."""
        held = full(self._read(), self._state.lanes).reshape(-1, 8, 4)
        held = held[:, :, self._first : self._first + self._lanes]
        nibbles = held[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & np.uint32(15)
        if self._wide:  # four chunks of the one row, then four of the other
            rows = nibbles.reshape(*held.shape, 2, 4).transpose(0, 3, 1, 2, 4)
        else:
            rows = nibbles.reshape(len(held), 8, -1, 2, 8).transpose(0, 3, 1, 2, 4)
        return np.asarray(rows.reshape(len(held), 16, self._chunks))

    def columns(self, active: Array) -> Array:
        """Of what A holds, (warps, 16, k / 2)."""
        nibbles = self._nibbles()
        low, high = nibbles & 3, nibbles >> 2
        bad = low >= high if self._ordered else low == high
        if self._tf32:
            bad = (nibbles != 0b0100) & (nibbles != 0b1110)
        if (bad := bad & active[:, None, None]).any() and self._state.undefined.sampling is None:
            warp, row, chunk = np.argwhere(bad)[0].tolist()
            what = f"has metadata 0b{int(nibbles[warp, row, chunk]):04b} of chunk {chunk} in row {row} of A"
            raise Trap("bounds", f"{what}, which the PTX ISA leaves undefined", self._site, warp * WARP)
        places = np.stack([low >> 1], -1) if self._tf32 else np.stack([low, high], -1)
        if self._pairs:
            places = (2 * places[..., None] + np.arange(2)).reshape(*nibbles.shape, 4)
        columns = self._size * np.arange(self._chunks)[:, None] + places
        return np.asarray(columns.reshape(len(nibbles), 16, -1).astype(np.int64))


class _Scale:
    """The factors of blocks of A's rows, or of B's columns: bytes of some lanes of each group of four (PTX
    ISA §9.7.14.3). Which of the two that thread-id-a names has which row is in a figure alone: the first one
    has row "group", the second one row "group + 8", as was reported of sm_120."""

    def __init__(self, b: Builder, form: _Form, which: str, operands: Sequence[Operand], site: Site) -> None:
        self.which, self._site, self._state, self._kind = which, site, b.state, form.scales
        if not form.scaled:
            return
        data, selector = operands
        if not isinstance(selector, Vector) or len(selector.items) != 2:
            raise PtxError("takes {byte-id, thread-id}")
        self._data = b.read(data.items[0] if isinstance(data, Vector) else data, "u32")
        self._ids = [b.read(item, "u16") for item in selector.items]
        self.count = int(form.per_row[0])

    def of(self, active: Array) -> Array:
        """(warps, rows of A or columns of B, count)."""
        lanes = self._state.lanes
        octets = np.ascontiguousarray(full(self._data(), lanes)).view(np.uint8).reshape(-1, WARP, 4)
        byte, thread = (full(read(), lanes)[::WARP].astype(np.int64) for read in self._ids)
        threads = 2 if self.which == "a" else 4
        bad = (byte % self.count != 0) | (byte + self.count > 4) | (thread >= threads)
        if (bad := bad & active).any() and self._state.undefined.sampling is None:
            warp = int(np.argmax(bad))
            what = f"selects scales by {{{byte[warp]}, {thread[warp]}}}, which the PTX ISA leaves undefined"
            raise Trap("bounds", what, self._site, warp * WARP)
        byte, thread = byte % (5 - self.count), thread % threads
        rows = np.arange(16 if self.which == "a" else 8)
        lane = 4 * (rows % 8) + rows // 8 + (2 if self.which == "a" else 1) * thread[:, None]
        at = byte[:, None, None] + np.arange(self.count)
        held = octets[np.arange(len(octets))[:, None, None], lane[:, :, None], at]
        return np.asarray(_VALUES[self._kind](held))


_VALUES: dict[str, Callable[[Array], Any]] = {
    "ue8m0": lambda held: held.view(ml_dtypes.float8_e8m0fnu).astype(np.float64),
    "ue4m3": lambda held: (held & 0x7F).astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64),
}

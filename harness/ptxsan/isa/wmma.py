"""wmma: matrices of a warp, loaded, multiplied and stored.

The layout of wmma fragments is unspecified in the PTX ISA (§9.7.14); here each lane holds segments of 16
bytes of a row of the matrix, or less of a smaller one, as it lies in memory, and eight neighbouring lanes
eight rows, as ldmatrix reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.frontend import Instruction, Number, PtxError, Vector
from ptxsan.isa.fragments import Matrix, Product, Words, bits_of, whole_warps
from ptxsan.isa.memory import accessors
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import Builder, Known, Run

_HALF = ("m16n16k16", "m32n8k16", "m8n32k16")
# Multiplicands, their shapes and sums.
_KNOWN: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "f16": (_HALF, ("f16", "f32")),
    "bf16": (_HALF, ("f32",)),
    "s8": (_HALF, ("s32",)),
    "u8": (_HALF, ("s32",)),
    "tf32": (("m16n16k8",), ("f32",)),
    "f64": (("m8n8k4",), ("f64",)),
    "s4": (("m8n8k32",), ("s32",)),
    "u4": (("m8n8k32",), ("s32",)),
    "b1": (("m8n8k128",), ("s32",)),
}


class _Fragment:
    """A matrix of a wmma instruction as memory and the registers hold it: segments of 16 bytes of a row (of a
    column where it is transposed), or of less where a lane has less of it."""

    def __init__(self, which: str, layout: str, shape: str, kind: str) -> None:
        if shape not in _KNOWN.get(kind, ((), ()))[0] and which in "ab":
            raise PtxError("no shape and type of the PTX ISA")
        m, rest = shape[1:].split("n")
        n, k = rest.split("k")
        rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
        self.transposed, self.kind, self.bits = layout == "col", kind, bits_of(kind)
        self.rows, self.columns = (int(columns), int(rows)) if self.transposed else (int(rows), int(columns))
        total = self.rows * self.columns * self.bits // 8  # bytes
        self.width = min(16, total // WARP)  # of a segment
        self.segments = total // WARP // self.width
        self.per = self.width * 8 // self.bits  # elements of a segment
        number = np.arange(WARP)[:, None] + WARP * np.arange(self.segments)
        # Of each lane's segments, (32, segments): row and first column.
        self.row, self.column = number % self.rows, number // self.rows * self.per
        self.word = 8 if kind == "f64" else 4  # bytes of a register

    @cached_property
    def matrix(self) -> Matrix:
        row = np.repeat(self.row, self.per, axis=1)
        column = (self.column[:, :, None] + np.arange(self.per)).reshape(WARP, -1)
        if self.transposed:
            return Matrix(self.columns, self.rows, self.kind, (column, row))
        return Matrix(self.rows, self.columns, self.kind, (row, column))


def _offsets(fragment: _Fragment, stride: Any, lanes: int) -> list[Array]:
    """Bytes from the start of the matrix to each segment, (lanes,) a segment."""
    stride = full(stride, lanes).astype(np.int64)
    warps = lanes // WARP
    return [
        (np.tile(fragment.row[:, s], warps) * stride + np.tile(fragment.column[:, s], warps))
        * fragment.bits
        // 8
        for s in range(fragment.segments)
    ]


def _wmma_load(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # wmma load a sync aligned row m16n16k16 [shared] f16
    fragment = _Fragment(words[2], words[5], words[6], words[-1])
    into, base = Words(b, i.operands[0], 8 * fragment.word), b.address(i.operands[1])
    # Without a stride, rows follow one another.
    given = i.operands[2] if len(i.operands) > 2 else Number(fragment.columns)
    stride, state, width = b.read(given, "s32"), b.state, fragment.width
    at: list[Any] = [None]
    load, _ = accessors(b, words[1:-1], site, lambda: at[0], width)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        start = full(base(), state.lanes)
        _check_start(start, mask, site, into.count * fragment.word, state.tell)
        found = []
        for offset in _offsets(fragment, stride(), state.lanes):
            at[0] = start + offset
            values = load(mask).reshape(-1, width // 4)
            whole = np.zeros((state.lanes, width // 4), np.uint32)
            whole[slice(None) if mask is None else mask.index] = values
            found.append(whole)
        held = np.ascontiguousarray(np.concatenate(found, axis=1)).view(f"u{fragment.word}")
        if words[2] == "c" and fragment.transposed:
            # An accumulator is held by rows, however it lies in memory.
            held = _Fragment("c", "row", words[6], words[-1]).matrix.encode(fragment.matrix.decode(held))
        # Half-precision fragments have twice the registers they need, or more: the others repeat the first.
        into.set(held, mask)

    return run


def _wmma_store(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")
    fragment = _Fragment("d", words[5], words[6], words[-1])
    base, source = b.address(i.operands[0]), Words(b, i.operands[1], 8 * fragment.word)
    given = i.operands[2] if len(i.operands) > 2 else Number(fragment.columns)
    stride, state, width = b.read(given, "s32"), b.state, fragment.width
    at: list[Any] = [None]
    _, store = accessors(b, words[1:-1], site, lambda: at[0], width)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        start, held = full(base(), state.lanes), source.get()
        _check_start(start, mask, site, source.count * fragment.word, state.tell)
        if fragment.transposed:
            plain = _Fragment("d", "row", words[6], words[-1])
            held = fragment.matrix.encode(plain.matrix.decode(held))
        segments = np.ascontiguousarray(held).view(np.uint32)
        for s, offset in enumerate(_offsets(fragment, stride(), state.lanes)):
            at[0] = start + offset
            values = segments[:, s * width // 4 : (s + 1) * width // 4]
            values = np.ascontiguousarray(values if mask is None else values[mask.index])
            store(values[:, 0] if width == 4 else values, mask)

    return run


def _check_start(start: Array, mask: Mask | None, site: Site, fragment: int, tell: Tell) -> None:
    """A matrix starts at a multiple of the bytes of a lane's fragment (PTX ISA §9.7.14.4.2); CUDA C++ asks
    for 32 bytes, whatever the fragment."""
    for unit, error in ((fragment, True), (32, False)):
        off = (start if mask is None else start[mask.index]) % unit != 0
        if off.any():
            i = int(np.argmax(off))
            lane, what = i if mask is None else int(mask.index[i]), f"at a multiple of {unit} bytes"
            if error:
                raise Trap("misaligned", f"has a matrix that does not start {what}", site, lane)
            tell("misaligned", f"has a matrix that does not start {what}", site, lane, True)


def _wmma_mma(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # wmma mma sync aligned row row m16n16k16 f32 [f16 f16] f32
    operation = next((w for w in words if w in ("xor", "and")), "")
    words = [w for w in words if w not in ("xor", "and", "popc", "satfinite", "rn")]
    saturates = i.op.endswith("satfinite")
    layouts, shape, kinds = words[4:6], words[6], words[7:]
    multiplicands = tuple(kinds[1:3]) if len(kinds) == 4 else ("f16", "f16")
    sums = _KNOWN.get(multiplicands[0], ((), ()))[1]
    if not {kinds[0], kinds[-1]} <= {*sums} or (multiplicands[0] == "b1") != bool(operation):
        raise PtxError("no shape and types of the PTX ISA")
    a, bb = (
        _Fragment(which, layout, shape, kind)
        for which, layout, kind in zip("ab", layouts, multiplicands, strict=True)
    )
    c, d = _Fragment("c", "row", shape, kinds[-1]), _Fragment("d", "row", shape, kinds[0])
    multiply = Product(b, i.operands, [f.matrix for f in (a, bb, c, d)], operation, saturates)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        multiply.run(mask)

    return run


# mma.sync, with the fragments of the PTX ISA (§9.7.14.5).
#
# A lane of a warp is in group lane / 4, at place lane mod 4 of it. With p elements a register of 32 bits, the
# registers of A hold row "group" and row "group + 8" by turns, columns p·place and further; each pair of
# registers is 4·p columns further on. B is the same by columns, eight of them.


_REALS, _BYTES, _NIBBLES = ("f32", "f16"), ("s8", "u8"), ("s4", "u4")
# Multiplicands, and for each shape the sums that they have.
_KNOWN_MMA: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (("f16",), ("m16n8k8", "m16n8k16"), _REALS),
    (("bf16",), ("m16n8k8", "m16n8k16"), ("f32",)),
    (("tf32",), ("m16n8k4", "m16n8k8"), ("f32",)),
    (("e4m3", "e5m2"), ("m16n8k16", "m16n8k32"), _REALS),
    (_BYTES, ("m8n8k16", "m16n8k16", "m16n8k32"), ("s32",)),
    (_NIBBLES, ("m8n8k32", "m16n8k32", "m16n8k64"), ("s32",)),
    (("b1",), ("m8n8k128", "m16n8k128", "m16n8k256"), ("s32",)),
    (("f64",), ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), ("f64",)),
)


@dataclass(frozen=True)
class _Form:
    """What an mma is, as its words say."""

    shape: str
    kinds: tuple[str, str, str, str]  # of D, A, B and C
    layouts: tuple[str, ...]
    saturates: bool
    operation: str  # of bits

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        m, rest = self.shape[1:].split("n")
        n, k = (int(v) for v in rest.split("k"))
        return {"a": (int(m), k), "b": (k, n), "c": (int(m), n)}

    @classmethod
    def of(cls, op: str) -> _Form:
        """mma sync aligned m16n8k16 row col f32 f16 f16 f32. Raises PtxError for one that is not known."""
        words = op.split(".")[1:]
        operation = next((w for w in words if w in ("xor", "and")), "")
        shape = next((w for w in words if w[0] == "m" and "n" in w and "k" in w), "")
        rest = [
            w for w in words if w not in ("sync", "aligned", "xor", "and", "popc", "satfinite", "rn", shape)
        ]
        if rest[2:3] == ["kind::f8f6f4"]:
            del rest[2]
        layouts, kinds = tuple(rest[:2]), rest[2:]
        if len(kinds) != 4 or not {*layouts} <= {"row", "col"} or "sp" in words:
            raise PtxError("not supported")
        d, a, b, c = kinds
        form = cls(shape, (d, a, b, c), layouts, "satfinite" in words, operation)
        if shape == "m8n8k4" and a == b == "f16" and d in _REALS and c in _REALS:
            return form
        known = any(
            a in of and b in of and shape in shapes and d == c and d in sums
            for of, shapes, sums in _KNOWN_MMA
        )
        if not known or layouts != ("row", "col") or (a == "b1") != bool(operation):
            raise PtxError("no shape, layout and types of the PTX ISA")
        return form


Places = tuple[Array, Array]


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


def _mma(b: Builder, i: Instruction, site: Site) -> Run:
    form = _Form.of(i.op)
    d_kind, a_kind, b_kind, c_kind = form.kinds
    quads = form.shape == "m8n8k4" and a_kind == "f16"
    copies = 4 if quads else 1
    matrices = []
    for which, kind, layout in zip(
        "abcc", (a_kind, b_kind, c_kind, d_kind), (*form.layouts, "", ""), strict=True
    ):
        rows, columns = form.sizes[which]
        places = (
            _quad_places(which, layout, kind)
            if quads
            else fragment_places(which, rows, columns, bits_of(kind))
        )
        matrices.append(Matrix(copies * rows, columns, kind, places))
    for operand, matrix in zip(i.operands, (matrices[3], *matrices[:3]), strict=True):
        if not isinstance(operand, Vector) or len(operand.items) != matrix.words:
            raise PtxError("another number of registers than its shape has")
    multiply = Product(b, i.operands, matrices, form.operation, form.saturates, copies)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        multiply.run(mask)

    return run


TABLE: dict[str, Known] = {
    "wmma.load": Known(_wmma_load, "9.7.14.4.3"),
    "wmma.store": Known(_wmma_store, "9.7.14.4.4", writes=0),
    "wmma.mma": Known(_wmma_mma, "9.7.14.4.5"),
    "mma": Known(_mma, "9.7.14.5.14"),
}

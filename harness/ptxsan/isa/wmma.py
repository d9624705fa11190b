"""wmma: matrices of a warp, loaded, multiplied and stored.

The layout of wmma fragments is unspecified in the PTX ISA (§9.7.14); here each lane holds segments of 16
bytes of a row of the matrix, or less of a smaller one, as it lies in memory, and eight neighbouring lanes
eight rows, as ldmatrix reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ptxsan.checks import Site, Tell, Trap
from ptxsan.frontend import Instruction, Number, Operand, PtxError
from ptxsan.isa.fragments import Matrix, Product, Words, bits_of, whole_warps
from ptxsan.isa.memory import accessors
from ptxsan.lanes import WARP, Array, Mask, first_of, full
from ptxsan.machine import Builder, Run
from ptxsan.machine.table import instruction
from ptxsan.machine.table import shape as shape_of

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
        m, n, k = shape_of(f".{shape}")
        rows, columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
        self.transposed, self.kind, self.bits = layout == "col", kind, bits_of(kind)
        self.rows, self.columns = (columns, rows) if self.transposed else (rows, columns)
        total = self.rows * self.columns * self.bits // 8  # bytes
        self.width = min(16, total // WARP)  # of a segment
        self.segments = total // WARP // self.width
        self.per = self.width * 8 // self.bits  # elements of a segment
        # A multiplicand by columns is held from the last lane on: a product that takes it by rows, which PTX
        # leaves undefined, would else be right by luck.
        lane = np.arange(WARP)[:: -1 if self.transposed and which in "ab" else 1]
        number = lane[:, None] + WARP * np.arange(self.segments)
        # Of each lane's segments, (32, segments): row and first column.
        self.row, self.column = number % self.rows, number // self.rows * self.per
        self.word = _word(kind) // 8  # bytes of a register

    @cached_property
    def matrix(self) -> Matrix:
        row = np.repeat(self.row, self.per, axis=1)
        column = (self.column[:, :, None] + np.arange(self.per)).reshape(WARP, -1)
        if self.transposed:
            return Matrix(self.columns, self.rows, self.kind, (column, row))
        return Matrix(self.rows, self.columns, self.kind, (row, column))


_fragment = lru_cache(maxsize=64)(_Fragment)


class _Access:
    """What wmma.load and wmma.store have in common: wmma load a sync aligned row m16n16k16 [shared] f16."""

    def __init__(
        self, b: Builder, i: Instruction, site: Site, which: str, words: Words, source: Operand
    ) -> None:
        of = i.op.split(".")
        self.fragment = fragment = _fragment(which, of[5], of[6], of[-1])
        self.by_rows = _fragment(which, "row", of[6], of[-1])
        self._base, self._state, self._site, self._words = b.address(source), b.state, site, words
        # Without a stride, rows follow one another.
        given = i.operands[2] if len(i.operands) > 2 else Number(fragment.columns)
        self._stride = b.read(given, "s32")
        self._at: Any = None
        self._tiled = [np.zeros((0, 0))] * 2
        self.load, self.store = accessors(b, of[1:-1], site, lambda: self._at, fragment.width)

    def segments(self, mask: Mask | None) -> Iterator[slice]:
        """The columns of words of each lane's segments, one after another, which are accessed then."""
        whole_warps(mask, self._site)
        fragment, lanes = self.fragment, self._state.lanes
        start, stride = full(self._base(), lanes), full(self._stride(), lanes).astype(np.int64)
        _check_start(start, mask, self._site, self._words.count * fragment.word, self._state.tell)
        if self._tiled[0].shape[-1] != lanes:  # what each lane of a warp accesses, for all warps
            self._tiled = [np.tile(each.T, lanes // WARP) for each in (fragment.row, fragment.column)]
        for s, (row, column) in enumerate(zip(*self._tiled, strict=True)):
            self._at = start + (row * stride + column) * fragment.bits // 8
            yield slice(s * fragment.width // 4, (s + 1) * fragment.width // 4)


@instruction("9.7.14", "wmma.load:4.3", "move memory warp whole")
def _wmma_load(b: Builder, i: Instruction, site: Site) -> Run:
    which, kind = i.op.split(".")[2], i.op.rsplit(".", 1)[-1]
    into = Words(b, i.operands[0], _word(kind))
    access, state = _Access(b, i, site, which, into, i.operands[1]), b.state
    fragment = access.fragment

    def run(mask: Mask | None) -> None:
        found = np.zeros((state.lanes, fragment.segments * fragment.width // 4), np.uint32)
        for columns in access.segments(mask):
            lanes = slice(None) if mask is None else mask.index
            found[lanes, columns] = access.load(mask).reshape(-1, fragment.width // 4)
        held = found.view(f"u{fragment.word}")
        if which == "c" and fragment.transposed:
            # An accumulator is held by rows, however it lies in memory.
            held = access.by_rows.matrix.encode(fragment.matrix.decode(held))
        # Half-precision fragments have twice the registers they need, or more: the others repeat the first.
        into.set(held, mask)

    return run


@instruction("9.7.14", "wmma.store:4.4", "move warp whole", writes=0)
def _wmma_store(b: Builder, i: Instruction, site: Site) -> Run:
    source = Words(b, i.operands[1], _word(i.op.rsplit(".", 1)[-1]))
    access = _Access(b, i, site, "d", source, i.operands[0])
    fragment = access.fragment

    def run(mask: Mask | None) -> None:
        held = source.get()
        if fragment.transposed:
            held = fragment.matrix.encode(access.by_rows.matrix.decode(held))
        words = np.ascontiguousarray(held).view(np.uint32)
        for columns in access.segments(mask):
            values = np.ascontiguousarray(words[slice(None) if mask is None else mask.index, columns])
            access.store(values[:, 0] if fragment.width == 4 else values, mask)

    return run


def _word(kind: str) -> int:
    """Bits of a register of a fragment."""
    return 64 if kind == "f64" else 32


def _check_start(start: Array, mask: Mask | None, site: Site, fragment: int, tell: Tell) -> None:
    """A matrix starts at a multiple of the bytes of a lane's fragment (PTX ISA §9.7.14.4.2); CUDA C++ asks
    for 32 bytes, whatever the fragment."""
    for unit, error in ((fragment, True), (32, False)):
        off = (start if mask is None else start[mask.index]) % unit != 0
        if off.any():
            lane = first_of(mask, int(np.argmax(off)))
            what = f"has a matrix that does not start at a multiple of {unit} bytes"
            if error:
                raise Trap("misaligned", what, site, lane)
            tell("misaligned", what, site, lane, True)


@instruction("9.7.14", "wmma.mma:4.5", "warp whole product")
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
    each = zip("abcd", (*layouts, "row", "row"), (*multiplicands, kinds[-1], kinds[0]), strict=True)
    matrices = [_fragment(which, layout, shape, kind).matrix for which, layout, kind in each]
    return Product(b, i.operands, matrices, operation, saturates, site).run

"""wmma: matrices of a warp, loaded, multiplied and stored.

The layout of wmma fragments is unspecified in the PTX ISA (§9.7.14); here each lane holds segments of 16
bytes of a row of the matrix, as it lies in memory, and eight neighbouring lanes eight rows, as ldmatrix reads
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.builder import SEEN, Builder, Run
from harness.ptx.hazards import Site, Trap
from harness.ptx.instructions.common import Known
from harness.ptx.instructions.fragments import Words, cut, rounded, whole_warps
from harness.ptx.instructions.memory import accessors
from harness.ptx.lanes import WARP, Array, Mask, full
from harness.ptx.syntax import Instruction, PtxError

_SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
}


def _matrix(rows: int, columns: int, dtype: Any) -> tuple[Array, Array, int]:
    """Row and first column of each lane's segments (32, segments), and the segments a lane: 16 bytes each."""
    per = 16 // dtype.itemsize
    segments = rows * columns // per // WARP
    if segments < 1:
        raise PtxError("a fragment of less than 16 bytes a lane is not supported")
    number = np.arange(WARP)[:, None] + WARP * np.arange(segments)
    return number % rows, number // rows * per, segments


class _Fragment:
    """A matrix of a wmma instruction as memory and the registers hold it."""

    def __init__(self, which: str, layout: str, shape: str, kind: str) -> None:
        m, n, k = _SHAPES[shape]
        self.rows, self.columns = {"a": (m, k), "b": (k, n)}.get(which, (m, n))
        self.transposed = layout == "col"
        if self.transposed:
            self.rows, self.columns = self.columns, self.rows
        self.dtype = SEEN["f32" if kind == "tf32" else kind]
        self.row, self.column, self.segments = _matrix(self.rows, self.columns, self.dtype)

    def decode(self, words: Array) -> Array:
        """(lanes, registers) to matrices (warps, rows, columns) in float64."""
        of_lanes = words[:, : 4 * self.segments].reshape(-1, WARP, self.segments, 4)
        of_rows = of_lanes.transpose(0, 2, 1, 3).reshape(len(of_lanes), -1, self.rows, 4)
        used = np.ascontiguousarray(of_rows.transpose(0, 2, 1, 3))
        values: Array = used.view(self.dtype).reshape(-1, self.rows, self.columns).astype(np.float64)
        return values.transpose(0, 2, 1) if self.transposed else values

    def encode(self, values: Array) -> Array:
        """Matrices in the dtype to (lanes, 4 · segments) words."""
        if self.transposed:
            values = values.transpose(0, 2, 1)
        flat = np.ascontiguousarray(values.astype(self.dtype, copy=False)).view(np.uint32)
        of_rows = flat.reshape(len(values), self.rows, -1, 4).transpose(0, 2, 1, 3)
        of_lanes = of_rows.reshape(-1, self.segments, WARP, 4).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(of_lanes).reshape(-1, 4 * self.segments)


def _offsets(fragment: _Fragment, stride: Any, lanes: int) -> list[Array]:
    """Bytes from the start of the matrix to each segment, (lanes,) a segment."""
    size = fragment.dtype.itemsize
    stride = full(stride, lanes).astype(np.int64)
    warps = lanes // WARP
    return [
        (np.tile(fragment.row[:, s], warps) * stride + np.tile(fragment.column[:, s], warps)) * size
        for s in range(fragment.segments)
    ]


def _wmma_load(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # wmma load a sync aligned row m16n16k16 [shared] f16
    fragment = _Fragment(words[2], words[5], words[6], words[-1])
    registers, base = Words(b, i.operands[0]), b.address(i.operands[1])
    stride, state = b.read(i.operands[2], "s32"), b.state
    at: list[Any] = [None]
    load, _ = accessors(b, words[1:-1], site, lambda: at[0], 16)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        start = full(base(), state.lanes)
        _check_start(start, mask, site)
        found = []
        for offset in _offsets(fragment, stride(), state.lanes):
            at[0] = start + offset
            values = load(mask)
            whole = np.zeros((state.lanes, 4), np.uint32)
            whole[slice(None) if mask is None else mask.index] = values
            found.append(whole)
        held = np.concatenate(found, axis=1)
        if words[2] == "c" and fragment.transposed:
            # An accumulator is held by rows, however it lies in memory.
            held = _Fragment("c", "row", words[6], words[-1]).encode(fragment.decode(held))
        # Half-precision fragments have twice the registers they need: the others repeat the first.
        registers.set(np.tile(held, (1, registers.count // held.shape[1])), mask)

    return run


def _wmma_store(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")
    fragment = _Fragment("d", words[5], words[6], words[-1])
    base, registers = b.address(i.operands[0]), Words(b, i.operands[1])
    stride, state = b.read(i.operands[2], "s32"), b.state
    at: list[Any] = [None]
    _, store = accessors(b, words[1:-1], site, lambda: at[0], 16)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        start, held = full(base(), state.lanes), registers.get()
        _check_start(start, mask, site)
        if fragment.transposed:
            plain = _Fragment("d", "row", words[6], words[-1])
            held = fragment.encode(plain.decode(held))
        for s, offset in enumerate(_offsets(fragment, stride(), state.lanes)):
            at[0] = start + offset
            values = held[:, 4 * s : 4 * s + 4]
            store(np.ascontiguousarray(values if mask is None else values[mask.index]), mask)

    return run


def _check_start(start: Array, mask: Mask | None, site: Site) -> None:
    active = start if mask is None else start[mask.index]
    if (active & 31).any():
        i = int(np.argmax((active & 31) != 0))
        lane = i if mask is None else int(mask.index[i])
        raise Trap("misaligned", "has a matrix that does not start at a multiple of 32 bytes", site, lane)


def _wmma_mma(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # wmma mma sync aligned row row m16n16k16 f32 [f16 f16] f32
    layouts, shape, kinds = words[4:6], words[6], words[7:]
    multiplicand = kinds[1] if len(kinds) == 4 else "f16"
    a, bb = (
        _Fragment(which, layout, shape, multiplicand) for which, layout in zip("ab", layouts, strict=True)
    )
    c, d = _Fragment("c", "row", shape, kinds[-1]), _Fragment("d", "row", shape, kinds[0])
    out, one, two, three = (Words(b, operand) for operand in i.operands)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        x, y = a.decode(cut(one.get(), multiplicand)), bb.decode(cut(two.get(), multiplicand))
        out.set(d.encode(rounded(x @ y + c.decode(three.get()), d.dtype)), mask)

    return run


TABLE: dict[str, Known] = {
    "wmma.load": Known(_wmma_load, "9.7.14.4.3"),
    "wmma.store": Known(_wmma_store, "9.7.14.4.4", writes=0),
    "wmma.mma": Known(_wmma_mma, "9.7.14.4.5"),
}

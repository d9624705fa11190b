"""Tensor cores: wmma, mma.sync and ldmatrix.

Products are exact and sums are made in float64, then rounded to the accumulator's type: integers come out
as on the hardware, real numbers within its error bounds. The layout of mma.sync fragments is that of the
PTX ISA (§9.7.14); that of wmma fragments is unspecified there, and here each lane holds segments of 16 bytes
of a row of the matrix, as it lies in memory, and eight neighbouring lanes eight rows, as ldmatrix reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.arithmetic import round_narrow
from harness.ptx.builder import SEEN, Builder, Run
from harness.ptx.hazards import Site, Trap
from harness.ptx.instructions import Make, accessors
from harness.ptx.lanes import WARP, Array, Mask, full
from harness.ptx.parser import Instruction, Operand, PtxError, Vector

_SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
}


def _items(operand: Operand) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector):
        raise PtxError("a fragment is a vector of registers")
    return operand.items


def _whole_warps(mask: Mask | None, site: Site) -> None:
    if mask is None:
        return
    warps = mask.bits.reshape(-1, WARP)
    part = warps.any(axis=1) & ~warps.all(axis=1)
    if part.any():
        raise Trap("barrier", "is executed by a part of its warp", site, int(np.argmax(part)) * WARP)


class _Words:
    """Registers of a fragment as an array (lanes, registers) of 32-bit words, and back."""

    def __init__(self, b: Builder, operand: Operand) -> None:
        items = _items(operand)
        self._machine = b.machine
        self._reads = [b.read(item, "b32") for item in items]
        self._puts = [b.write(item) for item in items]
        self.count = len(items)

    def get(self) -> Array:
        return np.stack([full(read(), self._machine.lanes) for read in self._reads], axis=1)

    def set(self, words: Array, mask: Mask | None) -> None:
        columns = np.ascontiguousarray(words.T)
        for put, column in zip(self._puts, columns, strict=True):
            put(column, mask)


# wmma


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


def _wmma(b: Builder, i: Instruction, site: Site) -> Run:
    action = i.op.split(".")[1]
    return {"load": _wmma_load, "store": _wmma_store, "mma": _wmma_mma}[action](b, i, site)


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
    registers, base = _Words(b, i.operands[0]), b.address(i.operands[1])
    stride, machine = b.read(i.operands[2], "s32"), b.machine
    at: list[Any] = [None]
    load, _ = accessors(b, words[1:-1], site, lambda: at[0], 16)

    def run(mask: Mask | None) -> None:
        _whole_warps(mask, site)
        start = full(base(), machine.lanes)
        _check_start(start, mask, site)
        found = []
        for offset in _offsets(fragment, stride(), machine.lanes):
            at[0] = start + offset
            values = load(mask)
            whole = np.zeros((machine.lanes, 4), np.uint32)
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
    base, registers = b.address(i.operands[0]), _Words(b, i.operands[1])
    stride, machine = b.read(i.operands[2], "s32"), b.machine
    at: list[Any] = [None]
    _, store = accessors(b, words[1:-1], site, lambda: at[0], 16)

    def run(mask: Mask | None) -> None:
        _whole_warps(mask, site)
        start, held = full(base(), machine.lanes), registers.get()
        _check_start(start, mask, site)
        if fragment.transposed:
            plain = _Fragment("d", "row", words[6], words[-1])
            held = fragment.encode(plain.decode(held))
        for s, offset in enumerate(_offsets(fragment, stride(), machine.lanes)):
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
    out, one, two, three = (_Words(b, operand) for operand in i.operands)

    def run(mask: Mask | None) -> None:
        _whole_warps(mask, site)
        x, y = a.decode(_cut(one.get(), multiplicand)), bb.decode(_cut(two.get(), multiplicand))
        out.set(d.encode(_rounded(x @ y + c.decode(three.get()), d.dtype)), mask)

    return run


def _cut(words: Array, kind: str) -> Array:
    """TF32 multiplicands: the hardware does not look at the lower 13 bits."""
    return words & np.uint32(0xFFFFE000) if kind == "tf32" else words


def _rounded(values: Array, dtype: Any) -> Array:
    with np.errstate(all="ignore"):
        return values.astype(np.float32) if dtype == np.float32 else round_narrow(values, dtype)


# mma.sync and ldmatrix


def _ldmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.replace("::", "_").split(".")
    if "m8n8" not in words or words[-1] != "b16":
        raise PtxError("only m8n8 of b16 is supported")
    registers, base, machine = _Words(b, i.operands[0]), b.address(i.operands[1]), b.machine
    load, _ = accessors(b, words, site, base, 16)
    transposed = "trans" in words

    def run(mask: Mask | None) -> None:
        _whole_warps(mask, site)
        count = registers.count
        # Lanes 8i … 8i + 7 give the rows of matrix i.
        gives = np.tile(np.arange(WARP) < 8 * count, machine.lanes // WARP)
        if mask is not None:
            gives &= mask.bits
        rows = np.zeros((machine.lanes, 4), np.uint32)
        rows[gives] = load(Mask(gives))
        matrices = rows.view(np.uint16).reshape(-1, WARP // 8, 8, 8)[:, :count]
        if transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        held = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
        registers.set(held.transpose(0, 2, 1).reshape(-1, count), mask)

    return run


_G, _T = np.arange(WARP) // 4, np.arange(WARP) % 4


def _places(shape: str, which: str, kind: str) -> tuple[Array, Array]:
    """Row and column of each lane's elements, (32, elements), in the order of the registers."""
    size = SEEN["f32" if kind == "tf32" else kind].itemsize
    pair = 4 // size
    k = int(shape.split("k")[1])
    step = 4 * pair  # columns of k that one register spans over the lanes
    if which == "c":
        columns = [(0, 0), (0, 1), (8, 0), (8, 1)]
        return np.stack([_G + r for r, _ in columns], 1), np.stack([2 * _T + c for _, c in columns], 1)
    along, across = [], []
    for first in range(0, k, step):
        for row in (0, 8) if which == "a" else (0,):
            for j in range(pair):
                along.append(_T * pair + j + first)
                across.append(_G + row)
    return (
        (np.stack(across, 1), np.stack(along, 1))
        if which == "a"
        else (np.stack(along, 1), np.stack(across, 1))
    )


def _mma(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")  # mma sync aligned m16n8k16 row col f32 f16 f16 f32
    if words[1:3] != ["sync", "aligned"] or words[4:6] != ["row", "col"] or not words[3].startswith("m16n8k"):
        raise PtxError("only mma.sync.aligned.m16n8k*.row.col is supported")
    shape, (d_kind, a_kind, _, c_kind) = words[3], words[6:10]
    if (d_kind, c_kind) != ("f32", "f32") or a_kind not in ("f16", "bf16", "tf32"):
        raise PtxError("only f16, bf16 and tf32 with accumulation in f32 are supported")
    k = int(shape.split("k")[1])
    sizes = {"a": (16, k), "b": (k, 8), "c": (16, 8)}
    places = {which: _places(shape, which, a_kind if which != "c" else "f32") for which in sizes}
    dtype = SEEN["f32" if a_kind == "tf32" else a_kind]
    out, *sources = (_Words(b, operand) for operand in i.operands)

    def matrix(which: str, words_of: Array, kind: Any) -> Array:
        values = np.ascontiguousarray(words_of).view(kind).reshape(-1, WARP, places[which][0].shape[1])
        result = np.zeros((len(values), *sizes[which]))
        result[:, places[which][0], places[which][1]] = values
        return result

    def run(mask: Mask | None) -> None:
        _whole_warps(mask, site)
        x, y = (matrix(w, _cut(s.get(), a_kind), dtype) for w, s in zip("ab", sources[:2], strict=True))
        total = _rounded(x @ y + matrix("c", sources[2].get(), np.float32), np.dtype(np.float32))
        held = total[:, places["c"][0], places["c"][1]].reshape(-1, 4)
        out.set(np.ascontiguousarray(held).view(np.uint32), mask)

    return run


TABLE: dict[str, Make] = {"wmma": _wmma, "mma": _mma, "ldmatrix": _ldmatrix}

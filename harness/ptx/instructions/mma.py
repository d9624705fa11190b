"""mma.sync and ldmatrix, with the fragments of the PTX ISA (§9.7.14)."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.ptx.builder import SEEN, Builder, Run
from harness.ptx.hazards import Site
from harness.ptx.instructions.common import Known
from harness.ptx.instructions.fragments import Words, cut, rounded, whole_warps
from harness.ptx.instructions.memory import accessors
from harness.ptx.lanes import WARP, Array, Mask
from harness.ptx.syntax import Instruction, PtxError


def _ldmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.replace("::", "_").split(".")
    if "m8n8" not in words or words[-1] != "b16":
        raise PtxError("only m8n8 of b16 is supported")
    registers, base, state = Words(b, i.operands[0]), b.address(i.operands[1]), b.state
    load, _ = accessors(b, words, site, base, 16)
    transposed = "trans" in words

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        count = registers.count
        # Lanes 8i … 8i + 7 give the rows of matrix i.
        gives = np.tile(np.arange(WARP) < 8 * count, state.lanes // WARP)
        if mask is not None:
            gives &= mask.bits
        rows = np.zeros((state.lanes, 4), np.uint32)
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
    sums = {"f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",)}
    if d_kind != c_kind or d_kind not in sums.get(a_kind, ()):
        raise PtxError("only f16, bf16 and tf32 with accumulation in f32, or f16 in f16, are supported")
    k = int(shape.split("k")[1])
    sizes = {"a": (16, k), "b": (k, 8), "c": (16, 8)}
    places = {which: _places(shape, which, a_kind if which != "c" else "f32") for which in sizes}
    dtype, sum_dtype = SEEN["f32" if a_kind == "tf32" else a_kind], SEEN[d_kind]
    out, *sources = (Words(b, operand) for operand in i.operands)

    def matrix(which: str, words_of: Array, kind: Any) -> Array:
        values = np.ascontiguousarray(words_of).view(kind).reshape(-1, WARP, places[which][0].shape[1])
        result = np.zeros((len(values), *sizes[which]))
        result[:, places[which][0], places[which][1]] = values
        return result

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        x, y = (matrix(w, cut(s.get(), a_kind), dtype) for w, s in zip("ab", sources[:2], strict=True))
        total = rounded(x @ y + matrix("c", sources[2].get(), sum_dtype), sum_dtype)
        held = total[:, places["c"][0], places["c"][1]].reshape(-1, 4)
        out.set(np.ascontiguousarray(held).view(np.uint32), mask)

    return run


TABLE: dict[str, Known] = {
    "mma": Known(_mma, "9.7.14.5.14"),
    "ldmatrix": Known(_ldmatrix, "9.7.14.5.15"),
}

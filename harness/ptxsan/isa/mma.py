"""mma.sync, with the fragments of the PTX ISA (§9.7.14.5).

A lane of a warp is in group lane / 4, at place lane mod 4 of it. With p elements a register of 32 bits, the
registers of A hold row "group" and row "group + 8" by turns, columns p·place and further; each pair of
registers is 4·p columns further on. B is the same by columns, eight of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError, Vector
from ptxsan.isa.fragments import Matrix, Product, bits_of, whole_warps
from ptxsan.lanes import WARP, Array, Mask
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known

_REALS, _BYTES, _NIBBLES = ("f32", "f16"), ("s8", "u8"), ("s4", "u4")
# Multiplicands, and for each shape the sums that they have.
_KNOWN: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
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
            a in of and b in of and shape in shapes and d == c and d in sums for of, shapes, sums in _KNOWN
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


TABLE: dict[str, Known] = {"mma": Known(_mma, "9.7.14.5.14")}

"""ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16 bits of a warp (PTX ISA §9.7.14.5.15 to 17)."""

from __future__ import annotations

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.isa.fragments import Words, whole_warps
from ptxsan.isa.memory import accessors
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine.builder import Builder, Run
from ptxsan.machine.common import Known


def _form(i: Instruction, count: int) -> tuple[list[str], bool]:
    """The words, and whether rows and columns change places. Raises PtxError for another form."""
    words = i.op.replace("::", "_").split(".")
    if "m8n8" not in words or words[-1] != "b16" or f"x{count}" not in words:
        raise PtxError("only m8n8 of b16, as many as there are registers, is supported")
    return words, "trans" in words


def _gives(count: int, lanes: int, mask: Mask | None) -> Mask:
    """Lanes 8i … 8i + 7 give the addresses of the rows of matrix i."""
    gives = np.tile(np.arange(WARP) < 8 * count, lanes // WARP)
    return Mask(gives if mask is None else gives & mask.bits)


def _fragment(matrices: Array) -> Array:
    """(warps, count, 8, 8) of 16 bits to the words (lanes, count) that hold them: two of a row each."""
    count = matrices.shape[1]
    held = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
    return held.transpose(0, 2, 1).reshape(-1, count)


def _matrices(words: Array) -> Array:
    """The other way round."""
    count = words.shape[1]
    held = np.ascontiguousarray(words.reshape(-1, WARP, count).transpose(0, 2, 1))
    return held.view(np.uint16).reshape(-1, count, 8, 8)


def _ldmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    registers, base, state = Words(b, i.operands[0]), b.address(i.operands[1]), b.state
    words, transposed = _form(i, registers.count)
    load, _ = accessors(b, words, site, base, 16)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        gives = _gives(registers.count, state.lanes, mask)
        rows = np.zeros((state.lanes, 4), np.uint32)
        rows[gives.bits] = load(gives)
        matrices = rows.view(np.uint16).reshape(-1, WARP // 8, 8, 8)[:, : registers.count]
        registers.set(_fragment(matrices.transpose(0, 1, 3, 2) if transposed else matrices), mask)

    return run


def _stmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    base, registers, state = b.address(i.operands[0]), Words(b, i.operands[1]), b.state
    words, transposed = _form(i, registers.count)
    _, store = accessors(b, words, site, base, 16)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        gives = _gives(registers.count, state.lanes, mask)
        matrices = _matrices(registers.get())
        if transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        rows = np.zeros((state.lanes // WARP, WARP // 8, 8, 8), np.uint16)
        rows[:, : registers.count] = matrices
        store(rows.reshape(state.lanes, 8).view(np.uint32)[gives.bits], gives)

    return run


def _movmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    """A matrix that a warp holds, transposed."""
    if i.op != "movmatrix.sync.aligned.m8n8.trans.b16":
        raise PtxError("not supported")
    put, read, state = b.write(i.operands[0]), b.read(i.operands[1], "b32"), b.state

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        matrices = _matrices(full(read(), state.lanes).reshape(-1, 1))
        put(_fragment(matrices.transpose(0, 1, 3, 2))[:, 0], mask)

    return run


TABLE: dict[str, Known] = {
    "ldmatrix": Known(_ldmatrix, "9.7.14.5.15"),
    "stmatrix": Known(_stmatrix, "9.7.14.5.16", writes=0),
    "movmatrix": Known(_movmatrix, "9.7.14.5.17"),
}

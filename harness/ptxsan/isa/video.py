"""SIMD within a word: two halves or four bytes each for itself (PTX ISA §9.7.18, video instructions).

Known without masks and selectors, as nvcc emits them for __vabsdiffu4 and the like.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks.hazards import Site
from ptxsan.frontend.syntax import Instruction, PtxError
from ptxsan.lanes import Mask
from ptxsan.machine.builder import SEEN, Builder, Run
from ptxsan.machine.common import Known

_SIMD: dict[str, Any] = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


def _simd(b: Builder, i: Instruction, site: Site) -> Run:
    """vabsdiff4.u32.u32.u32 d, a, b, c: of each element; .sat within its limits; .add: their sum, and c."""
    base, *words = i.op.split(".")
    kinds, last = words[:3], words[3:]
    count = int(base[-1])
    if not set(kinds) <= {"u32", "s32"} or len(kinds) != 3 or last not in ([], ["sat"], ["add"]):
        raise PtxError("not supported")
    operation, size = _SIMD[base[:-1]], 4 // count
    put, (a, c), rest = (
        b.write(i.operands[0]),
        (b.read(o, "u32") for o in i.operands[1:3]),
        b.read(i.operands[3], "u32"),
    )
    to, *of = (SEEN[f"{kind[0]}{8 * size}"] for kind in kinds)
    limits = np.iinfo(to)

    def run(mask: Mask | None) -> None:
        x, y = (
            np.ascontiguousarray(np.atleast_1d(read())).view(kind).reshape(-1, count).astype(np.int64)
            for read, kind in zip((a, c), of, strict=True)
        )
        result = operation(x, y)
        if last == ["add"]:
            put((result.sum(axis=1) + rest()).astype(np.uint32), mask)
            return
        if last == ["sat"]:
            result = np.clip(result, limits.min, limits.max)
        put(np.ascontiguousarray(result.astype(f"u{size}")).view(np.uint32)[:, 0], mask)

    return run


TABLE: dict[str, Known] = {f"{name}{count}": Known(_simd, "9.7.18") for name in _SIMD for count in (2, 4)}

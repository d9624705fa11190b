"""Guard bands: what changed around and in the buffers that should not have. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.devices import Inputs, Violation

GUARD = 16 * 1024  # bytes on either side of a buffer, more than the largest row of a block tile
ALIGN = 256  # what cuMemAlloc promises
EXACT = "GEMM_EXACT_BUFFERS"  # set in the environment under a sanitizer, which knows no guard bands


def violations(changed: np.ndarray[Any, Any], inputs: Inputs, offsets: list[int]) -> tuple[Violation, ...]:
    """One for each input, and for the guard bands together, with changed bytes."""
    lines = []
    ends = []
    for name, array, start in zip("ABC", (inputs.a, inputs.b, inputs.c), offsets, strict=True):
        ends.append(start + array.nbytes)
        inside = (changed >= start) & (changed < ends[-1])
        if inside.any() and name != "C":
            first, count = int(changed[inside][0] - start) // array.itemsize, int(inside.sum())
            row, column = divmod(first, max(1, array.shape[1]))
            lines.append(f"input {name} was changed at ({row}, {column}), {count} bytes in all")
        changed = changed[~inside]
    if changed.size:
        first = int(changed[0])
        near = [
            (first - end, f"past the end of {n}") for end, n in zip(ends, "ABC", strict=True) if first >= end
        ]
        near += [
            (start - first, f"before the start of {n}")
            for start, n in zip(offsets, "ABC", strict=True)
            if first < start
        ]
        distance, where = min(near)
        lines.append(f"a guard band was written, first {distance} bytes {where}, {changed.size} bytes in all")
    return tuple(Violation("guard", line) for line in lines)

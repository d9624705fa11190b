"""Guard bands: detects changes around the buffers, and in buffers that must not change. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemm_regression.devices import Violation
from gemm_regression.model import Array

GUARD = 16 * 1024  # bytes on either side of a buffer, more than the largest row of a block tile
ALIGN = 256  # what cuMemAlloc promises
EXACT = "GEMM_EXACT_BUFFERS"  # set in the environment under a sanitizer, which knows no guard bands


def violations(
    before: Array,
    after: Array,
    buffers: Mapping[str, Array],
    starts: Mapping[str, int],
    written: tuple[str, ...],
) -> tuple[Violation, ...]:
    """One for each buffer with changed bytes that is not one of those ``written``, and one for the guard
    bands together. ``before`` and ``after`` are images, bytes, in which the buffers start at ``starts``.
    """
    lines: list[str] = []
    ends = {name: starts[name] + buffer.nbytes for name, buffer in buffers.items()}
    allowed = sorted((starts[name], ends[name]) for name in buffers if name in written)
    kept = zip(
        (0, *(end for _, end in allowed)), (*(start for start, _ in allowed), before.size), strict=True
    )
    if all(np.array_equal(before[start:end], after[start:end]) for start, end in kept):
        return ()
    changed = np.flatnonzero(before != after)
    for name, buffer in buffers.items():
        inside = (changed >= starts[name]) & (changed < ends[name])
        if inside.any() and name not in written:
            first = int(changed[inside][0] - starts[name]) // buffer.itemsize
            row, column = divmod(first, max(1, buffer.shape[1]))
            lines.append(f"input {name} was changed at ({row}, {column}), {int(inside.sum())} bytes in all")
        changed = changed[~inside]
    if changed.size:
        first = int(changed[0])
        near = [(first - end, f"past the end of {name}") for name, end in ends.items() if first >= end]
        near += [
            (start - first, f"before the start of {name}") for name, start in starts.items() if first < start
        ]
        distance, where = min(near)
        lines.append(f"a guard band was written, first {distance} bytes {where}, {changed.size} bytes in all")
    return tuple(Violation("guard", line) for line in lines)

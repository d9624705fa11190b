"""Where state spaces lie in the address space, and bytes of storage as elements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ptxsan.lanes import Array, Mask

SLOT = 20  # address bits of a shared or constant variable, apart like the buffers
# Bytes at the start of shared memory that are the system's from sm_90 on: as in the cubins, whose sections of
# shared memory have so many more. An address of a variable is no multiple of a larger power of two.
RESERVED = 1024
RANK = 28  # address bits of shared memory below the rank + 1 of a block in its cluster, 0 for the own one
LOCAL, SHARED, CONSTANT = 1 << 61, 2 << 61, 3 << 61  # where the generic addresses of each space start
UNSIGNED: dict[int, Any] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
PARAMETER = 1 << 60  # generic addresses of parameters

# A word, (1,), of 32 or 64 bits, to what an atomic makes of it, for the lane at a place of the active ones.
Change = Callable[[int, Array], Array]


def unsigned(width: int) -> Any:
    """The dtype of so many bits; the widest one is for moving them alone."""
    return np.dtype(f"u{width}" if width <= 8 else np.complex128)


def gather(storage: Array, element: Array, width: int) -> Array:
    """Elements of ``width`` bytes of a byte storage: (n,), or (n, width / 4) words where wider than one."""
    if width <= 4:
        return np.asarray(storage.view(UNSIGNED[width]).take(element))
    return storage.view(np.uint32).reshape(-1, width // 4).take(element, axis=0)


def scatter(storage: Array, element: Array, width: int, values: Array) -> None:
    """Set elements, shaped as ``gather`` gives them."""
    if width <= 4:
        storage.view(UNSIGNED[width])[element] = values
    else:
        storage.view(np.uint32).reshape(-1, width // 4)[element] = values


def update(storage: Array, element: Array, width: int, change: Change) -> Array:
    """Words of 2 to 16 bytes, changed one after another; what was there before, (n,) of ``unsigned``."""
    words = storage.view(unsigned(width))
    before = np.empty(len(element), words.dtype)
    for i, at in enumerate(element):
        before[i] = words[at]
        words[at : at + 1] = change(i, words[at : at + 1])
    return before


def divide(kinds: Array, mask: Mask | None) -> Iterator[tuple[Array, Mask]]:
    """The lanes of each kind, ``kinds`` (n,) being those of the active ones: places among those, and mask."""
    for kind in np.unique(kinds):
        of_kind = kinds == kind
        bits = of_kind if mask is None else np.zeros_like(mask.bits)
        if mask is not None:
            bits[mask.index[of_kind]] = True
        yield np.flatnonzero(of_kind), Mask(bits)


def readable(name: str) -> str:
    """A variable as the .cu file has it: _ZZ10gemm_tiledE2As is As, _ZL5count is count."""
    match = re.fullmatch(r"_Z(?:Z\d+\w+?E|L)(\d+)(\w+)", name)
    return match[2][: int(match[1])] if match else name

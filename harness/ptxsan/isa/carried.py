"""Undefined values on their way beside the registers: bulk copies, asynchronous stores and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxsan.checks.undefined import ORIGIN
from ptxsan.isa.mbarrier import engine
from ptxsan.lanes import Array
from ptxsan.machine import Builder

Marks = tuple[Array, Array]  # undefined bits (n,) uint8 of bytes, and where they come from


def wholly(bits: Array, size: int) -> Array:
    """All bits of the elements of so many bytes of which any is undefined."""
    return np.repeat(np.where(bits.reshape(-1, size).any(axis=1), np.uint8(0xFF), np.uint8(0)), size)


def reduced(one: Marks, other: Marks, of: Any) -> Marks:
    """What a reduction of elements of a dtype makes of them."""
    return wholly(one[0] | other[0], np.dtype(of).itemsize), np.maximum(one[1], other[1])


def marks_of(b: Builder, start: int, size: int) -> Marks:
    """What is undefined of so many bytes of the storage of shared memory."""
    bits, origins = engine(b).shared.shadow.read(start + np.arange(size), 1)
    return bits[:, 0], origins


def carried(b: Builder, marks: Marks) -> Marks:
    """Undefined values that were just read; what nobody wrote comes from that read."""
    bits, origins, undefined = *marks, b.state.undefined
    bare = (bits != 0) & (origins == 0)
    if bare.any():
        assert undefined.fresh is not None
        origins = np.where(bare, ORIGIN(undefined.born(undefined.fresh)), origins)
    undefined.fresh = None
    return bits, origins


def leave(b: Builder, start: int, marks: Marks) -> None:
    """They have come to shared memory, where the bytes from there on were just stored."""
    engine(b).shared.shadow.write(start + np.arange(len(marks[0])), marks[0][:, None], marks[1])

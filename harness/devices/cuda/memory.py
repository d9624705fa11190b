"""Device memory: guarded buffers for verification, and the data of a timed problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pycuda.driver as cuda

from harness.devices import Inputs, Outputs
from harness.devices.cuda.guards import ALIGN, GUARD, violations
from harness.devices.cuda.modules import Pointers
from harness.model import DTYPES, DType, Problem

_ARENA = 2 << 30  # enough for six matrices of 8192 × 8192 in FP32
_PAGE = 2 << 20  # the GPU's large pages
_PERIOD = 4_194_319  # prime: the pool of random numbers never lines up with a tile or a row


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


class GuardedArena:
    """A, B and C in one allocation with guard bands of 0xFF (a NaN in every dtype) around each."""

    def __init__(self) -> None:
        self._device: Any = None
        self._size = 0

    def _reserve(self, size: int) -> int:
        if size > self._size:
            if self._device is not None:
                self._device.free()
            self._device, self._size = cuda.mem_alloc(size), size
        return int(self._device)

    def upload(self, inputs: Inputs) -> tuple[Pointers, np.ndarray[Any, Any], list[int]]:
        """Device addresses, the host image that was copied, and the offset of each buffer in it."""
        arrays = (inputs.a, inputs.b, inputs.c)
        offsets, size = [], GUARD
        for array in arrays:
            offsets.append(size)
            size = _up(size + array.nbytes) + GUARD
        image = np.full(size, 0xFF, np.uint8)
        for array, offset in zip(arrays, offsets, strict=True):
            image[offset : offset + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        base = self._reserve(size)
        cuda.memcpy_htod(base, image)
        return Pointers(*(base + offset for offset in offsets)), image, offsets

    def download(self, inputs: Inputs, before: np.ndarray[Any, Any], offsets: list[int]) -> Outputs:
        """C, and what else changed that should not have."""
        after = np.empty_like(before)
        cuda.memcpy_dtoh(after, int(self._device))
        end = offsets[2] + inputs.c.nbytes
        c = after[offsets[2] : end].view(inputs.c.dtype).reshape(inputs.c.shape).copy()
        changed = np.flatnonzero(before != after)
        changed = changed[(changed < offsets[2]) | (changed >= end)]
        return Outputs(c, violations(changed, inputs, offsets))


class ExactBuffers:
    """A, B and C each in an allocation of exactly its size: the only bounds that a sanitizer knows."""

    def __init__(self) -> None:
        self._buffers: list[Any] = []

    def upload(self, inputs: Inputs) -> tuple[Pointers, np.ndarray[Any, Any], list[int]]:
        """As ``GuardedArena.upload``; the image holds the buffers one behind the other."""
        parts = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in (inputs.a, inputs.b, inputs.c)]
        for buffer in self._buffers:
            buffer.free()
        self._buffers = [cuda.mem_alloc(max(1, part.size)) for part in parts]
        for buffer, part in zip(self._buffers, parts, strict=True):
            if part.size:
                cuda.memcpy_htod(buffer, part)
        offsets = [0, parts[0].size, parts[0].size + parts[1].size]
        return Pointers(*map(int, self._buffers)), np.concatenate(parts), offsets

    def download(self, inputs: Inputs, before: np.ndarray[Any, Any], offsets: list[int]) -> Outputs:
        """C, and the inputs that changed."""
        after = np.empty_like(before)
        ends = (*offsets[1:], before.size)
        for buffer, start, end in zip(self._buffers, offsets, ends, strict=True):
            if end > start:
                cuda.memcpy_dtoh(after[start:end], buffer)
        c = after[offsets[2] :].view(inputs.c.dtype).reshape(inputs.c.shape).copy()
        changed = np.flatnonzero(before != after)
        return Outputs(c, violations(changed[changed < offsets[2]], inputs, offsets))


@dataclass
class TimedData:
    """Addresses for one problem and dtype: normal and integer data for A and B, C between ``guard`` (first
    byte of the band before it, first byte past it), and the reference's C."""

    problem: Problem
    dtype: DType
    normal: Pointers
    integers: Pointers
    reference: Pointers
    guard: tuple[int, int]


def _pool(kind: str, dtype: DType, k: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random numbers on the grid of the dtype.

    ``odd`` and ``sparse`` make a product that FP32 accumulates exactly and lower precision does not:
    odd integers of the widest multiplicand, times {0, ±1} sparse enough that no partial sum reaches 2²⁴.
    """
    if kind == "normal":
        values = rng.standard_normal(_PERIOD, np.float32)
    elif kind == "odd":
        half = 1 << (min(13, dtype.integer_bits) - 1)
        values = (2 * rng.integers(-half, half, _PERIOD) + 1).astype(np.float32)
    else:
        density = min(0.5, 512 / max(1, k))
        values = rng.choice([-1.0, 0.0, 1.0], _PERIOD, p=[density / 2, 1 - density, density / 2]).astype(
            np.float32
        )
    return values.astype(dtype.storage)


def _fill(address: int, pool: np.ndarray[Any, Any], elements: int) -> None:
    """Repeats the pool over that many elements of device memory."""
    size = elements * pool.itemsize
    if not size:
        return
    cuda.memcpy_htod(address, pool[: min(elements, pool.size)])
    done = min(size, pool.nbytes)
    while done < size:
        step = min(done, size - done)
        cuda.memcpy_dtod(address + done, address, step)
        done += step


class TimedDataArena:
    """The buffers of the problem that is being timed, at the same places whatever ran before it.

    Where a buffer lies decides which slices of L2 and which memory channels it shares: on an H200 a 15 µs
    product ran 6 % slower in buffers allocated after other ones were freed. So one allocation is made when
    the worker starts, and cut up by the problem alone.
    """

    def __init__(self) -> None:
        self._base: Any = None
        self._size = 0
        free, _ = cuda.mem_get_info()
        self._reserve(min(_ARENA, free // 2))
        self._pools: dict[tuple[str, str, int], np.ndarray[Any, Any]] = {}
        self._last: TimedData | None = None

    def _reserve(self, size: int) -> None:
        if size <= self._size:
            return
        if self._base is not None:
            self._base.free()
        self._base, self._size = None, 0  # so that a failed allocation is not used
        self._base, self._size = cuda.mem_alloc(size), size

    def _get_pool(self, kind: str, dtype: DType, k: int) -> np.ndarray[Any, Any]:
        key = (kind, dtype.name, k if kind == "sparse" else 0)
        if key not in self._pools:
            self._pools[key] = _pool(kind, dtype, k, np.random.default_rng(sum(map(ord, kind)) + k))
        return self._pools[key]

    def _cut(self, sizes: list[int]) -> list[int]:
        """The address of each part of that many bytes."""
        ends = np.cumsum([-(-size // _PAGE) * _PAGE for size in sizes])
        self._reserve(int(ends[-1]))
        return [int(self._base), *(int(self._base) + int(end) for end in ends[:-1])]

    def get(self, problem: Problem, dtype_name: str) -> TimedData:
        """The data of a problem; the last one's is kept, since timed cases come sorted by problem."""
        p, dtype = problem, DTYPES[dtype_name]
        if self._last and (self._last.problem, self._last.dtype) == (p, dtype):
            return self._last
        self._last = None
        counts = (p.m * p.lda, p.k * p.ldb)
        inputs = [count * dtype.storage.itemsize for count in counts]
        c_bytes = p.m * p.ldc * dtype.output.itemsize
        a, b, odd, sparse, c, r = self._cut([*inputs, *inputs, _up(c_bytes) + 2 * GUARD, c_bytes])
        for address, kind, count in zip(
            (a, b, odd, sparse), ("normal", "normal", "odd", "sparse"), (*counts, *counts), strict=True
        ):
            _fill(address, self._get_pool(kind, dtype, p.k), count)
        cuda.memset_d8(c, 0xFF, _up(c_bytes) + 2 * GUARD)
        at = c + GUARD
        self._last = TimedData(
            p,
            dtype,
            normal=Pointers(a, b, at),
            integers=Pointers(odd, sparse, at),
            reference=Pointers(a, b, r),
            guard=(c, at + c_bytes),
        )
        return self._last

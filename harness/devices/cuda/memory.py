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


@dataclass
class TimedData:
    """Buffers of one problem and dtype: normal data and integer data for A and B, C between guards,
    and the reference's C."""

    problem: Problem
    dtype: DType
    normal: Pointers
    integers: Pointers
    reference: Pointers
    guard: tuple[int, int]
    _keep: tuple[Any, ...]

    def free(self) -> None:
        for allocation in self._keep:
            allocation.free()


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


def _fill(pool: np.ndarray[Any, Any], elements: int) -> Any:
    """A device buffer of that many elements with the pool repeated over it."""
    size = elements * pool.itemsize
    device = cuda.mem_alloc(max(size, ALIGN))
    cuda.memcpy_htod(device, pool[: min(elements, pool.size)])
    done = min(size, pool.nbytes)
    while done < size:
        step = min(done, size - done)
        cuda.memcpy_dtod(int(device) + done, device, step)
        done += step
    return device


class TimedDataCache:
    """Keeps the buffers of the last problem and dtype: timed cases come sorted by them."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str, float], np.ndarray[Any, Any]] = {}
        self._last: TimedData | None = None

    def _get_pool(self, kind: str, dtype: DType, k: int) -> np.ndarray[Any, Any]:
        key = (kind, dtype.name, k if kind == "sparse" else 0)
        if key not in self._pools:
            self._pools[key] = _pool(kind, dtype, k, np.random.default_rng(sum(map(ord, kind)) + k))
        return self._pools[key]

    def get(self, problem: Problem, dtype_name: str) -> TimedData:
        dtype = DTYPES[dtype_name]
        if self._last and (self._last.problem, self._last.dtype) == (problem, dtype):
            return self._last
        if self._last:
            self._last.free()
            self._last = None
        p = problem
        sizes = (p.m * p.lda, p.k * p.ldb)
        kinds = (("normal", "normal"), ("odd", "sparse"))
        inputs = [
            [_fill(self._get_pool(kind, dtype, p.k), size) for kind, size in zip(pair, sizes, strict=True)]
            for pair in kinds
        ]
        c_bytes = p.m * p.ldc * 4
        c = cuda.mem_alloc(_up(c_bytes) + 2 * GUARD)
        cuda.memset_d8(int(c), 0xFF, _up(c_bytes) + 2 * GUARD)
        r = cuda.mem_alloc(max(c_bytes, ALIGN))
        normal, integers = inputs
        c_at = int(c) + GUARD
        self._last = TimedData(
            problem,
            dtype,
            Pointers(int(normal[0]), int(normal[1]), c_at),
            Pointers(int(integers[0]), int(integers[1]), c_at),
            Pointers(int(normal[0]), int(normal[1]), int(r)),
            (int(c), c_at + c_bytes),
            (*normal, *integers, c, r),
        )
        return self._last

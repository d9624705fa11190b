"""Device memory for verification: guarded buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pycuda.driver as cuda

from gemm_regression.devices.cuda.guards import ALIGN, GUARD
from gemm_regression.model import Array


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True)
class Image:
    """What was copied to the device: ``bytes`` of it, and where in it each buffer starts; ``at`` are the
    device addresses of the buffers.
    """

    bytes: Array
    starts: Mapping[str, int]
    at: Mapping[str, int]

    def read(self, name: str, like: Array, after: Array) -> Array:
        """A buffer in another image of the same places, as an array like the one that was copied."""
        start = self.starts[name]
        return after[start : start + like.nbytes].view(like.dtype).reshape(like.shape).copy()


class GuardedArena:
    """The buffers of some launches in one allocation, guard bands of 0xFF (a NaN in every dtype) around each.

    ``most``: bytes of launches that are copied at once. Contexts of several processes take turns on a GPU,
    and every copy and every wait costs a turn.
    """

    most = 64 << 20

    def __init__(self) -> None:
        self._device: Any = None
        self._size = 0

    def _reserve(self, size: int) -> int:
        if size > self._size:
            if self._device is not None:
                self._device.free()
            self._device, self._size = cuda.mem_alloc(size), size
        return int(self._device)

    def upload(self, launches: Sequence[Mapping[str, Array]], offsets: Mapping[str, int]) -> list[Image]:
        """Copies the buffers of each launch to the device, each buffer to an address ``offsets`` bytes past a
        boundary."""
        places = [_places(buffers, offsets) for buffers in launches]
        whole = np.full(sum(size for _, size in places), 0xFF, np.uint8)
        base, end = self._reserve(whole.size), 0
        images = []
        for buffers, (starts, size) in zip(launches, places, strict=True):
            begin, end = end, end + size
            image = whole[begin:end]
            for name, array in buffers.items():
                image[starts[name] : starts[name] + array.nbytes] = _bytes(array)
            images.append(Image(image, starts, {name: base + begin + starts[name] for name in starts}))
        cuda.memcpy_htod(base, whole)
        return images

    def download(self, images: Sequence[Image], launches: Sequence[Mapping[str, Array]]) -> list[Array]:
        """The same images after the launches."""
        ends = list(accumulate(image.bytes.size for image in images))
        after = np.empty(ends[-1], np.uint8)
        cuda.memcpy_dtoh(after, int(self._device))
        return np.split(after, ends[:-1])


class ExactBuffers:
    """Each buffer in an allocation of exactly its size, since a sanitizer only knows bounds of
    allocations; those of one launch at a time, since a buffer of another could lie beyond a bound."""

    most = 0

    def __init__(self) -> None:
        self._allocated: list[Any] = []
        self._buffers: dict[str, int] = {}

    def upload(self, launches: Sequence[Mapping[str, Array]], offsets: Mapping[str, int]) -> list[Image]:
        """As ``GuardedArena.upload``; the image holds the buffers one behind the other. An allocation has
        the bytes of an offset before its buffer, and none after it."""
        (buffers,) = launches
        for allocation in self._allocated:
            allocation.free()
        self._allocated, self._buffers = [], {}
        starts, size = {}, 0
        for name, array in buffers.items():
            offset = offsets.get(name, 0)
            self._allocated.append(cuda.mem_alloc(max(1, offset + array.nbytes)))
            self._buffers[name] = int(self._allocated[-1]) + offset
            starts[name] = size
            size += array.nbytes
            if array.nbytes:
                cuda.memcpy_htod(self._buffers[name], _bytes(array))
        image = np.concatenate([_bytes(array) for array in buffers.values()])
        return [Image(image, starts, dict(self._buffers))]

    def download(self, images: Sequence[Image], launches: Sequence[Mapping[str, Array]]) -> list[Array]:
        """As ``GuardedArena.download``."""
        (image,), (buffers,) = images, launches
        after = np.empty_like(image.bytes)
        for name, array in buffers.items():
            if array.nbytes:
                start = image.starts[name]
                cuda.memcpy_dtoh(after[start : start + array.nbytes], self._buffers[name])
        return [after]


def _places(buffers: Mapping[str, Array], offsets: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where the buffers of a launch start among its bytes, and how many these are, guard bands and all."""
    starts, size = {}, GUARD
    for name, array in buffers.items():
        starts[name] = size + offsets.get(name, 0)
        size = _up(starts[name] + array.nbytes) + GUARD
    return starts, size


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)

"""Device memory: guarded buffers for verification, and the data of a timed problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pycuda.driver as cuda

from harness.devices.cuda.guards import ALIGN, GUARD
from harness.devices.probes import odd, sparse
from harness.devices.work import Work
from harness.devices.workspace import WORKSPACE
from harness.model import Array, DType

_ARENA = 2 << 30  # enough for six matrices of 8192 × 8192 in FP32
_PAGE = 2 << 20  # the GPU's large pages
_APART = 1_000_003  # elements between what two operands of another layout hold at one place
_PERIOD = 4_194_319  # prime: the pool of random numbers never lines up with a tile or a row


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


@dataclass
class TimedData:
    """Device addresses by operand for one problem and dtype: ``normal`` and ``integers`` data with the same
    result, ``reference`` the normal data with a result of its own; ``guard``: the first byte of the band
    before the result, and the first byte past it.
    """

    work: Work
    normal: dict[str, int]
    integers: dict[str, int]
    reference: dict[str, int]
    guard: tuple[int, int]

    @property
    def result_elements(self) -> int:
        """Elements of the result's buffer, all between the guard bands."""
        rows, columns = self.work.storages[self.work.result].shape
        return rows * columns


def _share(depth: int) -> float:
    """Of numbers that are not 0 in a sparse matrix, so that sums of ``depth`` products stay exact: 512 to
    1024 of them. A power of two, since the pool of each share takes a tenth of a second."""
    return min(0.5, float(2.0 ** np.ceil(np.log2(512 / max(1, depth)))))


def _pool(kind: str, dtype: DType, share: float, rng: np.random.Generator) -> Array:
    """Random numbers on the grid of the dtype: ``normal``; ``odd`` and ``sparse``, whose products are probes;
    ``added``, small integers of the output's type. Integer dtypes multiply any integer."""
    if kind == "added":
        return rng.integers(-15, 16, _PERIOD).astype(dtype.output)
    if dtype.integer:
        return rng.integers(-127, 128, _PERIOD).astype(dtype.storage)
    if kind == "normal":
        values = rng.standard_normal(_PERIOD, np.float32)
    elif kind == "odd":
        values = odd(rng, _PERIOD, dtype, 1 if dtype.adds_in_f16 else 1 << 12)
    else:
        values = sparse(rng, _PERIOD, share)
    return values.astype(dtype.storage)


def _integers(work: Work) -> dict[str, str]:
    """The kind of integers that each operand but the result holds in the exact check, by name."""
    multiplied = iter(("odd", "sparse", "sparse", "sparse"))
    roles = {name: role for name, role in work.roles.items() if role != "result"}
    return {name: "added" if role == "added" else next(multiplied) for name, role in roles.items()}


def _fill(address: int, pool: Array, elements: int) -> None:
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
    """The buffers of the timed problem, always at the same addresses, regardless of what ran before.

    The address of a buffer determines which L2 slices and memory channels it shares: on an H200 a 15 µs
    product ran 6 % slower in buffers allocated after other ones were freed. So one allocation is made when
    the worker starts, and divided up depending only on the problem; one that it does not hold gets another.
    """

    def __init__(self) -> None:
        free, _ = cuda.mem_get_info()
        self._size = min(_ARENA, free // 2)
        self._base = cuda.mem_alloc(self._size)
        self._large: Any = None  # for a problem that it does not hold, which shall not move the others
        self._large_size = 0
        self._pools: dict[tuple[str, str, float], Array] = {}
        self._last: TimedData | None = None

    def _of_size(self, size: int) -> int:
        if size <= self._size:
            return int(self._base)
        if size > self._large_size:
            if self._large is not None:
                self._large.free()
            self._large, self._large_size = None, 0  # so that a failed allocation is not used
            self._large, self._large_size = cuda.mem_alloc(size), size
        return int(self._large)

    def _get_pool(self, kind: str, dtype: DType, depth: int) -> Array:
        share = _share(depth) if kind == "sparse" else 0.0
        key = (kind, dtype.name, share)
        if key not in self._pools:
            seed = sum(map(ord, kind))
            self._pools[key] = _pool(kind, dtype, share, np.random.default_rng(seed))
        return self._pools[key]

    def draw(self, work: Work) -> None:
        """The random numbers that a problem needs, ahead; on the host alone."""
        for kind in ("normal", *_integers(work).values()):
            self._get_pool(kind, work.dtype, work.depth)

    def _cut(self, sizes: list[int]) -> list[int]:
        """The address of each part of that many bytes."""
        ends = np.cumsum([-(-size // _PAGE) * _PAGE for size in sizes])
        base = self._of_size(int(ends[-1]))
        return [base, *(base + int(end) for end in ends[:-1])]

    def get(self, work: Work) -> TimedData:
        """The data of a problem; the last one is kept, since timed cases are sorted by problem."""
        last = self._last.work if self._last else None
        if (
            self._last
            and last
            and (last.storages, last.dtype, last.workspace)
            == (
                work.storages,
                work.dtype,
                work.workspace,
            )
        ):
            self._last.work = work
            return self._last
        self._last = None
        inputs = [name for name, role in work.roles.items() if role != "result"]
        counts = {name: int(np.prod(storage.shape)) for name, storage in work.storages.items()}
        sizes = {name: counts[name] * work.storages[name].dtype.itemsize for name in counts}
        result, offsets = sizes[work.result], work.offsets
        *places, c, r, workspace = self._cut(
            [
                *(offsets[name] + sizes[name] for name in inputs * 2),
                _up(offsets[work.result] + result) + 2 * GUARD,
                offsets[work.result] + result,
                work.workspace[0],
            ]
        )
        places = [place + offsets[name] for place, name in zip(places, inputs * 2, strict=True)]
        normal, integers = places[: len(inputs)], places[len(inputs) :]
        whole = _integers(work)
        for number, (name, real, integer) in enumerate(zip(inputs, normal, integers, strict=True)):
            for address, kind in ((real, "normal"), (integer, whole[name])):
                pool = self._get_pool(kind, work.dtype, work.depth)
                if work.problem.layout != "NN":
                    # Else a row of A and a column of B would hold the same numbers: sums of squares.
                    pool = np.roll(pool, -number * _APART)
                _fill(address, pool.astype(work.storages[name].dtype, copy=False), counts[name])
        cuda.memset_d8(c, 0xFF, _up(offsets[work.result] + result) + 2 * GUARD)
        if work.workspace[0]:
            cuda.memset_d8(workspace, 0xFF, work.workspace[0])
            cuda.memset_d8(workspace, 0, work.workspace[1])
        at, r = c + GUARD + offsets[work.result], r + offsets[work.result]
        more = {WORKSPACE: workspace}
        self._last = TimedData(
            work,
            normal={**dict(zip(inputs, normal, strict=True)), work.result: at, **more},
            integers={**dict(zip(inputs, integers, strict=True)), work.result: at, **more},
            reference={**dict(zip(inputs, normal, strict=True)), work.result: r, **more},
            guard=(c, at + result),
        )
        return self._last

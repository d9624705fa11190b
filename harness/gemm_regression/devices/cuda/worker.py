"""The worker process: holds the CUDA context and serves the parent's requests, one at a time. Kernels are
verified in guarded buffers."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pycuda.driver as cuda

from gemm_regression.compiler.tools import arch
from gemm_regression.devices import DeviceError, Outputs
from gemm_regression.devices.cuda import library
from gemm_regression.devices.cuda.bench import Bench, measure_roofs
from gemm_regression.devices.cuda.environment import Gpu
from gemm_regression.devices.cuda.modules import Kernels, compile_all, compile_probe, image_of, load_probe
from gemm_regression.devices.cuda.protocol import Build, Lost, Reply, Request
from gemm_regression.devices.cuda.timed_data import TimedDataArena
from gemm_regression.devices.cuda.timing import Stopwatch
from gemm_regression.devices.work import (
    ALIGN,
    EXACT,
    GUARD,
    WORKSPACE,
    Work,
    violations,
    workspace_violations,
)
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


_ROOFS = ("roofs.cu", "fma_f32")


class Worker:
    """One CUDA context and its loaded modules. One that is not to time starts without what timing needs."""

    def __init__(self, times: bool = True) -> None:
        cuda.init()
        device = cuda.Device(0)
        self._context = device.retain_primary_context()
        self._context.push()
        self._arch = arch(device.compute_capability())
        self._probe = load_probe(self._arch)
        if times:
            # What timing needs is allocated first and in one order, so that it lies where it always does.
            _ = self._watch, self._data
            library.version()
        self._arena = ExactBuffers() if os.environ.get(EXACT) else GuardedArena()
        self._kernels = Kernels()

    @cached_property
    def _watch(self) -> Stopwatch:
        return Stopwatch(Gpu(), self._probe)

    @cached_property
    def _data(self) -> TimedDataArena:
        return TimedDataArena(self._probe)

    @cached_property
    def _bench(self) -> Bench:
        return Bench(self._watch, self._data, self._kernels, self._probe)

    def close(self) -> None:
        """Gives all back while the context can still take it."""
        context = self._context
        self.__dict__.clear()
        gc.collect()
        context.pop()

    def do(self, request: Request) -> Any:
        if request.what == "hello":
            return None
        if request.what == "prepare":
            return compile_all(request.builds)
        if request.what == "binary":
            return [image_of(build) for build in request.builds]
        if request.what == "facts":
            return {"cublas": library.version()}
        if request.what == "roofs":
            return measure_roofs(self._watch, load_probe(self._arch, *_ROOFS))
        if request.what == "prepare_inputs":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(compile_probe, self._arch, *_ROOFS)
                for work in request.works:
                    self._data.pools.prepare_inputs(work)
            return None
        if request.what == "pair":
            assert request.pair is not None
            return self._bench.pair(request.builds, request.works, request.pair)
        (build,) = request.builds
        if request.what == "resources":
            return None if build.source is None else self._kernels.load(build).resources
        if request.what == "run":
            return self._run(build, request)
        (work,) = request.works
        if request.what == "once":
            return self._bench.once(build, work)
        assert request.plan is not None
        return self._bench.time(build, work, request.plan)

    def _run(self, build: Build, request: Request) -> list[Outputs]:
        """Launches one after another; as many together as may be copied at once."""
        shared = {} if request.workspace is None else {WORKSPACE: request.workspace}
        launches = [{**inputs, **shared} for inputs in request.inputs]
        size = max(sum(array.nbytes for array in buffers.values()) for buffers in launches)
        step = max(1, self._arena.most // max(1, size))
        outputs: list[Outputs] = []
        for i in range(0, len(launches), step):
            outputs += self._run_some(build, request.works[i : i + step], launches[i : i + step])
        return outputs

    def _run_some(
        self, build: Build, works: Sequence[Work], launches: Sequence[Mapping[str, Array]]
    ) -> Iterator[Outputs]:
        kernel, stream = self._kernels.get(build, works[0].dtype), cuda.Stream()
        images = self._arena.upload(launches, works[0].offsets)
        for work, image in zip(works, images, strict=True):
            kernel.bind(work, dict(image.at))(stream)
        stream.synchronize()
        afters = self._arena.download(images, launches)
        for work, buffers, image, after in zip(works, launches, images, afters, strict=True):
            found = violations(image.bytes, after, buffers, image.starts, (work.result, WORKSPACE))
            if (workspace := buffers.get(WORKSPACE)) is not None:
                words = image.read(WORKSPACE, workspace, after)
                found += tuple(workspace_violations(work.workspace[1], words))
            yield Outputs(image.read(work.result, buffers[work.result], after), found)


def main(connection: Connection, times: bool = True) -> None:
    """Serves requests until asked to stop; ``times``: timings among them. Returns only then: after an error
    CUDA's own teardown may hang or abort, and under compute-sanitizer an orderly exit is what ends its
    report."""
    worker: Worker | None = None
    while True:
        try:
            request = connection.recv()
        except (EOFError, KeyboardInterrupt):
            break
        if request.what == "stop":
            if worker:
                worker.close()
            return
        try:
            worker = worker or Worker(times)
            reply = Reply(value=worker.do(request))
        except DeviceError as error:
            reply = Reply(code=error.code, message=str(error), fatal=isinstance(error, Lost))
        except (cuda.Error, MemoryError) as error:
            reply = Reply.of(error)
        except KeyboardInterrupt:
            break
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            reply = Reply(code="HARNESS_ERROR", message=f"{type(error).__name__}: {error}", fatal=True)
        connection.send(reply)
        if reply.fatal:
            break
    sys.stdout.flush()
    os._exit(0)

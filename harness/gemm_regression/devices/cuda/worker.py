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

from gemm_regression.compiler.tools import arch
from gemm_regression.compiler.units import ModuleSource
from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.bench import Bench, measure_roofs
from gemm_regression.devices.cuda.environment import NvmlGpu
from gemm_regression.devices.cuda.library import library_version
from gemm_regression.devices.cuda.modules import Kernels, compile_probe, load_probe
from gemm_regression.devices.cuda.source_module import compile_all
from gemm_regression.devices.cuda.timed_data import TimedDataArena, prepare_inputs
from gemm_regression.devices.cuda.timing import Stopwatch
from gemm_regression.devices.reply import Lost, Reply
from gemm_regression.devices.work import (
    EXACT,
    GUARD,
    WORKSPACE,
    StoredBinary,
    Work,
    aligned,
    violations,
    workspace_violations,
)
from gemm_regression.model import Array, Resources
from gemm_regression.timing.plan import Measurement, PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples


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
        size = aligned(starts[name] + array.nbytes) + GUARD
    return starts, size


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


_ROOFS = ("roofs.cu", "fma_f32")


class CudaWorker:
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
            library_version()
        self._arena = ExactBuffers() if os.environ.get(EXACT) else GuardedArena()
        self._kernels = Kernels()

    @cached_property
    def _watch(self) -> Stopwatch:
        return Stopwatch(NvmlGpu(), self._probe)

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

    # What the parent may ask for, by name

    def hello(self) -> None:
        """That it answers says that it is ready."""

    def facts(self) -> dict[str, Any]:
        return {"cublas": library_version()}

    def roofs(self) -> dict[str, Any]:
        return measure_roofs(self._watch, load_probe(self._arch, *_ROOFS))

    def compile(self, sources: Sequence[ModuleSource]) -> list[tuple[bytes, str] | str]:
        return compile_all(sources)

    def prepare_inputs(self, works: Sequence[Work]) -> None:
        """What timing takes time for before the first launch: random numbers, and the probes of the roofs."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(compile_probe, self._arch, *_ROOFS)
            prepare_inputs(works)

    def resources(self, binary: StoredBinary) -> Resources | None:
        return self._kernels.get(binary).resources if binary.cubin else None

    def once(self, binary: StoredBinary) -> None:
        self._bench.once(binary)

    def time(self, binary: StoredBinary, plan: Plan) -> Measurement:
        return self._bench.time(binary, plan)

    def pair(self, base: StoredBinary, new: StoredBinary, plan: PairPlan, judged: bool) -> PairedSamples:
        return self._bench.pair(base, new, plan, judged)

    def run(
        self,
        binary: StoredBinary,
        works: Sequence[Work],
        inputs: Sequence[Inputs],
        workspace: Array | None,
        looked_at: str,
    ) -> list[Outputs]:
        """Launches one after another, of which each finds that ``workspace``; as many together as may be
        copied at once. ``looked_at``: the operand that is read back."""
        shared = {} if workspace is None else {WORKSPACE: workspace}
        launches = [{**given, **shared} for given in inputs]
        size = max(sum(array.nbytes for array in buffers.values()) for buffers in launches)
        step = max(1, self._arena.most // max(1, size))
        outputs: list[Outputs] = []
        for i in range(0, len(launches), step):
            outputs += self._run_some(binary, works[i : i + step], launches[i : i + step], looked_at)
        return outputs

    def _run_some(
        self,
        binary: StoredBinary,
        works: Sequence[Work],
        launches: Sequence[Mapping[str, Array]],
        looked_at: str,
    ) -> Iterator[Outputs]:
        kernel, stream = self._kernels.get(binary), cuda.Stream()
        images = self._arena.upload(launches, works[0].offsets)
        for work, image in zip(works, images, strict=True):
            kernel.bind(work, dict(image.at))(stream)
        stream.synchronize()
        afters = self._arena.download(images, launches)
        for work, buffers, image, after in zip(works, launches, images, afters, strict=True):
            found = violations(image.bytes, after, buffers, image.starts, (*work.outputs, WORKSPACE))
            if (workspace := buffers.get(WORKSPACE)) is not None:
                words = image.read(WORKSPACE, workspace, after)
                found += tuple(workspace_violations(work.workspace[1], words))
            yield Outputs(image.read(looked_at, buffers[looked_at], after), found)


def main(connection: Connection, times: bool = True, works: Sequence[Work] = ()) -> None:
    """Serves requests until asked to stop; ``times``: timings among them; of ``works`` the numbers are drawn
    first. Returns only then: after an error CUDA's own teardown may hang or abort, and under
    compute-sanitizer an orderly exit is what ends its report."""
    worker: CudaWorker | None = None
    prepare_inputs(works)
    while True:
        try:
            what, *given = connection.recv()
        except (EOFError, KeyboardInterrupt):
            break
        if what == "stop":
            if worker:
                worker.close()
            return
        try:
            worker = worker or CudaWorker(times)
            reply = Reply(value=getattr(worker, what)(*given))
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

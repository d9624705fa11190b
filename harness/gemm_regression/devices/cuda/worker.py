"""The worker process: holds the CUDA context and serves the parent's requests, one at a time."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import pycuda.driver as cuda

from gemm_regression.compiler.tools import arch
from gemm_regression.devices import DeviceError, Outputs
from gemm_regression.devices.cuda import library, roofs
from gemm_regression.devices.cuda.bench import Bench
from gemm_regression.devices.cuda.environment import Gpu
from gemm_regression.devices.cuda.guards import EXACT, violations
from gemm_regression.devices.cuda.kernels import Kernels
from gemm_regression.devices.cuda.memory import ExactBuffers, GuardedArena
from gemm_regression.devices.cuda.modules import compile_all, compile_probe, image_of, load_probe
from gemm_regression.devices.cuda.protocol import Build, Lost, Reply, Request
from gemm_regression.devices.cuda.timed_data import TimedDataArena
from gemm_regression.devices.cuda.timing import Stopwatch
from gemm_regression.devices.work import Work
from gemm_regression.devices.workspace import WORKSPACE, workspace_violations
from gemm_regression.model import Array

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
            return roofs.measure(self._watch, load_probe(self._arch, *_ROOFS))
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

"""The worker process: holds the CUDA context and serves the parent's requests, one at a time."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pycuda.driver as cuda

from harness.compiler.tools import arch
from harness.devices import DeviceError, Outputs
from harness.devices.cuda import library, roofs
from harness.devices.cuda.checks import Checks
from harness.devices.cuda.environment import Gpu
from harness.devices.cuda.guards import EXACT, violations
from harness.devices.cuda.library import Library
from harness.devices.cuda.memory import ExactBuffers, GuardedArena, TimedData, TimedDataArena
from harness.devices.cuda.modules import Loaded, compile_all, compile_probe, load, load_probe
from harness.devices.cuda.pairing import time_pair
from harness.devices.cuda.protocol import Build, Reply, Request
from harness.devices.cuda.timing import Rounds, Stopwatch
from harness.devices.work import Work
from harness.devices.workspace import WORKSPACE, workspace_violations
from harness.model import Array, DType
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.timing.samples import PairedSamples

_ROOFS = ("roofs.cu", "fma_f32")

# Error codes for CUDA's errors; any of them may leave the context unusable.
_CODES = (
    ("illegal memory access", "ILLEGAL_ADDRESS"),
    ("misaligned address", "MISALIGNED_ADDRESS"),
    ("out of memory", "OUT_OF_MEMORY"),
    ("out of resources", "LAUNCH_FAILED"),
    ("invalid argument", "LAUNCH_FAILED"),
)


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
        self._loaded: dict[tuple[Build, str], Loaded] = {}
        self._libraries: dict[DType, Library] = {}
        self._checks = Checks(self._probe)
        self._spent = cuda.mem_alloc(16)
        self._checked: set[tuple[Build, Work]] = set()

    @cached_property
    def _watch(self) -> Stopwatch:
        return Stopwatch(Gpu(), self._probe)

    @cached_property
    def _data(self) -> TimedDataArena:
        return TimedDataArena()

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
        if request.what == "facts":
            return {"cublas": library.version()}
        if request.what == "roofs":
            return roofs.measure(self._watch, load_probe(self._arch, *_ROOFS))
        if request.what == "draw":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(compile_probe, self._arch, *_ROOFS)
                for work in request.works:
                    self._data.draw(work)
            return None
        if request.what == "pair":
            return self._pair(request)
        (build,) = request.builds
        if request.what == "resources":
            return None if build.source is None else self._load(build).resources
        if request.what == "run":
            return self._run(build, request)
        (work,) = request.works
        if request.what == "once":
            return self._once(build, work)
        assert request.plan is not None
        return self._time(build, work, request.plan)

    def _under_test(self, build: Build, work: Work, slot: str = "") -> Loaded | Library:
        """What to launch: a kernel, or the library."""
        return self._library(work.dtype) if build.source is None else self._load(build, slot)

    def _library(self, dtype: DType) -> Library:
        if dtype not in self._libraries:
            self._libraries[dtype] = Library(dtype)
        return self._libraries[dtype]

    def _load(self, build: Build, slot: str = "") -> Loaded:
        """The build in this context; in another slot, a copy of its own."""
        if (build, slot) not in self._loaded:
            self._loaded[build, slot] = load(build)
        return self._loaded[build, slot]

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
        kernel, stream = self._under_test(build, works[0]), cuda.Stream()
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

    def _once(self, build: Build, work: Work) -> None:
        """One launch on the data of a timed case, for a profiler."""
        stream = cuda.Stream()
        self._under_test(build, work).bind(work, self._data.get(work).normal)(stream)
        stream.synchronize()

    # Timing: right before, timed, right after.

    def _time(self, build: Build, work: Work, plan: Plan) -> Measurement:
        kernel = self._under_test(build, work)
        watch, data = self._watch, self._data.get(work)
        self._check_once(build, kernel, work, data)
        enqueue = kernel.bind(work, data.normal)
        if plan.spin is not None:
            enqueue = watch.spinning(enqueue, plan.spin, self._spent)
        reference = self._reference(enqueue, work, data)
        with_reference = plan.reference and isinstance(kernel, Loaded) and library.has(work)
        self._checks.poison(data)
        began = time.monotonic()
        beside = reference if with_reference else None
        clean, discarded, throttled = watch.measure(enqueue, beside, plan, library.launches(work.problem))
        kept_busy = time.monotonic() - began
        sustained = watch.sustain(enqueue, plan.sustained) if plan.sustained else {}
        if work.problem.beta:  # Each launch has added to what the one before left: once more, from the start.
            self._checks.poison(data)
            enqueue(watch.stream)
            self._reference(enqueue, work, data)
            watch.stream.synchronize()
        self._checks.timed(build.name, data)
        of_library = clean.kernel if isinstance(kernel, Library) else ()
        return Measurement(
            seconds=tuple(clean.kernel),
            reference_seconds=tuple(clean.reference if with_reference else of_library),
            resources=kernel.resources,
            sm_clock_mhz=_median_clock(clean),
            power_w=max((look.power_w for look in clean.looks), default=0.0),
            temperature_c=max((look.temperature_c for look in clean.looks), default=0.0),
            clock_event_reasons=clean.reasons,
            discarded=discarded,
            throttled=throttled,
            l2=plan.l2,
            mhz=tuple(clean.mhz),
            duty=plan.duty,
            extra={
                "overhead_us": round(watch.overhead * 1e6, 3),
                "gpu_seconds": round(kept_busy, 4),
                "temperatures_c": clean.temperatures,
                **sustained,
            },
        )

    def _check_once(self, build: Build, kernel: Loaded | Library, work: Work, data: TimedData) -> None:
        if (build, work) in self._checked:
            return
        at, reference = (data.integers if work.exact else data.normal), None
        if library.has(work) and isinstance(kernel, Loaded):
            beside = {**at, work.result: data.reference[work.result]}
            reference = self._library(work.dtype).bind(work, beside)
        self._checks.exact(build.name, kernel.bind(work, at), reference, data)
        self._checked.add((build, work))

    def _reference(self, enqueue: Any, work: Work, data: TimedData) -> Any:
        """One launch of the library on the same data, whose result a timed launch is compared with. If no
        library supports the operation, the kernel's own result before it is timed."""
        if library.has(work):
            reference = self._library(work.dtype).bind(work, data.reference)
            reference(self._watch.stream)
            return reference
        enqueue(self._watch.stream)
        result = work.result
        size = data.result_elements * work.storages[result].dtype.itemsize
        cuda.memcpy_dtod_async(data.reference[result], data.normal[result], size, self._watch.stream)
        return None

    def _pair(self, request: Request) -> PairedSamples:
        """Two builds in turn on the same data, each with a copy of its code of its own; right before and
        after. What is wrong with A alone has a code that begins with BASE_."""
        plan = request.pair
        assert plan is not None
        watch = self._watch
        arms, plain, spent = {}, {}, cuda.mem_alloc(32)
        cuda.memset_d8(spent, 0, 32)
        both = list(zip("AB", request.builds, request.works, strict=True))
        for arm, build, work in both:
            with _blamed_on(arm):
                data = self._data.get(work)
                kernel = self._under_test(build, work, "" if arm == "A" else "B")
                self._check_once(build, kernel, work, data)
                plain[arm] = arms[arm] = kernel.bind(work, data.normal)
                if plan.spin is not None:
                    number = "AB".index(arm)
                    arms[arm] = watch.spinning(arms[arm], plan.spin[number], int(spent) + 16 * number)
        samples = time_pair(watch, arms, plan)
        for arm, build, work in both:
            with _blamed_on(arm):
                self._checks.poison(data)
                self._reference(plain[arm], work, data)
                arms[arm](watch.stream)
                watch.stream.synchronize()
                self._checks.timed(build.name, data)
        if plan.spin is None:
            return samples
        cycles = cuda.from_device(int(spent), (2, 2), np.uint64).astype(float)
        return replace(samples, spun=(float(cycles[0, 0] / cycles[0, 1]), float(cycles[1, 0] / cycles[1, 1])))


@contextlib.contextmanager
def _blamed_on(arm: str) -> Iterator[None]:
    """Tells what is wrong with A, the base, from what is wrong with B."""
    try:
        yield
    except DeviceError as error:
        raise DeviceError(("BASE_" if arm == "A" else "") + error.code, str(error)) from None


def _median_clock(rounds: Rounds) -> float:
    """Median clock of the rounds in MHz, from their stamps, otherwise from NVML; 0 without rounds."""
    known = [mhz for mhz in rounds.mhz if mhz == mhz] or [look.sm_clock_mhz for look in rounds.looks] or [0.0]
    return round(float(np.median(known)), 1)


def _reply(error: Exception) -> Reply:
    text = " ".join(str(error).split())
    code = next((code for words, code in _CODES if words in text), "LAUNCH_FAILED")
    # Out of memory and a refused launch leave the context whole; anything asynchronous does not.
    fatal = code not in ("OUT_OF_MEMORY", "LAUNCH_FAILED") or "failed" in text
    return Reply(code=code, message=text, fatal=fatal)


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
            reply = Reply(code=error.code, message=str(error))
        except (cuda.Error, MemoryError) as error:
            reply = _reply(error)
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

"""The worker process: holds the CUDA context and does what the parent asks, one request at a time."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pycuda.driver as cuda

from harness.compiler.toolchain import arch
from harness.devices import DeviceError, Outputs
from harness.devices.cuda.environment import Gpu
from harness.devices.cuda.guards import EXACT, GUARD
from harness.devices.cuda.memory import ExactBuffers, GuardedArena, TimedData, TimedDataArena
from harness.devices.cuda.modules import Cublas, Loaded, compile_all, cublas_version, load, load_probe
from harness.devices.cuda.pairing import time_pair
from harness.devices.cuda.protocol import Build, Reply, Request
from harness.devices.cuda.timing import Rounds, Stopwatch
from harness.model import DTYPES, TF32, Launch, Problem
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.timing.samples import PairedSamples

# What CUDA's own words mean for a case; any of them may leave the context unusable.
_CODES = (
    ("illegal memory access", "ILLEGAL_ADDRESS"),
    ("misaligned address", "MISALIGNED_ADDRESS"),
    ("out of memory", "OUT_OF_MEMORY"),
    ("out of resources", "LAUNCH_FAILED"),
    ("invalid argument", "LAUNCH_FAILED"),
)
_OLD_BITS = int(np.float32(77).view(np.uint32))  # what C holds before the exact check
_ROUNDING_MARGIN = 8.0  # λ of the probabilistic bound, in standard deviations


class Worker:
    """One CUDA context and what it has loaded."""

    def __init__(self) -> None:
        cuda.init()
        device = cuda.Device(0)
        self._context = device.retain_primary_context()
        self._context.push()
        self._arch = arch(device.compute_capability())
        self._probe = load_probe(self._arch)
        # What timing needs is allocated first and in one order, so that it lies where it always does.
        self._watch = Stopwatch(Gpu(), self._probe)
        self._data = TimedDataArena()
        cublas_version()
        self._arena = ExactBuffers() if os.environ.get(EXACT) else GuardedArena()
        self._loaded: dict[tuple[Build, str], Loaded | Cublas] = {}
        self._spent = cuda.mem_alloc(16)
        self._checked: set[tuple[Build, Launch, Problem]] = set()

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
            return {"cublas": cublas_version()}
        if request.what == "pair":
            return self._pair(request)
        (build,) = request.builds
        if request.what == "resources":
            return self._load(build).resources
        assert request.launch is not None
        assert request.problem is not None
        if request.what == "once":
            return self._once(build, request.launch, request.problem)
        if request.what == "run":
            return self._run(build, request.launch, request.problem, request.inputs)
        assert request.plan is not None
        return self._time(build, request.launch, request.problem, request.plan)

    def _load(self, build: Build, slot: str = "") -> Loaded | Cublas:
        """The build in this context; in another slot, a copy of its own."""
        if (build, slot) not in self._loaded:
            self._loaded[build, slot] = load(build)
        return self._loaded[build, slot]

    def _run(self, build: Build, launch: Launch, problem: Problem, inputs: Any) -> Outputs:
        kernel = self._load(build)
        at, image, offsets = self._arena.upload(inputs)
        stream = cuda.Stream()
        kernel.bind(launch, problem, at)(stream)
        stream.synchronize()
        return self._arena.download(inputs, image, offsets)

    def _once(self, build: Build, launch: Launch, problem: Problem) -> None:
        """One launch on the data of a timed case, for a profiler to look at."""
        stream = cuda.Stream()
        self._load(build).bind(launch, problem, self._data.get(problem, build.dtype).normal)(stream)
        stream.synchronize()

    # Timing: right before, timed, right after.

    def _time(self, build: Build, launch: Launch, problem: Problem, plan: Plan) -> Measurement:
        kernel = self._load(build)
        watch, data = self._watch, self._data.get(problem, build.dtype)
        self._check_once(build, kernel, launch, problem, data)
        enqueue = kernel.bind(launch, problem, data.normal)
        if plan.spin is not None:
            enqueue = watch.spinning(enqueue, plan.spin, self._spent)
        reference = self._reference(build, launch, problem, data)
        with_reference = plan.reference and not isinstance(kernel, Cublas)
        self._poison(data)
        began = time.monotonic()
        clean, discarded, throttled = watch.measure(enqueue, reference if with_reference else None, plan)
        kept_busy = time.monotonic() - began
        sustained = watch.sustain(enqueue, plan.sustained) if plan.sustained else {}
        self._check_timed(build, problem, data)
        return Measurement(
            seconds=tuple(clean.kernel),
            reference_seconds=tuple(clean.reference if with_reference else clean.kernel),
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
                **sustained,
            },
        )

    def _check_once(
        self, build: Build, kernel: Loaded | Cublas, launch: Launch, problem: Problem, data: TimedData
    ) -> None:
        if (build, launch, problem) not in self._checked:
            self._check_exact(build, kernel, launch, problem, data)
            self._checked.add((build, launch, problem))

    def _reference(self, build: Build, launch: Launch, problem: Problem, data: TimedData) -> Any:
        """cuBLAS on the same data, launched once: its C is what a timed launch is held to."""
        cublas = self._load(Build(build.dtype, build.dtype, None, "", (), ""))
        reference = cublas.bind(launch, problem, data.reference)
        reference(self._watch.stream)
        return reference

    def _poison(self, data: TimedData) -> None:
        """NaN all over C and its guard bands."""
        cuda.memset_d8(data.guard[0], 0xFF, data.guard[1] + GUARD - data.guard[0])

    def _pair(self, request: Request) -> PairedSamples:
        """Two builds in turn on the same data, each with a copy of its code of its own; right before and
        after. What is wrong with A alone has a code that begins with BASE_."""
        problem, plan = request.problem, request.pair
        assert problem is not None
        assert plan is not None
        assert request.launches is not None
        watch = self._watch
        arms, spent = {}, cuda.mem_alloc(32)
        cuda.memset_d8(spent, 0, 32)
        for arm, build, launch in zip("AB", request.builds, request.launches, strict=True):
            with _blamed_on(arm):
                data = self._data.get(problem, build.dtype)
                kernel = self._load(build, "" if arm == "A" else "B")
                self._check_once(build, kernel, launch, problem, data)
                arms[arm] = kernel.bind(launch, problem, data.normal)
                if plan.spin is not None:
                    number = "AB".index(arm)
                    arms[arm] = watch.spinning(arms[arm], plan.spin[number], int(spent) + 16 * number)
        samples = time_pair(watch, arms, plan)
        for arm, build, launch in zip("AB", request.builds, request.launches, strict=True):
            with _blamed_on(arm):
                self._poison(data)
                self._reference(build, launch, problem, data)
                arms[arm](watch.stream)
                watch.stream.synchronize()
                self._check_timed(build, problem, data)
        if plan.spin is None:
            return samples
        cycles = cuda.from_device(int(spent), (2, 2), np.uint64).astype(float)
        return replace(samples, spun=(float(cycles[0, 0] / cycles[0, 1]), float(cycles[1, 0] / cycles[1, 1])))

    def _matvec(self, matrix: int, kind: int, rows: int, columns: int, ld: int, x: Any, y: Any) -> None:
        call = self._probe.get_function("matvec")
        call(
            np.uintp(matrix),
            np.int32(kind),
            np.int32(columns),
            np.int32(ld),
            x,
            y,
            block=(256, 1, 1),
            grid=(rows, 1),
        )

    def _product(
        self, matrices: list[tuple[int, int, int, int, int]], x: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """(M₁·(M₂·x)) in double on the device; each matrix is (address, kind, rows, columns, ld)."""
        vector = cuda.to_device(x)
        for matrix, kind, rows, columns, ld in reversed(matrices):
            out = cuda.mem_alloc(8 * rows)
            self._matvec(matrix, kind, rows, columns, ld, vector, out)
            vector, x = out, np.empty(rows)
        cuda.memcpy_dtoh(x, vector)
        return x

    def _check_exact(
        self, build: Build, kernel: Loaded | Cublas, launch: Launch, p: Problem, data: TimedData
    ) -> None:
        """Freivalds' check on integers at the very problem that is timed: C·x = A·(B·x), exactly.

        One wrong element always shows; several in a row cancel with a chance of about 1 in 2000. C holds a
        number before, for a kernel that writes over NaN only; before the timed launches it holds NaN.
        """
        at = data.integers
        self._poison(data)
        cuda.memset_d32(at.c, _OLD_BITS, p.m * p.ldc)
        stream = cuda.Stream()
        kernel.bind(launch, p, at)(stream)
        stream.synchronize()
        kind = {"f16": 1, "bf16": 2}.get(build.dtype, 0)
        rng = np.random.default_rng(p.m + p.n + p.k)
        x = rng.choice([-1.0, 1.0], p.n) * rng.integers(1, 1024, p.n)
        got = self._product([(at.c, 0, p.m, p.n, p.ldc)], x)
        want = self._product([(at.a, kind, p.m, p.k, p.lda), (at.b, kind, p.k, p.n, p.ldb)], x)
        wrong = np.flatnonzero(~(got == want))
        if wrong.size:
            raise DeviceError("WRONG", self._explain(build, p, at, kind, int(wrong[0]), wrong.size))
        self._check_guard(build, data)

    def _explain(self, build: Build, p: Problem, at: Any, kind: int, row: int, rows: int) -> str:
        """The first wrong element of a row that failed, found on the host."""
        import ml_dtypes

        storage = np.dtype({0: np.float32, 1: np.float16, 2: ml_dtypes.bfloat16}[kind])
        size = storage.itemsize

        def fetch(address: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
            out = np.empty(count, dtype)
            cuda.memcpy_dtoh(out, address)
            return out

        a = fetch(at.a + row * p.lda * size, p.k, storage).astype(np.float64)
        b = fetch(at.b, p.k * p.ldb, storage).reshape(p.k, p.ldb)[:, : p.n].astype(np.float64)
        c = fetch(at.c + row * p.ldc * 4, p.n, np.float32)
        want = a @ b
        column = int(np.flatnonzero(~(c == want))[0])
        return (
            f"{build.name} on {p.id}: exact check at the timed problem failed in {rows} of {p.m} rows, "
            f"first at ({row}, {column}): got {c[column]:g}, expected {want[column]:g}"
        )

    def _check_timed(self, build: Build, p: Problem, data: TimedData) -> None:
        """What was timed is what was right: C of the last timed launch against cuBLAS's on the same data.

        For data of zero mean the partial sums grow like √k, and so K additions with roundoff u end within
        about λ·u·K of the exact sum (Higham and Mary, "Sharper probabilistic backward error analysis for
        basic linear algebra kernels with random data", SIAM J. Sci. Comput. 42, 2020); rounding the
        multiplicands to TF32 adds λ·2⁻¹¹·√K. Both kernels err, hence the 2.
        """
        dtype = DTYPES[build.dtype]
        rounded = dtype.unit_roundoff * np.sqrt(p.k) if dtype is TF32 else 0.0
        tolerance = 2 * _ROUNDING_MARGIN * (dtype.accumulate_roundoff * p.k + rounded)
        result = cuda.to_device(np.array([0, 2**63 - 1], np.uint64))
        addresses = np.uintp(data.normal.c), np.uintp(data.reference.c)
        sizes = np.int32(p.m), np.int32(p.n), np.int32(p.ldc)
        compare = self._probe.get_function("compare")
        compare(*addresses, *sizes, np.float32(tolerance), result, block=(256, 1, 1), grid=(1024, 1))
        wrong, first = (int(v) for v in cuda.from_device(result, 2, np.uint64))
        if wrong:
            row, column = divmod(first, p.ldc)
            got, want = (self._element(address, first) for address in (data.normal.c, data.reference.c))
            raise DeviceError(
                "WRONG",
                f"{build.name} on {p.id}: the output of a timed launch is wrong in {wrong} of {p.m * p.n} "
                f"elements, first at ({row}, {column}): got {got:g}, expected {want:g} ± {tolerance:.3g}",
            )
        self._check_guard(build, data)

    def _element(self, address: int, index: int) -> float:
        out = np.empty(1, np.float32)
        cuda.memcpy_dtoh(out, address + 4 * index)
        return float(out[0])

    def _check_guard(self, build: Build, data: TimedData) -> None:
        for where, address in (("before", data.guard[0]), ("past", data.guard[1])):
            band = np.empty(GUARD, np.uint8)
            cuda.memcpy_dtoh(band, address)
            if (band != 0xFF).any():
                raise DeviceError("WRONG", f"{build.name} on {data.problem.id}: wrote {where} the end of C")


@contextlib.contextmanager
def _blamed_on(arm: str) -> Iterator[None]:
    """Tells what is wrong with A, the base, from what is wrong with B."""
    try:
        yield
    except DeviceError as error:
        raise DeviceError(("BASE_" if arm == "A" else "") + error.code, str(error)) from None


def _median_clock(rounds: Rounds) -> float:
    """MHz over the rounds, by their stamps, else by NVML; 0 without a round."""
    known = [mhz for mhz in rounds.mhz if mhz == mhz] or [look.sm_clock_mhz for look in rounds.looks] or [0.0]
    return round(float(np.median(known)), 1)


def _reply(error: Exception) -> Reply:
    text = " ".join(str(error).split())
    code = next((code for words, code in _CODES if words in text), "LAUNCH_FAILED")
    # Out of memory and a refused launch leave the context whole; anything asynchronous does not.
    fatal = code not in ("OUT_OF_MEMORY", "LAUNCH_FAILED") or "failed" in text
    return Reply(code=code, message=text, fatal=fatal)


def main(connection: Connection) -> None:
    """Serves requests until told to stop. Returns only then: after an error CUDA's own teardown may hang or
    abort, and under compute-sanitizer an orderly exit is what ends its report."""
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
            worker = worker or Worker()
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

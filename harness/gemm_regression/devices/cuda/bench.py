"""Times a case, or two builds in turn: right before, and right in every batch. Measures what a GPU can do
at most (roofs.cu): arithmetic, bandwidths, latencies."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pycuda.driver as cuda

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda import library
from gemm_regression.devices.cuda.checks import Checks, Enqueue, Fresh
from gemm_regression.devices.cuda.library import Library
from gemm_regression.devices.cuda.modules import Kernels, Loaded
from gemm_regression.devices.cuda.protocol import Build, Lost, Reply
from gemm_regression.devices.cuda.timed_data import TimedData, TimedDataArena
from gemm_regression.devices.cuda.timing import Rounds, Stopwatch, Turn
from gemm_regression.devices.work import Work
from gemm_regression.timing.bounds import THREADS, arithmetic, probe_work
from gemm_regression.timing.plan import Measurement, PairPlan, Plan, time_pair
from gemm_regression.timing.samples import PairedSamples


class Bench:
    """One per worker; ``probe`` is the module of probe.cu."""

    def __init__(self, watch: Stopwatch, arena: TimedDataArena, kernels: Kernels, probe: Any) -> None:
        self._watch, self._arena, self._kernels = watch, arena, kernels
        self._checks = Checks(probe)
        self._spent = cuda.mem_alloc(32)
        self._checked: set[tuple[Build, Work]] = set()

    def once(self, build: Build, work: Work) -> None:
        """One launch on the data of a timed case, for a profiler."""
        stream, data = cuda.Stream(), self._arena.get(work)
        data.fill(stream, work)
        self._kernels.get(build, work.dtype).bind(work, data.at)(stream)
        stream.synchronize()

    def time(self, build: Build, work: Work, plan: Plan) -> Measurement:
        """Raises DeviceError, with code WRONG for a wrong result."""
        watch, data = self._watch, self._arena.get(work)
        kernel = self._kernels.get(build, work.dtype)
        plain = kernel.bind(work, data.at)
        self._check_once(build, kernel, work, plain, data)
        timed = plain if plan.spin is None else watch.spinning(plain, plan.spin, self._spent)
        reference = self._reference(work, data)
        turn = Fresh(build.name, work, data, self._checks, timed, plain, reference)
        with_reference = plan.reference and isinstance(kernel, Loaded) and reference is not None
        beside = Turn(reference) if with_reference and reference else None
        if beside:  # CUDA loads a library's kernel at its first launch, which would wait for the queue's gate
            beside.enqueue(watch.stream)
            watch.stream.synchronize()
        began = time.monotonic()
        clean, discarded, throttled = watch.measure(turn, beside, plan, library.launches(work.problem))
        kept_busy = time.monotonic() - began - turn.seconds
        sustained = watch.sustain(timed, plan.sustained) if plan.sustained else {}
        self._checks.guard(build.name, data)
        self._check_again(build.name, work, plain, reference, data)
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

    def pair(self, builds: tuple[Build, ...], works: tuple[Work, ...], plan: PairPlan) -> PairedSamples:
        """Two builds in turn in the same buffers. What is wrong with A alone has a code that begins with
        BASE_."""
        watch, began = self._watch, time.monotonic()
        data = self._arena.get(*works)
        cuda.memset_d8(self._spent, 0, 32)
        arms, checking = dict[str, _Arm](), 0.0
        for number, (arm, build, work) in enumerate(zip("AB", builds, works, strict=True)):
            with blamed_on(arm):
                kernel = self._kernels.get(build, work.dtype, arm)
                plain = kernel.bind(work, data.at)
                with_spin = self._with_spin(plan, number)
                reference = self._reference(work, data)
                checks = self._checks
                turn = _Arm(build.name, work, data, checks, with_spin(plain), plain, reference, number)
                turn.arm, turn.kernel, turn.with_spin = arm, kernel, with_spin
                arms[arm] = turn
                start = time.monotonic()
                self._check_once(build, kernel, work, plain, data, arms[arm] if arm == "A" else None)
                checking += time.monotonic() - start
        ready = time.monotonic()
        during = sum(turn.seconds for turn in arms.values())
        samples = time_pair(watch, arms, plan)
        done = time.monotonic()
        during = sum(turn.seconds for turn in arms.values()) - during
        self._guard(data, arms)
        for arm, turn in arms.items():
            with blamed_on(arm):
                self._check_again(turn.name, turn.work, turn.plain, turn.reference, data)
        seconds = {
            "prepare": ready - began - checking,
            "check": checking,
            "time": done - ready - during,
            "after": time.monotonic() - done + during,
        }
        samples = replace(samples, seconds_of={name: round(s, 5) for name, s in seconds.items()})
        if plan.spin is None:
            return samples
        cycles = cuda.from_device(int(self._spent), (2, 2), np.uint64).astype(float)
        return replace(samples, spun=(float(cycles[0, 0] / cycles[0, 1]), float(cycles[1, 0] / cycles[1, 1])))

    def _with_spin(self, plan: PairPlan, number: int) -> Callable[[Enqueue], Enqueue]:
        """What is timed for a launch of a side: with the slowdown that a study puts behind it."""
        if plan.spin is None:
            return lambda plain: plain
        cycles, spent = plan.spin[number], int(self._spent) + 16 * number
        return lambda plain: self._watch.spinning(plain, cycles, spent)

    def _check_once(
        self,
        build: Build,
        kernel: Loaded | Library,
        work: Work,
        plain: Enqueue,
        data: TimedData,
        turn: Fresh | None = None,
    ) -> None:
        """A base that was judged right when it was stored is held, by its ``turn``, against the library;
        a new binary is never taken for one."""
        if (build, work) in self._checked:
            return
        if build.cubin and turn is not None:
            turn.alone()
        else:
            beside = self._reference(work, data) if isinstance(kernel, Loaded) else None
            self._checks.exact(build.name, work, plain, beside, data)
        self._checked.add((build, work))

    def _check_again(
        self, name: str, work: Work, plain: Enqueue, reference: Enqueue | None, data: TimedData
    ) -> None:
        """On integers that it has not seen, where no library could tell that it repeats itself."""
        if reference is None and work.product:
            self._checks.exact(name, work, plain, None, data, data.new_number())

    def _reference(self, work: Work, data: TimedData) -> Enqueue | None:
        """The library's launch on the same inputs, if it has the operation."""
        if not library.has(work):
            return None
        return self._kernels.library(work.dtype).bind(work, data.beside())

    def _guard(self, data: TimedData, arms: dict[str, _Arm]) -> None:
        """A byte beside the result was written: by A, if a launch of A alone does it, else by B."""
        try:
            self._checks.guard(arms["B"].name, data)
        except DeviceError:
            data.set_guard()
            with blamed_on("A"):
                arms["A"].alone()
            raise


class _Arm(Fresh):
    """Side ``arm``, A or B, of a pair."""

    arm: str
    kernel: Loaded | Library
    with_spin: Callable[[Enqueue], Enqueue]

    def copies(self, count: int) -> None:
        """Each is loaded, and launched once, since its code may be copied to the device only then: behind the
        gate that would wait for ever. A library has none."""
        if not isinstance(self.kernel, Loaded):
            return
        stream = cuda.Stream()
        with blamed_on(self.arm):
            made = [self.kernel.another().bind(self.work, self._data.at) for _ in range(count)]
            for plain in made:
                self.before(stream)
                plain(stream)
            stream.synchronize()
        turns = itertools.cycle([self.with_spin(plain) for plain in made])
        self.enqueue = lambda stream: next(turns)(stream)

    def end(self) -> None:
        with blamed_on(self.arm):
            super().end()


@contextlib.contextmanager
def blamed_on(arm: str) -> Iterator[None]:
    """Tells what is wrong with A, the base, from what is wrong with B."""
    prefix = "BASE_" if arm == "A" else ""
    try:
        yield
    except DeviceError as error:
        if error.code.startswith(prefix):
            raise
        raise type(error)(prefix + error.code, str(error)) from None
    except (cuda.Error, MemoryError) as error:
        reply = Reply.of(error)
        raise (Lost if reply.fatal else DeviceError)(prefix + reply.code, reply.message) from None


def _median_clock(rounds: Rounds) -> float:
    """Median clock of the rounds in MHz, from their stamps, otherwise from NVML; 0 without rounds."""
    known = [mhz for mhz in rounds.mhz if mhz == mhz] or [look.sm_clock_mhz for look in rounds.looks] or [0.0]
    return round(float(np.median(known)), 1)


_PROBE_LAUNCHES = 12
_ROUNDS = 400
_READERS = 512  # threads of a block that reads global memory
_TILES = (128 + 256) * 128  # bytes of shared memory of a block that uses wgmma
_FAR, _NEAR = 1 << 30, 16 << 20  # bytes: more than any L2, and less
_CHAIN = 2048


def measure_roofs(watch: Stopwatch, module: Any) -> dict[str, Any]:
    """The roofs by name: the fastest of some launches in GFLOPS or GB/s, the SM clock in MHz meanwhile, and
    the datasheet's arithmetic at that clock. "cycles": latencies, in cycles of the SM."""
    watch.ready()
    return _Probes(watch, module).all()


class _Probes:
    def __init__(self, watch: Stopwatch, module: Any) -> None:
        self._watch, self._module = watch, module
        device, named = cuda.Context.get_device(), cuda.device_attribute
        self.capability = device.compute_capability()
        self._sms = device.get_attribute(named.MULTIPROCESSOR_COUNT)
        clock = 1e3 * device.get_attribute(named.MEMORY_CLOCK_RATE)
        self._bus = 2 * clock * device.get_attribute(named.GLOBAL_MEMORY_BUS_WIDTH) / 8  # double data rate
        self._far, self._sink = cuda.mem_alloc(_FAR), cuda.mem_alloc(16)
        cuda.memset_d8(self._far, 0, _FAR)
        self._near = min(_NEAR, watch.l2_bytes // 4)

    def all(self) -> dict[str, Any]:
        tensor = ("f16", "bf16", "tf32") if self.capability >= (8, 0) else ()
        return {**self.of(("f32", *tensor, "shared", "l2", "dram")), "cycles": self._latencies()}

    def of(self, names: Sequence[str]) -> dict[str, Any]:
        """These roofs, with the datasheet's arithmetic at the clock of each."""
        roofs = {name: self._roof(name) for name in names}
        for name, roof in roofs.items():
            could = arithmetic(self.capability, self._sms, self._bus, 1e6 * roof.get("mhz", 0))
            if could.get(name):
                roof["arithmetic"] = round(could[name] / 1e9, 1)
        return roofs

    def _roof(self, name: str) -> dict[str, float]:
        amount, sms, sink = probe_work(_ROUNDS), self._sms, int(self._sink)
        if name == "f32":
            return self._rate("fma_f32", 8 * sms, amount["f32"], "ifP", _ROUNDS, 0.5, sink)
        if name == "shared":
            return self._rate("shared_bytes", 8 * sms, amount["shared"], "iP", _ROUNDS, sink)
        if name in ("l2", "dram"):
            near = name == "l2"
            size, each = (self._near, self._near) if near else (_FAR, _FAR // (4 * sms))
            given = (int(self._far), size // 16, int(near), sink)
            return self._rate("global_bytes", 4 * sms, each, "PqiP", *given)
        return self._rate(f"tensor_{name}", 2 * sms, amount[name], "iP", _ROUNDS, sink)

    def _rate(self, name: str, blocks: int, amount: int, format: str, *given: Any) -> dict[str, float]:
        """Of launches in which each block does this amount of probe_work."""
        function = self._module.get_function(name)
        shared = _TILES if name.startswith("tensor") and self.capability == (9, 0) else 0
        if shared:
            function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        function.prepare(format)
        threads = (_READERS if name == "global_bytes" else THREADS, 1, 1)

        def enqueue(stream: Any) -> None:
            function.prepared_async_call((blocks, 1), threads, stream, *given, shared_size=shared)

        run = self._watch.sequence([Turn(enqueue)] * _PROBE_LAUNCHES, "warm")
        best = int(np.argmin(run.seconds))
        rate, mhz = blocks * amount / run.seconds[best], run.mhz[best]
        found = {"gbps" if name.endswith("bytes") else "gflops": round(rate / 1e9, 1)}
        return found | ({"mhz": round(mhz, 1)} if mhz == mhz else {})

    def _latencies(self) -> dict[str, float]:
        """Cycles from one dependent step to the next: an FMA, or a load from where its operand lies."""
        random, found = np.random.default_rng(0), {}
        found["fma"] = self._cycles("chain_of_fma", "ifP", _CHAIN, 0.5)
        found["shared"] = self._cycles("chase_shared", "iP", _CHAIN)
        for name, size, step, entry in (
            ("l1", 8 * _CHAIN, 8, "chase_l1"),  # bytes; an element or a line of the cache each
            ("l2", self._near, 128, "chase_past_l1"),
            ("dram", _FAR, 128, "chase_past_l1"),
        ):
            places = random.choice(size // step, _CHAIN, replace=False).astype(np.uint32) * (step // 8)
            at = cuda.to_device(places)
            chain = self._module.get_function("chain").prepare("PiP")
            chain.prepared_call((1, 1), (256, 1, 1), int(at), _CHAIN, int(self._far))
            self._watch.flush()
            self._watch.stream.synchronize()
            first = int(self._far) + 8 * int(places[0])
            found[name] = self._cycles(entry, "QiiP", first, _CHAIN, int(name != "dram"))
        return found

    def _cycles(self, entry: str, format: str, *given: Any) -> float:
        function = self._module.get_function(entry).prepare(format)
        function.prepared_call((1, 1), (1, 1, 1), *given, int(self._sink))
        return round(float(cuda.from_device(int(self._sink), 1, np.int64)[0]) / _CHAIN, 1)

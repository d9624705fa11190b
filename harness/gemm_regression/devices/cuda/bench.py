"""Times a case, or two builds in turn: right before, and right in every batch. Measures what a GPU can do
at most (roofs.cu): arithmetic, bandwidths, latencies."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.checks import Checks
from gemm_regression.devices.cuda.library import CublasGemm, library_has, library_launches
from gemm_regression.devices.cuda.modules import Kernels, Loaded
from gemm_regression.devices.cuda.timed_data import TimedData, TimedDataArena
from gemm_regression.devices.cuda.timing import Enqueue, Stopwatch, Turn
from gemm_regression.devices.reply import Lost, Reply
from gemm_regression.devices.work import StoredBinary
from gemm_regression.timing.bounds import THREADS, arithmetic, probe_work
from gemm_regression.timing.plan import Measurement, PairPlan, Plan, time_pair
from gemm_regression.timing.samples import PairedSamples

_FEW_CHECKS = 2  # batches with a check, where a launch is repeated for it, and of what was judged before


class PairSide(Turn):
    """The launches of one kernel, side ``letter`` of a pair, on inputs that no launch before has seen: each
    draws a number, which gives them. Of each batch one result is checked, which one is left to chance.

    ``spinning`` makes of the launch what is timed. ``reference`` computes the same beside it; without one the
    launch is repeated, of the first batches. ``seconds``: what its checks took.
    """

    def __init__(
        self,
        letter: str,
        binary: StoredBinary,
        data: TimedData,
        checks: Checks,
        kernel: Loaded | CublasGemm,
        plain: Enqueue,
        reference: Enqueue | None,
        spinning: Callable[[Enqueue], Enqueue],
    ) -> None:
        self.letter, self.binary, self.work, self.kernel = letter, binary, binary.work, kernel
        self._data, self._checks, self._spinning = data, checks, spinning
        self.plain, self.reference = plain, reference
        super().__init__(spinning(self.plain))
        self.seconds = 0.0
        self._kept = data.kept[letter == "B"]
        self._left = math.inf if reference else _FEW_CHECKS
        self._to_go = self._chosen = self._number = 0

    def begin(self, launches: int) -> None:
        self._to_go = random.randrange(launches)
        self._data.rows(self.work)  # no allocation and no copy while the gate holds the queue

    def check_few(self) -> None:
        """Checks a result of the first batches alone."""
        self._left = min(self._left, _FEW_CHECKS)

    def before(self, stream: Any) -> None:
        self._number = self._data.new_number()
        self._data.fill(stream, self.work, self._number)

    def after(self, stream: Any) -> None:
        if self._to_go == 0:
            self._chosen, data = self._number, self._data
            for name, kept in self._kept.items():
                cuda.memcpy_dtod_async(kept, data.at[name], data.output_bytes[name], stream)
        self._to_go -= 1

    def end(self) -> None:
        """Raises DeviceError WRONG."""
        if not self._left:
            return
        self._left -= 1
        began, stream, data = time.monotonic(), cuda.Stream(), self._data
        with blamed_on(self.letter):
            data.fill(stream, self.work, self._chosen, beside=self.reference is not None)
            (self.reference or self.plain)(stream)
            stream.synchronize()
            for name, kept in self._kept.items():
                want = data.reference if self.reference else data.at[name]
                self._checks.timed(self.binary.name, self.work, name, kept, want)
        self.seconds += time.monotonic() - began

    def alone(self) -> None:
        """One launch, checked. Raises DeviceError WRONG."""
        stream = cuda.Stream()
        self.begin(1)
        self.before(stream)
        self.plain(stream)
        self.after(stream)
        stream.synchronize()
        self.end()
        self._checks.guard(self.binary.name, self._data)

    def copies(self, count: int) -> None:
        """Each is loaded, and launched once, since its code may be copied to the device only then: behind the
        gate that would wait for ever. A library has none."""
        if not isinstance(self.kernel, Loaded):
            return
        stream = cuda.Stream()
        with blamed_on(self.letter):
            made = [self.kernel.another().bind(self.work, self._data.at) for _ in range(count)]
            for plain in made:
                self.before(stream)
                plain(stream)
            stream.synchronize()
        turns = itertools.cycle([self._spinning(plain) for plain in made])
        self.enqueue = lambda stream: next(turns)(stream)


class Bench:
    """One per worker; ``probe`` is the module of probe.cu."""

    def __init__(self, watch: Stopwatch, arena: TimedDataArena, kernels: Kernels, probe: Any) -> None:
        self._watch, self._arena, self._kernels = watch, arena, kernels
        self._checks = Checks(probe)
        self._spent = cuda.mem_alloc(32)
        self._checked: set[StoredBinary] = set()

    def once(self, binary: StoredBinary) -> None:
        """One launch on the data of a timed case, for a profiler."""
        stream, data = cuda.Stream(), self._arena.get(binary.work)
        data.fill(stream, binary.work)
        self._kernels.get(binary).bind(binary.work, data.at)(stream)
        stream.synchronize()

    def time(self, binary: StoredBinary, plan: Plan) -> Measurement:
        """Raises DeviceError, with code WRONG for a wrong result."""
        watch, data = self._watch, self._arena.get(binary.work)
        arm = self._arm("", binary, data, plan.spin)
        self._check_once(arm, data)
        own = isinstance(arm.kernel, Loaded)
        beside = Turn(arm.reference) if plan.reference and own and arm.reference else None
        if beside:  # CUDA loads a library's kernel at its first launch, which would wait for the queue's gate
            beside.enqueue(watch.stream)
            watch.stream.synchronize()
        began = time.monotonic()
        found = watch.measure(arm, beside, plan, library_launches(binary.work.problem))
        kept_busy = time.monotonic() - began - arm.seconds
        sustained = watch.sustain(arm.enqueue, plan.sustained) if plan.sustained else {}
        self._checks.guard(binary.name, data)
        self._check_again(arm, data)
        return replace(
            found,
            reference_seconds=found.seconds
            if isinstance(arm.kernel, CublasGemm)
            else found.reference_seconds,
            resources=arm.kernel.resources,
            extra={**found.extra, "gpu_seconds": round(kept_busy, 4), **sustained},
        )

    def pair(self, base: StoredBinary, new: StoredBinary, plan: PairPlan, judged: bool) -> PairedSamples:
        """Two builds in turn in the same buffers; ``judged``: the base was found right when it was stored.
        What is wrong with A alone has a code that begins with BASE_."""
        data = self._arena.get(base.work, new.work)
        cuda.memset_d8(self._spent, 0, 32)
        arms = dict[str, PairSide]()
        for letter, binary, spin in zip("AB", (base, new), plan.spin or (None, None), strict=True):
            with blamed_on(letter):
                arms[letter] = self._arm(letter, binary, data, spin)
                self._check_once(arms[letter], data, judged and letter == "A")
        if judged:
            arms["A"].check_few()
        samples = time_pair(self._watch, arms, plan)
        self._guard(data, arms)
        for letter, arm in arms.items():
            with blamed_on(letter):
                self._check_again(arm, data)
        if plan.spin is None:
            return samples
        cycles = cuda.from_device(int(self._spent), (2, 2), np.uint64).astype(float)
        return replace(samples, spun=(float(cycles[0, 0] / cycles[0, 1]), float(cycles[1, 0] / cycles[1, 1])))

    def _arm(self, letter: str, binary: StoredBinary, data: TimedData, spin: int | None) -> PairSide:
        """With the library's launch on the same inputs beside it, if that has the operation; and with the
        slowdown that a study puts behind each launch."""
        kernel, work = self._kernels.get(binary, letter), binary.work
        spinning = partial(self._watch.spinning, cycles=spin, spent=int(self._spent) + 16 * (letter == "B"))
        plain = kernel.bind(work, data.at)
        reference = self._kernels.library(work.dtype).bind(work, data.beside()) if library_has(work) else None
        return PairSide(letter, binary, data, self._checks, kernel, plain, reference, spinning)

    def _check_once(self, arm: PairSide, data: TimedData, judged: bool = False) -> None:
        """A base that was judged right when it was stored is held against the library; a new binary is never
        taken for one."""
        if arm.binary in self._checked:
            return
        if judged:
            arm.alone()
        else:
            beside = arm.reference if isinstance(arm.kernel, Loaded) else None
            self._checks.exact(arm.binary.name, arm.work, arm.plain, beside, data)
        self._checked.add(arm.binary)

    def _check_again(self, arm: PairSide, data: TimedData) -> None:
        """On integers that it has not seen, where no library could tell that it repeats itself."""
        if arm.reference is None and arm.work.product:
            self._checks.exact(arm.binary.name, arm.work, arm.plain, None, data, data.new_number())

    def _guard(self, data: TimedData, arms: dict[str, PairSide]) -> None:
        """A byte beside the result was written: by A, if a launch of A alone does it, else by B."""
        try:
            self._checks.guard(arms["B"].binary.name, data)
        except DeviceError:
            data.set_guard()
            with blamed_on("A"):
                arms["A"].alone()
            raise


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
        amount, sms, far, sink = probe_work(_ROUNDS), self._sms, int(self._far), int(self._sink)
        roofs = {"f32": self._rate("fma_f32", 8 * sms, amount["f32"], "ifP", _ROUNDS, 0.5, sink)}
        for name in ("f16", "bf16", "tf32") if self.capability >= (8, 0) else ():
            roofs[name] = self._rate(f"tensor_{name}", 2 * sms, amount[name], "iP", _ROUNDS, sink)
        roofs["shared"] = self._rate("shared_bytes", 8 * sms, amount["shared"], "iP", _ROUNDS, sink)
        for name, size, each in (("l2", self._near, self._near), ("dram", _FAR, _FAR // (4 * sms))):
            given = far, size // 16, int(name == "l2"), sink
            roofs[name] = self._rate("global_bytes", 4 * sms, each, "PqiP", *given)
        for name, roof in roofs.items():
            could = arithmetic(self.capability, self._sms, self._bus, 1e6 * roof.get("mhz", 0))
            if could.get(name):
                roof["arithmetic"] = round(could[name] / 1e9, 1)
        return {**roofs, "cycles": self._latencies()}

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

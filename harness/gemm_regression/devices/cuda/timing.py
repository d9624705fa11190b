"""Device time of a kernel, without launch overhead.

A round is: new inputs, write a buffer of twice the L2 (so that the kernel starts cold), event, kernel,
event; then, without new inputs, the same for cuBLAS. A batch of rounds is queued behind a kernel that waits
for the host (`gate`), and released at once, so the GPU never waits for a launch. What an event pair reads
beyond the kernel's own time is measured once a process with empty kernels, and taken off. NVML is read while
the batch runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.backend import cuda
from gemm_regression.devices.cuda.environment import NvmlGpu
from gemm_regression.timing.plan import (
    LAUNCHES,
    Measurement,
    Pace,
    Plan,
    burst,
    device_seconds,
    enough,
    queued,
)
from gemm_regression.timing.samples import Launched, Telemetry, clocks, steady

Enqueue = Callable[[Any], None]

_GATE_TIMEOUT_NS = 5_000_000_000
_LEAST = 6  # rounds of a batch, however often the clock was throttled
_SETTLE_SECONDS = 3.0
_SHOWN = 60  # temperatures in a run's JSON


class Turn:
    """A launch that takes its turn in batches; what is done around it is not timed."""

    def __init__(self, enqueue: Enqueue) -> None:
        self.enqueue = enqueue

    def begin(self, launches: int) -> None:
        """Before a batch of so many of them is queued."""

    def before(self, stream: Any) -> None:
        """Queued ahead of each, and of the flush."""

    def after(self, stream: Any) -> None:
        """Queued behind each."""

    def end(self) -> None:
        """After the batch has run. Raises DeviceError."""


class Stopwatch:
    """Times launches on one context. One per worker."""

    def __init__(self, gpu: NvmlGpu, probe: Any) -> None:
        self._gpu = gpu
        device = cuda.Context.get_device()
        self.l2_bytes = int(device.get_attribute(cuda.device_attribute.L2_CACHE_SIZE))
        self._sms = int(device.get_attribute(cuda.device_attribute.MULTIPROCESSOR_COUNT))
        self._flush_words = 2 * self.l2_bytes // 4
        self._flush = cuda.mem_alloc(4 * self._flush_words)
        self.stream = cuda.Stream()
        self._flag = cuda.pagelocked_zeros(1, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
        self._flag_at = int(self._flag.base.get_device_pointer())
        self._token = 0
        self._late = cuda.mem_alloc(4)
        self._stamps = cuda.mem_alloc(24 * (LAUNCHES + 1))
        self._gate = probe.get_function("gate").prepare("PIQP")
        self._stamp = probe.get_function("stamp").prepare("P")
        self._empty = probe.get_function("empty").prepare("")
        self._spin = probe.get_function("spin").prepare("qP")
        self._busy = probe.get_function("busy").prepare("QP")
        self._events = [cuda.Event() for _ in range(2 * LAUNCHES)]
        self.overhead = 0.0

    def flush(self) -> None:
        """Queues a write over twice the L2: nothing of the kernel's data stays in it."""
        cuda.memset_d32_async(int(self._flush), 0, self._flush_words, self.stream)

    def settle(self) -> None:
        """Keeps every SM busy until the SM clock has stopped rising."""
        best, since = 0.0, time.monotonic()
        start = since
        while time.monotonic() - since < 0.15 and time.monotonic() - start < _SETTLE_SECONDS:
            self._busy.prepared_async_call(
                (2 * self._sms, 1), (256, 1, 1), self.stream, 20_000_000, int(self._flush)
            )
            time.sleep(0.01)
            clock = self._gpu.look().sm_clock_mhz
            if clock > best:
                best, since = clock, time.monotonic()
            self.stream.synchronize()

    def sequence(self, work: Sequence[Turn], l2: str) -> Launched:
        """Launches in this order, at most LAUNCHES, in one batch. Raises DeviceError if the gate timed out
        before the host released it, or if the result of a launch is wrong."""
        turns = list(dict.fromkeys(work))
        for turn in turns:
            turn.begin(work.count(turn))
        _reset_l2()
        self._token += 1
        self._gate.prepared_async_call(
            (1, 1), (1, 1, 1), self.stream, self._flag_at, self._token, _GATE_TIMEOUT_NS, int(self._late)
        )
        events = iter(self._events)
        pairs: list[tuple[Any, Any]] = []
        for turn in work:
            self._stamp_at(len(pairs))
            turn.before(self.stream)
            if l2 == "cold":
                self.flush()
            start, end = next(events), next(events)
            start.record(self.stream)
            turn.enqueue(self.stream)
            end.record(self.stream)
            turn.after(self.stream)
            pairs.append((start, end))
        self._stamp_at(len(pairs))
        self._flag[0] = self._token
        looks = [self._gpu.look()]
        while not pairs[-1][1].query():
            time.sleep(0.001)
            looks.append(self._gpu.look())
        self.stream.synchronize()
        ended = time.monotonic()
        if cuda.from_device(int(self._late), 1, np.uint32)[0]:
            raise DeviceError(
                "LAUNCH_FAILED", "the host took more than 5 s to queue a batch of launches; is it overloaded?"
            )
        seconds = [max(start.time_till(end) / 1e3 - self.overhead, 1e-9) for start, end in pairs]
        stamps = cuda.from_device(int(self._stamps), (len(pairs) + 1, 3), np.uint64)
        span = (int(stamps[-1, 1]) - int(stamps[0, 1])) / 1e9
        for turn in turns:
            turn.end()
        # The first look may come before the batch has started; where there are more, it says nothing.
        return Launched(seconds, clocks(stamps), looks[1:-1] or looks, span, ended)

    def spinning(self, kernel: Enqueue, cycles: int | None, spent: int) -> Enqueue:
        """The kernel and, behind it, a slowdown of known size: one thread that counts SM cycles; without
        ``cycles`` the kernel alone.

        ``spent`` (the address of two 64-bit words) adds up the cycles and the launches.
        """

        def enqueue(stream: Any) -> None:
            kernel(stream)
            self._spin.prepared_async_call((1, 1), (1, 1, 1), stream, cycles, spent)

        return kernel if cycles is None else enqueue

    def _stamp_at(self, number: int) -> None:
        self._stamp.prepared_async_call((1, 1), (1, 1, 1), self.stream, int(self._stamps) + 24 * number)

    def calibrate(self) -> None:
        """Seconds that a pair of events adds to one launch, in the GPU's current state.

        Empty kernels launched back to back run at intervals of their own duration (within 0.1 µs of Nsight
        Compute's value), so a pair of events around one of them measures that plus the pair's own cost.
        """

        def empties(count: int) -> Turn:
            def enqueue(stream: Any) -> None:
                for _ in range(count):
                    self._empty.prepared_async_call((8, 8), (256, 1, 1), stream)

            return Turn(enqueue)

        def median(count: int) -> float:
            turn = empties(count)
            batches = [self.sequence([turn] * queued(), "cold").seconds for _ in range(6)]
            return float(np.median(batches))

        one, five = median(1), median(5)
        self.overhead = one - (five - one) / 4

    def ready(self) -> None:
        """Brings the clock up and measures the cost of an event pair, once per process."""
        if not self.overhead:
            self.settle()
            self.calibrate()

    def measure(self, kernel: Turn, reference: Turn | None, plan: Plan, parts: int = 1) -> Measurement:
        """Rounds at full clock, of the kernel and in turn with it of the reference, as many as planned; the
        measurement is throttled if too few are left because the clock stayed low in all retries. ``parts``:
        launches that a call of the reference makes, all of which have to find room in the queue."""
        self.ready()
        turns = [kernel, reference] if reference else [kernel]
        n = len(turns)
        two = self.sequence(turns * 2, plan.l2)
        one = max(float(np.median(two.seconds[::n])), 1e-7)
        seconds = device_seconds(plan.target_seconds, plan.duty)
        wanted = int(np.clip(seconds / one, plan.min_rounds, plan.max_rounds))
        size = burst(queued(parts), two.span / 2, plan.duty)
        pace = Pace(size, _LEAST, plan.retries + 1, plan.duty)
        seen, throttled = Launched([], [], [], 0.0), False
        kept: list[int] = []  # rounds that neither the power cap nor heat slowed down
        while pace.retries and len(kept) < enough(wanted, plan.min_rounds, throttled):
            rounds = min(pace.size, wanted - len(kept))
            before = len(seen.seconds) // n - len(kept)
            now = self.sequence(turns * rounds, plan.l2)
            seen.seconds += now.seconds
            seen.mhz += now.mhz
            seen.looks += now.looks
            kept = steady(seen.mhz[::n])
            throttled |= pace.after(now, rounds, len(seen.seconds) // n - len(kept) - before)
        beside = steady(seen.mhz[1::2]) if reference else []  # by its own clock
        mhz = [seen.mhz[::n][i] for i in kept]
        every = -(-len(seen.looks) // _SHOWN) or 1
        return Measurement(
            seconds=tuple(seen.seconds[::n][i] for i in kept),
            reference_seconds=tuple(seen.seconds[1::2][i] for i in beside),
            resources=None,
            sm_clock_mhz=_median_clock(mhz, seen.looks),
            power_w=max((look.power_w for look in seen.looks), default=0.0),
            temperature_c=max((look.temperature_c for look in seen.looks), default=0.0),
            clock_event_reasons=seen.reasons,
            discarded=len(seen.seconds) // n - len(kept),
            throttled=len(kept) < plan.least_rounds,
            l2=plan.l2,
            mhz=tuple(mhz),
            duty=plan.duty,
            extra={
                "overhead_us": round(self.overhead * 1e6, 3),
                "temperatures_c": [look.temperature_c for look in seen.looks[::every]],
            },
        )

    def sustain(self, kernel: Enqueue, seconds: float) -> dict[str, float | None]:
        """Sustained throughput: after launching the kernel back to back with a warm L2 for so many seconds,
        the seconds per launch (including gaps), the SM clock and the power over the last quarter."""
        one = max(float(np.median(self.sequence([Turn(kernel)] * 4, "warm").seconds)), 1e-6)
        launches = int(np.clip(0.01 / one, 1, LAUNCHES))
        stretches = max(8, int(seconds / (launches * one)))
        last = 3 * stretches // 4
        ends, watts = self._events[1:4], []
        for number in range(stretches):
            if number == last:
                self._stamp_at(0)
                self._events[0].record(self.stream)
            for _ in range(launches):
                kernel(self.stream)
            if number >= len(ends):  # two stretches wait in the queue, so that the GPU never does
                ends[number % len(ends)].synchronize()
            if number > last:
                watts.append(self._gpu.look().power_w)
            ends[number % len(ends)].record(self.stream)
        self._stamp_at(1)
        self.stream.synchronize()
        end = ends[(stretches - 1) % len(ends)]
        took = self._events[0].time_till(end) / 1e3 / (launches * (stretches - last))
        (mhz,) = clocks(cuda.from_device(int(self._stamps), (2, 3), np.uint64))
        seen = {"sustained_mhz": mhz, "sustained_w": max(watts)}
        return {"sustained_s": took, **{name: round(v, 1) if v == v else None for name, v in seen.items()}}


def _median_clock(mhz: Sequence[float], looks: Sequence[Telemetry]) -> float:
    """Median clock of the rounds in MHz, from their stamps, otherwise from NVML; 0 without rounds."""
    known = [f for f in mhz if f == f] or [look.sm_clock_mhz for look in looks] or [0.0]
    return round(float(np.median(known)), 1)


def _reset_l2() -> None:
    """Undoes what launches have asked L2 to keep; a GPU that keeps nothing refuses, which is as well."""
    from cuda.bindings import driver

    driver.cuCtxResetPersistingL2Cache()

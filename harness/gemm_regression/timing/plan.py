"""How to time a case, or two builds alternately: plans, bursts and rests, and what comes of it.

Everything is timed in batches of launches, until there are enough at full clock. If power or heat lower the
clock, batches become shorter, with rests between them so that it recovers. Kernels that would reach the power
cap rest in any case: on an H200 the cap takes effect some 40 ms after a large tensor-core product starts, and
a burst is half of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gemm_regression.model import Resources
from gemm_regression.timing.samples import VISITS, PairedSamples, Stretch, at_full_clock, into_blocks, steady


@dataclass(frozen=True)
class Measurement:
    """A case timed in one process.

    Attributes:
        seconds: device seconds of each round.
        reference_seconds: those of the library for the same problem, interleaved; may be empty.
        resources: of the binary; None for a library.
        sm_clock_mhz: median of ``mhz``; 0 if unknown.
        power_w, temperature_c: the maxima reported by NVML, in W and °C.
        clock_event_reasons: NVML's bits, or-ed over the rounds.
        discarded: number of rounds discarded because of a throttled clock.
        throttled: whether retries did not give enough valid rounds.
        l2: ``cold`` or ``warm``, as in Plan.
        duty: the duty cycle: the maximum fraction of time the GPU was kept busy.
        mhz: the SM clock during each round, if known.
        extra: further values for the run's JSON, by name.
    """

    seconds: tuple[float, ...]
    reference_seconds: tuple[float, ...]
    resources: Resources | None
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    clock_event_reasons: int
    discarded: int
    throttled: bool
    l2: str = "cold"
    duty: float = 1.0
    mhz: tuple[float, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median seconds. Raises ValueError without samples."""
        if not self.seconds:
            raise ValueError("no samples")
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median, dimensionless."""
        q1, q3 = np.percentile(self.seconds, (25, 75))
        return float((q3 - q1) / self.median)

    @property
    def cublas_ratio(self) -> float | None:
        """Speed relative to cuBLAS's in the same run; 1.0 is equally fast."""
        if not self.reference_seconds:
            return None
        return float(np.median(self.reference_seconds)) / self.median


LAUNCHES = 96  # queued at once: at most six entries each, and the launch queue holds about a thousand
_ENTRIES = 6
# How cases are timed; another number where the same binary may take another time. 2: inputs of its own for
# each launch, and no rest that the flushes between short ones give.
TIMING = 2


@dataclass(frozen=True)
class Plan:
    """How to time a case.

    ``target_seconds``: device time for the kernel's own rounds, in bursts half of it (`duty.device_seconds`),
    within [``min_rounds``, ``max_rounds``];
    ``l2``: ``cold`` (a buffer of twice the L2 size is written before every round) or ``warm``; ``reference``:
    time cuBLAS alternately with the kernel; ``retries``: the number of batches that may lose rounds to a
    throttled clock, after which ``least_rounds`` valid rounds are sufficient; ``spin``: launch a kernel that
    counts so many SM cycles after every launch, a slowdown of known size; ``duty``: the duty cycle
    (`duty.py`); ``sustained``: seconds of back-to-back launches afterwards, reported separately; 0: none."""

    target_seconds: float = 0.08
    min_rounds: int = 7
    max_rounds: int = 300
    l2: str = "cold"
    reference: bool = True
    least_rounds: int = 5
    retries: int = 6
    spin: int | None = None
    duty: float = 1.0
    sustained: float = 0.0


@dataclass(frozen=True)
class PairPlan:
    """How to time two builds alternately.

    ``orders``: of the blocks, each ``ABBA`` or ``BAAB``; ``block_seconds``: duration of a block, including L2
    flushes, which determines the rounds per letter, at least one and at most ``max_rounds``; ``l2``: as in
    Plan; ``retries``: the number of batches that may be repeated because of a throttled clock; ``spin``: SM
    cycles after every launch of A and of B; ``duty``: as in Plan.
    """

    orders: tuple[str, ...]
    block_seconds: float = 0.008
    max_rounds: int = 24
    l2: str = "cold"
    retries: int = 6
    spin: tuple[int, int] | None = None
    duty: float = 1.0


def queued(parts: int = 1) -> int:
    """How many rounds of a kernel and of a reference that makes ``parts`` launches are queued at once; a full
    queue would block the host, and the GPU waits for the host."""
    return max(1, LAUNCHES * _ENTRIES // (2 * _ENTRIES + parts - 1))


BURST_SECONDS = 0.02

_SHARE = 0.5


def device_seconds(target: float, duty: float) -> float:
    """Device time to measure for a kernel: ``target``, in bursts half of it, where each second takes several.

    On an H200 all of these rounds give a median within 0.04 %, while the medians of five processes lie 0.25 %
    apart: more rounds do not help.
    """
    return target if duty >= 1 else _SHARE * target


def burst(wanted: int, one: float, duty: float) -> int:
    """How many of ``wanted`` launches, of ``one`` seconds each, fit into a burst; at least one."""
    return wanted if duty >= 1 else max(1, min(wanted, int(BURST_SECONDS / max(one, 1e-9))))


def rest(busy: float, span: float, duty: float) -> float:
    """Seconds to rest after a ``span`` in which kernels were ``busy`` so long, so that they are for a
    fraction ``duty`` of the time. What lies between short launches is rest, too."""
    return max(0.0, busy / duty - span) if duty < 1 else 0.0


REST_SECONDS = 0.15


@dataclass(frozen=True)
class Batch:
    """A batch that has run.

    Attributes:
        launches: number of launches.
        lost: number of launches discarded after it ran, because they were below full clock.
        span: device seconds from the first to the last.
        busy: device seconds of the launches themselves.
    """

    launches: int
    lost: int
    span: float
    busy: float

    @property
    def throttled(self) -> bool:
        return self.lost > self.launches // 4


def enough(wanted: int, least: int, throttled: bool) -> int:
    """How many launches at full clock end the batches: nine tenths of those ``wanted``, since batches of what
    one or two lost take longer than they are worth; once a batch was ``throttled`` half of them; at least
    ``least``. On an H200 the clock under a tensor-core kernel wanders by 2 to 3 % however long it rested, so
    the other half would take seconds of rests.
    """
    return min(wanted, max(least, wanted // 2 if throttled else wanted - wanted // 10))


# From the size of the batch, and whether a throttled one may be repeated, to the batch run; None at the end.
Run = Callable[[int, bool], Batch | None]


def batches(run: Run, size: int, least: int, retries: int, duty: float) -> None:
    """Calls ``run(size, again)`` until it returns None.

    ``run`` runs a batch of at most ``size`` launches; ``size`` shrinks after each throttled batch, down to
    ``least``; ``again`` is False after ``retries`` throttled batches. Between batches the GPU rests according
    to the duty cycle.
    """
    used = 0
    while now := run(size, used < retries):
        time.sleep(rest(now.busy, now.span, duty))
        if now.throttled and used < retries:
            used += 1
            size = min(size, max(least, size // 3))
            time.sleep(REST_SECONDS)


class Ran(Protocol):
    """Seconds and SM clock in MHz of each launch, NVML's looks, device seconds from first to last."""

    seconds: list[float]
    mhz: list[float]
    looks: list[Any]
    span: float


class Arm(Protocol):
    """A side's launches."""

    def copies(self, count: int) -> None:
        """From now on each launch runs another one of so many copies of the code."""


class Watch(Protocol):
    """What times launches in an order; ``timing.Stopwatch`` is one."""

    def ready(self) -> None: ...

    def sequence(self, work: Any, l2: str) -> Ran: ...


def time_pair(watch: Watch, arms: Mapping[str, Arm], plan: PairPlan) -> PairedSamples:
    """The blocks of the plan; blocks with a throttled clock are repeated.

    Where a block has more than one round, no two of its launches run the same copy of a binary. So each finds
    the instruction caches cold, as it finds L2. From warm ones copies of `stream_k` differ by 13 % at 512³ on
    an H200, by where they lie, and from cold ones by 1 %; a block has the mean of that. Returns fewer blocks
    if retries did not help.
    """
    watch.ready()
    began = time.monotonic()
    rounds, block = _rounds(watch, arms, plan)
    warm: tuple[float, ...] = ()
    if rounds > 1:
        launches_of_side = VISITS // 2 * rounds
        alone = watch.sequence([arms["B"]] * launches_of_side, plan.l2)
        warm = tuple(alone.seconds[i] for i in steady(alone.mhz))
        for arm in arms.values():
            arm.copies(launches_of_side)
    size = burst(max(1, LAUNCHES // (VISITS * rounds)), block, plan.duty)
    todo, reasons, repeated = list(plan.orders), 0, 0
    orders: list[str] = []
    seconds: list[float] = []
    mhz: list[float] = []

    def run(size: int, again: bool) -> Batch | None:
        nonlocal reasons, repeated
        now = todo[:size]
        if not now:
            return None
        del todo[:size]
        launches = Stretch(tuple(now)).launches(rounds)
        ran = watch.sequence([arms[arm] for arm in launches], plan.l2)
        for look in ran.looks:
            reasons |= look.reasons
        kept = at_full_clock(Stretch((*orders, *now)).launches(rounds), [*mhz, *ran.mhz])
        lost = sum(i not in kept for i in range(len(mhz), len(mhz) + len(launches)))
        batch = Batch(len(launches), lost, ran.span, sum(ran.seconds))
        if batch.throttled and again:
            repeated += len(launches)
            todo.extend(now)
        else:
            orders.extend(now)
            seconds.extend(ran.seconds)
            mhz.extend(ran.mhz)
        return batch

    batches(run, size, 1, plan.retries, plan.duty)
    blocks, lost = into_blocks(orders, rounds, seconds, mhz)
    return PairedSamples(blocks, lost + repeated, time.monotonic() - began, reasons, warm=warm)


def _rounds(watch: Watch, arms: Mapping[str, Arm], plan: PairPlan) -> tuple[int, float]:
    """Rounds a visit, by how long a block of one lasts on the device, flushes and all; and device seconds of
    a block of that many."""
    one = watch.sequence([arms[arm] for arm in "ABBA"], plan.l2).span
    rounds = max(1, min(plan.max_rounds, int(plan.block_seconds / max(one, 1e-9))))
    return rounds, rounds * one

"""How to time a case, or two builds alternately: plans, bursts and pauses, and the results.

Everything is timed in batches of launches, until there are enough at full clock. If power or heat lower the
clock, batches become shorter, with rests between them so that it recovers. A clock that only wanders is not
waited for: after a rest it is higher than ever, and what ran before would be lost. Kernels that would reach
the power cap rest in any case: on an H200 the cap takes effect some 40 ms after a large tensor-core product
starts, and a burst is half of that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from gemm_regression.model import Resources
from gemm_regression.timing.samples import (
    VISITS,
    Launched,
    PairedSamples,
    Schedule,
    at_full_clock,
    into_blocks,
    steady,
)


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

    ``target_seconds``: device time for the kernel's own rounds, in bursts half of it (`device_seconds`),
    within [``min_rounds``, ``max_rounds``];
    ``l2``: ``cold`` (a buffer of twice the L2 size is written before every round) or ``warm``; ``reference``:
    time cuBLAS alternately with the kernel; ``retries``: the number of batches that may lose rounds to a
    throttled clock, after which ``least_rounds`` valid rounds are sufficient; ``spin``: launch a kernel that
    counts so many SM cycles after every launch, a slowdown of known size; ``duty``: the largest share of
    the time that the GPU is kept busy; ``sustained``: seconds of back-to-back launches afterwards, reported
    separately; 0: none."""

    target_seconds: float = 0.05
    min_rounds: int = 7
    max_rounds: int = 192
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

    More rounds do not help: of 380 cases on an H100, three fifths of the rounds gave half of the medians
    within 0.04 % and 95 % of them within 0.5 %, as far as the medians of processes lie apart.
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


@dataclass
class Pace:
    """How batches follow each other.

    Attributes:
        size: the most launches of the next batch; it shrinks after each one that power or heat capped.
        least: down to this.
        retries: how many batches may still be repeated.
        duty: the duty cycle, by which the GPU rests between batches.
    """

    size: int
    least: int
    retries: int
    duty: float

    def after(self, ran: Launched, launches: int, lost: int) -> bool:
        """Rests after a batch; whether it may be repeated, since of ``launches`` more than a quarter are
        ``lost``, below full clock."""
        since = max(0.0, time.monotonic() - ran.ended)  # for the checks of what it left
        time.sleep(max(0.0, rest(sum(ran.seconds), ran.span, self.duty) - since))
        if not self.retries or lost <= launches // 4:
            return False
        self.retries -= 1
        if ran.capped:
            self.size = min(self.size, max(self.least, self.size // 3))
            time.sleep(REST_SECONDS)
        return True


def enough(wanted: int, least: int, throttled: bool) -> int:
    """How many launches at full clock end the batches: nine tenths of those ``wanted``, since batches of what
    one or two lost take longer than they are worth; once a batch was ``throttled`` half of them; at least
    ``least``. On an H200 the clock under a tensor-core kernel wanders by 2 to 3 % however long it rested, so
    the other half would take seconds of rests.
    """
    return min(wanted, max(least, wanted // 2 if throttled else wanted - wanted // 10))


class SideLauncher(Protocol):
    """The launches of one side of a pair."""

    def copies(self, count: int) -> None:
        """From now on each launch runs another one of so many copies of the code."""


class Watch(Protocol):
    """What times launches in an order; ``timing.Stopwatch`` is one."""

    def ready(self) -> None: ...

    def sequence(self, work: Any, l2: str) -> Launched: ...


def time_pair(watch: Watch, arms: Mapping[str, SideLauncher], plan: PairPlan) -> PairedSamples:
    """The blocks of the plan; blocks with a throttled clock are repeated.

    Where a block has more than one round, no two of its launches run the same copy of a binary. So each finds
    the instruction caches cold, as it finds L2. From warm ones copies of one binary differ by 13 % at 512³ on
    an H200, by where they lie, and from cold ones by 1 %; a block has the mean of that. Returns fewer blocks
    if retries did not help.
    """
    watch.ready()
    began = time.monotonic()
    one = watch.sequence([arms[arm] for arm in "ABBA"], plan.l2).span  # device seconds, flushes and all
    rounds = max(1, min(plan.max_rounds, int(plan.block_seconds / max(one, 1e-9))))
    warm: tuple[float, ...] = ()
    if rounds > 1:
        launches_of_side = VISITS // 2 * rounds
        alone = watch.sequence([arms["B"]] * launches_of_side, plan.l2)
        warm = tuple(alone.seconds[i] for i in steady(alone.mhz))
        for arm in arms.values():
            arm.copies(launches_of_side)
    blocks_queued = max(1, LAUNCHES // (VISITS * rounds))
    pace = Pace(burst(blocks_queued, rounds * one, plan.duty), 1, plan.retries, plan.duty)
    todo, reasons, repeated = list(plan.orders), 0, 0
    orders: list[str] = []
    seconds: list[float] = []
    mhz: list[float] = []
    while todo:
        now, todo = todo[: pace.size], todo[pace.size :]
        launches = Schedule(tuple(now)).launches(rounds)
        ran = watch.sequence([arms[arm] for arm in launches], plan.l2)
        reasons |= ran.reasons
        kept = at_full_clock(Schedule((*orders, *now)).launches(rounds), [*mhz, *ran.mhz])
        lost = sum(i not in kept for i in range(len(mhz), len(mhz) + len(launches)))
        if pace.after(ran, len(launches), lost):
            repeated += len(launches)
            todo += now
        else:
            orders += now
            seconds += ran.seconds
            mhz += ran.mhz
    blocks, lost = into_blocks(orders, rounds, seconds, mhz)
    return PairedSamples(blocks, lost + repeated, time.monotonic() - began, reasons, warm=warm)

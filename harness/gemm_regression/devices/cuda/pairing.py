"""Two builds timed alternately, in the blocks of a schedule. Pure: works with anything that times a
sequence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from gemm_regression.timing.clocks import steady
from gemm_regression.timing.duty import burst
from gemm_regression.timing.plan import LAUNCHES, PairPlan
from gemm_regression.timing.samples import PairedSamples, at_full_clock, into_blocks
from gemm_regression.timing.schedule import VISITS, Stretch
from gemm_regression.timing.throttle import Batch, batches


class Run(Protocol):
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

    def sequence(self, work: Any, l2: str) -> Run: ...


def time_pair(watch: Watch, arms: Mapping[str, Arm], plan: PairPlan) -> PairedSamples:
    """The blocks of the plan; blocks with a throttled clock are repeated.

    Where a block has more than one round, no two of its launches run the same copy of a binary. So each finds
    the instruction caches cold, as it finds L2. From warm ones copies of one binary differ by 13 % at 512³
    on an H200, by where they lie, and from cold ones by 1 %; a block has the mean of that. Returns fewer
    blocks if retries did not help.
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

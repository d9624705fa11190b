"""Two builds timed in turn, in the blocks of a schedule. Pure: whatever can time a sequence will do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from harness.timing.duty import burst, rest
from harness.timing.plan import LAUNCHES, PairPlan
from harness.timing.samples import PairedSamples, at_full_clock, into_blocks
from harness.timing.schedule import VISITS, Stretch

_REST_SECONDS = 0.15


class Run(Protocol):
    """Seconds and SM clock in MHz of each launch, NVML's looks, device seconds from first to last."""

    seconds: list[float]
    mhz: list[float]
    looks: list[Any]
    span: float


class Watch(Protocol):
    """What times launches in an order; ``timing.Stopwatch`` is one."""

    def ready(self) -> None: ...

    def sequence(self, work: Any, l2: str) -> Run: ...


def time_pair(watch: Watch, arms: Mapping[str, Any], plan: PairPlan) -> PairedSamples:
    """The blocks of the plan, those repeated of which the clock was throttled.

    Fewer come back where retries did not help. Bursts get shorter and rests come between them where many
    launches are lost, as in ``Stopwatch.measure``.
    """
    watch.ready()
    began = time.monotonic()
    rounds, block = _rounds(watch, arms, plan)
    size = burst(max(1, LAUNCHES // (VISITS * rounds)), block, plan.duty)
    todo, retries, reasons, lost_before = list(plan.orders), 0, 0, 0
    orders: list[str] = []
    seconds: list[float] = []
    mhz: list[float] = []
    while todo:
        now, todo = todo[:size], todo[size:]
        launches = Stretch(tuple(now)).launches(rounds)
        run = watch.sequence([arms[arm] for arm in launches], plan.l2)
        time.sleep(rest(run.span, plan.duty))
        for look in run.looks:
            reasons |= look.reasons
        kept = at_full_clock(Stretch((*orders, *now)).launches(rounds), [*mhz, *run.mhz])
        lost = sum(i not in kept for i in range(len(mhz), len(mhz) + len(launches)))
        if lost > len(launches) // 4 and retries < plan.retries:
            # Power or heat: the blocks come again in shorter bursts, once the clock has come back.
            retries += 1
            lost_before += len(launches)
            size = max(1, size // 3)
            todo += now
            time.sleep(_REST_SECONDS)
            continue
        orders += now
        seconds += run.seconds
        mhz += run.mhz
    blocks, lost = into_blocks(orders, rounds, seconds, mhz)
    return PairedSamples(blocks, lost + lost_before, time.monotonic() - began, reasons)


def _rounds(watch: Watch, arms: Mapping[str, Any], plan: PairPlan) -> tuple[int, float]:
    """Rounds a visit, by how long a block of one lasts on the device, flushes and all; and device seconds of
    a block of that many."""
    one = watch.sequence([arms[arm] for arm in "ABBA"], plan.l2).span
    rounds = max(1, min(plan.max_rounds, int(plan.block_seconds / max(one, 1e-9))))
    return rounds, rounds * one

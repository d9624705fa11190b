"""Batches of launches, until there are enough at full clock: the one loop for everything that is timed.

If power or heat lower the clock, batches become shorter, with rests between them so that it recovers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gemm_regression.timing.duty import rest

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

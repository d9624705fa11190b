"""Batches of launches, until there are enough at full clock: the one loop for all that is timed.

Power or heat may lower the clock: then batches become shorter, and a rest between them lets it come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.timing.duty import rest

REST_SECONDS = 0.15


@dataclass(frozen=True)
class Batch:
    """A batch that was run.

    Attributes:
        launches: how many.
        lost: how many are to be thrown away since it ran, for a clock below the full one.
        span: device seconds from the first to the last.
    """

    launches: int
    lost: int
    span: float

    @property
    def throttled(self) -> bool:
        return self.lost > self.launches // 4


# Given the size of the batch and whether a throttled one may come again: what was run, or None at the end.
Run = Callable[[int, bool], Batch | None]


def batches(run: Run, size: int, least: int, retries: int, duty: float) -> None:
    """Calls ``run(size, again)`` until it gives None.

    It runs a batch of at most ``size``, which begins as given and shrinks with each throttled batch, down to
    ``least``; ``again`` is false once ``retries`` throttled ones were there. Between batches comes the rest
    that makes the duty cycle.
    """
    used = 0
    while now := run(size, used < retries):
        time.sleep(rest(now.span, duty))
        if now.throttled and used < retries:
            used += 1
            size = min(size, max(least, size // 3))
            time.sleep(REST_SECONDS)

"""How to time a case, and how to time two builds alternately."""

from __future__ import annotations

from dataclasses import dataclass

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

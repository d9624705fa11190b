"""How to time a case, and how to time two builds in turn."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCHES = 96  # queued at once: six entries each at most, and the launch queue holds about a thousand


@dataclass(frozen=True)
class Plan:
    """How to time a case.

    ``target_seconds`` of device time for the kernel's own rounds, within [min_rounds, max_rounds];
    ``l2`` ``cold`` (a buffer of twice the L2 is written before every round) or ``warm``;
    ``reference`` times cuBLAS in turn with the kernel; ``retries`` batches may lose rounds to a
    throttled clock before the case makes do with what it has, which has to be
    ``least_rounds`` or more. ``spin`` puts a kernel behind every launch that counts so many SM cycles:
    a slowdown of known size. ``duty`` is the share of the time that the GPU is kept busy (`duty.py`);
    ``sustained`` seconds of launches back to back, afterwards, give figures of their own; 0: none.
    """

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
    """How to time two builds in turn.

    ``orders`` of the blocks, each ``ABBA`` or ``BAAB``; of a visit as many rounds as make a block last
    ``block_seconds``, flushes included, at least one and at most ``max_rounds``; ``l2`` as in Plan;
    ``retries`` batches may be repeated for a throttled clock; ``spin`` SM cycles behind every launch of A
    and of B; ``duty`` as in Plan.
    """

    orders: tuple[str, ...]
    block_seconds: float = 0.008
    max_rounds: int = 24
    l2: str = "cold"
    retries: int = 6
    spin: tuple[int, int] | None = None
    duty: float = 1.0

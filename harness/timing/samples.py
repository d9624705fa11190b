"""What one stretch of blocks came to: plain data, and the log-ratio of each block."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.timing.clocks import steady
from harness.timing.schedule import VISITS, Stretch

_EVENT_RESOLUTION = 0.5e-6
_SAME = 1e-9  # an event pair's time is a float of milliseconds: closer is rounding


@dataclass(frozen=True)
class Block:
    """One block of launches.

    Attributes:
        a, b: device seconds of each launch of arm A, which is the base, and of arm B.
        a_mhz, b_mhz: the SM clock in MHz while each ran; empty where it was not seen.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    a_mhz: tuple[float, ...] = ()
    b_mhz: tuple[float, ...] = ()

    @property
    def log_ratio(self) -> float:
        """ln(median of B / median of A): above 0, B is slower."""
        return math.log(statistics.median(self.b) / statistics.median(self.a))

    @property
    def log_cycles(self) -> float:
        """The same in SM cycles. Not a number where a clock is unknown."""
        cycles = [
            statistics.median([s * f for s, f in zip(seconds, mhz, strict=True)]) if mhz else math.nan
            for seconds, mhz in ((self.a, self.a_mhz), (self.b, self.b_mhz))
        ]
        return math.log(cycles[1] / cycles[0])


@dataclass(frozen=True)
class PairedSamples:
    """What timing a pair gave.

    Attributes:
        blocks: the whole blocks.
        discarded: launches thrown away for a throttled clock.
        gpu_seconds: that the GPU was kept for it.
        reasons: NVML's clock-event bits, or-ed.
        spun: SM cycles a launch, of A and of B, that a planted slowdown took; None without one.
    """

    blocks: tuple[Block, ...]
    discarded: int = 0
    gpu_seconds: float = 0.0
    reasons: int = 0
    spun: tuple[float, float] | None = None

    def __add__(self, other: PairedSamples) -> PairedSamples:
        return PairedSamples(
            self.blocks + other.blocks,
            self.discarded + other.discarded,
            self.gpu_seconds + other.gpu_seconds,
            self.reasons | other.reasons,
            self.spun or other.spun,
        )

    @property
    def log_ratios(self) -> tuple[float, ...]:
        return tuple(block.log_ratio for block in self.blocks)

    @property
    def resolution(self) -> float:
        """Half of what the timer cannot tell apart, over the median: half the smallest gap between samples,
        or, where none differ, half of the 0.5 µs that CUDA promises of events (cudaEventElapsedTime). 0
        without a block."""
        if not self.blocks:
            return 0.0
        seen = sorted({s for block in self.blocks for s in (*block.a, *block.b)})
        gaps: list[float] = [high - low for low, high in pairwise(seen) if high - low > _SAME]
        return min(gaps, default=_EVENT_RESOLUTION) / 2 / self.median("a")

    def median(self, arm: str) -> float:
        """Median seconds of arm ``a`` or ``b`` over all blocks. Raises ValueError without a block."""
        seconds: list[float] = [s for block in self.blocks for s in getattr(block, arm)]
        return statistics.median(seconds)


def at_full_clock(launches: str, mhz: Sequence[float]) -> set[int]:
    """Indices of the launches that ran at the full clock of their arm (``clocks.steady``).

    Each arm has its own: under a power cap, a build that draws more runs at a lower one, and is slower.
    """
    kept = set()
    for arm in "AB":
        places = [i for i, a in enumerate(launches) if a == arm]
        kept |= {places[i] for i in steady([mhz[place] for place in places])}
    return kept


def into_blocks(
    orders: Sequence[str], rounds: int, seconds: Sequence[float], mhz: Sequence[float]
) -> tuple[tuple[Block, ...], int]:
    """Launches in the order of ``Stretch.launches`` to blocks; those off the full clock of their arm are
    thrown away and counted, and with them blocks of which either arm lost more than half."""
    launches = Stretch(tuple(orders)).launches(rounds)
    kept = at_full_clock(launches, mhz)
    blocks, size = [], VISITS * rounds
    for start in range(0, len(launches), size):
        arms: dict[str, list[int]] = {"A": [], "B": []}
        for i in range(start, start + size):
            if i in kept:
                arms[launches[i]].append(i)
        if min(map(len, arms.values())) >= rounds:
            blocks.append(
                Block(
                    *(tuple(seconds[i] for i in arms[arm]) for arm in "AB"),
                    *(tuple(mhz[i] for i in arms[arm]) for arm in "AB"),
                )
            )
    return tuple(blocks), len(seconds) - len(kept)


def total(stretches: Iterable[PairedSamples]) -> PairedSamples:
    """All blocks of some stretches of one case."""
    return sum(stretches, PairedSamples(()))

"""The samples of a pair: the order of its launches, the clock of each, and the log-ratio of each block. Pure.

The order is of randomised, interleaved blocks ABBA or BAAB. Within a block each order cancels a drift that is
linear in time, and both orders together cancel the effect of going first. It is random, so that nothing
periodic in the machine can be in phase with it. Sides change at every launch or two: launches near each other
are alike (on an H200 those of 8 µs correlate by 0.2 over some 16 launches), and what they share cancels.

The SM clock of each launch is from stamps that a tiny kernel records between them. NVML does not show it: on
an H200 a large FP16 product runs at 1575 MHz from its first launch, and at 1320 once the power cap takes
effect, some 40 ms later, while NVML still reads 1980. A stamp is (SM cycles, nanoseconds, SM number); two
stamps of the same SM give its clock between them.
"""

from __future__ import annotations

import functools
import math
import operator
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

_CAPPED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80  # NVML's bits: power cap, slowdown by hardware, heat, power brake
_FELL = 0.95  # tensor cores' clock wanders by 2 to 3 %, and falls to 0.84 at the power cap
VISITS = 4  # per block: the letters of ABBA
_ORDERS = ("ABBA", "BAAB")


@dataclass(frozen=True)
class Schedule:
    """Consecutive blocks of a schedule, timed together: their ``orders``, each ``ABBA`` or ``BAAB``."""

    orders: tuple[str, ...]

    def launches(self, rounds: int) -> str:
        """The side of every launch, each block's order so many ``rounds`` over: ``ABBAABBA`` for one block
        ABBA with two rounds."""
        return "".join(order * rounds for order in self.orders)


def schedule(seed: int, case_id: str, first: int, blocks: int) -> Schedule:
    """Blocks ``first`` to ``first + blocks`` of a case; they depend only on the seed, the case and their
    number.

    Each pair of blocks, starting at an even number, contains both orders (restricted randomisation).
    """
    return Schedule(tuple(_order(seed, case_id, block) for block in range(first, first + blocks)))


def _order(seed: int, case_id: str, block: int) -> str:
    pair = random.Random(f"{seed}/{case_id}/{block // 2}").sample(_ORDERS, 2)
    return pair[block % 2]


@dataclass(frozen=True)
class Telemetry:
    """What NVML says of the GPU at one moment: ``sm_clock_mhz``, ``power_w``, ``temperature_c``, and
    ``reasons``, its clock-event bits."""

    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    reasons: int


@dataclass
class Launched:
    """``seconds`` and SM clock in ``mhz`` of each launch of a batch; ``looks``: what NVML said meanwhile;
    ``span``: the device seconds from its first stamp to its last; ``ended``: when, by `time.monotonic`."""

    seconds: list[float]
    mhz: list[float]
    looks: list[Telemetry]
    span: float
    ended: float = math.inf

    @property
    def reasons(self) -> int:
        """NVML's clock-event bits, or-ed."""
        return functools.reduce(operator.or_, (look.reasons for look in self.looks), 0)

    @property
    def capped(self) -> bool:
        """Whether power or heat held the clock down: NVML says so, which may be late, or it fell within the
        batch by more than it wanders."""
        if self.reasons & _CAPPED:
            return True
        known = [mhz for mhz in self.mhz if mhz == mhz]
        first, last = known[: len(known) // 4], known[-(len(known) // 4) :]
        return bool(first) and statistics.median(last) < _FELL * statistics.median(first)


WINDOW_NS = 1_000_000  # the nanosecond timer is coarse: over a millisecond its tick is below 0.1 %
TOLERANCE = 0.01  # rounds within this of one clock ran at the same clock
CLUSTER = 5  # so many rounds, and a fifth of all, at one clock are not just the first milliseconds


def steady(mhz: list[float], tolerance: float = TOLERANCE) -> list[int]:
    """Indices of the rounds at full clock: the highest clock shared within ``tolerance`` by CLUSTER rounds
    and a fifth of all, or else the highest of all. Rounds with unknown clock (NaN) are kept."""
    known = sorted((m for m in mhz if m == m), reverse=True)
    cluster = max(CLUSTER, len(known) // 5)
    shared = (k for k, low in zip(known, known[cluster - 1 :], strict=False) if low >= k * (1 - tolerance))
    full = next(shared, known[0] if known else 0.0)
    return [i for i, m in enumerate(mhz) if not abs(m - full) > full * tolerance]


def clocks(stamps: np.ndarray[Any, Any], window_ns: int = WINDOW_NS) -> list[float]:
    """The clock in MHz between consecutive stamps (rows of an (n + 1, 3) integer array): n values.

    Each is computed over a window of stamps that spans at least ``window_ns``, if there are enough; NaN if
    the stamps of a window came from different SMs."""
    cycles, times, sms = (stamps[:, i].astype(np.int64) for i in range(3))
    found = []
    for i in range(len(stamps) - 1):
        first, last = i, i + 1
        while times[last] - times[first] < window_ns and (first > 0 or last < len(stamps) - 1):
            first, last = max(0, first - 1), min(len(stamps) - 1, last + 1)
        span = int(times[last] - times[first])
        if span <= 0 or sms[first] != sms[last]:
            found.append(float("nan"))
        else:
            found.append(float(cycles[last] - cycles[first]) / span * 1e3)
    return found


_EVENT_RESOLUTION = 0.5e-6
_TRIMMED = 5  # one in so many, at each end
_SAME = 1e-9  # event times are floats in milliseconds: smaller differences are rounding


@dataclass(frozen=True)
class AbbaBlock:
    """One block of launches.

    Attributes:
        a, b: device seconds of each launch of side A, the base, and of side B.
        a_mhz, b_mhz: the SM clock in MHz during each; empty if unknown.
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    a_mhz: tuple[float, ...] = ()
    b_mhz: tuple[float, ...] = ()

    @property
    def log_ratio(self) -> float:
        """ln(B / A), each a trimmed mean: positive if B is slower."""
        return math.log(trimmed_mean(self.b) / trimmed_mean(self.a))

    @property
    def log_cycles(self) -> float:
        """The same in SM cycles; NaN if a clock is unknown."""
        cycles = [
            statistics.median([s * f for s, f in zip(seconds, mhz, strict=True)]) if mhz else math.nan
            for seconds, mhz in ((self.a, self.a_mhz), (self.b, self.b_mhz))
        ]
        return math.log(cycles[1] / cycles[0])


@dataclass(frozen=True)
class PairedSamples:
    """The result of timing a pair.

    Attributes:
        blocks: the complete blocks.
        discarded: number of launches discarded because of a throttled clock.
        gpu_seconds: seconds the GPU was occupied.
        reasons: NVML's clock-event bits, or-ed.
        warm: device seconds of launches of B alone, one after another, as an unchanged case is timed.
        spun: SM cycles per launch, of A and of B, that a planted slowdown took; None without one.
    """

    blocks: tuple[AbbaBlock, ...]
    discarded: int = 0
    gpu_seconds: float = 0.0
    reasons: int = 0
    warm: tuple[float, ...] = ()
    spun: tuple[float, float] | None = None

    def __add__(self, other: PairedSamples) -> PairedSamples:
        return PairedSamples(
            self.blocks + other.blocks,
            self.discarded + other.discarded,
            self.gpu_seconds + other.gpu_seconds,
            self.reasons | other.reasons,
            self.warm + other.warm,
            self.spun or other.spun,
        )

    @property
    def log_ratios(self) -> tuple[float, ...]:
        return tuple(block.log_ratio for block in self.blocks)

    @property
    def resolution(self) -> float:
        """Half the timer's resolution, divided by the median: half the smallest difference between samples,
        or if none differ, half of the 0.5 µs that CUDA specifies for events (cudaEventElapsedTime). 0 without
        a block."""
        if not self.blocks:
            return 0.0
        seen = sorted({s for block in self.blocks for s in (*block.a, *block.b)})
        gaps: list[float] = [high - low for low, high in pairwise(seen) if high - low > _SAME]
        return min(gaps, default=_EVENT_RESOLUTION) / 2 / self.median("a")

    def median(self, arm: str) -> float:
        """Median seconds of side ``a`` or ``b`` over all blocks. Raises ValueError without a block."""
        seconds: list[float] = [s for block in self.blocks for s in getattr(block, arm)]
        return statistics.median(seconds)


def trimmed_mean(seconds: Sequence[float]) -> float:
    """The mean without the smallest and the largest fifth. Of samples on a grid as coarse as the timer's, it
    tells apart what a median rounds to one step (J. W. Tukey, "The future of data analysis", Annals of
    Mathematical Statistics 33, 1962)."""
    ranked, cut = sorted(seconds), len(seconds) // _TRIMMED
    return statistics.fmean(ranked[cut : len(ranked) - cut])


def at_full_clock(launches: str, mhz: Sequence[float]) -> set[int]:
    """Indices of the launches that ran at the full clock of their side (``clocks.steady``).

    Each side has its own: under a power cap, a build that draws more power runs at a lower clock, and is
    slower."""
    kept = set()
    for arm in "AB":
        places = [i for i, a in enumerate(launches) if a == arm]
        kept |= {places[i] for i in steady([mhz[place] for place in places])}
    return kept


def into_blocks(
    orders: Sequence[str], rounds: int, seconds: Sequence[float], mhz: Sequence[float]
) -> tuple[tuple[AbbaBlock, ...], int]:
    """Launches, in the order of ``Schedule.launches``, to blocks. Launches not at the full clock of their
    side are discarded and counted, and so are blocks in which a side lost more than half."""
    launches = Schedule(tuple(orders)).launches(rounds)
    kept = at_full_clock(launches, mhz)
    blocks, size = [], VISITS * rounds
    for start in range(0, len(launches), size):
        arms: dict[str, list[int]] = {"A": [], "B": []}
        for i in range(start, start + size):
            if i in kept:
                arms[launches[i]].append(i)
        if min(map(len, arms.values())) >= rounds:
            blocks.append(
                AbbaBlock(
                    *(tuple(seconds[i] for i in arms[arm]) for arm in "AB"),
                    *(tuple(mhz[i] for i in arms[arm]) for arm in "AB"),
                )
            )
    return tuple(blocks), len(seconds) - len(kept)


def total(stretches: Iterable[PairedSamples]) -> PairedSamples:
    """All blocks of several sequences of one case."""
    return sum(stretches, PairedSamples(()))

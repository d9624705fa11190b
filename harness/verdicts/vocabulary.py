"""The vocabulary of check, gpu, compare and study: observations, references, policies and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from pytest_benchmark.stats import Stats

DEFAULT_MIN_CHANGE = 0.01
DEFAULT_MARGIN = 0.005  # of a paired comparison, which sees half of what two runs can tell apart
# How far beyond the threshold, in noise floors, a slowdown must be for both measurements to detect it in 95 %
# of runs: for normal medians, the 95 % quantile of (median of 5 - lesser of 2 others) / range of the 5, after
# E. Lord, "The use of range in place of standard deviation in the t-test", Biometrika 34, 1947.
_POWER_FACTOR = 1.23
_FIELDS = ("min", "max", "mean", "median", "stddev", "iqr")


class VerdictKind(StrEnum):
    """The kind of a verdict; a reason code says why."""

    PASS = "PASS"
    REGRESSED = "REGRESSED"
    IMPROVED = "IMPROVED"
    AMBIGUOUS = "AMBIGUOUS"
    DRIFTED = "DRIFTED"
    NO_BASELINE = "NO_BASELINE"
    ORPHAN = "ORPHAN"
    WRONG = "WRONG"
    CRASHED = "CRASHED"
    NOT_EMULATED = "NOT_EMULATED"
    REFUSED = "REFUSED"


# NOT_EMULATED and REFUSED are counted and shown, but no fault of the code: the interpreter does not support a
# feature that the kernel declares; the kernel's declaration does not accept the problem.
NOT_RED = (VerdictKind.PASS, VerdictKind.IMPROVED, VerdictKind.NOT_EMULATED, VerdictKind.REFUSED)


# Why a case has no baseline: that of this GPU lacks it, or there is none at all.
NOT_IN_BASELINE, NO_BASELINE_FILE = "NOT_IN_BASELINE", "NO_BASELINE_FILE"


class Outcome(NamedTuple):
    """A verdict without its numbers."""

    kind: VerdictKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.reason}"


@dataclass(frozen=True)
class Observation:
    """One measurement of a case in one process.

    Attributes:
        case_id: the case.
        flop: floating-point operations of a launch.
        seconds: device seconds of each round.
        launch: grid, block and dynamic shared memory as text; empty if unknown.
        library: whether it is a library call.
        sm_clock_mhz: median SM clock over the rounds in MHz; 0 if unknown.
        power_w, temperature_c: the maxima reported by NVML, in W and °C.
        clock_event_reasons: NVML's bits, or-ed over the rounds.
        throttled: whether retries did not give enough rounds at full clock.
        l2: ``cold`` or ``warm``.
        duty: the fraction of time the GPU is kept busy, at most 1.
        cubin_sha256: of the binary; None for a library.
        choice: what a kernel that chooses has chosen; empty for others.
        reference_seconds: device seconds of cuBLAS for the same problem; may be empty.
    """

    case_id: str
    flop: float
    seconds: tuple[float, ...]
    launch: str = ""
    library: bool = False
    sm_clock_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    clock_event_reasons: int = 0
    throttled: bool = False
    l2: str = "cold"
    duty: float = 1.0
    cubin_sha256: str | None = None
    choice: str = ""
    reference_seconds: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Median seconds. Raises StatisticsError without a sample."""
        return median(self.seconds)

    @property
    def gflops(self) -> float:
        """GFLOPS at the median."""
        return self.flop / self.median / 1e9


@dataclass(frozen=True)
class Reference:
    """What an observation is compared with: the case in a stored baseline.

    Attributes:
        median_s: median device seconds of the middle run.
        gflops: GFLOPS at that median.
        noise_floor: (max - min) / median of the medians of several processes, dimensionless.
        cycle_noise_floor: the same of the medians in SM cycles; None if unknown.
        l2, duty, launch, cubin_sha256, choice: as in Observation; ``launch`` None if unknown.
        sm_clock_mhz: the expected SM clock in MHz; None if unknown.
        temperature_c: the temperature in °C; None if unknown.
        cublas_ratio: speed relative to cuBLAS's in the same run; None without one.
        stats: pytest-benchmark's statistics of the seconds, for the user's own checks.
        board_spread: how far boards of the model differ, relative, where another board was measured; else 0,
            and where nothing is known of that.
        other_board: whether another board was measured; not recorded by older versions.
    """

    median_s: float
    gflops: float
    noise_floor: float
    cycle_noise_floor: float | None = None
    l2: str = "cold"
    duty: float = 1.0
    launch: str | None = None
    cubin_sha256: str | None = None
    choice: str = ""
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    cublas_ratio: float | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    board_spread: float = 0.0
    other_board: bool = False


@dataclass(frozen=True)
class CompareFail:
    """A check requested by the user: the statistic ``field`` of the device seconds may grow by ``percent``,
    or by ``seconds``.

    Raises ValueError for an unknown field, and unless exactly one of the two limits is given.
    """

    field: str
    percent: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.field not in _FIELDS:
            raise ValueError(f"unknown field {self.field!r}; known: {', '.join(_FIELDS)}")
        if (self.percent is None) == (self.seconds is None):
            raise ValueError(f"{self.field}: give either a percentage or seconds")

    def exceeded(self, seconds: tuple[float, ...], stored: Mapping[str, Any]) -> Exceeded | None:
        """The check and both values if these samples exceed it, else None. ``stored``: a baseline's
        ``stats``."""
        stats = Stats()  # type: ignore[no-untyped-call]
        stats.data = list(seconds)
        now, then = float(getattr(stats, self.field)), float(stored[self.field])
        if self.seconds is not None:
            beyond = now - then > self.seconds
        else:
            beyond = self.percent is not None and now > then * (1 + self.percent / 100)
        return Exceeded(self, now, then) if beyond else None


@dataclass(frozen=True)
class Exceeded:
    """A user's ``check`` that failed: its field was ``then`` seconds in the baseline and is ``now``."""

    check: CompareFail
    now: float
    then: float


@dataclass(frozen=True)
class Policy:
    """How strict a run is.

    Attributes:
        min_change: smallest relative change of the GFLOPS that counts; None: the kernel's own, or 1 %.
        noise_factor: changes below this many noise floors do not count.
        allow_no_baseline, allow_orphans: whether NO_BASELINE and ORPHAN pass.
        fail_on_drift: whether DRIFTED fails.
        compare_fail: the user's own checks.
        margin: the smallest change that counts in a paired comparison, relative; None: ``min_change`` if
            given, else 0.5 %.
        pairs: whether every case whose binary has changed is paired with its baseline's commit; runs of
            older versions paired only what was slower than the threshold.
    """

    min_change: float | None = None
    noise_factor: float = 3.0
    allow_no_baseline: bool = False
    allow_orphans: bool = False
    fail_on_drift: bool = True
    compare_fail: tuple[CompareFail, ...] = ()
    margin: float | None = None
    pairs: bool = True

    @property
    def pair_margin(self) -> float:
        """The margin of paired comparisons."""
        known = (self.margin, self.min_change, DEFAULT_MARGIN)
        return next(margin for margin in known if margin is not None)

    def of_kernel(self, threshold: float | None) -> Policy:
        """This policy for a kernel with a ``threshold`` of its own; an option of the run takes precedence."""
        return self if self.min_change is not None else replace(self, min_change=threshold)

    def threshold(self, noise_floor: float) -> float:
        """The relative change of the GFLOPS beyond which a case counts as slower or faster."""
        least = DEFAULT_MIN_CHANGE if self.min_change is None else self.min_change
        return max(least, self.noise_factor * noise_floor)


def detectable(threshold: float, noise_floor: float) -> float:
    """The smallest slowdown that the gate detects with 95 % power, relative to the GFLOPS.

    H. S. Bloom's minimum detectable effect ("Minimum detectable effects", Evaluation Review 19, 1995), with
    the noise floor as the measure of spread. Slowdowns between the threshold and this are detected less
    often."""
    return threshold + _POWER_FACTOR * noise_floor


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case, with its numbers.

    Attributes:
        kind: the kind of verdict.
        reason: a stable reason code.
        change: relative change of the GFLOPS from the reference (-0.03: 3 % slower).
        per_clock: relative change of the work per SM clock cycle, if both clocks are known.
        threshold, noise_floor, board_spread: relative, too; the threshold includes the last one.
        per_cycle: whether these are of the work per SM clock cycle, which decided; else of the GFLOPS.
        gflops, baseline_gflops: GFLOPS at the medians.
        first_change: ``change`` of the first measurement, if a second did not confirm it.
        exceeded: the user's own check that failed.
    """

    kind: VerdictKind
    reason: str
    change: float | None = None
    per_clock: float | None = None
    threshold: float | None = None
    noise_floor: float | None = None
    board_spread: float = 0.0
    per_cycle: bool = False
    gflops: float | None = None
    baseline_gflops: float | None = None
    first_change: float | None = None
    exceeded: Exceeded | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)

    @property
    def detectable(self) -> float | None:
        """The minimum detectable effect: `detectable` at this threshold and noise floor."""
        if self.threshold is None or self.noise_floor is None:
            return None
        return detectable(self.threshold, self.noise_floor)

    def to(self, kind: VerdictKind, reason: str) -> Verdict:
        """The same numbers with another verdict."""
        return replace(self, kind=kind, reason=reason)

    def failed(self, policy: Policy) -> bool:
        """Whether the case fails, under this policy."""
        return not (
            self.kind in NOT_RED
            or (self.kind is VerdictKind.NO_BASELINE and policy.allow_no_baseline)
            or (self.kind is VerdictKind.ORPHAN and policy.allow_orphans)
            or (self.kind is VerdictKind.DRIFTED and not policy.fail_on_drift)
        )

"""The vocabulary of check, gpu, compare and study: observations, references, policies and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from pytest_benchmark.stats import Stats

DEFAULT_MARGIN = 0.005  # relative
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
        launch_id: of everything that the binary is launched with; empty for a library.
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
    launch_id: str = ""
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
    """What a case is compared with: its entry in a stored baseline.

    Attributes:
        gflops: GFLOPS at the stored median.
        median_s: that median, device seconds.
        cubin_sha256: of the stored binary; None for a library.
        launch: its grid, block and dynamic shared memory as text, and its id, with everything else.
        launch_id: the same with all arguments; empty if the binary was not kept.
        board: the board that the figures were measured on; None if unknown.
        commit: what was measured.
        margin: the margin that judges, relative; None: the policy's.
        l2, duty: how it was timed, as in Observation.
        stats: pytest-benchmark's statistics of the seconds, for the user's own checks.
    """

    median_s: float
    gflops: float
    cubin_sha256: str | None = None
    launch: str | None = None
    launch_id: str = ""
    board: str | None = None
    commit: str = ""
    margin: float | None = None
    l2: str = "cold"
    duty: float = 1.0
    stats: Mapping[str, Any] = field(default_factory=dict)


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
        margin: the slowdown that counts, relative; None: the case's own, or 0.5 %.
        allow_no_baseline, allow_orphans: whether NO_BASELINE and ORPHAN pass.
        fail_on_drift: whether DRIFTED fails.
        compare_fail: the user's own checks.
    """

    margin: float | None = None
    allow_no_baseline: bool = False
    allow_orphans: bool = False
    fail_on_drift: bool = True
    compare_fail: tuple[CompareFail, ...] = ()

    def margin_of(self, own: float | None) -> float:
        """The margin of a case: the run's, else its ``own``, else 0.5 %. Beside a baseline its own is the one
        that was stored with it, so that a commit cannot widen the margin that judges it."""
        known = (self.margin, own, DEFAULT_MARGIN)
        return next(margin for margin in known if margin is not None)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case, with its numbers.

    Attributes:
        kind: the kind of verdict.
        reason: a stable reason code.
        change: relative change of the GFLOPS (-0.03: 3 % slower): of a pair, measured side by side; of the
            same binary, from the stored figure.
        margin: the slowdown that counts, of a pair; relative.
        gflops, baseline_gflops: GFLOPS at the medians.
        exceeded: the user's own check that failed.
    """

    kind: VerdictKind
    reason: str
    change: float | None = None
    margin: float | None = None
    gflops: float | None = None
    baseline_gflops: float | None = None
    exceeded: Exceeded | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)

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

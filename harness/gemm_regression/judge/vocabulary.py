"""The vocabulary of check, gpu, compare and study: observations, references, pairs, policies and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

from pytest_benchmark.stats import Stats

from gemm_regression.timing.looks import MIN_BLOCKS, Estimate, PairedKind, PairFinding

DEFAULT_MARGIN = 0.005  # relative


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
    NOT_COMPILED = "NOT_COMPILED"
    NOT_LAUNCHED = "NOT_LAUNCHED"
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
    """One measurement of a case in one process, as the judge sees it.

    Attributes:
        flop: floating-point operations of a launch.
        seconds: device seconds of each round.
        launch: grid, block and dynamic shared memory as text; empty if unknown.
        library: whether it is a library call.
        sm_clock_mhz: median SM clock over the rounds in MHz; 0 if unknown.
        power_w, temperature_c: the maxima reported by NVML, in W and °C.
        clock_event_reasons: NVML's bits, or-ed over the rounds.
        l2: ``cold`` or ``warm``.
        duty: the fraction of time the GPU is kept busy, at most 1.
        cubin_sha256: of the binary; None for a library.
        launch_id: of everything that the binary is launched with; empty for a library.
    """

    flop: float
    seconds: tuple[float, ...] = ()
    launch: str = ""
    library: bool = False
    sm_clock_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    clock_event_reasons: int = 0
    l2: str = "cold"
    duty: float = 1.0
    cubin_sha256: str | None = None
    launch_id: str = ""

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
        median_s: the stored median, device seconds.
        gflops: GFLOPS at that median.
        cubin_sha256: of the stored binary; None for a library.
        launch: its grid, block and dynamic shared memory as text; None if unknown.
        launch_id: of everything that it is launched with; None, or empty, if the binary was not kept.
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
    launch_id: str | None = None
    board: str | None = None
    commit: str = ""
    margin: float | None = None
    l2: str = "cold"
    duty: float = 1.0
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompareFail:
    """A check requested by the user, as pytest-benchmark has read it: the statistic ``field`` of the device
    seconds may grow by ``percent``, or by ``seconds``."""

    field: str
    percent: float | None = None
    seconds: float | None = None

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
        margin: the smallest slowdown that fails, relative; None: the case's own, or 0.5 %.
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
        margin: the smallest slowdown that fails, of a pair; relative.
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

    def failed(self, policy: Policy) -> bool:
        """Whether the case fails, under this policy."""
        return not (
            self.kind in NOT_RED
            or (self.kind is VerdictKind.NO_BASELINE and policy.allow_no_baseline)
            or (self.kind is VerdictKind.ORPHAN and policy.allow_orphans)
            or (self.kind is VerdictKind.DRIFTED and not policy.fail_on_drift)
        )


# Has the code changed its speed? Only a pair says so: the stored binary beside the new one, on one board, in
# one process.

# Without timing.
SAME_BINARY = Outcome(VerdictKind.PASS, "SAME_BINARY")
LIBRARY = Outcome(VerdictKind.PASS, "LIBRARY")
NOT_PAIRED = Outcome(VerdictKind.AMBIGUOUS, "NOT_PAIRED")
BINARY_NOT_KEPT = Outcome(VerdictKind.NO_BASELINE, "BINARY_NOT_KEPT")
NOT_IN_BASE = Outcome(VerdictKind.NO_BASELINE, "NOT_IN_BASE")
REMOVED = Outcome(VerdictKind.ORPHAN, "REMOVED")
BASE_UNUSABLE = Outcome(VerdictKind.AMBIGUOUS, "BASE_UNUSABLE")
COMPILE_ERROR = Outcome(VerdictKind.NOT_COMPILED, "COMPILE_ERROR")
SIGNATURE = Outcome(VerdictKind.NOT_LAUNCHED, "SIGNATURE")
# From timing.
SLOWER = Outcome(VerdictKind.REGRESSED, "SLOWER")
FASTER = Outcome(VerdictKind.IMPROVED, "FASTER")
NOT_SLOWER = Outcome(VerdictKind.PASS, "NOT_SLOWER")
MAYBE_SLOWER = Outcome(VerdictKind.AMBIGUOUS, "MAYBE_SLOWER")
CONTROL_FAILED = Outcome(VerdictKind.AMBIGUOUS, "CONTROL_FAILED")
WRONG = Outcome(VerdictKind.WRONG, "OUTPUT")

JUDGED = (SAME_BINARY, SLOWER, FASTER, NOT_SLOWER, MAYBE_SLOWER)
_CONCLUDED = {
    PairedKind.SLOWER: SLOWER,
    PairedKind.FASTER: FASTER,
    PairedKind.SAME: NOT_SLOWER,
    PairedKind.AMBIGUOUS: MAYBE_SLOWER,
}


def failed_on_device(error: str) -> Outcome:
    """The verdict if the device failed, by its error code: CRASHED, unless it is another kind."""
    known = {"WRONG": WRONG, COMPILE_ERROR.reason: COMPILE_ERROR, SIGNATURE.reason: SIGNATURE}
    return known.get(error, Outcome(VerdictKind.CRASHED, error))


def failed_beside(error: str) -> Outcome:
    """The verdict if the device failed while timing a pair, by its error code."""
    return BASE_UNUSABLE if error.startswith("BASE_") else failed_on_device(error)


def red(outcome: Outcome) -> bool:
    """Whether a comparison with this verdict fails: all but PASS, IMPROVED, and cases that are new in this
    commit or removed by it."""
    fine = outcome.kind in (VerdictKind.PASS, VerdictKind.IMPROVED)
    return not fine and outcome not in (NOT_IN_BASE, REMOVED)


@dataclass(frozen=True)
class Paired:
    """A case beside the stored binary.

    Attributes:
        kind, reason: the verdict.
        detail: why, in one line, where there are no numbers.
        base: what it was timed beside, such as the commit that the binary was stored with.
        change: relative change of the time, positive if the new one is slower.
        interval: the confidence interval of that change.
        margin: the slowdown that counts, relative.
        needed: the margin by which it was judged, where its own noise needed a larger one.
        log_ratios, resolution, miss: the blocks, the timer's resolution and the case's share of the error
            probability, from which the verdict follows.
        second, second_resolution: the blocks of a second process, which then decides.
    """

    kind: VerdictKind
    reason: str
    detail: str = ""
    base: str = ""
    change: float | None = None
    interval: tuple[float, float] | None = None
    margin: float | None = None
    log_ratios: tuple[float, ...] = ()
    resolution: float = 0.0
    miss: float | None = None
    second: tuple[float, ...] = ()
    second_resolution: float = 0.0
    needed: float | None = None

    @classmethod
    def of(cls, f: PairFinding, log_ratios: Sequence[float], resolution: float, margin: float) -> Paired:
        blocks = tuple(log_ratios)
        made = cls(*MAYBE_SLOWER, margin=margin, log_ratios=blocks, resolution=resolution, miss=f.miss)
        return made._concluded(f, margin)

    def _concluded(self, f: PairFinding, asked: float) -> Paired:
        kind, reason = _CONCLUDED[f.kind]
        needed = f.margin if f.margin > asked else None
        return replace(self, kind=kind, reason=reason, change=f.change, interval=f.interval, needed=needed)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.kind, self.reason)

    @property
    def doubtful(self) -> bool:
        """Whether a second process decides. Where code lies is another place in each: two copies of a
        persistent kernel once differed by 5 % in a process, on an H200, and by nothing in the next."""
        return self.outcome in (SLOWER, MAYBE_SLOWER) and self.interval is not None and not self.second

    def in_second_process(self, log_ratios: Sequence[float], resolution: float) -> Paired:
        """With the blocks of a second process."""
        return replace(self, second=tuple(log_ratios), second_resolution=resolution).again()

    def again(self) -> Paired:
        """Judged once more from the blocks, if there are any."""
        blocks, resolution = self.log_ratios, self.resolution
        if len(self.second) >= MIN_BLOCKS:
            blocks, resolution = self.second, self.second_resolution
        if len(blocks) < MIN_BLOCKS or self.miss is None or self.margin is None:
            return self
        at_last = PairFinding.at_last(Estimate.of(blocks, resolution), self.margin, self.miss)
        return self._concluded(at_last, self.margin)

"""Is the machine what it should be? Asked once a run, of the machine and not of its cases. Pure.

Two answers count. Health (health.py): what short probes and NVML say of the board. Shifts: how much longer
the same binaries take than they took, in a joint test of all cases of a kind of core and of bound, and of all
cases of a kernel. A binary does not change by itself, so a shift on the same board is the machine's: of its
clock, its driver, its libraries. Nothing excuses one; what differs is told with it.

A group's shift is the weighted median of its cases' log-ratios, without its slowest case: one slow case is
never the machine's. Its standard error has two parts. One shrinks with the number of cases, √(π/2 · Σw²) /
Σ(w/σ) for weights w, and grows where the cases scatter by more than their noise (R. T. Birge, "The
calculation of errors by the method of least squares", Phys. Rev. 40, 1932; here by their median deviation).
The other does not shrink, for the cases of a process share its clock, and how launches start. A group is
slower if its shift is beyond its limit for certain, at 1 % a run for all groups together (S. Holm, "A simple
sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import erfc, exp, hypot, inf, isfinite, pi, sqrt
from statistics import median
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from gemm_regression.files import fault
from gemm_regression.judge.health import NOT_MEASURED, OTHER_PROCESSES, Health, MachineFinding, ailments
from gemm_regression.judge.vocabulary import VerdictKind

MACHINE = "MACHINE"  # the one exit reason
SHIFTED = "SHIFTED"
AS_STORED, AS_ITS_MODEL, NOTHING_KNOWN = "AS_STORED", "AS_ITS_MODEL", "NOTHING_KNOWN"  # why it passes

FALSE_ALARMS = 0.01  # a run, all groups together
LEAST_CASES = 3  # of a group, one of which is not counted
# Frozen. From the 17 measurements of the stored baselines, 14 on H200s and 3 on H100s, of five processes
# each: every process beside the four others of its board.
# Log-ratio; from 0.1 to 0.3 %, the share of 1 % shifts that are found falls by two points only.
OWN_LIMIT = 0.002
# Of a case, relative: the median of those over 300 µs. Five processes may agree better by chance.
LEAST_NOISE = {"cuda": 0.0005, "tensor": 0.0008}
# What all cases over 100 µs of an H200's process share, relative: 0.03 to 0.1 % by duration.
COMMON = {"cuda": 0.0006, "tensor": 0.0008}
# s by which all launches of a process are timed later or earlier: 0.105 on H200s, 0.107 on H100s.
START = 0.11e-6
# s; by how much such cases differ from process to process is the clock's, not the start's.
LONG = 100e-6
# How far boards of a model may differ: more than 1.5 times what nine H200s did, of a kernel's cases in the
# median: 1.9 % on CUDA cores (0.4 % where they compute), 3.2 % on tensor cores; where these compute at the
# power cap, single cases were 11 % apart.
OTHER_LIMIT = {"cuda": 0.05, "tensor": 0.06}
OTHER_LIMITS = {("cuda", "compute"): 0.03, ("tensor", "compute"): 0.12}
CASE_LIMIT, CASE_ERRORS = 0.01, 4.0  # a single case is named so far beyond, and by so many standard errors
_RANGE = 2.326  # of five values from a normal distribution, in standard deviations
_BOTH = sqrt(1.287)  # error of a process's median less the median of five others, in those of one


@dataclass(frozen=True)
class Shift:
    """How a case whose binary and launch are the stored ones compares with its stored figure.

    Attributes:
        case, kernel, dtype: what was timed; ``kernel`` is the one that a choice chose.
        core: ``cuda`` or ``tensor``.
        bound: ``compute``, ``dram``, ``l2`` or ``latency``.
        seconds: the stored median.
        log_ratio: ln(now / then) of the median seconds.
        noise: (max - min) / median of the medians of the stored processes, five or so.
        own: whether the stored figure is this board's own.
        changed: names of the settings that differ from those of the stored figure.

    Raises ValueError for what is no such number or core.
    """

    case: str
    kernel: str
    dtype: str
    core: str
    bound: str
    seconds: float
    log_ratio: float
    noise: float
    own: bool
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isfinite(self.log_ratio) and 0 < self.seconds < inf and 0 <= self.noise < inf):
            raise ValueError(f"{self.case}: its seconds, their ratio or their noise are no such numbers")
        if self.core not in COMMON:
            raise ValueError(f"{self.case}: a core is one of {', '.join(COMMON)}, not {self.core!r}")

    @property
    def change(self) -> float:
        """How much longer the case takes, relative."""
        return exp(self.log_ratio) - 1

    @property
    def error(self) -> float:
        """The standard error of the log-ratio, by noise and by how launches start."""
        return hypot(_BOTH * max(LEAST_NOISE[self.core], self.noise / _RANGE), START / self.seconds)

    @property
    def limit(self) -> float:
        """How much longer a case may take than its stored figure, as a log-ratio."""
        return OWN_LIMIT if self.own else OTHER_LIMITS.get((self.core, self.bound), OTHER_LIMIT[self.core])


@dataclass(frozen=True)
class MachineVerdict:
    """The verdict on the machine, with what it was judged by.

    Attributes:
        kind: PASS; DRIFTED; AMBIGUOUS where other processes or missing probes leave it open.
        reason: the first finding's code, or why it passes.
        findings: what is not as it should be.
        notes: single cases that are slower for certain, the slowest first; never red by themselves.
        checked: how many cases were compared with this board's own figures, and with other boards'.
        health, known, shifts: as `judge_machine` was given them.
    """

    kind: VerdictKind
    reason: str
    findings: tuple[MachineFinding, ...]
    notes: tuple[Shift, ...]
    checked: tuple[int, int]
    health: Health
    known: tuple[Health, ...]
    shifts: tuple[Shift, ...]

    @property
    def failed(self) -> bool:
        """Whether the run fails, with `MACHINE` as the reason."""
        return self.kind is not VerdictKind.PASS

    def recorded(self) -> dict[str, Any]:
        """As JSON, with all that it was judged by; `again` reads it."""
        return asdict(self) | {"kind": str(self.kind), "notes": [shift.case for shift in self.notes]}


class _Recorded(BaseModel):
    """What a verdict follows from."""

    health: Health
    known: tuple[Health, ...]
    shifts: tuple[Shift, ...]


def again(document: Mapping[str, Any]) -> MachineVerdict:
    """Judges a stored run once more, by what `MachineVerdict.recorded` wrote. Raises ValueError
    for anything else."""
    try:
        return judge_machine(**dict(_Recorded.model_validate(document)))
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def judge_machine(health: Health, known: Iterable[Health], shifts: Iterable[Shift]) -> MachineVerdict:
    """The one verdict on a machine. ``known``: boards of its model as measured before, oldest first;
    ``shifts``: of all timed cases whose binary and launch are the stored ones, and of libraries' calls."""
    known, shifts = tuple(known), tuple(shifts)
    findings = (*ailments(health, known), *_slower(shifts))
    own = sum(shift.own for shift in shifts)
    return MachineVerdict(
        *_kind(findings, bool(own), bool(known or shifts)),
        findings,
        tuple(sorted(filter(_is_slow, shifts), key=lambda shift: -shift.log_ratio)),
        (own, len(shifts) - own),
        health,
        known,
        shifts,
    )


def _kind(findings: Sequence[MachineFinding], own: bool, known: bool) -> tuple[VerdictKind, str]:
    if not findings:
        return VerdictKind.PASS, AS_STORED if own else AS_ITS_MODEL if known else NOTHING_KNOWN
    unclear = {finding.code for finding in findings} <= {OTHER_PROCESSES, NOT_MEASURED}
    return VerdictKind.AMBIGUOUS if unclear else VerdictKind.DRIFTED, findings[0].code


def _is_slow(shift: Shift) -> bool:
    """Whether a case by itself is slower for certain."""
    return shift.log_ratio > max(CASE_LIMIT, shift.limit) + CASE_ERRORS * shift.error


class _Group(NamedTuple):
    """A group's shift with its standard error, and how large it may be, as log-ratios."""

    name: str
    shift: float
    error: float
    limit: float
    cases: Sequence[Shift]

    @property
    def chance(self) -> float:
        """Of a shift as large as this where the true one is at the limit."""
        return erfc((self.shift - self.limit) / self.error / sqrt(2)) / 2


def _slower(shifts: Sequence[Shift]) -> list[MachineFinding]:
    """The groups that are slower for certain, the most certain first."""
    groups = sorted(_groups(shifts), key=lambda group: group.chance)
    found = []
    for rank, group in enumerate(groups):
        if group.chance > FALSE_ALARMS / (len(groups) - rank):
            break
        longer, may_be, size = exp(group.shift) - 1, exp(group.limit) - 1, len(group.cases)
        changed = Counter(name for shift in group.cases for name in shift.changed)
        likely = tuple(name for name, count in changed.most_common() if 2 * count > size)
        found.append(MachineFinding(SHIFTED, group.name, longer, may_be, group.error, size, likely))
    return found


def _groups(shifts: Sequence[Shift]) -> Iterable[_Group]:
    """Those that are large enough, of this board's own figures and of other boards' apart."""
    members: dict[tuple[str, bool], list[Shift]] = {}
    for shift in shifts:
        for name in (f"{shift.core} {shift.bound}", f"{shift.kernel} {shift.dtype}"):
            members.setdefault((name, shift.own), []).append(shift)
    common = {
        pair: _common(pair[0], (shift for shift in shifts if (shift.core, shift.own) == pair))
        for pair in {(shift.core, shift.own) for shift in shifts}
    }
    for (name, own), cases in members.items():
        if len(cases) >= LEAST_CASES:
            yield _group(name, cases, max(common[case.core, own] for case in cases))


def _common(core: str, shifts: Iterable[Shift]) -> float:
    """The standard deviation of what all cases of a core share in a process: at least as much as the stored
    processes differ in the longer ones, since it is the clock that these differ by."""
    long = [shift.noise / _RANGE for shift in shifts if shift.seconds >= LONG]
    return hypot(COMMON[core], median(long) if long else 0.0)


def _group(name: str, cases: Sequence[Shift], common: float) -> _Group:
    counted = sorted(cases, key=lambda case: case.log_ratio)[:-1]
    # No case weighs more than the quietest but a tenth: five processes may agree by chance.
    quiet = sorted(case.error for case in counted)[len(counted) // 10]
    weights = [max(case.error, quiet) ** -2 for case in counted]
    shift = _weighted_median([case.log_ratio for case in counted], weights)
    start = _weighted_median([START / case.seconds for case in counted], weights)
    scatter = 1.4826 * median(abs(case.log_ratio - shift) / case.error for case in counted)
    densities = sum(weight / case.error for weight, case in zip(weights, counted, strict=True))
    alone = sqrt(pi / 2 * sum(weight * weight for weight in weights)) / densities
    error = hypot(max(1.0, scatter) * alone, common, start)
    return _Group(name, shift, error, max(case.limit for case in cases), cases)


def _weighted_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """The value below which half of the weight lies, between two values linearly."""
    half, below = sum(weights) / 2, 0.0
    before: tuple[float, float] | None = None
    for value, weight in sorted(zip(values, weights, strict=True)):
        middle = below + weight / 2
        if middle >= half:
            if before is None:
                return value
            return before[0] + (half - before[1]) / (middle - before[1]) * (value - before[0])
        before, below = (value, middle), below + weight
    return max(values)

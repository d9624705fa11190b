"""Is the machine what it should be? Asked once a run, of the machine and not of its cases. Pure.

Two answers count. Health: what short probes and NVML say of the board (health.py). Shifts: how much longer the same
binaries take than they took, in a joint test of all cases of a kind of core and of bound, and of all of a kernel. The
same binary on the same board has not changed by itself, so a shift there is the machine's: its clock, its driver, its
libraries. Nothing excuses one: what differs is told with it.

The test of a group: its shift is the weighted median of its cases' log-ratios, without its slowest case, so that one
slow case alone is never the machine's. Its standard error has two parts. One shrinks with the number of cases:
√(π/2) / √Σσ⁻², enlarged where the cases scatter by more than their noise (R. T. Birge, "The calculation of errors by
the method of least squares", Phys. Rev. 40, 1932; here by their median deviation). The other does not, for all cases
of a process share its clock and its temperature. A group is slower if its shift is beyond its limit for certain, at
1 % a run for all groups together (S. Holm, Scand. J. Statist. 6, 1979).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import erfc, exp, hypot, pi, sqrt
from statistics import median
from typing import Any, NamedTuple

from harness.verdicts.health import NOT_MEASURED, OTHER_PROCESSES, Health, MachineFinding, ailments
from harness.verdicts.vocabulary import VerdictKind

MACHINE = "MACHINE"  # the one exit reason
SHIFTED = "SHIFTED"
AS_STORED, AS_ITS_MODEL, NOTHING_KNOWN = "AS_STORED", "AS_ITS_MODEL", "NOTHING_KNOWN"  # why it passes

FALSE_ALARMS = 0.01  # a run, all groups together
LEAST_CASES = 3  # of a group, whose slowest is not counted
OWN_LIMIT = 0.002
OTHER_LIMITS = {("cuda", "compute"): 0.03, ("tensor", "compute"): 0.12}
OTHER_LIMIT = {"cuda": 0.05, "tensor": 0.06}
LEAST_NOISE = {"cuda": 0.0005, "tensor": 0.001}
COMMON = {"cuda": 0.0008, "tensor": 0.001}
SHARED = 0.5
LONG = 50e-6
CASE_LIMIT, CASE_ERRORS = 0.01, 4.0
_RANGE = 2.326  # of five values from a normal distribution, in standard deviations
# Variance of one process's median less the median of five, in those of one process: 1 + 0.287.
_OF_BOTH = sqrt(1.287)


@dataclass(frozen=True)
class Shift:
    """How a case whose binary and launch have not changed compares with its stored figure.

    Attributes:
        case, kernel, dtype: what was timed; ``kernel`` is the one that a choice chose.
        core: ``cuda`` or ``tensor``.
        bound: ``compute``, ``dram``, ``l2`` or ``latency``.
        seconds: the stored median.
        log_ratio: ln(now / then) of the median seconds.
        noise: (max - min) / median of the medians of the stored processes, five or more.
        own: whether the stored figure is this board's own.
        changed: names of the settings that differ from those of the stored figure.
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

    @property
    def error(self) -> float:
        """The standard deviation of the log-ratio by the noise alone."""
        return _OF_BOTH * max(LEAST_NOISE[self.core], self.noise / _RANGE)

    @property
    def limit(self) -> float:
        """How much longer a case may take than its stored figure, as a log-ratio."""
        if self.own:
            return OWN_LIMIT
        return OTHER_LIMITS.get((self.core, self.bound), OTHER_LIMIT[self.core])


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
        """As JSON, with all that it was judged by."""
        return {
            "kind": str(self.kind),
            "reason": self.reason,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": [shift.case for shift in self.notes],
            "checked": list(self.checked),
            "health": self.health.recorded(),
            "known": [one.recorded() for one in self.known],
            "shifts": [asdict(shift) for shift in self.shifts],
        }


def again(document: Mapping[str, Any]) -> MachineVerdict:
    """Judges a stored run once more, by what `MachineVerdict.recorded` kept. Raises KeyError and TypeError where
    that is not what it wrote."""
    return judge_machine(
        Health.again(document["health"]),
        [Health.again(one) for one in document["known"]],
        [Shift(**{**one, "changed": tuple(one["changed"])}) for one in document["shifts"]],
    )


def judge_machine(health: Health, known: Iterable[Health], shifts: Iterable[Shift]) -> MachineVerdict:
    """The one verdict on a machine. ``known``: of boards of its model, oldest first; ``shifts``: of all cases timed
    whose binary and launch are the stored ones, and of libraries' calls."""
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
    """A group's shift and its standard error, as log-ratios."""

    name: str
    shift: float
    error: float
    limit: float
    cases: Sequence[Shift]

    @property
    def chance(self) -> float:
        """Of a shift like this where the true one is at the limit."""
        return erfc((self.shift - self.limit) / self.error / sqrt(2)) / 2


def _slower(shifts: Sequence[Shift]) -> list[MachineFinding]:
    """The groups that are slower for certain, the most certain first."""
    groups = sorted(_groups(shifts), key=lambda group: group.chance)
    found = []
    for rank, group in enumerate(groups):
        if group.chance > FALSE_ALARMS / (len(groups) - rank):
            break
        changed = Counter(name for shift in group.cases for name in shift.changed)
        likely = tuple(name for name, count in changed.most_common() if 2 * count > len(group.cases))
        found.append(
            MachineFinding(
                SHIFTED, group.name, exp(group.shift) - 1, group.limit, group.error, len(group.cases), likely
            )
        )
    return found


def _groups(shifts: Sequence[Shift]) -> Iterable[_Group]:
    """Those that are large enough, of this board's own figures and of other boards' apart."""
    common = {
        (core, own): _common([s for s in shifts if (s.core, s.own) == (core, own)], core)
        for core, own in {(s.core, s.own) for s in shifts}
    }
    members: dict[tuple[str, bool], list[Shift]] = {}
    for shift in shifts:
        for name in (f"{shift.core} {shift.bound}", f"{shift.kernel} {shift.dtype}"):
            members.setdefault((name, shift.own), []).append(shift)
    for (name, own), cases in members.items():
        if len(cases) >= LEAST_CASES:
            yield _group(name, cases, max(common[case.core, own] for case in cases))


def _common(shifts: Sequence[Shift], core: str) -> float:
    """The standard deviation of what all cases of a process share: by how much the longer ones differ from process
    to process, since what shifts these is the clock."""
    long = [shift.error for shift in shifts if shift.seconds >= LONG]
    return hypot(COMMON[core], median(long) if long else 0.0)


def _group(name: str, cases: Sequence[Shift], common: float) -> _Group:
    counted = sorted(cases, key=lambda case: case.log_ratio)[:-1]
    shift = _weighted_median([(case.log_ratio, 1 / case.error) for case in counted])
    noise = _weighted_median(sorted((case.error, 1 / case.error) for case in counted))
    scatter = 1.4826 * median(abs(case.log_ratio - shift) / case.error for case in counted)
    alone = sqrt(pi / 2 / sum(case.error**-2 for case in counted))
    error = hypot(max(1.0, scatter) * alone, max(common, SHARED * noise))
    return _Group(name, shift, error, max(case.limit for case in cases), cases)


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Of (value, weight), sorted by value: where half of the weight lies below, between two values linearly."""
    half, below = sum(weight for _, weight in values) / 2, 0.0
    before: tuple[float, float] | None = None
    for value, weight in values:
        middle = below + weight / 2
        if middle >= half:
            if before is None:
                return value
            share = (half - before[1]) / (middle - before[1])
            return before[0] + share * (value - before[0])
        before, below = (value, middle), below + weight
    return values[-1][0]

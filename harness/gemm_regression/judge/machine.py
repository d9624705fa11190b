"""Is the machine what it should be? Asked once a run, of the machine and not of its cases. Pure.

Two answers count. Health: what short probes and NVML say of the board. Shifts: how much longer
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
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import erfc, exp, hypot, inf, isfinite, pi, sqrt
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, StrictStr, TypeAdapter, ValidationError

from gemm_regression.files import fault
from gemm_regression.judge.vocabulary import VerdictKind


class Settings(BaseModel):
    """What of a machine may change how long a binary takes; None, or missing, where it is not known."""

    board: str | None = None
    vbios: str | None = None
    driver: StrictStr
    cuda_driver: StrictStr
    cublas: str | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    applications_sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None


class Machine(Settings):
    """A GPU with its settings, the software, how it was timed, and what it can do at most: all that is ever
    stored of a machine. Files have it as an object of that name, ``machine_info``.

    ``board`` stands for one of the boards of a model; ``timing`` is a number of the way of timing, `TIMING`;
    ``roofs`` are of devices/cuda/roofs.py. No host name, no user name.
    """

    name: StrictStr
    capability: StrictStr
    nvcc: StrictStr
    memory_mib: int | None = None
    python: str | None = None
    pycuda: str | None = None
    numpy: str | None = None
    pytest: str | None = None
    pytest_benchmark: str | None = None
    nvmath_python: str | None = None
    timing: int | None = None
    roofs: dict[str, Any] | None = None


# Health

# How far below the least known a board may be: of its own measurements, of which one board's differ by 1 %;
# and of its model's, where it has none. Twelve H200s differ by 0.1 % in FP32, 1.1 % on tensor cores and in
# their clock, 2.9 % in DRAM's and 11 % in L2's bandwidth: a few boards do not say how far the next may be,
# and a fault (a clock that is held low, a part of the memory that is lost) takes more than that. L2's depends
# on where a process's memory lies: nine processes on one board read 7,983 to 8,922 GB/s.
WIDER, WIDER_ELSEWHERE = 0.03, 0.15
# What a board must reach of which nothing is stored: shares of the datasheet's arithmetic at its clock (those
# H200s: 0.985 to 0.995, DRAM 0.85 to 0.87), and of NVML's highest clock (0.91 on tensor cores).
PLAUSIBLE = {"f32": 0.9, "f16": 0.85, "bf16": 0.85, "tf32": 0.85, "dram": 0.7}
PLAUSIBLE_CLOCK = 0.75
_PROBES = ("f32", "f16", "bf16", "tf32", "l2", "dram")
_WATT = 1.0  # by which a power limit may be below another: NVML's are rounded

CLOCK, ARITHMETIC, BANDWIDTH, NOT_MEASURED = "CLOCK", "ARITHMETIC", "BANDWIDTH", "NOT_MEASURED"
POWER_LIMIT, ECC, MIG, OTHER_PROCESSES = "POWER_LIMIT", "ECC", "MIG", "OTHER_PROCESSES"


@dataclass(frozen=True)
class MachineFinding:
    """What is not as it should be.

    Attributes:
        code: a stable reason code.
        subject: a probe's value, a setting, processes, or a group of cases.
        now, limit: its value, and what it may be at most or at least; of a group: how much longer its cases
            take, relative, and how much they may.
        error: of a group: the standard error of ``now``.
        cases: of a group: how many.
        changed: settings that differ for most of a group's cases: the likely cause.
    """

    code: str
    subject: str
    now: float | None
    limit: float | None
    error: float | None = None
    cases: int = 0
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """A board's state at the start of a run.

    Attributes:
        board: the digest that stands for it; None if unknown.
        probes: what was measured under load, as in ``machine_info["roofs"]``: by name ``gflops`` or ``gbps``,
            ``mhz`` and ``arithmetic``.
        settings: those of `Settings` that are known.
        others: other processes on the GPU, in words.
    """

    board: str | None = None
    probes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, machine: Mapping[str, Any], others: Iterable[str] = ()) -> Health:
        """That of a ``machine_info``."""
        roofs = machine.get("roofs") or {}
        return cls(
            machine.get("board"),
            {name: dict(roofs[name]) for name in _PROBES if name in roofs},
            {name: machine[name] for name in Settings.model_fields if machine.get(name) is not None},
            tuple(others),
        )


def ailments(now: Health, known: Sequence[Health]) -> tuple[MachineFinding, ...]:
    """What is wrong with a board, by what was ``known`` of its model before, oldest first."""
    return (*_others(now), *_settings(now, known), *_probes(now, known))


def _others(now: Health) -> Iterable[MachineFinding]:
    if now.others:
        yield MachineFinding(OTHER_PROCESSES, "; ".join(now.others), len(now.others), 0)


def _settings(now: Health, known: Sequence[Health]) -> Iterable[MachineFinding]:
    own = [one for one in known if one.board is not None and one.board == now.board]
    then = (own or list(known))[-1].settings if known else {}
    limit, default = now.settings.get("power_limit_w"), now.settings.get("default_power_limit_w")
    # Another board's limit counts only where this one's default is not known.
    stored = then.get("power_limit_w") if own or default is None else None
    least = max((float(watt) for watt in (default, stored) if watt is not None), default=None)
    if limit is not None and least is not None and limit < least - _WATT:
        yield MachineFinding(POWER_LIMIT, "power_limit_w", float(limit), least)
    for code, name in ((ECC, "ecc"), (MIG, "mig")):
        if None not in (now.settings.get(name), then.get(name)) and now.settings[name] != then[name]:
            yield MachineFinding(code, name, bool(now.settings[name]), bool(then[name]))


def _probes(now: Health, known: Sequence[Health]) -> Iterable[MachineFinding]:
    for probe in _PROBES:
        values = now.probes.get(probe, {})
        for field_, code in (("mhz", CLOCK), ("gflops", ARITHMETIC), ("gbps", BANDWIDTH)):
            there = [one for one in known if field_ in one.probes.get(probe, {})]
            own = [one for one in there if one.board is not None and one.board == now.board]
            before = [one.probes[probe][field_] for one in own or there]
            value, least = values.get(field_), _least(now, probe, field_, before, bool(own))
            # Not below: neither is NaN.
            if value is not None and least is not None and not value >= least:
                yield MachineFinding(code, f"{probe} {field_}", value, round(least, 1))
            elif value is None and before:
                yield MachineFinding(NOT_MEASURED, f"{probe} {field_}", None, round(least or 0.0, 1))


def _least(now: Health, probe: str, field_: str, before: Sequence[float], own: bool) -> float | None:
    """The least that a probe must reach, by what was known of it ``before``, of this board (``own``) or its
    model; None if nothing is."""
    if before:
        return (1 - (WIDER if own and probe != "l2" else WIDER_ELSEWHERE)) * min(before)
    if field_ == "mhz":
        highest = now.settings.get("max_sm_clock_mhz")
        return PLAUSIBLE_CLOCK * float(highest) if highest else None
    could = now.probes.get(probe, {}).get("arithmetic")
    return PLAUSIBLE[probe] * could if could and probe in PLAUSIBLE else None


# Shifts

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
    """The verdict on the machine, by ``health``, by what is ``known`` of boards of its model, oldest first,
    and by the ``shifts`` of all timed cases whose binary and launch are the stored ones, and of libraries'
    calls."""

    health: Health
    known: tuple[Health, ...]
    shifts: tuple[Shift, ...]

    @cached_property
    def findings(self) -> tuple[MachineFinding, ...]:
        """What is not as it should be."""
        return (*ailments(self.health, self.known), *_slower(self.shifts))

    @property
    def kind(self) -> VerdictKind:
        """PASS; DRIFTED; AMBIGUOUS where other processes or missing probes leave it open."""
        if not self.findings:
            return VerdictKind.PASS
        unclear = {finding.code for finding in self.findings} <= {OTHER_PROCESSES, NOT_MEASURED}
        return VerdictKind.AMBIGUOUS if unclear else VerdictKind.DRIFTED

    @property
    def reason(self) -> str:
        """The first finding's code, or why it passes."""
        if self.findings:
            return self.findings[0].code
        return AS_STORED if self.checked[0] else AS_ITS_MODEL if self.known or self.shifts else NOTHING_KNOWN

    @property
    def notes(self) -> tuple[Shift, ...]:
        """Single cases that are slower for certain, the slowest first; never red by themselves."""
        return tuple(sorted(filter(_is_slow, self.shifts), key=lambda shift: -shift.log_ratio))

    @property
    def checked(self) -> tuple[int, int]:
        """How many cases were compared with this board's own figures, and with other boards'."""
        own = sum(shift.own for shift in self.shifts)
        return own, len(self.shifts) - own

    @property
    def failed(self) -> bool:
        """Whether the run fails, with `MACHINE` as the reason."""
        return self.kind is not VerdictKind.PASS

    def recorded(self) -> dict[str, Any]:
        """As JSON, with all that it was judged by; `again` reads it."""
        said = {"kind": str(self.kind), "reason": self.reason, "checked": list(self.checked)}
        return {**said, "findings": [asdict(finding) for finding in self.findings], **asdict(self)}


def again(document: Mapping[str, Any]) -> MachineVerdict:
    """Judges a stored run once more, by what `MachineVerdict.recorded` wrote. Raises ValueError
    for anything else."""
    try:
        return TypeAdapter(MachineVerdict).validate_python(document)
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def judge_machine(health: Health, known: Iterable[Health], shifts: Iterable[Shift]) -> MachineVerdict:
    """The one verdict on a machine."""
    return MachineVerdict(health, tuple(known), tuple(shifts))


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
    ordered = np.array(sorted(zip(values, weights, strict=True)))
    below = np.cumsum(ordered[:, 1]) - ordered[:, 1] / 2
    return float(np.interp(sum(weights) / 2, below, ordered[:, 0]))

"""Applies the gate's rule to the stored samples, and computes its detection and false-alarm rates. Pure."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from scipy import stats

from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, MAYBE_SLOWER, Paired, VerdictKind, red
from gemm_regression.timing.looks import Estimate, conclude, look_until
from gemm_regression.timing.samples import AbbaBlock
from lab.study import frozen
from lab.study.raw import StudyError, read, seconds
from lab.study.trials import RULE, class_of

RED, REGRESSED = "gate, red", "gate, REGRESSED"
CONFIDENCE = 0.95
# For files without a number of cases: 1 % for 3 interim analyses of 8 cases is as much as for 4 of 6 cases.
_CASES = 6
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One trial of a case and size.

    Attributes:
        planted, measured: relative changes of the time. ``planted`` is from the counter of the planted
            cycles, NaN without one; ``measured`` from the mean over the blocks of the first interim analysis.
        seconds: of a launch of side A.
        paired: the result of the gate. An undecided case, and one that is only a little slower, is judged by
            the next trial of the same case, in another process.
        cost: the GPU seconds of these processes.
        found: whether the trial fails, and whether it is REGRESSED, by the name of the method.
    """

    case: str
    size: float
    trial: int
    planted: float
    measured: float
    seconds: float
    paired: Paired
    cost: float
    found: Mapping[str, bool]

    @property
    def kind(self) -> str:
        """The class of the case, as in the tables."""
        return class_of(self.case, self.seconds)


@dataclass(frozen=True)
class _InterimResult:
    """The result of a trial's interim analyses."""

    estimate: Estimate | None
    log_ratios: tuple[float, ...]
    resolution: float
    cost: float


def cells(head: Record, records: Sequence[Record]) -> list[Cell]:
    """One cell for every record that did not fail. The trials of a process are the cases of a run."""
    usable = [r for r in records if "error" not in r and r["looks"][0]["blocks"]]
    cases = head.get("cases", _CASES)
    margins = {case: known.get("margin", DEFAULT_MARGIN) for case, known in head["baseline"].items()}
    seen = [_seen(r["looks"], margins[r["case"]], RULE.share(cases)) for r in usable]
    runs: dict[int, list[int]] = {}
    for i, record in enumerate(usable):
        runs.setdefault(record["trial"] if "cases" in head else i, []).append(i)
    paired = {}
    for run in runs.values():
        found = conclude(
            {str(i): e for i in run if (e := seen[i].estimate)},
            {str(i): margins[usable[i]["case"]] for i in run},
            RULE,
            cases,
        )
        for i in run:
            paired[i] = Paired(*MAYBE_SLOWER)
            if f := found.get(str(i)):
                paired[i] = Paired.of(f, seen[i].log_ratios, seen[i].resolution, margins[usable[i]["case"]])
    after = _following(usable)
    made = []
    for i, record in enumerate(usable):
        one, cost = paired[i], seen[i].cost
        if one.doubtful and (second := after.get(i)) is not None:
            one = one.in_second_process(seen[second].log_ratios, seen[second].resolution)
            cost += seen[second].cost
        made.append(_cell(record, one, cost, head))
    return made


def _following(records: Sequence[Record]) -> dict[int, int]:
    """The next trial of the same case and size, in another process; the last one's is the first. A single one
    has none."""
    alike: dict[tuple[str, float], list[int]] = {}
    for i, record in enumerate(records):
        alike.setdefault((record["case"], record["size"]), []).append(i)
    return {
        one: other
        for each in alike.values()
        for one, other in zip(each, each[1:] + each[:1], strict=True)
        if one != other
    }


def _log_ratios(look: Record) -> tuple[float, ...]:
    return tuple(AbbaBlock(seconds(a), seconds(b)).log_ratio for a, b, *_ in look["blocks"])


def _seen(looks: Sequence[Record], margin: float, share: float) -> _InterimResult:
    taken: list[Record] = []
    ratios: list[float] = []

    def more(look: int) -> tuple[Sequence[float], float]:
        taken.append(looks[look])
        added = _log_ratios(looks[look])
        ratios.extend(added)
        return added, looks[look]["resolution"]

    there = replace(RULE, looks=min(RULE.looks, len(looks)))
    estimate = look_until(more, lambda e: e.p_value(margin) <= share, there)
    cost = sum(look["gpu_seconds"] for look in taken)
    return _InterimResult(estimate, tuple(ratios), taken[-1]["resolution"], cost)


def _cell(record: Record, paired: Paired, cost: float, head: Record) -> Cell:
    blocks = [block for look in record["looks"] for block in look["blocks"]]
    true = record.get("true")
    return Cell(
        case=record["case"],
        size=record["size"],
        trial=record["trial"],
        planted=math.nan if true is None else true,
        measured=math.expm1(statistics.fmean(_log_ratios(record["looks"][0]))),
        seconds=statistics.median(seconds(tick for block in blocks for tick in block[0])),
        paired=paired,
        cost=cost,
        found={RED: red(paired.outcome), REGRESSED: paired.kind is VerdictKind.REGRESSED},
    )


@dataclass(frozen=True)
class Rate:
    """``count`` out of ``trials``, with Clopper-Pearson confidence limits (Biometrika 26, 1934)."""

    count: int
    trials: int

    @classmethod
    def of(cls, chosen: Iterable[Cell], method: str) -> Rate | None:
        """How often a method called these slower; None without any that it judged."""
        known = [cell.found[method] for cell in chosen if method in cell.found]
        return cls(sum(known), len(known)) if known else None

    @property
    def share(self) -> float:
        return self.count / self.trials

    @property
    def limits(self) -> tuple[float, float]:
        k, n, tail = self.count, self.trials, (1 - CONFIDENCE) / 2
        low = float(stats.beta.ppf(tail, k, n - k + 1)) if k else 0.0
        high = float(stats.beta.isf(tail, k + 1, n - k)) if k < n else 1.0
        return low, high

    def __str__(self) -> str:
        """In percent, with its confidence limits."""
        low, high = (100 * end for end in self.limits)
        return f"{100 * self.share:.1f} ({low:.1f}–{high:.1f})"


def mean(values: Iterable[float]) -> tuple[float, float]:
    """Mean, and half the width of Student's t confidence interval, of independent values; NaN for fewer than
    two."""
    known = [value for value in values if value == value]
    if len(known) < 2:
        return (known[0] if known else math.nan), math.nan
    t = float(stats.t.isf((1 - CONFIDENCE) / 2, len(known) - 1))
    return statistics.fmean(known), t * statistics.stdev(known) / math.sqrt(len(known))


@dataclass(frozen=True)
class Study:
    """One file of samples, judged: its ``name``, its ``head`` (header) as stored, the ``cells`` of its
    trials, how many ``failed``, and the ``digest`` of the file."""

    name: str
    head: Mapping[str, Any]
    cells: tuple[Cell, ...]
    failed: int
    digest: str

    @property
    def gpu(self) -> str:
        return str(self.head["machine_info"]["name"])

    @property
    def board(self) -> str:
        """The board it was measured on; a file without that counts as a board of its own, by its name."""
        return str(self.head["machine_info"].get("board") or self.name)

    @property
    def after(self) -> bool:
        """Whether it was measured after the rule was frozen."""
        return frozen.after(self.head)


def load(files: Iterable[Path]) -> list[Study]:
    """The files, judged, in the order of their names. Raises StudyError, also if two contain the same
    trials."""
    studies = [_study(file) for file in sorted(files, key=lambda file: (file.name, file))]
    for one, other in combinations(studies, 2):
        if one.head == other.head:
            raise StudyError(
                f"{one.name} and {other.name} contain the same measurement, which would count twice; remove "
                "one"
            )
    return studies


def _study(file: Path) -> Study:
    head, records = read(file)
    try:
        judged = tuple(cells(head, records))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise StudyError(f"{file}: not written by `measure` ({type(error).__name__}: {error})") from None
    if not judged:
        raise StudyError(f"{file} contains no trial; measure some with `nox -s lab -- study measure`")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return Study(file.name, head, judged, len(records) - len(judged), digest)

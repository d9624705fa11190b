"""How each method judges the stored samples, and how often it is correct. Pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from harness.study.ladder import case_of
from harness.study.methods import others
from harness.study.raw import seconds
from harness.study.trials import (
    MARGINS,
    alone_verdict,
    gate_pair,
    gate_verdict,
    judged,
    log_ratios,
    pair_finding,
    policy,
)
from harness.verdicts.paired import SLOWER, outcome_of
from harness.verdicts.vocabulary import DEFAULT_MARGIN, VerdictKind

GATE, GATE_SLOWER = "gate, red", "gate, REGRESSED"
ALONE, ALONE_FIRST = "baseline alone, confirmed in a new process", "baseline alone, first measurement only"
PAIRED = {margin: f"paired comparison, ±{100 * margin:g} %" for margin in MARGINS}
RUNS, TURNS = "two runs: ", "interleaved: "  # other tools on the gate's samples, on the paired comparison's
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Cell:
    """One trial of a case and size: what each method reported, and the GPU seconds it took.

    ``planted`` and ``measured`` are relative changes of the time: from the counter of the planted cycles, and
    from the mean over the blocks of the first interim analysis (whether there is another one depends on the
    data). ``against_stored`` are the changes of the gate's measurements relative to the stored baseline,
    ``mhz`` the SM clock during the launches with the planted cycles.
    ``said`` is the gate's verdict. ``found`` is True if a method calls it slower, or the gate's verdict
    fails; ``open`` if the paired comparison is inconclusive; ``cost`` the GPU seconds of each method. They
    lack a margin that the file was not measured for.
    """

    case: str
    size: float
    trial: int
    planted: float
    measured: float
    seconds: float
    mhz: float
    against_stored: tuple[float, ...]
    said: str
    found: Mapping[str, bool]
    open: Mapping[str, bool]
    cost: Mapping[str, float]


def cells(head: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """One cell for every record that did not fail."""
    major, minor = map(int, head["machine_info"]["capability"].split("."))
    whole, margins = not head.get("summaries"), head.get("margins", MARGINS)
    usable = [record for record in records if "error" not in record and record["looks"][0]["blocks"]]
    alike: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for record in usable:
        alike.setdefault((record["case"], record["size"]), []).append(record)
    after = {
        (one["case"], one["size"], one["trial"]): another
        for each in alike.values()
        for one, another in zip(each, each[1:] + each[:1], strict=True)
    }
    return [
        _cell(
            record,
            after[record["case"], record["size"], record["trial"]],
            head["baseline"][record["case"]],
            (major, minor),
            margins,
            whole=whole,
        )
        for record in usable
    ]


def _cell(
    record: Mapping[str, Any],
    following: Mapping[str, Any],
    stored: Mapping[str, Any],
    capability: tuple[int, int],
    margins: Sequence[float],
    *,
    whole: bool,
) -> Cell:
    """``following``: the next trial of the same case and size, in another process; the last one's is the
    first, and a single one's is itself, which is no other process. ``whole``: all samples are stored, which
    other tools' rules need."""
    case, runs, looks = case_of(record["case"], capability), record["gate"], judged(record["looks"])
    paired, second = gate_pair(looks, policy(case).pair_margin), []
    if paired.doubtful and following is not record:
        second = judged(following["looks"])
        paired = paired.in_new_process(log_ratios(second))
    verdict = gate_verdict(case, stored, runs, paired)
    found = {
        GATE: verdict.failed(policy(case)),
        GATE_SLOWER: verdict.kind is VerdictKind.REGRESSED,
    }
    first = runs[0]["gpu_seconds"]
    base = statistics.median_low(stored["medians"])
    alone = {
        ALONE: alone_verdict(case, stored, runs).kind is VerdictKind.REGRESSED,
        ALONE_FIRST: alone_verdict(case, stored, runs[:1]).kind is VerdictKind.REGRESSED,
    }
    cost = {ALONE: sum(run["gpu_seconds"] for run in runs), ALONE_FIRST: first}
    undecided = {}
    for margin, name in ((margin, PAIRED[margin]) for margin in margins):
        finding = pair_finding(looks, margin)
        kind = outcome_of(finding.kind).kind if finding else VerdictKind.AMBIGUOUS
        last = finding.look if finding else len(looks) - 1
        found[name], undecided[name] = kind is VerdictKind.REGRESSED, kind is VerdictKind.AMBIGUOUS
        cost[name] = sum(look["gpu_seconds"] for look in looks[: last + 1])
    # What the pair called slower is not measured again.
    again = 0.0 if verdict.reason == SLOWER.reason else cost[ALONE] - first
    twice = sum(look["gpu_seconds"] for look in second)
    cost |= dict.fromkeys((GATE, GATE_SLOWER), first + cost[PAIRED[DEFAULT_MARGIN]] + twice + again)
    found |= alone
    blocks = [block for look in record["looks"] for block in look["blocks"]]
    a, b, a_mhz, b_mhz = ([x for block in blocks for x in block[part]] for part in range(4))
    everything = sum(look["gpu_seconds"] for look in looks)
    sets = (
        (RUNS, first, stored["samples"], runs[0]["samples"], stored["clocks"], runs[0]["clocks"]),
        (TURNS, everything, a, b, a_mhz, b_mhz),
    )
    for prefix, spent, old, new, old_mhz, new_mhz in sets if whole else ():
        said = others(seconds(old), seconds(new), _mhz(old_mhz), _mhz(new_mhz))
        found |= {prefix + name: word == "SLOW" for name, word in said.items()}
        cost |= dict.fromkeys((prefix + name for name in said), spent)
    return Cell(
        case=record["case"],
        size=record["size"],
        trial=record["trial"],
        planted=record["true"] if record["true"] is not None else math.nan,
        measured=math.expm1(statistics.fmean(looks[0]["log_ratios"])),
        seconds=statistics.median(seconds(a)),
        mhz=statistics.median([f for f in b_mhz if f] or [math.nan]),
        against_stored=tuple(statistics.median(seconds(run["samples"])) / base - 1 for run in runs),
        said=str(verdict.outcome),
        found=found,
        open=undecided,
        cost=cost,
    )


def _mhz(numbers: Iterable[int]) -> list[float]:
    return [float(n) if n else math.nan for n in numbers]


@dataclass(frozen=True)
class Rate:
    """``count`` out of ``trials``, with Clopper-Pearson confidence limits (Biometrika 26, 1934)."""

    count: int
    trials: int

    @property
    def share(self) -> float:
        return self.count / self.trials

    @property
    def limits(self) -> tuple[float, float]:
        k, n, tail = self.count, self.trials, (1 - CONFIDENCE) / 2
        low = float(stats.beta.ppf(tail, k, n - k + 1)) if k else 0.0
        high = float(stats.beta.isf(tail, k + 1, n - k)) if k < n else 1.0
        return low, high

    def text(self, digits: int = 1) -> str:
        """In percent, with its confidence limits."""
        low, high = (100 * end for end in self.limits)
        return f"{100 * self.share:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"

    __str__ = text


def trials_to_show(limit: float, count: int = 0) -> int:
    """The fewest trials for which the upper confidence limit of ``count`` findings is at most ``limit``."""
    enough = range(count + 1, 10**9)
    return enough[bisect_left(enough, True, key=lambda trials: Rate(count, trials).limits[1] <= limit)]


def rate(chosen: Sequence[Cell], method: str) -> Rate | None:
    """How often a method called these slower; None without any that it judged."""
    known = [cell.found[method] for cell in chosen if method in cell.found]
    return Rate(sum(known), len(known)) if known else None


def undecided(chosen: Sequence[Cell], method: str) -> Rate | None:
    """How often it was inconclusive; None if the method always decides."""
    known = [cell.open[method] for cell in chosen if method in cell.open]
    return Rate(sum(known), len(known)) if known else None


def mean(values: Iterable[float]) -> tuple[float, float]:
    """Mean, and half the width of Student's t confidence interval, of independent values; NaN for fewer than
    two."""
    known = [value for value in values if value == value]
    if len(known) < 2:
        return (known[0] if known else math.nan), math.nan
    t = float(stats.t.isf((1 - CONFIDENCE) / 2, len(known) - 1))
    return statistics.fmean(known), t * statistics.stdev(known) / math.sqrt(len(known))

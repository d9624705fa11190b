"""Which cases changed over the numbered baselines of a GPU, and when: change points, found with ruptures.

A loss of 0.3 % per update is invisible in each, but not in the sequence. Never part of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import numpy as np

from harness.baselines import store
from harness.baselines.agree import LIMITS, kind_of
from harness.baselines.fields import BaselineError
from harness.baselines.store import Baseline, BaselineEntry


@dataclass(frozen=True)
class Move:
    """A ``case`` whose GFLOPS changed from one level to another (``gflops``) with this ``file``, measured at
    this ``commit``."""

    case: str
    file: str
    commit: str
    gflops: tuple[float, float]

    @property
    def change(self) -> float:
        """Relative change of the GFLOPS."""
        return self.gflops[1] / self.gflops[0] - 1


def moves(files: Sequence[Baseline], cases: Collection[str] | None = None) -> list[Move]:
    """The changes of the newest baseline's ``cases`` (default: all), by file. ``files``: of one board, or at
    least of one GPU model, oldest first.

    A case has a level in each segment between two change points: the mean of its log medians. The segments
    are those with the least cost according to PELT (Killick, Fearnhead and Eckley, 2012). The cost of a
    segment is the sum of squares about its level, and that of a change point is the penalty

        max(3 σ² ln(n N), L² / 2)

    The first is the modified BIC for a mean of known variance (Zhang and Siegmund, Biometrics 63, 2007), over
    all n medians of all N cases, since all are looked at; σ is the case's noise floor, the median over its
    files, which is above the standard error of a median of five runs and so leaves room for what differs from
    day to day. The second is what a step of L between two files gains, L being how far two runs of one
    binary may lie apart (`agree.LIMITS`). Raises ImportError where ruptures is not installed.
    """
    if len(files) < 2:
        return []
    import ruptures  # late: it takes most of a second, and most runs have no use for it

    found = []
    for case in files[-1].case_ids if cases is None else cases:
        points = measured(files, case)
        if len(points) < 2:
            continue
        logs = [math.log(entry.median_s) for _, entry in points]
        sigma = median(entry.noise_floor for _, entry in points)
        medians = len(points) * len(files[-1].case_ids)
        penalty = max(3 * sigma**2 * math.log(medians), LIMITS[kind_of(case)] ** 2 / 2)
        search = ruptures.Pelt(model="l2", min_size=1, jump=1)
        ends = search.fit_predict(np.array(logs)[:, None], pen=penalty)
        work = points[-1][1].gflops * points[-1][1].median_s
        levels = [work / math.exp(mean(logs[i:j])) for i, j in pairwise((0, *ends))]
        for first, pair in zip(ends[:-1], pairwise(levels), strict=True):
            name, entry = points[first]
            found.append(Move(case, name, entry.commit[:12] + " with changes" * entry.dirty, pair))
    return sorted(found, key=lambda move: move.file)


def measured(files: Sequence[Baseline], case: str) -> list[tuple[str, BaselineEntry]]:
    """The entries of a case, with the names of the files; without those carried over from the previous file.

    Only those of the newest file's board that were timed with the same L2 policy and duty cycle as now;
    others are not comparable."""
    found: list[tuple[str, BaselineEntry]] = []
    newest = files[-1].entry(case)
    for file in files:
        entry = file.entry(case)
        if entry is None or newest is None or (found and entry == found[-1][1]):
            continue
        if entry.board != newest.board:
            continue
        if found and (entry.l2, entry.duty) != (found[-1][1].l2, found[-1][1].duty):
            found = []
        found.append((file.path.name if file.path else "", entry))
    return found


def lost(found: Sequence[Move]) -> dict[str, float]:
    """The cases that are slower now than in their best segment, with the relative change of GFLOPS
    (negative).

    Changes below L / 2, the smallest change point that four files before and after can show, are ignored.
    """
    best: dict[str, float] = {}
    now: dict[str, float] = {}
    for move in found:  # ordered by file: the last one of a case applies now
        best[move.case] = max(best.get(move.case, 0.0), *move.gflops)
        now[move.case] = move.gflops[1]
    changes = {case: now[case] / best[case] - 1 for case in now}
    return {case: change for case, change in changes.items() if change < -LIMITS[kind_of(case)] / 2}


def of_boards(files: Sequence[Baseline]) -> dict[str | None, list[Baseline]]:
    """The files of each board, that of the newest file last."""
    boards = dict.fromkeys(file.board for file in reversed(files))
    return {board: [file for file in files if file.board == board] for board in reversed(boards)}


def note(root: Path, slug: str, board: str | None) -> str:
    """One line if cases of a board have become slower over its history, else empty; never raises."""
    try:
        found = moves(of_boards(store.history(root, slug)).get(board, []))
    except ImportError:
        return ""
    except BaselineError as error:
        return f"history: {error}"
    slower = lost(found)
    if not slower:
        return ""
    since = min(move.file for move in found if move.case in slower)[:4]
    count = f"{len(slower)} cases" if len(slower) > 1 else "1 case"
    return f"history: {count} slower than before, since {since}; see python -m harness baseline history"

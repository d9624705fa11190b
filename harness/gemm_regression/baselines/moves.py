"""Which cases changed over the measurements of a GPU model, and when: change points, found with ruptures.

A loss of 0.3 % per refresh is invisible in each, but not in the sequence. Never part of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median

import numpy as np

from gemm_regression.baselines.records import BaselineEntry
from gemm_regression.baselines.store import Baseline, derived


def limit(duty: float) -> float:
    """How far two runs of one binary may lie apart on one board, relative: more where a kernel would reach
    the power cap if kept busy, as its duty cycle says."""
    return 0.01 if duty < 1.0 else 0.003


@dataclass(frozen=True)
class Move:
    """A ``case`` whose GFLOPS changed from one level to another (``gflops``) with this measurement (``at``),
    of this ``commit``; below ``limit`` two runs of one binary may lie apart, relative."""

    case: str
    at: str
    commit: str
    gflops: tuple[float, float]
    limit: float

    @property
    def change(self) -> float:
        """Relative change of the GFLOPS."""
        return self.gflops[1] / self.gflops[0] - 1


@dataclass(frozen=True)
class Point:
    """The ``entry`` of a case in a measurement (``at``), and the ``gflops`` that it shows on the board of the
    newest one."""

    at: str
    entry: BaselineEntry
    gflops: float


def moves(measurements: Sequence[Baseline], cases: Collection[str] | None = None) -> list[Move]:
    """The changes of some cases (default: all that are current), by measurement. ``measurements``: of a GPU
    model, oldest first.

    A case has a level in each segment between two change points: the mean of its log medians. The segments
    are those with the least cost according to PELT (Killick, Fearnhead and Eckley, 2012). The cost of a
    segment is the sum of squares about its level, and that of a change point is the penalty

        max(3 σ² ln(n N), L² / 2)

    The first is the modified BIC for a mean of known variance (Zhang and Siegmund, Biometrics 63, 2007), over
    all n medians of all N cases, since all are looked at; σ is the case's noise floor, the median over its
    measurements, which is above the standard error of a median of five runs and so leaves room for what
    differs from day to day. The second is what a step of L between two measurements gains, L being how far
    two runs of one binary may lie apart (`limit`). Raises ImportError where ruptures is not installed.
    """
    if len(measurements) < 2:
        return []
    import ruptures  # late: it takes most of a second, and most runs have no use for it

    every = derived(measurements).case_ids
    found = []
    for case in every if cases is None else cases:
        points = measured(measurements, case)
        if len(points) < 2:
            continue
        logs = [math.log(point.gflops) for point in points]
        sigma = median(point.entry.noise_floor for point in points)
        apart = limit(points[-1].entry.duty)
        penalty = max(3 * sigma**2 * math.log(len(points) * len(every)), apart**2 / 2)
        middle = mean(logs)
        if sum((log - middle) ** 2 for log in logs) <= penalty:
            continue  # no change point can gain more than that
        search = ruptures.Pelt(model="l2", min_size=1, jump=1)
        ends = search.fit_predict(np.array(logs)[:, None], pen=penalty)
        levels = [math.exp(mean(logs[i:j])) for i, j in pairwise((0, *ends))]
        for first, pair in zip(ends[:-1], pairwise(levels), strict=True):
            entry = points[first].entry
            commit = entry.commit[:12] + " with changes" * entry.dirty
            found.append(Move(case, points[first].at, commit, pair, apart))
    return sorted(found, key=lambda move: move.at)


def measured(measurements: Sequence[Baseline], case: str) -> list[Point]:
    """What a case showed in each measurement, as the board of the newest one would have shown it.

    How far another board is from that one is known from the binaries that both have timed; a board that has
    none in common with it, by way of others at least, is left out, and so is what was timed with another L2
    policy or duty cycle than the newest.
    """
    found = [(each.label, entry) for each in measurements if (entry := each.entry(case))]
    if not found:
        return []
    newest = found[-1][1]
    found = [each for each in found if (each[1].l2, each[1].duty) == (newest.l2, newest.duty)]
    factors = _factors([entry for _, entry in found])
    return [
        Point(at, entry, entry.gflops * factors[entry.board]) for at, entry in found if entry.board in factors
    ]


def _factors(entries: Sequence[BaselineEntry]) -> dict[str | None, float]:
    """By board, how much faster the newest entry's board is."""
    times: dict[str | None, dict[tuple[str | None, ...], list[float]]] = {}
    for entry in entries:
        ran = entry.cubin_sha256, entry.launch, None if entry.cubin_sha256 else entry.machine.get("cublas")
        times.setdefault(entry.board, {}).setdefault(ran, []).append(entry.median_s)
    known = {entries[-1].board: 1.0}
    for near in (queue := [entries[-1].board]):
        for board in times.keys() - known:
            if both := times[board].keys() & times[near].keys():
                ratios = [median(times[board][ran]) / median(times[near][ran]) for ran in both]
                known[board] = known[near] * median(ratios)
                queue.append(board)
    return known


def lost(found: Sequence[Move]) -> dict[str, float]:
    """The cases that are slower now than in their best segment, with the relative change of GFLOPS
    (negative).

    Changes below L / 2, the smallest change point that four measurements before and after can show, are
    ignored.
    """
    of_case: dict[str, list[Move]] = {}
    for move in found:  # ordered: the last one of a case applies now
        of_case.setdefault(move.case, []).append(move)
    changes = {
        case: made[-1].gflops[1] / max(level for move in made for level in move.gflops) - 1
        for case, made in of_case.items()
    }
    return {case: change for case, change in changes.items() if change < -of_case[case][0].limit / 2}

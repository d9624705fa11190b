"""The measurements of each GPU model as records: every case, with its change points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gemm_regression.baselines import Baseline
from gemm_regression.baselines.moves import Move, lost, measured, moves
from gemm_regression.baselines.store import derived
from gemm_regression.report.page.records import Record, Variants, names_of


def series(histories: Mapping[str, Sequence[Baseline]], declared: Variants) -> list[Record]:
    """A record for each case of a GPU model that at least two comparable measurements have: ``files``,
    ``relative`` (change of the GFLOPS from the first, in %), ``gflops``, ``boards`` and ``moved`` (%, at a
    change point, else 0), a value per measurement; ``trend``: slower, faster or steady."""
    return [record for found in histories.values() for record in _of_model(found, declared)]


def _of_model(measurements: Sequence[Baseline], declared: Variants) -> list[Record]:
    changes = moves(measurements)
    slower = lost(changes)
    found = []
    for case in derived(measurements).case_ids:
        points = measured(measurements, case)
        if len(points) < 2:
            continue
        first = points[0].gflops
        own = {move.at: move.change for move in changes if move.case == case}
        trend = "slower" if case in slower else "faster" if own else "steady"
        found.append(
            {
                "history": measurements[-1].name,
                "case": case,
                **names_of(case, points[-1].entry.info, declared),
                "trend": trend,
                "files": [point.at[:4] for point in points],
                "relative": [round(100 * (point.gflops / first - 1), 3) for point in points],
                "gflops": [float(f"{point.entry.gflops:.6g}") for point in points],
                "commits": [point.entry.commit[:8] for point in points],
                "boards": [point.entry.board or "unknown" for point in points],
                "moved": [round(100 * own.get(point.at, 0.0), 2) for point in points],
            }
        )
    return found


def changed(histories: Mapping[str, Sequence[Baseline]]) -> list[tuple[str, Move, bool]]:
    """Every change point: the GPU, the move, and whether the case is slower now than it was; the slower ones
    first, the largest change first."""
    found: list[tuple[str, Move, bool]] = []
    for measurements in histories.values():
        made = moves(measurements)
        slower = lost(made)
        found += [(measurements[-1].name, move, move.case in slower) for move in made]
    return sorted(found, key=lambda one: (not one[2], -abs(one[1].change)))


def options(records: Sequence[Record]) -> list[Any]:
    """The GPU models with a history, the longest first."""
    longest: dict[str, int] = {}
    for record in records:
        longest[record["history"]] = max(longest.get(record["history"], 0), len(record["files"]))
    return sorted(longest, key=lambda label: -longest[label])

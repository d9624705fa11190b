"""The numbered baselines of each board as records: every case, with its change points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.baselines import Baseline
from harness.baselines.history import Move, lost, measured, moves, of_boards
from harness.reports.page.records import Record, Variants, names_of


def series(histories: Mapping[str, Sequence[Baseline]], declared: Variants) -> list[Record]:
    """A record for each case of each board that at least two of its files measured: ``files``, ``relative``
    (change of the GFLOPS from the first, in %), ``gflops`` and ``moved`` (%, at a change point, else 0),
    a value per file; ``trend``: slower, faster or steady."""
    found = []
    for files in histories.values():
        for board, of_board in of_boards(files).items():
            found += _of_board(of_board, board, declared)
    return found


def _of_board(files: Sequence[Baseline], board: str | None, declared: Variants) -> list[Record]:
    changes = moves(files)
    slower = lost(changes)
    label = f"{files[-1].machine_info['name']}, board {board or 'unknown'}"
    found = []
    for case in files[-1].case_ids:
        points = measured(files, case)
        if len(points) < 2:
            continue
        first = points[0][1].gflops
        own = {move.file: move.change for move in changes if move.case == case}
        trend = "slower" if case in slower else "faster" if own else "steady"
        found.append(
            {
                "history": label,
                "case": case,
                **names_of(case, points[-1][1].info, declared),
                "trend": trend,
                "files": [name[:4] for name, _ in points],
                "relative": [round(100 * (entry.gflops / first - 1), 3) for _, entry in points],
                "gflops": [float(f"{entry.gflops:.6g}") for _, entry in points],
                "commits": [entry.commit[:8] for _, entry in points],
                "moved": [round(100 * own.get(name, 0.0), 2) for name, _ in points],
            }
        )
    return found


def changed(histories: Mapping[str, Sequence[Baseline]]) -> list[tuple[str, Move, bool]]:
    """Every change point: GPU and board, the move, and whether the case is slower now than it was; the
    slower ones first, the largest change first."""
    found: list[tuple[str, Move, bool]] = []
    for files in histories.values():
        for board, of_board in of_boards(files).items():
            made = moves(of_board)
            slower = lost(made)
            label = f"{of_board[-1].machine_info['name']}, board {board or 'unknown'}"
            found += [(label, move, move.case in slower) for move in made]
    return sorted(found, key=lambda one: (not one[2], -abs(one[1].change)))


def options(records: Sequence[Record]) -> list[Any]:
    """The boards with a history, the longest first."""
    longest: dict[str, int] = {}
    for record in records:
        longest[record["history"]] = max(longest.get(record["history"], 0), len(record["files"]))
    return sorted(longest, key=lambda label: -longest[label])

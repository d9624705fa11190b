"""How far the boards of a GPU model differ, case by case, from all of its stored files.

A board without figures of its own is judged by another board's, and its thresholds are wider by that much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from harness.baselines.agree import alike, kind_of, what_ran
from harness.baselines.store import Baseline, BaselineEntry


@dataclass(frozen=True)
class Spread:
    """``relative``: (max - min) / median of the medians of so many ``boards``, with the same binary, launched
    and timed in the same way, with the same driver. Boards that older files do not name count as one.
    ``library``: of a library's kernel."""

    relative: float
    boards: int
    library: bool = False


def spreads(baseline: Baseline, files: Sequence[Baseline]) -> dict[str, Spread]:
    """The spread of each case of a baseline that several boards have measured. ``files``: all of the model,
    oldest first; of each board, the newest measurement counts."""
    found = {}
    for case, entry in baseline.entries.items():
        wanted = _measured(baseline, entry)
        of_boards: dict[str | None, float] = {}
        for file in files:
            other = file.entry(case)
            if other is not None and alike(_measured(file, other), wanted):
                of_boards[other.board] = other.median_s
        if len(of_boards) > 1:
            seconds = list(of_boards.values())
            relative = (max(seconds) - min(seconds)) / median(seconds)
            found[case] = Spread(relative, len(seconds), _is_library(entry))
    return found


def _measured(baseline: Baseline, entry: BaselineEntry) -> dict[str, object]:
    machine = baseline.machine_of(entry)
    return {**what_ran(entry.info, machine), "driver": machine.get("driver")}


def expected(case: str, known: Mapping[str, Spread], library: bool = False) -> float:
    """How far another board may differ at a case, a library's or not: the most of its kernel's cases of that
    dtype, itself included, since a few boards say little of one case; where no other board has measured
    those, the most of all such kernels on the same kind of core, since another kernel of its problem need not
    wait for the same; 0 where nothing is known."""
    return _expected(case, library, _most(known))


def _is_library(entry: BaselineEntry) -> bool:
    """Whether a library's kernel was measured, which is not a binary of ours."""
    return entry.cubin_sha256 is None


def _groups(case: str, library: bool) -> tuple[tuple[object, ...], ...]:
    """What a case belongs to, the nearest first."""
    return ("kernel", *case.split("-")[:2]), ("kind", kind_of(case), library)


def _most(known: Mapping[str, Spread]) -> dict[tuple[object, ...], float]:
    """The largest spread of each group."""
    most: dict[tuple[object, ...], float] = {}
    for case, spread in known.items():
        of = _groups(case, spread.library)
        most |= {group: max(spread.relative, most.get(group, 0.0)) for group in of}
    return most


def _expected(case: str, library: bool, most: Mapping[tuple[object, ...], float]) -> float:
    return next((most[group] for group in _groups(case, library) if group in most), 0.0)


def is_strange(entry: BaselineEntry, board: str | None) -> bool:
    """Whether a case was measured on another board than this one; unknown ones are not said to be another."""
    return None not in (entry.board, board) and entry.board != board


def judging(baseline: Baseline, board: str | None, files: Callable[[str], Sequence[Baseline]]) -> Baseline:
    """The baseline as it judges a run on ``board``: cases that another board has measured have the
    ``board_spread`` that all ``files`` of its GPU model show (given its name: `store.history`); a board's own
    cases are as they are. Raises what reading them raises."""
    if not any(is_strange(entry, board) for entry in baseline.entries.values()):
        return baseline
    most = _most(spreads(baseline, files(baseline.slug)))
    entries = {
        case: replace(entry, board_spread=_expected(case, _is_library(entry), most), other_board=True)
        if is_strange(entry, board)
        else entry
        for case, entry in baseline.entries.items()
    }
    return replace(baseline, entries=entries)

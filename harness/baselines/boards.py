"""How far the boards of a GPU model differ, case by case, from all of its stored files.

A board without figures of its own is judged by another board's, and its thresholds are wider by that much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from harness.baselines.agree import alike, kind_of, what_ran
from harness.baselines.store import Baseline, BaselineEntry

_Group = tuple[object, ...]  # cases that boards may differ at alike
_ENOUGH = 3  # boards: two may agree where a third does not


@dataclass(frozen=True)
class Spread:
    """``relative``: (max - min) / median of the medians of so many ``boards``, with the same binary, launched
    and timed in the same way, with the same driver. Boards that older files do not name count as one.
    ``library``: of a library's kernel; ``chosen``: the kernel that was measured as a choice, else empty."""

    relative: float
    boards: int
    library: bool = False
    chosen: str = ""


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
            found[case] = Spread(relative, len(seconds), _is_library(entry), _chosen(entry))
    return found


def _measured(baseline: Baseline, entry: BaselineEntry) -> dict[str, object]:
    machine = baseline.machine_of(entry)
    return {**what_ran(entry.info, machine), "driver": machine.get("driver")}


def expected(case: str, known: Mapping[str, Spread], library: bool = False, chosen: str = "") -> float:
    """How far another board may differ at a case, a library's or not: the most of its kernel's cases of that
    dtype, itself included, since a few boards say little of one case; where fewer than three boards have
    measured those, also the most of all such kernels on the same kind of core, since another kernel of its
    problem need not wait for the same; 0 where nothing is known. A choice is a case of the kernel that was
    chosen."""
    return _expected(_groups(case, library, chosen), _most(known))


def _is_library(entry: BaselineEntry) -> bool:
    """Whether a library's kernel was measured, which is not a binary of ours."""
    return entry.cubin_sha256 is None


def _chosen(entry: BaselineEntry) -> str:
    """The kernel of a choice, such as ``wgmma`` of ``wgmma-tile64x64``; else empty."""
    return entry.choice.partition("-")[0]


def _groups(case: str, library: bool, chosen: str) -> tuple[_Group, ...]:
    """What a case belongs to, the nearest first."""
    kernel, dtype = case.split("-")[:2]
    return ("kernel", chosen or kernel, dtype), ("kind", kind_of(case), library)


def _most(known: Mapping[str, Spread]) -> dict[_Group, tuple[float, int]]:
    """The largest spread of each group, and by how many boards it is known at most."""
    most: dict[_Group, tuple[float, int]] = {}
    for case, spread in known.items():
        for group in _groups(case, spread.library, spread.chosen):
            relative, boards = most.get(group, (0.0, 0))
            most[group] = max(spread.relative, relative), max(spread.boards, boards)
    return most


def _expected(groups: Sequence[_Group], most: Mapping[_Group, tuple[float, int]]) -> float:
    largest = 0.0
    for group in groups:
        relative, boards = most.get(group, (0.0, 0))
        largest = max(largest, relative)
        if boards >= _ENOUGH:
            break
    return largest


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

    def elsewhere(case: str, entry: BaselineEntry) -> BaselineEntry:
        groups = _groups(case, _is_library(entry), _chosen(entry))
        return replace(entry, board_spread=_expected(groups, most), other_board=True)

    entries = {
        case: elsewhere(case, entry) if is_strange(entry, board) else entry
        for case, entry in baseline.entries.items()
    }
    return replace(baseline, entries=entries)

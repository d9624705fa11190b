"""Hardware counters of cases side by side: a column per launch, a row per figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from rich.table import Table
from rich.text import Text

from gemm_regression.counters.profiler import GROUPS, Figure, value
from gemm_regression.report.figures import percent_text
from gemm_regression.report.terminal import render

_TITLE, _CELL = 34, 13  # columns of the terminal
_LEAST = 0.05  # reasons to stall that are rarer in every launch are left out
_WAITS = "warps stalled"


@dataclass(frozen=True)
class Column:
    """A launch: what it is, as a text; its metrics; and those of what it is compared with, if it is."""

    label: str
    values: Mapping[str, float]
    base: Mapping[str, float] | None = None


def tables(columns: Sequence[Column], base: str, width: int, color: bool = False) -> str:
    """The columns by letter, and their figures; as many columns beside each other as there is room for, 0 for
    any number. ``base`` says what the columns with a base are compared with. Of two columns without one, the
    second is compared with the first."""
    letters = [_letter(number) for number in range(len(columns))]
    said = [f"{letter}  {column.label}" for letter, column in zip(letters, columns, strict=True)]
    if base:
        said.append(f"base: {base}")
    pair = len(columns) == 2 and not any(column.base for column in columns)
    if pair:
        columns = [columns[0], Column(columns[1].label, columns[1].values, columns[0].values)]
    cells = 3 if any(column.base for column in columns) and not pair else 1
    at_once = max(1, ((width or 10_000) - _TITLE) // (_CELL * cells))
    if pair and at_once < 3:
        pair, columns = False, [Column(c.label, c.values) for c in columns]
    at_once = len(columns) if pair else at_once
    parts = []
    for start in range(0, len(columns), at_once):
        some = slice(start, start + at_once)
        made = _table(columns[some], letters[some], columns, pair)
        parts.append(render(made, color))
    return "\n".join(said) + "\n\n" + "\n\n".join(parts)


def _letter(number: int) -> str:
    return ascii_uppercase[number % 26] * (number // 26 + 1)


def _table(shown: Sequence[Column], letters: Sequence[str], every: Sequence[Column], pair: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for letter, column in zip(letters, shown, strict=True):
        if column.base is not None and not pair:
            table.add_column(f"{letter} base", justify="right", no_wrap=True)
        table.add_column(letter, justify="right", no_wrap=True)
        if column.base is not None:
            table.add_column("change", justify="right", no_wrap=True)
    for group, figures in GROUPS.items():
        rows = [figure for figure in figures if _worth(figure, group, every)]
        if group.startswith(_WAITS):
            rows.sort(key=lambda figure: -max(value(figure, c.values) or 0.0 for c in every))
        if rows:
            table.add_row(Text(group, style="bold"))
        for figure in rows:
            title = f"  {figure.title}" + (f", {figure.unit}" if figure.unit else "")
            table.add_row(title, *(cell for column in shown for cell in _cells(figure, column, pair)))
    return table


def _worth(figure: Figure, group: str, every: Sequence[Column]) -> bool:
    found = [value(figure, values) for c in every for values in (c.values, c.base or {})]
    known = [each for each in found if each is not None]
    return any(each >= _LEAST for each in known) if group.startswith(_WAITS) else bool(known)


def _cells(figure: Figure, column: Column, pair: bool) -> list[str]:
    own = value(figure, column.values)
    if column.base is None:
        return [_text(own)]
    before = value(figure, column.base)
    change = _change(figure, before, own)
    return [_text(own), change] if pair else [_text(before), _text(own), change]


def _change(figure: Figure, before: float | None, after: float | None) -> str:
    """Relative; of percentages, the difference."""
    if before is None or after is None:
        return "–"
    if figure.unit == "%":
        return f"{after - before:+.1f}"
    if not before:
        return "–" if after else "0.0 %"
    return percent_text(after / before - 1)


def _text(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:.4g}"

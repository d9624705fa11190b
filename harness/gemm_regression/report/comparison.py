"""Times and counters side by side: a comparison of commits, and the columns of `profile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from gemm_regression.counters.profiler import GROUPS, Figure, value
from gemm_regression.judge.vocabulary import CONTROL_FAILED, REMOVED, SAME_BINARY, Outcome
from gemm_regression.project.commit import Tree
from gemm_regression.report.figures import Table, counted_text, percent_text, render
from gemm_regression.run.compare import Comparison, Side
from gemm_regression.run.pairing import ComparedCase
from gemm_regression.run.replay import cycles_change
from gemm_regression.timing.samples import PairedSamples

_HEADS = ("case", "base µs", "new µs", "change", "interval", "in cycles", "blocks", "verdict")
_STYLES = {"IMPROVED": "green", "NO_BASELINE": "yellow", "ORPHAN": "yellow"}


_Found = tuple[float | None, tuple[float, float] | None, int]  # the change, its interval, how many blocks


def heading(comparison: Comparison, side: Side, tree: Tree) -> list[str]:
    """What was compared, how, and the result; one line each."""
    counted = counted_text(row.outcome for row in comparison.rows) or "no case"
    error = f"at most {100 * comparison.rule.error:g} % (seed {comparison.seed})"
    lines = [
        f"{tree.label} against {side.label}: {counted}",
        f"REGRESSED is certainly slower by more than {100 * comparison.margin:g} %, PASS certainly not, "
        "IMPROVED certainly faster by more, AMBIGUOUS may be slower; the probability of any false verdict in "
        f"this run is {error}",
    ]
    if comparison.unfit:
        return [*lines, "nothing that has changed could be judged, because identical builds differ here"]
    return lines if comparison.judged else [*lines, "nothing was judged"]


def table(comparison: Comparison, side: Side, color: bool, width: int = 0) -> str:
    """Controls first, then the cases that have changed; identical ones are only counted."""
    drawn = _table(comparison)
    return "\n".join([*([drawn.text(color, width)] if drawn.rows else []), *_explained(comparison, side)])


def markdown(comparison: Comparison, side: Side, tree: Tree) -> str:
    """For a pull request or a job summary."""
    said, drawn = heading(comparison, side, tree), _table(comparison)
    values = {"heading": said, "table": drawn.markdown() if drawn.rows else ""}
    explained = list(_explained(comparison, side))
    return render("compare.md.jinja", red=comparison.exit_status, **values, explained=explained) + "\n"


def _shown(comparison: Comparison) -> list[ComparedCase]:
    return [row for row in comparison.rows if row.outcome != SAME_BINARY]


def _table(comparison: Comparison) -> Table:
    rows, styles = [], []
    for control in comparison.controls:
        outcome, f = CONTROL_FAILED if control.why else SAME_BINARY, control.finding
        found: _Found = (f.change, f.interval, f.blocks) if f else (None, None, 0)
        rows.append(_cells(f"control {control.case.id}", found, control.samples, outcome))
        styles.append("red" if control.why else "dim")
    for row in _shown(comparison):
        p, mark = row.paired, "! " if row.failed else "- " if row.outcome == REMOVED else "  "
        found = (p.change, p.interval, len(p.second) or len(p.log_ratios))
        rows.append(_cells(mark + row.case.id, found, row.samples, row.outcome))
        styles.append("red" if row.failed else _STYLES.get(row.outcome.kind, ""))
    return Table(_HEADS, "lrrrrrrl", rows, styles)


def _cells(name: str, found: _Found, samples: PairedSamples, outcome: Outcome) -> tuple[str, ...]:
    change, interval, blocks = found
    times = [f"{1e6 * samples.median(side):.2f}" if samples.blocks else "–" for side in ("a", "b")]
    cycles = cycles_change(samples) if samples.blocks else None
    ends = " … ".join(percent_text(end, 2) for end in interval) if interval else "–"
    measured = (percent_text(change, 2), ends, percent_text(cycles, 2), str(blocks or "–"))
    return name, *times, *measured, str(outcome)


def _explained(comparison: Comparison, side: Side) -> Iterator[str]:
    """A line for each case of which more is to be said than the table has."""
    for row in _shown(comparison):
        p, name = row.paired, row.case.id
        if p.detail:
            yield f"{name}: {row.outcome}: {p.detail}"
        if p.second:
            yield f"{name}: {len(p.second)} blocks of a second process, which decides"
        if p.needed and p.margin:
            needed, asked = 100 * p.needed, 100 * p.margin
            yield f"{name}: slower from {needed:.3g} % on: its own noise is too much for {asked:g} %"
        elif p.margin not in (None, comparison.margin):
            yield f"{name}: slower from {100 * p.margin:g} % on, as its kernel declares"
    for row in comparison.rows:
        if row.paired.base not in ("", side.label):
            yield f"{row.case.id}: its config was edited: beside {row.paired.base}"


_TITLE, _CELL = 34, 13  # columns of the terminal
_LEAST = 0.05  # reasons to stall that are rarer in every launch are left out
_WAITS = "warps stalled"
_Values = Mapping[str, float]
_Drawn = tuple[str, _Values, _Values | None]  # a head, the metrics, and those that these are the change of


@dataclass(frozen=True)
class Column:
    """A launch: what it is, as a text; its metrics; and those of what it is compared with, if it is."""

    label: str
    values: _Values
    base: _Values | None = None

    def drawn(self, letter: str) -> list[_Drawn]:
        own: _Drawn = (letter, self.values, None)
        if self.base is None:
            return [own]
        return [(f"{letter} base", self.base, None), own, ("change", self.values, self.base)]


def tables(columns: Sequence[Column], base: str, width: int, color: bool = False) -> str:
    """The columns by letter, and their figures; as many columns beside each other as there is room for, 0 for
    any number. ``base`` says what the columns with a base are compared with. Of two columns without one, the
    second is compared with the first."""
    letters = [ascii_uppercase[n % 26] * (n // 26 + 1) for n in range(len(columns))]
    said = [f"{letter}  {column.label}" for letter, column in zip(letters, columns, strict=True)]
    groups = [column.drawn(letter) for letter, column in zip(letters, columns, strict=True)]
    if base:
        said.append(f"base: {base}")
    elif len(columns) == 2:
        groups = [[*groups[0], *groups[1], ("change", columns[1].values, columns[0].values)]]
    at_once = max(1, ((width or 10_000) - _TITLE) // (_CELL * max(map(len, groups))))
    figures = list(_figures([values for group in groups for _, values, _ in group]))
    styles = ["" if figure else "bold" for _, figure in figures]
    for start in range(0, len(groups), at_once):
        drawn = [each for group in groups[start : start + at_once] for each in group]
        rows = [(title, *(_cell(figure, *each[1:]) for each in drawn if figure)) for title, figure in figures]
        heads = ("", *(head for head, *_ in drawn))
        said += ["", Table(heads, "l" + "r" * len(drawn), rows, styles).text(color)]
    return "\n".join(said)


def _figures(launches: Sequence[_Values]) -> Iterator[tuple[str, Figure | None]]:
    """The title of each group that any launch has a figure of, and the figures with theirs."""
    for name, figures in GROUPS.items():
        waits = name.startswith(_WAITS)
        seen = [
            (figure, [v for of in launches if (v := value(figure, of)) is not None]) for figure in figures
        ]
        found = [(max(values), figure) for figure, values in seen if values]
        if waits:
            found = sorted((one for one in found if one[0] >= _LEAST), key=lambda one: -one[0])
        if found:
            yield name, None
        for _, figure in found:
            yield f"  {figure.title}" + (f", {figure.unit}" if figure.unit else ""), figure


def _cell(figure: Figure, values: _Values, base: _Values | None) -> str:
    """A figure, or its change: relative, and of percentages the difference."""
    number, before = value(figure, values), None if base is None else value(figure, base)
    if number is None or (base is not None and before is None):
        return "–"
    if before is None:
        return f"{number:,.0f}" if number >= 1000 or number == int(number) else f"{number:.4g}"
    if figure.unit == "%":
        return f"{number - before:+.1f}"
    return percent_text(number / before - 1) if before else "–" if number else "0.0 %"

"""A comparison as text: a table on the terminal, Markdown for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.table import Table

from gemm_regression.judge.paired import CONTROL_FAILED, REMOVED, SAME_BINARY
from gemm_regression.judge.vocabulary import Outcome, VerdictKind
from gemm_regression.project.commit import Tree
from gemm_regression.report.figures import percent_text
from gemm_regression.report.markdown import table_text
from gemm_regression.report.terminal import fitted
from gemm_regression.run.compare import Comparison, Row, Side
from gemm_regression.run.pairing import Control
from gemm_regression.run.replay import cycles_change
from gemm_regression.timing.samples import PairedSamples

HEADS = ("case", "base µs", "new µs", "change", "interval", "in cycles", "blocks", "verdict")
ALIGN = "lrrrrrrl"
_STYLES = {
    VerdictKind.IMPROVED: "green",
    VerdictKind.NO_BASELINE: "yellow",
    VerdictKind.ORPHAN: "yellow",
}


def heading(comparison: Comparison, side: Side, tree: Tree) -> list[str]:
    """What was compared, how, and the result; one line each."""
    rule = comparison.rule
    said = ", ".join(
        f"{n} {kind}" for kind, n in Counter(str(r.outcome) for r in comparison.rows).most_common()
    )
    lines = [
        f"{tree.label} against {side.label}: {said or 'no case'}",
        f"REGRESSED is certainly slower by more than {100 * comparison.margin:g} %, PASS certainly not, "
        "IMPROVED certainly faster by more, AMBIGUOUS may be slower; the probability of any false verdict in "
        f"this run is at most {100 * rule.error:g} % (seed {comparison.seed})",
    ]
    if comparison.unfit:
        lines.append("nothing that has changed could be judged, because identical builds differ here")
    elif not comparison.judged:
        lines.append("nothing was judged")
    return lines


def table(comparison: Comparison, side: Side, color: bool, width: int = 0) -> str:
    """Controls first, then the cases that have changed; identical ones are only counted. In ``width`` columns
    as ``fitted`` has it."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head, align in zip(HEADS, ALIGN, strict=True):
        drawn.add_column(head, justify="right" if align == "r" else "left", no_wrap=True)
    for control in comparison.controls:
        drawn.add_row(*_of_control(control), style="red" if control.why else "dim")
    for row in _shown(comparison):
        drawn.add_row(*_of_row(row), style="red" if row.failed else _STYLES.get(row.outcome.kind, ""))
    lines = [fitted(drawn, width, color=color)] if drawn.row_count else []
    return "\n".join([*lines, *_explained(comparison, side)])


def markdown(comparison: Comparison, side: Side, tree: Tree) -> str:
    """For a pull request or a job summary."""
    first, *others = heading(comparison, side, tree)
    parts = [
        f"## {'Red' if comparison.exit_status else 'Green'}: {first}",
        "\n".join(f"- {line}" for line in others),
    ]
    timed = [_of_row(row) for row in _shown(comparison)]
    if timed:
        parts.append(table_text(HEADS, ALIGN, timed))
    if comparison.controls:
        parts.append("Controls: pairs of identical builds, timed in the same run:")
        parts.append(table_text(HEADS, ALIGN, [_of_control(control) for control in comparison.controls]))
    if explained := [line.replace("<", "&lt;") for line in _explained(comparison, side)]:
        parts.append("\n".join(f"- {line}" for line in explained))
    return "\n\n".join(parts) + "\n"


def _shown(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if row.outcome != SAME_BINARY]


def _explained(comparison: Comparison, side: Side) -> Iterator[str]:
    """A line for each case of which more is to be said than the table has."""
    for row in _shown(comparison):
        p = row.paired
        if p.detail:
            yield f"{row.case.id}: {row.outcome}: {p.detail}"
        if p.second:
            yield f"{row.case.id}: {len(p.second)} blocks of a second process, which decides"
        if p.needed and p.margin:
            needed, asked = 100 * p.needed, 100 * p.margin
            yield f"{row.case.id}: slower from {needed:.3g} % on: its own noise is too much for {asked:g} %"
        elif p.margin not in (None, comparison.margin):
            yield f"{row.case.id}: slower from {100 * p.margin:g} % on, as its kernel declares"
    for row in comparison.rows:
        if row.paired.base not in ("", side.label):
            yield f"{row.case.id}: its config was edited: beside {row.paired.base}"


def _of_row(row: Row) -> tuple[str, ...]:
    p = row.paired
    mark = "! " if row.failed else "- " if row.outcome == REMOVED else "  "
    blocks = len(p.second) or len(p.log_ratios)
    return _cells(mark + row.case.id, p.change, p.interval, blocks, row.samples, row.outcome)


def _of_control(control: Control) -> tuple[str, ...]:
    f = control.finding
    outcome = CONTROL_FAILED if control.why else SAME_BINARY
    change, interval, blocks = (f.change, f.interval, f.blocks) if f else (None, None, 0)
    return _cells(f"control {control.case.id}", change, interval, blocks, control.samples, outcome)


def _cells(
    name: str,
    change: float | None,
    interval: tuple[float, float] | None,
    blocks: int,
    samples: PairedSamples,
    outcome: Outcome,
) -> tuple[str, ...]:
    known = bool(samples.blocks)
    return (
        name,
        f"{1e6 * samples.median('a'):.2f}" if known else "–",
        f"{1e6 * samples.median('b'):.2f}" if known else "–",
        percent_text(change, 2),
        f"{percent_text(interval[0], 2)} … {percent_text(interval[1], 2)}" if interval else "–",
        percent_text(cycles_change(samples) if known else None, 2),
        str(blocks) if blocks else "–",
        str(outcome),
    )

"""A comparison of two commits as text: a table on the terminal, Markdown for a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from harness.gate.compare import Comparison, Row
from harness.gate.document import cycles_change
from harness.project.commit import Commit, Tree
from harness.reports.figures import percent_text
from harness.reports.markdown import table_text
from harness.reports.terminal import fitted
from harness.verdicts.paired import SAME_BINARY, UNFIT
from harness.verdicts.vocabulary import VerdictKind

HEADS = ("case", "base µs", "new µs", "change", "interval", "in cycles", "blocks", "verdict")
ALIGN = "lrrrrrrl"
_STYLES = {VerdictKind.IMPROVED: "green", VerdictKind.NO_BASELINE: "yellow"}


def heading(comparison: Comparison, commit: Commit, tree: Tree) -> list[str]:
    """What was compared, how, and the result; one line each."""
    rule = comparison.rule
    said = ", ".join(
        f"{n} {kind}" for kind, n in Counter(str(r.outcome) for r in comparison.rows).most_common()
    )
    lines = [
        f"{tree.label} against {commit.label}: {said or 'no case'}",
        f"REGRESSED and IMPROVED are outside ±{100 * rule.delta:g} %, PASS is inside, AMBIGUOUS neither; the "
        f"probability of any false verdict in this run is at most {100 * rule.error:g} % "
        f"(seed {comparison.seed})",
    ]
    if comparison.unfit:
        lines.append(f"{UNFIT}: {comparison.unfit}")
    elif not comparison.judged:
        lines.append("nothing was judged")
    elif not comparison.controls:
        lines.append("no control was timed, because no case was")
    return lines


def table(comparison: Comparison, color: bool, width: int = 0) -> str:
    """Controls first, then the cases that were timed or failed; identical ones are only counted. In
    ``width`` columns as ``fitted`` has it."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head, side in zip(HEADS, ALIGN, strict=True):
        drawn.add_column(head, justify="right" if side == "r" else "left", no_wrap=True)
    for row in comparison.controls:
        drawn.add_row(*_cells(row, "control"), style="dim")
    for row in _shown(comparison):
        style = "red" if row.failed else _STYLES.get(row.outcome.kind, "")
        drawn.add_row(*_cells(row, ""), style=style)
    lines = [fitted(drawn, width, color=color)] if drawn.row_count else []
    lines += [f"{row.case.id}: {row.outcome}: {row.detail}" for row in _explained(comparison)]
    return "\n".join(lines)


def markdown(comparison: Comparison, commit: Commit, tree: Tree) -> str:
    """For a pull request or a job summary."""
    first, *others = heading(comparison, commit, tree)
    parts = [
        f"## {'Red' if comparison.exit_status else 'Green'}: {first}",
        "\n".join(f"- {line}" for line in others),
    ]
    timed = [_cells(row, "") for row in _shown(comparison)]
    if timed:
        parts.append(table_text(HEADS, ALIGN, timed))
    if comparison.controls:
        controls = [_cells(row, "control") for row in comparison.controls]
        parts.append("Control: pairs of identical builds, timed in the same run:")
        parts.append(table_text(HEADS, ALIGN, controls))
    if explained := _explained(comparison):
        parts.append("\n".join(f"- {row.case.id}: {row.outcome}: {_plain(row.detail)}" for row in explained))
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")


def _shown(comparison: Comparison) -> Sequence[Row]:
    return [row for row in comparison.rows if row.outcome != SAME_BINARY]


def _explained(comparison: Comparison) -> list[Row]:
    """Rows with details that the heading does not contain."""
    rows = (*comparison.controls, *_shown(comparison))
    return [row for row in rows if row.detail and row.outcome != UNFIT]


def _cells(row: Row, note: str) -> tuple[str, ...]:
    finding, samples = row.finding, row.samples
    known = bool(samples.blocks)
    low, high = finding.interval if finding else (None, None)
    return (
        f"{note} {row.case.id}" if note else ("! " if row.failed else "  ") + row.case.id,
        f"{1e6 * samples.median('a'):.2f}" if known else "–",
        f"{1e6 * samples.median('b'):.2f}" if known else "–",
        percent_text(finding.change if finding else None, 2),
        f"{percent_text(low, 2)} … {percent_text(high, 2)}" if finding else "–",
        percent_text(cycles_change(row) if known else None, 2),
        str(finding.blocks) if finding else "–",
        str(row.outcome),
    )

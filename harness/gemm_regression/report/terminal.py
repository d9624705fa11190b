"""Tables in a terminal: the ladder at the end of a pytest run, and wide ones in few columns."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gemm_regression.judge.paired import FASTER, LIBRARY, SAME_BINARY
from gemm_regression.judge.vocabulary import (
    DEFAULT_MARGIN,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    Policy,
    Verdict,
)
from gemm_regression.model import Case, Kernel
from gemm_regression.report.figures import gflops_text, percent_text, share_text

# Reasons that need no explanation; any other reason is shown with the verdict.
_PLAIN = (SAME_BINARY.reason, LIBRARY.reason, FASTER.reason, NOT_IN_BASELINE, NO_BASELINE_FILE)


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        stage, config, dtype, problem: its names; of a choice, ``config`` is what was chosen.
        gflops: GFLOPS at the median; None if unknown, as are the next ones.
        cublas_ratio: speed relative to cuBLAS's.
        dram: of a case that DRAM bounds, the share of its bandwidth, measured in the same run.
        bound: what bounds the case, as `bounds.bound_text`; empty if unknown.
        change: relative change of the GFLOPS: of a changed case side by side, else from the stored figure.
        verdict, reason: kind and reason code.
        failed: whether the case fails; where the GPU has no baseline at all, that is one failure of the run.
        gpu: the number of the GPU that judged it, in a run of several.
        margin: the slowdown that counted, of a pair; relative.
    """

    stage: str
    config: str
    dtype: str
    problem: str
    gflops: float | None
    cublas_ratio: float | None
    change: float | None
    verdict: str
    reason: str = ""
    failed: bool = False
    dram: float | None = None
    bound: str = ""
    gpu: str = ""
    margin: float | None = None

    @property
    def outcome(self) -> str:
        """The verdict, with its reason if that adds information, and a margin other than the default."""
        said = self.verdict if self.reason in ("", *_PLAIN) else f"{self.verdict} {self.reason}"
        if self.margin is None or self.margin == DEFAULT_MARGIN:
            return said
        return f"{said} margin={100 * self.margin:.3g}%"


def row(case: Case, verdict: Verdict, cublas_ratio: float | None, policy: Policy) -> Row:
    """The row of a judged case."""
    return Row(
        stage=case.listed.kernel.name,
        config=case.choice or case.config.label,
        dtype=case.dtype.name,
        problem=case.problem.id,
        gflops=verdict.gflops,
        cublas_ratio=cublas_ratio,
        change=verdict.change,
        verdict=verdict.kind.value,
        reason=verdict.reason,
        failed=verdict.failed(policy) and verdict.reason != NO_BASELINE_FILE,
        margin=verdict.margin,
    )


def in_order(rows: Sequence[Row], kernels: Sequence[Kernel]) -> dict[str, list[Row]]:
    """Rows by problem, in order of appearance; within a problem by dtype, then in the order of the
    kernels."""
    stages = {kernel.name: number for number, kernel in enumerate(kernels)}
    dtypes = list(dict.fromkeys(dtype.name for kernel in kernels for dtype in kernel.dtypes))
    groups: dict[str, list[Row]] = {}
    for one in rows:
        groups.setdefault(one.problem, []).append(one)
    for group in groups.values():
        group.sort(
            key=lambda r: (
                dtypes.index(r.dtype) if r.dtype in dtypes else len(dtypes),
                stages.get(r.stage, len(stages)),
            )
        )
    return groups


_NARROW_CONFIG = 18
# % DRAM only where memory bounds a case, the bound only where the roofs are known.
_FIGURES: Mapping[str, Callable[[Row], str]] = {
    "GFLOPS": lambda one: gflops_text(one.gflops),
    "% cuBLAS": lambda one: share_text(one.cublas_ratio),
    "% DRAM": lambda one: share_text(one.dram),
    "change": lambda one: percent_text(one.change),
    "bound, %": lambda one: one.bound,
}
_STYLES = {"IMPROVED": "green", "NO_BASELINE": "yellow"}


def ladder_table(rows: Sequence[Row], width: int, color: bool, kernels: Sequence[Kernel] = ()) -> str:
    """The table as text: grouped by problem, all rows, failed ones marked with ``!``.

    If it exceeds ``width`` (0: any will do), configs are wrapped after hyphens. Nothing is truncated: the
    table may be wider than requested. No line ends in spaces; without ``color`` there are no control
    sequences.
    """
    console = _console(color)
    table = _table(rows, kernels, narrow=False)
    if 0 < width < Measurement.get(console, console.options, table).maximum:
        table = _table(rows, kernels, narrow=True)
    return render(table, color)


def render(table: Table, color: bool) -> str:
    """A table as text, in its natural width; no line ends in spaces."""
    console = _console(color)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def room() -> int:
    """Columns of the terminal, or of COLUMNS; 0 for a file or a log, which have no width."""
    return Console().width if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty() else 0


def fitted(table: Table, width: int, names: int = 1, color: bool = False) -> str:
    """The table as text. Where it is wider than ``width`` columns, each row becomes a paragraph: its first
    ``names`` cells, and below them the other columns with their heads. 0 for any width."""
    text = render(table, color=False)
    if not width or max(map(len, text.splitlines())) <= width:
        return render(table, color)
    heads = [str(column.header) for column in table.columns]
    paragraphs = []
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        said = [f"{head} {cell}" for head, cell in zip(heads[names:], cells[names:], strict=True) if cell]
        lines = ["-".join(str(cell) for cell in cells[:names])]
        for each in said:
            joined = f"{lines[-1]}, {each}"
            if len(lines) > 1 and len(joined) < width:
                lines[-1] = joined
            else:
                lines.append(f"  {each}")
        paragraphs.append("\n".join(lines))
    return "\n".join([*filter(None, [str(table.title or "")]), *paragraphs])


def _console(color: bool) -> Console:
    return Console(
        file=io.StringIO(),
        width=10_000,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


def _table(rows: Sequence[Row], kernels: Sequence[Kernel], narrow: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("  stage", "dtype", "config"):
        table.add_column(name, no_wrap=True)
    known = {"% DRAM": any(one.dram for one in rows), "bound, %": any(one.bound for one in rows)}
    shown = [name for name in _FIGURES if known.get(name, True)]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    several = any(one.gpu for one in rows)
    for name in ("GPU", "verdict") if several else ("verdict",):
        table.add_column(name, no_wrap=True)
    for problem, group in in_order(rows, kernels).items():
        table.add_row(Text(problem, style="bold"))
        for one in group:
            style = "red" if one.failed else _STYLES.get(one.verdict, "")
            table.add_row(
                ("! " if one.failed else "  ") + one.stage,
                one.dtype,
                _broken(one.config) if narrow else one.config,
                *(_FIGURES[name](one) for name in shown),
                *((one.gpu,) if several else ()),
                one.outcome.replace(" ", "\n") if narrow else one.outcome,
                style=style,
            )
    return table


def _broken(config: str) -> str:
    """The label, wrapped after hyphens."""
    lines = [""]
    for part in config.replace("-", "-\n").splitlines():
        if len(lines[-1] + part) > _NARROW_CONFIG and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)

"""Numbers and tables as text, the same everywhere; and what bounds a case, in a few columns."""

from __future__ import annotations

import io
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from gemm_regression.files import write_whole
from gemm_regression.hints import typed
from gemm_regression.model import Case
from gemm_regression.timing.bounds import Level, Roofs, Workload, bound, shares


def gflops_text(gflops: float | None) -> str:
    """``8,838`` from 1000 up, at least three significant digits below."""
    if gflops is None:
        return "–"
    return f"{gflops:,.0f}" if gflops >= 1000 else f"{gflops:.1f}" if gflops >= 100 else f"{gflops:.2f}"


def speed_text(gflops: float | None, unit: str) -> str:
    """In a column of GFLOPS: with its unit, where it is another one."""
    return gflops_text(gflops) + f" {unit}" * (gflops is not None and unit != "GFLOPS")


def percent_text(share: float | None, digits: int = 1) -> str:
    """A signed change: -0.031 is ``-3.1 %``, and what rounds to zero is ``+0.0 %``."""
    return "–" if share is None else f"{100 * share:+z.{digits}f} %"


def share_text(ratio: float | None) -> str:
    """A share, as of cuBLAS's speed, in percent: 0.903 is ``90.3``."""
    return "–" if ratio is None else f"{100 * ratio:.1f}"


def count_text(number: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counted_text(kinds: Iterable[object]) -> str:
    """``62 PASS, 1 NOT_EMULATED``, the most frequent first."""
    return ", ".join(f"{n} {kind}" for kind, n in Counter(map(str, kinds)).most_common())


def noise_text(floor: float | None) -> str:
    """A noise floor: 0.0003 is ``0.03 %``."""
    return "–" if floor is None else f"{100 * floor:.2f} %"


MEMORIES: dict[str, str] = {Level.DRAM: "DRAM", Level.L2: "L2", Level.SHARED: "shared memory"}


def bound_text(work: Workload, roofs: Roofs, dtype: str, seconds: float | None) -> str:
    """``smem 84``: the work takes 84 % of the measured time at the rate of L1 and shared memory; ``~`` before
    it where the traffic is estimated from a smaller problem. Empty if nothing is known."""
    found = bound(shares(work, roofs, dtype, seconds)) if seconds else None
    if found is None:
        return ""
    level, share = found
    name = "smem" if level is Level.SHARED else MEMORIES.get(level, level)
    return f"{'~' if work.estimated else ''}{name} {100 * share:.0f}"


def dram_share(roofs: Roofs, case: Case, gflops: float | None) -> float | None:
    """The bandwidth that the compulsory bytes alone need at this speed, as a share of DRAM's; None if either
    is unknown, and where arithmetic is the lower roof, by FLOP per compulsory byte."""
    peak, dram = roofs.peak(case.dtype.name), roofs.bandwidths.get("dram")
    size = max(1, case.kernel.operation.compulsory_bytes(case.problem, case.dtype))
    if gflops is None or not peak or not dram or case.flop / size * dram > peak:
        return None
    return gflops / (case.work / size * dram)


@dataclass(frozen=True)
class TextTable:
    """Rows of texts under heads.

    Attributes:
        heads, rows: a row may be shorter, as one that stands above others.
        align: l or r for each column.
        styles: the style of each row in a terminal, as rich has it; "" for none.
        optional: heads of columns that are left out where nothing fills them, or where a terminal is too
            narrow, the first one first.
    """

    heads: Sequence[str]
    align: str
    rows: Sequence[Sequence[str]]
    styles: Sequence[str] = ()
    optional: Sequence[str] = ()

    def text(self, color: bool = False, width: int = 0) -> str:
        """For a terminal of ``width`` columns, 0 for any."""
        shown = self._columns()
        for name in self.optional:
            if width and sum(max(map(len, column)) + 2 for _, column in shown) - 2 > width:
                shown = [(side, column) for side, column in shown if column[0] != name]
        if not (color or width):  # a log, where rich takes half a second for hundreds of rows
            just = {"l": str.ljust, "r": str.rjust}
            padded = ([just[side](cell, max(map(len, column))) for cell in column] for side, column in shown)
            return "\n".join("  ".join(row).rstrip() for row in zip(*padded, strict=True))
        made = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for side, (head, *_) in shown:
            made.add_column(head, no_wrap=True, justify="right" if side == "r" else "left")
        every = list(zip(*(cells for _, (_, *cells) in shown), strict=True))
        for row, style in zip(every, self.styles or [""] * len(every), strict=True):
            made.add_row(*row, style=style)
        return fitted(made, width, color=color)

    def markdown(self) -> str:
        columns = (
            (safe(head).strip(), "---:" if side == "r" else "---", *(safe(cell).strip() for cell in cells))
            for side, (head, *cells) in self._columns()
        )
        return "\n".join(f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))

    def _columns(self) -> list[tuple[str, tuple[str, ...]]]:
        """Alignment, and head and cells, of what is shown where there is room."""
        every = zip(self.align, zip_longest(self.heads, *self.rows, fillvalue=""), strict=True)
        return [(side, of) for side, of in every if of[0] not in self.optional or any(of[1:])]


def room() -> int:
    """Columns of the terminal, or of COLUMNS; 0 for a file or a log, which have no width."""
    return Console().width if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty() else 0


def fitted(table: RichTable, width: int, names: int = 1, color: bool = False) -> str:
    """The table as text, in its natural width; no line ends in spaces, and without ``color`` there are no
    control sequences. Where it is wider than ``width`` columns, each row becomes a paragraph: its first
    ``names`` cells, and below them the other columns with their heads. 0 for any width."""
    to = io.StringIO()
    console = Console(
        file=to,
        width=10_000,
        emoji=False,
        color_system="standard" if color else None,
        force_terminal=color,
        _environ={},
    )
    console.print(table, markup=False, highlight=False)
    lines = [line.rstrip() for line in to.getvalue().splitlines()]
    if not width or max(len(Text.from_ansi(line)) for line in lines) <= width:
        return "\n".join(lines)
    heads = [str(column.header) for column in table.columns]
    paragraphs = [str(table.title)] if table.title else []
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        lines = ["-".join(str(cell) for cell in cells[:names])]
        for each in (
            f"{head} {cell}" for head, cell in zip(heads[names:], cells[names:], strict=True) if cell
        ):
            if len(lines) > 1 and len(lines[-1]) + 2 + len(each) < width:
                lines[-1] += f", {each}"
            else:
                lines.append(f"  {each}")
        paragraphs.append("\n".join(lines))
    return "\n".join(paragraphs)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines in columns, the first left-aligned, the others right-aligned; the first row has the heads."""
    return TextTable(rows[0], "l" + "r" * (len(rows[0]) - 1), rows[1:]).text().splitlines()


def safe(text: str) -> str:
    """Text escaped so that it neither ends its cell nor becomes HTML."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def render(name: str, **values: Any) -> str:
    """A template with these values; in Markdown, without empty lines at its ends, or several in a row."""
    import jinja2  # late: most runs write no page

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gemm_regression.report"),
        autoescape=name.endswith(".html.jinja"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    short = {"separators": (",", ":"), "allow_nan": False, "default": asdict}
    environment.policies["json.dumps_kwargs"] = short
    environment.globals["typed"] = typed
    environment.filters |= {"gflops": gflops_text, "percent": percent_text, "share": share_text, "cell": safe}
    made = environment.get_template(name).render(**values)
    return made if environment.autoescape else re.sub(r"\n{3,}", "\n\n", made.strip())


def update_page(page: Path, section: str, check: bool, begin: str, end: str) -> bool:
    """Puts a section between the markers of a page, unless ``check``; returns whether it was already there.

    Raises ValueError unless the page has each marker once, OSError if it cannot be read or written.
    """
    text = page.read_text(encoding="utf-8")
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{page}: needs the line {begin} once, and {end} once after it")
    wanted = f"{text.partition(begin)[0]}{begin}\n{section}\n{end}{text.partition(end)[2]}"
    if text != wanted and not check:
        write_whole(page, wanted)
    return text == wanted

"""The generated part of docs/results/select.md: how far choices are behind the best."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_regression.report.figures import gflops_text, share_text
from gemm_regression.report.markdown import table_text
from gemm_regression.tune.select import Outcome, Selector, Summary, outcomes

BEGIN, END = "<!-- select:begin -->", "<!-- select:end -->"
NOTHING = "Nothing measured yet: run nox -s baseline on a GPU."


def section(selectors: Sequence[Selector]) -> str:
    """The tables of every measured GPU."""
    return "\n\n".join(_gpu(selector) for selector in selectors) or NOTHING


def _gpu(selector: Selector) -> str:
    found = list(outcomes(selector))
    sources = dict.fromkeys(figure.source for figure in selector.figures)
    head = f"### {selector.known.gpu}\n\nFigures of {', '.join(sources)}."
    return "\n\n".join((head, _summary(found), _every(found)))


def _summary(found: Sequence[Outcome]) -> str:
    """Worst and mean by dtype, of single matrices and of batches."""
    kinds = dict.fromkeys((one.dtype, one.problem.batch > 1) for one in found)
    rows = []
    for dtype, batches in kinds:
        of = [one for one in found if (one.dtype, one.problem.batch > 1) == (dtype, batches)]
        cells = (
            _worst_and_mean([one.share for one in of]),
            _worst_and_mean([one.row for one in of]),
            _worst_and_mean([one.share_left_out for one in of]),
        )
        rows.append((dtype + ", batches" * batches, str(len(of)), *cells))
    heads = ("dtype", "shapes", "chosen", "measured as a row", "without its own figures")
    return table_text(heads, "lrrrr", rows)


def _worst_and_mean(shares: Sequence[float | None]) -> str:
    of = Summary.of(shares)
    return f"{of.worst:.3f}, {of.mean:.3f}" if of else "–"


def _every(found: Sequence[Outcome]) -> str:
    rows = (
        (
            *(one.problem.id, one.dtype, one.chosen.stage, gflops_text(one.best.gflops)),
            *(share_text(one.share), share_text(one.row)),
            one.left_out.stage if one.left_out else "–",
            share_text(one.share_left_out),
        )
        for one in found
    )
    heads = ("problem", "dtype", "chosen", "best GFLOPS", "% of best", "as a row, %")
    return table_text((*heads, "without its own figures", "% of best"), "lllrrrlr", rows)

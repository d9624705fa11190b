"""A choice as text: in one line, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import sqrt

from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.tune.rules import refusals
from gemm_regression.tune.select import Selected
from gemm_regression.tune.table import BEST, BITS, Block, block_of, weights_of

SHOWN = 5  # variants that are compared in the text
NEAR = 3  # measured sizes


def selected_text(s: Selected) -> str:
    """One line: what was asked for, the choice, and what it rests on."""
    return f"{s.problem.id} {s.dtype} on {s.gpu}: {s.variant.stage} ({_basis(s)})"


def _basis(s: Selected) -> str:
    if s.found is None:
        return "the first declared that takes it; nothing was measured"
    if s.measured:
        return f"{gflops_text(s.gflops)} GFLOPS, the fastest measured at this size"
    return f"{gflops_text(s.gflops)} GFLOPS expected, by {s.found.rows[0].problem.id} and others"


def _blocks(block: Block, s: Selected) -> str:
    turns, of = block.turns(s.problem, s.sms), f"{block.rows}x{block.columns}"
    matrices = f" of {block.matrices} matrices" if block.matrices > 1 else ""
    split = f", a part of {block.split} of K each" if block.split > 1 else ""
    return f"{turns:,} of {of}{matrices}{split}"


def why_text(s: Selected) -> list[str]:
    """The reasons, one line each."""
    return [selected_text(s), *(f"  {line}" for line in _why(s))]


def _why(s: Selected) -> Iterator[str]:
    yield f"options for nvcc: {' '.join(f'-D {name}={value}' for name, value in s.config.items())}"
    if s.found is None:
        yield "it is the first declared config that is legal there and takes the problem"
        yield "`nox -s baseline` on such a GPU lets figures decide"
        return
    if s.measured:
        sources = ", ".join(dict.fromkeys(figure.source for figure in s.figures))
        yield f"{len(s.figures)} variants were measured at this size ({sources}):"
        best = s.figures[0].gflops
        for figure in s.figures[:SHOWN]:
            behind = percent_text(figure.gflops / best - 1) if figure.gflops < best else "the fastest"
            yield f"  {figure.variant.stage}: {gflops_text(figure.gflops)} GFLOPS, {behind}"
    else:
        yield "measured sizes near it, and their weight:"
        near = zip(s.found.rows, s.found.distances, weights_of(s.found.distances), strict=True)
        for row, away, weight in islice(near, NEAR):
            octaves = sqrt(away) / (4 << BITS)
            yield f"  {row.problem.id}: {weight:.0%}, {octaves:.1f} octaves away"
        yield f"expected speed, relative to the fastest, and the most blocks of an SM, of {s.sms}:"
        for variant, estimate in s.found.ranked[:SHOWN]:
            yield f"  {variant.stage}: {estimate / BEST:.1%}; {_blocks(block_of(variant), s)}"
    if s.library_gflops and s.gflops:
        share = s.gflops / s.library_gflops
        yield f"the library: {gflops_text(s.library_gflops)} GFLOPS, of which this is {share:.1%}"
    for variant in s.found.refused:
        yield f"not considered: {variant.stage}: {refusals(variant, s.problem)[0]}"

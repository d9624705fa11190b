"""What tuning and selection found: tables for terminal and Markdown, and why a config is chosen."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt

from gemm_regression.report.figures import (
    Table,
    gflops_text,
    noise_text,
    percent_text,
    share_text,
    table_text,
)
from gemm_regression.tune.search import NEAR, Replayed
from gemm_regression.tune.select import Outcome, Selected, Selector, Summary, outcomes
from gemm_regression.tune.stored import Evaluation, Failed, Tuned
from gemm_regression.tune.table import BEST, BITS, Block, block_of, refusals, weights_of

SHOWN = 10


def summary(tuned: Tuned) -> list[str]:
    """What was searched and what was found, a line each."""
    best, declared = tuned.best, tuned.of_declared
    lines = [
        f"{tuned.kernel} {tuned.dtype} {tuned.problem} on {tuned.gpu}: "
        f"{len(tuned.evaluations)} configs timed in {tuned.seconds:.0f} s by {tuned.strategy}"
        + (f" on {tuned.workers} GPUs" if tuned.workers > 1 else "")
        + (f", budget {tuned.budget}" if tuned.budget else "")
    ]
    if best:
        share = best.gflops / tuned.library_gflops if tuned.library_gflops else None
        lines.append(
            f"best: {best.config.label}, {gflops_text(best.gflops)} GFLOPS"
            + (f", {share_text(share)} % of the library" if share else "")
        )
    if best and declared:
        change = percent_text(best.gflops / declared.gflops - 1)
        lines.append(f"declared: {declared.config.label}, {gflops_text(declared.gflops)} GFLOPS ({change})")
    return lines


def excluded(pruned: Mapping[str, int], failed: Sequence[Failed]) -> list[str]:
    """What was not timed, by reason, a line each; what failed with one config as an example."""
    lines = [f"{count:6} not timed: {reason}" for reason, count in Counter(pruned).most_common()]
    kinds: dict[tuple[str, str], list[Failed]] = {}
    for one in failed:
        kinds.setdefault((one.code, one.reason if one.code == "COMPILE_ERROR" else ""), []).append(one)
    for alike in sorted(kinds.values(), key=len, reverse=True):
        one = alike[0]
        lines.append(f"{len(alike):6} failed: {one.code} {one.reason} (such as {one.config.label})")
    return lines


def table(tuned: Tuned, most: int = SHOWN) -> str:
    """The best configs, those measured again first."""
    again = {one.config for one in tuned.confirmed}
    rest = [one for one in tuned.evaluations if one.config not in again]
    rows = []
    for one in [*_ranked(tuned, tuned.confirmed), *_ranked(tuned, rest)][:most]:
        share = one.gflops / tuned.library_gflops if tuned.library_gflops else None
        rows.append(
            (
                *(one.config.label, gflops_text(one.gflops), share_text(share)),
                "–" if one.cycles is None else f"{one.cycles:,.0f}",
                *("–" if one.watts is None else f"{one.watts:.0f}", noise_text(one.noise)),
                "measured again"
                if one.config in again
                else "declared"
                if one.config == tuned.declared
                else "",
            )
        )
    heads = ("config", "GFLOPS", "% library", "cycles", "W", "noise", "")
    return Table(heads, "lrrrrrl", rows).text()


def _ranked(tuned: Tuned, some: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(some, key=lambda one: -(one.score(tuned.objective) or float("-inf")))


def strategies(tuned: Tuned, replayed: Sequence[Replayed]) -> str:
    """Markdown: the evaluations that each strategy needs."""
    seeds = len(replayed[0].ends) if replayed else 0
    rows = []
    for one in replayed:
        near = [one.median(place) for place in range(len(NEAR))]
        numbers = [n for n in one.reached[-1] if n is not None]
        rows.append(
            (
                *(one.strategy, *("–" if n is None else f"{n:.0f}" for n in near)),
                f"{min(numbers)}–{max(numbers)}" if numbers else "–",
                *(f"{len(numbers)} of {seeds}", f"{100 * statistics.median(one.ends):.1f} %"),
            )
        )
    heads = (
        "strategy",
        *(f"evaluations to {near:.0%}" for near in NEAR),
        "range",
        "seeds",
        "ends at, median",
    )
    said = (
        f"{tuned.kernel} {tuned.problem} on {tuned.gpu}: {len(tuned.evaluations)} configs timed, "
        f"{len(tuned.failed)} failed. Median over {seeds} seeds; range and seeds are those that reached "
        f"{NEAR[-1]:.0%} of the best within the budget."
    )
    return f"{said}\n\n{table_text(heads, 'lrrrrr', rows)}"


def mark(space: bytes, strategies: Sequence[str], seeds: int, budget: str) -> str:
    """What a page is made of, as a comment in it."""
    made = f"{hashlib.sha256(space).hexdigest()} {' '.join(strategies)} {seeds} {budget}"
    return f"<!-- made of {hashlib.sha256(made.encode()).hexdigest()} -->"


def page(text: str, file: str, mark: str) -> str:
    """The generated page of docs/: the table, and how it was made."""
    return (
        "# Strategies compared\n\n"
        "How many configs each of Kernel Tuner's strategies has to time before it comes near the best config "
        "of a space that was measured in full. Replayed without a GPU, by "
        f"`nox -s tune -- --simulate {file} --markdown docs/results/strategies.md`.\n\n"
        f"{text}\n\n"
        "bayes_opt and diff_evo have random numbers that no seed repeats.\n\n"
        f"{mark}\n"
    )


_EXPLAINED = 5  # variants that are compared in the text
_NEAREST = 3  # measured sizes


def selected_text(s: Selected) -> str:
    """One line: what was asked for, the choice, and what it rests on."""
    return f"{s.problem.id} {s.dtype} on {s.gpu}: {s.variant.stage} ({_basis(s)})"


def _basis(s: Selected) -> str:
    if s.found is None:
        return "the first declared that takes it; nothing was measured"
    if s.measured:
        return f"{gflops_text(s.gflops)} GFLOPS, the fastest measured at this size"
    return f"{gflops_text(s.gflops)} GFLOPS expected, by {s.found.problems[0].id} and others"


def _blocks(block: Block, s: Selected) -> str:
    turns, of = block.turns(s.problem, s.sms), f"{block.rows}x{block.columns}"
    matrices = f" of {block.matrices} matrices" if block.matrices > 1 else ""
    split = f", a part of {block.split} of K each" if block.split > 1 else ""
    return f"{turns:,} of {of}{matrices}{split}"


def why_text(s: Selected) -> list[str]:
    """The reasons, one line each."""
    return [selected_text(s), *(f"  {line}" for line in _why(s))]


def _why(s: Selected) -> Iterator[str]:
    yield f"options for nvcc: {' '.join(f'-D {name}={value}' for name, value in s.variant.config.items())}"
    if s.found is None:
        yield "it is the first declared config that is legal there and takes the problem"
        yield "`nox -s baseline` on such a GPU lets figures decide"
        return
    if s.measured:
        sources = ", ".join(dict.fromkeys(figure.source for figure in s.figures))
        yield f"{len(s.figures)} variants were measured at this size ({sources}):"
        best = s.figures[0].gflops
        for figure in s.figures[:_EXPLAINED]:
            behind = percent_text(figure.gflops / best - 1) if figure.gflops < best else "the fastest"
            yield f"  {figure.variant.stage}: {gflops_text(figure.gflops)} GFLOPS, {behind}"
    else:
        yield "measured sizes near it, and their weight:"
        near = zip(s.found.problems, s.found.distances, weights_of(s.found.distances), strict=True)
        for problem, away, weight in islice(near, _NEAREST):
            octaves = sqrt(away) / (4 << BITS)
            yield f"  {problem.id}: {weight:.0%}, {octaves:.1f} octaves away"
        yield f"expected speed, relative to the fastest, and the most blocks of an SM, of {s.sms}:"
        for variant, estimate in s.found.ranked[:_EXPLAINED]:
            yield f"  {variant.stage}: {estimate / BEST:.1%}; {_blocks(block_of(variant), s)}"
    if s.library_gflops and s.gflops:
        share = s.gflops / s.library_gflops
        yield f"the library: {gflops_text(s.library_gflops)} GFLOPS, of which this is {share:.1%}"
    for variant in s.found.refused:
        yield f"not considered: {variant.stage}: {refusals(variant, s.problem)[0]}"


BEGIN, END = "<!-- select:begin -->", "<!-- select:end -->"
NOTHING = "Nothing measured yet: run nox -s baseline on a GPU."


def section(selectors: Sequence[Selector]) -> str:
    """The tables of every measured GPU."""
    return "\n\n".join(_gpu(selector) for selector in selectors) or NOTHING


def _gpu(selector: Selector) -> str:
    found = list(outcomes(selector))
    sources = dict.fromkeys(figure.source for figure in selector.figures)
    head = f"### {selector.gpu}\n\nFigures of {', '.join(sources)}."
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

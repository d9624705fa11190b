"""What tuning and selection found: tables for terminal and Markdown, and why a config is chosen."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt

from gemm_regression.hints import typed
from gemm_regression.report.figures import (
    TextTable,
    gflops_text,
    noise_text,
    percent_text,
    render,
    share_text,
)
from gemm_regression.tune.search import NEAR, Replayed
from gemm_regression.tune.select import Selected, Selector, Summary, outcomes
from gemm_regression.tune.stored import Evaluation, FailedConfig, Tuned
from gemm_regression.tune.table import BEST, BITS, BlockWork, block_of, refusals, weights_of

SHOWN = 10


def summary(tuned: Tuned) -> list[str]:
    """What was searched and what was found, a line each."""
    best, declared = tuned.best, tuned.of_declared
    found = f"{len(tuned.evaluations)} configs timed in {tuned.seconds:.0f} s by {tuned.strategy}"
    gpus = f" on {tuned.workers} GPUs" if tuned.workers > 1 else ""
    budget = f", budget {tuned.budget}" if tuned.budget else ""
    lines = [f"{tuned.kernel} {tuned.dtype} {tuned.problem} on {tuned.gpu}: {found}{gpus}{budget}"]
    if best:
        of = f", {share_text(_of_library(tuned, best))} % of the library" if tuned.library_gflops else ""
        lines.append(f"best: {best.config.label}, {gflops_text(best.gflops)} GFLOPS{of}")
    if best and declared:
        change = percent_text(best.gflops / declared.gflops - 1)
        lines.append(f"declared: {declared.config.label}, {gflops_text(declared.gflops)} GFLOPS ({change})")
    return lines


def _of_library(tuned: Tuned, one: Evaluation) -> float | None:
    return one.gflops / tuned.library_gflops if tuned.library_gflops else None


def excluded(pruned: Mapping[str, int], failed: Sequence[FailedConfig]) -> list[str]:
    """What was not timed, by reason, a line each; what failed with one config as an example."""
    lines = [f"{count:6} not timed: {reason}" for reason, count in Counter(pruned).most_common()]
    kinds: dict[tuple[str, str], list[FailedConfig]] = {}
    for one in failed:
        kinds.setdefault((one.code, one.reason if one.code == "COMPILE_ERROR" else ""), []).append(one)
    for alike in sorted(kinds.values(), key=len, reverse=True):
        one = alike[0]
        lines.append(f"{len(alike):6} failed: {one.code} {one.reason} (such as {one.config.label})")
    return lines


def table(tuned: Tuned, most: int = SHOWN) -> str:
    """The best configs, those measured again first."""
    again = [one.config for one in tuned.confirmed]
    rest = [one for one in tuned.evaluations if one.config not in again]
    marks = {tuned.declared: "declared"} | dict.fromkeys(again, "measured again")
    rows = []
    for one in [*_ranked(tuned, tuned.confirmed), *_ranked(tuned, rest)][:most]:
        speed = gflops_text(one.gflops), share_text(_of_library(tuned, one))
        cycles = "–" if one.cycles is None else f"{one.cycles:,.0f}"
        watts = "–" if one.watts is None else f"{one.watts:.0f}"
        mark = marks.get(one.config, "")
        rows.append((one.config.label, *speed, cycles, watts, noise_text(one.noise), mark))
    heads = ("config", "GFLOPS", "% library", "cycles", "W", "noise", "")
    return TextTable(heads, "lrrrrrl", rows).text()


def _ranked(tuned: Tuned, some: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(some, key=lambda one: -(one.score(tuned.objective) or float("-inf")))


def strategies(tuned: Tuned, replayed: Sequence[Replayed], file: str = "", mark: str = "") -> str:
    """Markdown: the evaluations that each strategy needs; with a ``file``, of the space, as the generated
    page of docs/, which has that ``mark``."""
    values = {"tuned": tuned, "replayed": replayed, "near": NEAR, "median": statistics.median}
    return render("strategies.md.jinja", **values, file=file, mark=mark)


def mark(space: bytes, strategies: Sequence[str], seeds: int, budget: str) -> str:
    """What a page is made of, as a comment in it."""
    made = f"{hashlib.sha256(space).hexdigest()} {' '.join(strategies)} {seeds} {budget}"
    return f"<!-- made of {hashlib.sha256(made.encode()).hexdigest()} -->"


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


def _blocks(block: BlockWork, s: Selected) -> str:
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
        yield f"`{typed('baseline')}` on such a GPU lets figures decide"
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
            yield f"  {problem.id}: {weight:.0%}, {sqrt(away) / (4 << BITS):.1f} octaves away"
        yield f"expected speed, relative to the fastest, and the most blocks of an SM, of {s.sms}:"
        for variant, estimate in s.found.ranked[:_EXPLAINED]:
            yield f"  {variant.stage}: {estimate / BEST:.1%}; {_blocks(block_of(variant), s)}"
    if s.library_gflops and s.gflops:
        share = f"{s.gflops / s.library_gflops:.1%}"
        yield f"the library: {gflops_text(s.library_gflops)} GFLOPS, of which this is {share}"
    for variant in s.found.refused:
        yield f"not considered: {variant.stage}: {refusals(variant, s.problem)[0]}"


BEGIN, END = "<!-- select:begin -->", "<!-- select:end -->"


def section(selectors: Sequence[Selector]) -> str:
    """The tables of every measured GPU."""
    return render(
        "select.md.jinja", measured=[(one, list(outcomes(one))) for one in selectors], summary=Summary.of
    )

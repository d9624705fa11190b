"""What tuning found: a table for the terminal, the comparison of strategies, and a plot."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from gemm_regression.files import write_whole
from gemm_regression.report.figures import gflops_text, noise_text, percent_text, share_text
from gemm_regression.report.markdown import table_text
from gemm_regression.report.page import charts
from gemm_regression.tune.search import NEAR, Replayed
from gemm_regression.tune.stored import Evaluation, Failed, Tuned

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
    kinds = Counter((one.code, _kind(one)) for one in failed)
    examples = {(one.code, _kind(one)): one for one in reversed(failed)}
    for kind, count in kinds.most_common():
        one = examples[kind]
        lines.append(f"{count:6} failed: {one.code} {one.reason} (such as {one.config.label})")
    return lines


def _kind(failed: Failed) -> str:
    return failed.reason if failed.code == "COMPILE_ERROR" else ""


def table(tuned: Tuned, most: int = SHOWN) -> Table:
    """The best configs, those measured again first."""
    made = Table("config", "GFLOPS", "% library", "cycles", "W", "noise", "", title=tuned.name)
    for name in made.columns[1:6]:
        name.justify = "right"
    again = {one.config for one in tuned.confirmed}
    rest = [one for one in tuned.evaluations if one.config not in again]
    ranked = [*_ranked(tuned, tuned.confirmed), *_ranked(tuned, rest)]
    for one in ranked[:most]:
        made.add_row(*_cells(tuned, one, one.config in again))
    return made


def _ranked(tuned: Tuned, some: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(some, key=lambda one: -(one.score(tuned.objective) or float("-inf")))


def _cells(tuned: Tuned, one: Evaluation, again: bool) -> tuple[str, ...]:
    share = one.gflops / tuned.library_gflops if tuned.library_gflops else None
    notes = ["measured again"] * again + ["declared"] * (one.config == tuned.declared)
    return (
        one.config.label,
        gflops_text(one.gflops),
        share_text(share),
        "–" if one.cycles is None else f"{one.cycles:,.0f}",
        "–" if one.watts is None else f"{one.watts:.0f}",
        noise_text(one.noise),
        ", ".join(notes),
    )


def strategies(tuned: Tuned, replayed: Sequence[Replayed]) -> str:
    """Markdown: the evaluations that each strategy needs."""
    seeds = len(replayed[0].ends) if replayed else 0
    heads = (
        "strategy",
        *(f"evaluations to {near:.0%}" for near in NEAR),
        "range",
        "seeds",
        "ends at, median",
    )
    rows = []
    for one in replayed:
        near = [_count(one.median(place)) for place in range(len(NEAR))]
        numbers = [n for n in one.reached[-1] if n is not None]
        span = f"{min(numbers)}–{max(numbers)}" if numbers else "–"
        share = f"{len(numbers)} of {seeds}"
        rows.append((one.strategy, *near, span, share, f"{100 * statistics.median(one.ends):.1f} %"))
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


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:.0f}"


def plot(tuned: Tuned, path: Path) -> None:
    """An SVG: every config over its GFLOPS, and its values on parallel axes. Raises NoDrawingError."""
    defaults = tuned.defaults or {}
    axes = {name: list(values) for name, values in tuned.axes.items() if len(values) > 1}
    ranked = list(enumerate(sorted(tuned.evaluations, key=lambda one: -one.gflops), 1))
    values = [
        {
            "rank": rank,
            "gflops": one.gflops,
            "axis": name,
            "place": _place(of, one.config.get(name, defaults.get(name, 0))),
        }
        # The fastest last, on top of the others.
        for rank, one in reversed(ranked)
        for name, of in axes.items()
    ]
    lines = {"library": tuned.library_gflops, "declared": tuned.of_declared and tuned.of_declared.gflops}
    data = {
        "configs": [{"rank": rank, "gflops": one.gflops} for rank, one in ranked],
        "lines": [{"name": name, "gflops": gflops} for name, gflops in lines.items() if gflops],
        "values": values,
        "ticks": [
            {"axis": name, "place": _place(of, v), "value": str(v)} for name, of in axes.items() for v in of
        ],
    }
    made = {**charts.specification("tuned"), "title": summary(tuned)[:2], "datasets": data}
    write_whole(path, charts.svg({**made, "background": "white"}))


def _place(values: Sequence[int], value: int) -> float:
    """From 0 for the first to 1 for the last."""
    return values.index(value) / (len(values) - 1)

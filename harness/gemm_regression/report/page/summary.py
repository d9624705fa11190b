"""The essentials of a report as Markdown, for a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_regression.model import Kernel
from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.report.markdown import safe, table_text
from gemm_regression.report.page import history, records, verdicts
from gemm_regression.report.page.render import judged
from gemm_regression.report.page.said import Said
from gemm_regression.report.page.sources import Content, Source

_MOST = 20  # rows of a table that may have any number


def markdown(content: Content, kernels: Sequence[Kernel]) -> str:
    """Verdicts, the failures in full, the ladder of the newest source and what changed over the history.
    Raises BaselineError as `render.judged`."""
    said = judged(content)
    parts = []
    for label in dict.fromkeys(one.source for one in said):
        parts += _verdicts(label, [one for one in said if one.source == label])
    for each in content.tested:
        parts.append(f"{safe(each.label)}: {each.tests} tests, {each.red} failed.")
    declared = records.variants(kernels)
    for source in content.sources[:1]:
        parts += _ladder(source, declared)
    parts += _history(content)
    return "\n\n".join(parts or ["Nothing is measured yet: `nox -s baseline` on a GPU."]) + "\n"


def _first_line(one: Said) -> str:
    line = one.message.partition("\n")[0]
    return line if line.startswith(one.case) else f"{one.case}: {line}"


def _verdicts(label: str, said: Sequence[Said]) -> list[str]:
    red = [one for one in said if one.red]
    numbers = ", ".join(f"{number} {kind}" for kind, number, _ in verdicts.counts(said))
    parts = [f"## {'Red' if red else 'Green'}: {safe(label)}: {numbers}"]
    parts += [
        f"- **{f'{one.verdict} {one.reason}'.strip()}** {safe(_first_line(one))}\n\n  `{one.command}`"
        for one in red[:_MOST]
    ]
    if len(red) > _MOST:
        parts.append(f"… and {len(red) - _MOST} more")
    return parts


def _ladder(source: Source, declared: records.Variants) -> list[str]:
    measured = records.cases([source], declared)
    problem = records.usual_problem(measured)
    shown = sorted((r for r in measured if r["best"] and r["problem"] == problem), key=lambda r: r["order"])
    if not shown:
        return []
    rows = (
        (
            *(r["stage"], r["dtype"], r["config"], gflops_text(r["gflops"])),
            "–" if r["share"] is None else f"{r['share']:.1f}",
            "–" if r["speedup"] is None else f"{r['speedup']:.2f}",
            f"{r['ms']:.4g}",
            f"{r.get('board', 'unknown')}, {r['commit'][:8]}",
        )
        for r in shown
    )
    heads = ("stage", "dtype", "best config", "GFLOPS", "% of cuBLAS", "× naive", "ms", "board, commit")
    return [
        f"### {safe(source.label)}, {problem}",
        table_text(heads, "lllrrrrl", rows),
    ]


def _history(content: Content) -> list[str]:
    found = history.changed(content.histories)
    if not found:
        return []
    slower = sum(one[2] for one in found)
    rows = (
        (
            *(("**slower** " if is_slower else "") + move.case, move.at, move.commit),
            *(gflops_text(move.gflops[0]), gflops_text(move.gflops[1]), percent_text(move.change, 2)),
        )
        for _, move, is_slower in found[:_MOST]
    )
    heads = ("case", "measurement", "commit", "GFLOPS before", "after", "change")
    said = f"### History: {len(found)} change points, {slower} of cases that are slower now"
    return [said, table_text(heads, "lllrrr", rows)]

"""Markdown: the summary of a CI job, and the ladder table in the README from the stored baseline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.files import write_whole
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import Case, Kernel, Problem
from gemm_regression.report.check import ALIGN, HEADS, CheckRow, counts_text
from gemm_regression.report.figures import gflops_text, noise_text, percent_text, share_text
from gemm_regression.report.terminal import Row, in_order

BEGIN, END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
NO_BASELINE = "No baseline yet: run nox -s baseline on a GPU."
SHOWN = Problem(4096, 4096, 4096)
_MEASURED_ON = "measured on (board@commit)"
_Best = tuple[Kernel, str, str, BaselineEntry]


def job_summary(
    rows: Sequence[Row],
    header: Sequence[str],
    exit_status: int = 0,
    other_failures: Sequence[str] = (),
    checked: Sequence[CheckRow] = (),
    kernels: Sequence[Kernel] = (),
    what_failed: Sequence[str] = (),
) -> str:
    """A GitHub job summary: the number of each verdict, the lines of ``header``, failures, then all cases.

    ``other_failures`` are the ids of failed tests that are no kernel's, ``checked`` the rows of a run without
    a GPU, ``what_failed`` the reasons of the kernels' failures. Green only if something was judged, nothing
    failed, and pytest's ``exit_status`` is 0.
    """
    failed = [row for row in rows if row.failed]
    said = [f"{n} {verdict}" for verdict, n in Counter(row.verdict for row in rows).most_common()]
    if checked:
        said.append(counts_text(checked))
    said = said or ["nothing was judged"]
    # What was timed is in the rows.
    timed = ("::test_performance[", f"{VerdictKind.NO_BASELINE}:")
    if any(not any(word in what for word in timed) for what in what_failed):
        said.append("kernels failed")
    if count := len(other_failures):
        said.append(f"{count} other {'test' if count == 1 else 'tests'} failed")
    if exit_status not in (0, 1):
        said.append(f"pytest ended with exit status {exit_status}")
    red = failed or other_failures or what_failed or exit_status or not (rows or checked)
    parts = [
        f"## {'Red' if red else 'Green'}: {', '.join(said)}",
        "\n".join(f"- {safe(line)}" for line in header),
    ]
    if failed or other_failures or what_failed:
        parts.append("### Failed")
    if what_failed:
        parts.append("\n".join(f"- {safe(line)}" for line in what_failed))
    if failed:
        parts.append(_rows(failed, kernels))
    if other_failures:
        parts.append("\n".join(f"- {safe(test)}" for test in other_failures))
    if rows:
        parts.append(
            f"<details><summary>All {len(rows)} cases</summary>\n\n{_rows(rows, kernels)}\n\n</details>"
        )
    if checked:
        parts.append(table_text(HEADS, ALIGN, (row.cells() for row in checked)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(rows: Sequence[Row], kernels: Sequence[Kernel]) -> str:
    ordered = [row for group in in_order(rows, kernels).values() for row in group]
    heads = ("GPU",) if any(row.gpu for row in rows) else ()
    return table_text(
        (
            *("problem", "stage", "dtype", "config", "GFLOPS", "% of cuBLAS", "% of DRAM", "bound, %"),
            *("change", *heads, "verdict"),
        ),
        "llllrrrrr" + "l" * len(heads) + "l",
        (
            (
                *(row.problem, row.stage, row.dtype, row.config, gflops_text(row.gflops)),
                *(share_text(row.cublas_ratio), share_text(row.dram), row.bound or "–"),
                percent_text(row.change),
                *((row.gpu,) if heads else ()),
                f"**{row.outcome}**" if row.failed else row.outcome,
            )
            for row in ordered
        ),
    )


def readme_section(baselines: Sequence[Baseline], kernels: Sequence[Kernel]) -> str:
    """The text between the markers in the README: what was measured where, and a table; of several GPU models
    one table, side by side."""
    every = [list(_best(baseline, kernels)) for baseline in baselines]
    said = [_provenance(b, [e for *_, e in best]) for b, best in zip(baselines, every, strict=True)]
    if not baselines:
        return NO_BASELINE
    if len(baselines) == 1:
        return f"{said[0]}\n\n{_ladder(every[0])}"
    return "\n".join(f"- {line}" for line in said) + f"\n\n{_side_by_side(baselines, every, kernels)}"


def replaced(page: str, section: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with the section between its markers. Raises ValueError unless it has each marker once."""
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"needs the line {begin} once, and {end} once after it")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.partition(end)[2]}"


def _provenance(baseline: Baseline, best: Sequence[BaselineEntry]) -> str:
    """What the figures that are shown have in common; each row names its own board and commit."""
    software = dict.fromkeys(
        f"driver {m['driver']}, CUDA {m['cuda_driver']}, nvcc {m['nvcc']}" for m in (e.machine for e in best)
    )
    days = sorted({entry.datetime[:10] for entry in best})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) + "; " if days else ""
    return (
        f"{baseline.name}, M = N = K = {SHOWN.m}, the best config of each stage; {when}"
        f"{' or '.join(software) or 'nothing of that size is stored'}."
    )


def _source(entry: BaselineEntry) -> str:
    """Board and commit of a figure."""
    changed = " with changes" if entry.dirty else ""
    return f"{entry.board or 'unknown'}@{entry.commit[:8]}{changed}"


def _ladder(best: Sequence[_Best]) -> str:
    heads = (
        *("stage", "idea", "dtype", "best config", "GFLOPS", "% of cuBLAS", "noise floor"),
        _MEASURED_ON,
    )
    lines = [
        (kernel.name, kernel.idea, dtype, label, *_figures(kernel, e), noise_text(e.noise_floor), _source(e))
        for kernel, dtype, label, e in best
    ]
    return table_text(heads, "llllrrrl", lines)


def _side_by_side(
    baselines: Sequence[Baseline], every: Sequence[Sequence[_Best]], kernels: Sequence[Kernel]
) -> str:
    """The best config of each stage on each GPU; a dash where one of them has not measured a stage."""
    of_gpus = [{(k.name, d): (label, e) for k, d, label, e in best} for best in every]
    lines = []
    for kernel, dtype in ((k, str(d)) for k in kernels for d in k.dtypes):
        found = [of_gpu.get((kernel.name, dtype)) for of_gpu in of_gpus]
        if any(found):
            cells = [(each[0], *_figures(kernel, each[1])) if each else ("–",) * 3 for each in found]
            sources = ", ".join(_source(each[1]) if each else "–" for each in found)
            lines.append((kernel.name, kernel.idea, dtype, *(cell for gpu in cells for cell in gpu), sources))
    names = [b.name.removeprefix("NVIDIA ") for b in baselines]
    heads = [head for name in names for head in (f"{name}: best config", "GFLOPS", "% of cuBLAS")]
    heads = ["stage", "idea", "dtype", *heads, _MEASURED_ON]
    return table_text(heads, "lll" + "lrr" * len(names) + "l", lines)


def _best(baseline: Baseline, kernels: Sequence[Kernel]) -> Iterator[_Best]:
    """The fastest config of each kernel and dtype at the size that is shown: its label and what is stored."""
    for kernel in kernels:
        for dtype in kernel.dtypes:
            stored = (baseline.entry(Case(kernel, dtype, c, SHOWN).id) for c in kernel.configs)
            configs = [(entry, c.label) for entry, c in zip(stored, kernel.configs, strict=True) if entry]
            if configs:
                best, label = max(configs, key=lambda pair: pair[0].gflops)
                yield kernel, str(dtype), best.choice or label, best


def _figures(kernel: Kernel, best: BaselineEntry) -> tuple[str, str]:
    return gflops_text(best.gflops), share_text(1.0 if kernel.library else best.cublas_ratio)


def table_text(heads: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "\n".join(f"| {' | '.join(map(safe, cells))} |" for cells in (heads, rule, *rows))


def safe(text: str) -> str:
    """Text escaped so that it neither ends its cell nor becomes HTML."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def update_readme(
    readme: Path, baselines: Sequence[Baseline], kernels: Sequence[Kernel], check: bool
) -> bool:
    """Updates the README's table, as ``update_page``."""
    return update_page(readme, readme_section(baselines, kernels), check)


def update_page(page: Path, section: str, check: bool, begin: str = BEGIN, end: str = END) -> bool:
    """Puts a section between the markers of a page, unless ``check``; returns whether it was already there.

    Raises ValueError if the page has no markers for it, OSError if it cannot be read or written.
    """
    text = page.read_text(encoding="utf-8")
    wanted = replaced(text, section, begin, end)
    if text != wanted and not check:
        write_whole(page, wanted)
    return text == wanted

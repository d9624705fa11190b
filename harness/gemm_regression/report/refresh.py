"""A refresh of a baseline, as text: old and new figures, and what is slower than the best binary."""

from __future__ import annotations

from collections.abc import Sequence

from gemm_regression.baselines import Baseline
from gemm_regression.report.figures import gflops_text, noise_text, percent_text
from gemm_regression.report.wording import paired_text
from gemm_regression.run.creep import Refresh


def refresh_lines(before: Baseline | None, measured: Baseline, made: Refresh) -> list[str]:
    """A line for each measured case, then those that were refused, accepted or could not be compared."""
    rows = [("case", "old GFLOPS", "new GFLOPS", "change", "noise")]
    for case, entry in measured.entries.items():
        was = before.entry(case) if before else None
        change = percent_text(entry.gflops / was.gflops - 1 if was else None)
        old = gflops_text(was.gflops if was else None)
        rows.append((case, old, gflops_text(entry.gflops), change, noise_text(entry.noise_floor)))
    lines = aligned(rows)
    for case, paired in made.refused.items():
        lines.append(
            f"refused: {case}: {paired_text(paired)}; make it faster, or store it with "
            f'--accept-slower "{case}" "the reason"'
        )
    for case, paired in made.accepted.items():
        lines.append(f"accepted: {case}: {made.entries[case].accepted}; {paired_text(paired)}")
    lines += [f"not compared with its best binary: {case}: {why}" for case, why in made.unpaired.items()]
    return lines


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns, the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join((row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    ]

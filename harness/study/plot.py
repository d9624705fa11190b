"""Detection rate over size of the slowdown, as SVG."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.files import write_whole
from harness.study.analysis import GATE, PAIRED, RUNS, Cell, rate
from harness.study.methods import BY_SAMPLES, NVBENCH
from harness.study.raw import StudyError

_LEAST = 0.001  # position of A/A on the logarithmic axis


def draw(groups: Mapping[str, Sequence[Cell]], path: Path, mark: str) -> None:
    """One panel per group, by title; ``mark`` is written into the file. Raises StudyError without
    matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise StudyError(f"no plot ({error}); `pip install --group study` brings matplotlib") from None
    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = (*PAIRED.values(), GATE, *(RUNS + name for name in (*list(BY_SAMPLES)[:3], NVBENCH)))
    sizes = sorted({c.size for cells in groups.values() for c in cells})
    with matplotlib.rc_context({"svg.hashsalt": "detection", "svg.fonttype": "none", "font.size": 9}):
        figure, panels = pyplot.subplots(1, len(groups), figsize=(10, 5), sharey=True, layout="constrained")
        for panel, (title, cells) in zip(panels, groups.items(), strict=True):
            for number, method in enumerate(shown):
                found = [(s, rate([c for c in cells if c.size == s], method)) for s in sizes]
                points = [(s, r) for s, r in found if r is not None]
                places = [max(s, _LEAST) * 1.015 ** (number - len(shown) / 2) for s, _ in points]
                shares = [100 * r.share for _, r in points]
                ends = [[100 * abs(r.share - r.limits[i]) for _, r in points] for i in (0, 1)]
                panel.errorbar(places, shares, yerr=ends, label=method, marker="o", ms=3, lw=1.2, capsize=2)
            panel.set_xscale("log")
            panel.set_xticks(
                [max(s, _LEAST) for s in sizes], [f"{100 * s:g} %" if s else "A/A" for s in sizes]
            )
            panel.minorticks_off()
            panel.set_title(title)
            panel.set_xlabel("planted slowdown")
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("called slower, % of trials (95 % limits)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Description": f"made of {mark}"})
        write_whole(path, drawn.getvalue())
        pyplot.close(figure)

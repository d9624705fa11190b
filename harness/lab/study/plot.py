"""Detection rate over size of the slowdown, as SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemm_regression.files import write_whole
from gemm_regression.report.page import charts
from lab.study.analysis import RED, REGRESSED, RUNS, Cell, Rate
from lab.study.methods import BY_SAMPLES, NVBENCH
from lab.study.raw import StudyError

_SPECIFICATION = Path(__file__).with_name("detection.vl.json")


def draw(groups: Mapping[str, Sequence[Cell]], path: Path, mark: str) -> None:
    """One panel per group, by title; ``mark`` is written into the file. Raises StudyError without
    vl-convert."""
    shown = (RED, REGRESSED, *(RUNS + name for name in (*list(BY_SAMPLES)[:3], NVBENCH)))
    sizes = sorted({c.size for cells in groups.values() for c in cells})
    rates = [
        {
            "panel": title,
            "method": method,
            "order": order,
            "size": size,
            "planted": f"{100 * size:g} %" if size else "A/A",
            "share": 100 * found.share,
            "low": 100 * found.limits[0],
            "high": 100 * found.limits[1],
        }
        for title, cells in groups.items()
        for order, method in enumerate(shown)
        for size in sizes
        if (found := Rate.of((c for c in cells if c.size == size), method))
    ]
    spec = json.loads(_SPECIFICATION.read_text(encoding="utf-8"))
    try:
        write_whole(path, charts.svg({**charts.on_paper(), **spec, "datasets": {"rates": rates}}, mark))
    except charts.NoDrawingError as error:
        raise StudyError(f"no plot ({error}); `pip install --group study` brings vl-convert") from None

"""The pictures of the README: ladder and roofline of each GPU's newest baseline, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.baselines import gpu_slug
from harness.files import write_whole
from harness.model import Kernel
from harness.reports.page import charts, records
from harness.reports.page.records import Record
from harness.reports.page.sources import Content

_WIDTH = 620  # pixels


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The pictures that are missing or were made of something else; unless ``check``, they are written.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    stale = []
    for name, spec in _wanted(content, kernels):
        path = folder / name
        if path.is_file() and charts.mark_of(spec) in path.read_text(encoding="utf-8"):
            continue
        stale.append(path)
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, charts.svg(spec))
    return stale


def _wanted(content: Content, kernels: Sequence[Kernel]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each picture's file name and specification."""
    declared = records.variants(kernels)
    seen = set()
    for source in content.baselines:
        slug = gpu_slug(source.gpu)
        if slug in seen:
            continue
        seen.add(slug)
        measured = [r for r in records.cases([source], declared) if r["best"]]
        problem = records.usual_problem(measured)
        data: dict[str, list[Record]] = {
            "cases": [r for r in measured if r["problem"] == problem],
            "roofs": records.roof_lines([source]),
        }
        chosen = {"source": source.label, "problem": problem}
        for name in ("ladder", "roofline"):
            yield f"{name}-{slug}.svg", charts.picture(name, chosen, data, _WIDTH)

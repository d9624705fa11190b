"""The pictures of the README: ladder and roofline of each GPU's baseline, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gemm_regression.baselines import gpu_slug
from gemm_regression.files import write_whole
from gemm_regression.model import Kernel
from gemm_regression.report.page import charts, records
from gemm_regression.report.page.records import Record
from gemm_regression.report.page.sources import Content

_WIDTH = 620  # pixels
_USED = ("source", "stage", "dtype", "problem", "best", "gflops", "compulsory", "requested", "dram")


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The pictures that are missing or were made of something else; unless ``check``, they are written.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    stale = []
    for name, spec in _wanted(content, kernels):
        path = folder / name
        if path.is_file() and charts.made_of(path.read_text(encoding="utf-8"), spec):
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
        measured = records.cases([source], declared, content.known)
        problem = records.usual_problem(measured)
        shown = _bare(r for r in measured if r["best"] and r["problem"] == problem)
        chosen = {"source": source.label, "problem": problem}
        data: dict[str, dict[str, list[Record]]] = {
            "ladder": {"cases": shown},
            "roofline": {"cases": shown, "roofs": records.roof_lines([source], shown)},
        }
        for name, own in data.items():
            yield f"{name}-{slug}.svg", charts.picture(name, chosen, own, _WIDTH)


def _bare(shown: Iterable[Record]) -> list[Record]:
    """What the pictures use of the records; kernels that are not shown leave no trace in their order."""
    ordered = sorted(shown, key=lambda r: int(r["order"]))
    places = {stage: place for place, stage in enumerate(dict.fromkeys(r["stage"] for r in ordered))}
    return [{name: r[name] for name in _USED if name in r} | {"order": places[r["stage"]]} for r in ordered]

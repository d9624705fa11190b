"""docs/results/learn.md and its pictures: the lessons of the ladder as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemm_regression.baselines import gpu_slug
from gemm_regression.files import write_whole
from gemm_regression.model import Kernel
from gemm_regression.report.page import charts
from gemm_regression.report.page.sources import Content
from lab.lessons.lessons import Lesson, lessons

PAGE, PICTURES = "learn.md", "learn"


def update(folder: Path, content: Content, kernels: Sequence[Kernel], check: bool) -> list[Path]:
    """The files in a folder of documents that are missing, or were made of something else, or are of a stage
    that is gone; unless ``check``, they are written, and those removed.

    Raises NoDrawingError where something must be drawn without vl-convert, OSError.
    """
    found = lessons(content, kernels)
    pictures = dict(_pictures(found))
    there = sorted((folder / PICTURES).glob("*.svg")) if (folder / PICTURES).is_dir() else []
    stale = [path for path in there if path.name not in pictures]
    if not check:
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        for path in stale:
            path.unlink()
    for name, spec in pictures.items():
        path = folder / PICTURES / name
        if path.is_file() and charts.made_of(path.read_text(encoding="utf-8"), spec):
            continue
        stale.append(path)
        if not check:
            write_whole(path, charts.svg(spec))
    text, path = page(found), folder / PAGE
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        stale.append(path)
        if not check:
            write_whole(path, text)
    return stale


def _pictures(found: Sequence[Lesson]) -> Iterator[tuple[str, dict[str, Any]]]:
    for lesson in found:
        for seen in lesson.seen:
            if "levels" in seen.here:
                yield f"{lesson.kernel.name}-{seen.slug}.svg", seen.picture()


def page(found: Sequence[Lesson]) -> str:
    """The page as Markdown."""
    gpus = list(dict.fromkeys(seen.gpu for lesson in found for seen in lesson.seen))
    parts = [
        "# The ladder, step by step",
        "Written by `nox -s lab -- learn` from the sources of the kernels and from what is stored; do not "
        "edit. Each picture shows how much of the measured time the work of a stage needs at five levels, "
        "each at the rate that was measured as its roof: the red bar is what bounds it, the grey ones are "
        "those of the next stage. Where no bar is long, the time goes into waiting. How that is computed: "
        "[bounds.md](../bounds.md). What the course notes say of these steps: [claims.md](claims.md).",
        f"Measured on: {', '.join(gpus) or 'no GPU yet'}.",
        *(f"![The ladder on an {gpu}](ladder-{gpu_slug(gpu)}.svg)" for gpu in gpus),
    ]
    for number, lesson in enumerate(found):
        after = found[number + 1].kernel.name if number + 1 < len(found) else ""
        parts += _step(lesson, after)
    return "\n\n".join(parts) + "\n"


def _text(said: str) -> str:
    """A comment as Markdown: names with an underline and elements of arrays are code."""
    return re.sub(r"(?<!`)(#pragma \w+|\b\w+(?:\[[^\]]*\])+|\w*_\w+)(?!`)", r"`\1`", said)


def _step(lesson: Lesson, after: str) -> Iterator[str]:
    said, name = lesson.said, lesson.kernel.name
    yield f"## {name}"
    idea = lesson.kernel.idea
    yield f"**{idea[:1].upper()}{idea[1:]}.** {_text(said.get('The idea', ''))}".strip()
    for seen in lesson.seen:
        if "levels" in seen.here:
            yield f"![What bounds {name} on an {seen.gpu}]({PICTURES}/{name}-{seen.slug}.svg)"
        lines = [
            f"- **{seen.gpu}**, {seen.here['problem']}, `{seen.here['config']}`: {seen.speed}; {seen.source}."
        ]
        lines.append(f"- Bound: {seen.limit}.")
        if seen.best:
            lines.append(f"- Where it gains most: {seen.best}.")
        yield "\n".join(lines)
    if "The limit" in said:
        yield f"**The limit.** {_text(said['The limit'])}"
    if "Next" in said:
        first, _, rest = said["Next"].partition(" ")
        yield f"**Next.** {f'`{first}`' if first == after else _text(first)} {_text(rest)}"
    if gains := [f"{seen.gain} ({seen.gpu}, {seen.here['problem']})" for seen in lesson.seen if seen.gain]:
        yield f"**What it bought here.** {'; '.join(gains)}."

"""``nox -s lab -- learn``: writes docs/results/learn.md and its pictures, which explain each stage of the
ladder: what it does, what limits it, and what the next one gains.

The explanations come from the comment at the head of each source, the numbers from stored measurements.

Exit status: 0 written or up to date, 1 out of date (``--check``), or a file that cannot be trusted, 2 a wrong
command line.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemm_regression.baselines import BaselineError, gpu_slug
from gemm_regression.cli.common import about, project_of
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.files import write_whole
from gemm_regression.model import Kernel
from gemm_regression.project.loader import ProjectError
from gemm_regression.report import charts, sources
from gemm_regression.report.charts import SHOWN, Record
from gemm_regression.report.figures import gflops_text
from gemm_regression.report.sources import Content, ReportSource
from lab import pages

_LABEL = re.compile(r"([A-Z]\w*(?: \w+)?) {2,}(.*)")
_PLACED = ("The idea", "The limit", "Next")  # labels that have their places in a lesson
_WIDTH = 380  # pixels
# Loads from global memory wait for the same path as those from shared memory.
NAMED = {"shared memory": "L1's data path"}
# Why a share can pass 100 % of a rate that a probe reached.
_ABOVE = {
    "math": "Math is of the FP32 units' rate; this stage multiplies on the tensor cores, and can pass it.",
    "DRAM": "DRAM's rate is what a probe reaches by reading alone, which reads and writes can pass.",
}


@dataclass(frozen=True)
class StageOnGpu:
    """A stage on one ``gpu``. ``here``: its record at the problem shown, 4096³ or else the largest square
    one. ``after``: the next stage at that problem, if measured. ``most``: its record at the problem where it
    gains most over the earlier stages, and that of the fastest earlier stage. ``alike``: the estimate beside
    what ncu counted, where another GPU has no counts to compare with."""

    gpu: str
    here: Record
    after: Record | None = None
    most: tuple[Record, Record] | None = None
    alike: Record | None = None

    @property
    def slug(self) -> str:
        return gpu_slug(self.gpu)

    @property
    def source(self) -> str:
        """Board and commit of the measurement."""
        return f"board {self.here.get('board', 'unknown')}, commit {self.here['commit'][:8]}"

    @property
    def speed(self) -> str:
        """``8,596 GFLOPS, 16.7 % of cuBLAS``."""
        share = self.here["share"]
        return f"{gflops_text(self.here['gflops'])} GFLOPS" + (f", {share:.1f} % of cuBLAS" if share else "")

    @property
    def limit(self) -> str:
        """What bounds it, with the share of each level."""
        if "bound" not in self.here:
            return "unknown, since the peak rates of this GPU are unknown"
        shares, why = _shares(self.here)
        if self.alike:
            shares += f"; {_shares(self.alike)[0]}"
        return f"{NAMED.get(self.here['bound'], self.here['bound'])} ({shares}){why}".removesuffix(".")

    @property
    def gain(self) -> str:
        """What the next stage gains at the same problem; empty if it was not measured there."""
        if self.after is None:
            return ""
        factor = self.after["gflops"] / self.here["gflops"]
        return f"{self.after['stage']}: {gflops_text(self.after['gflops'])} GFLOPS, × {factor:.2f}"

    @property
    def best(self) -> str:
        """Where it gains most over the stages before it; empty for the first."""
        if self.most is None:
            return ""
        own, other = self.most
        factor = own["gflops"] / other["gflops"]
        where = f"at {own['problem']} it has {gflops_text(own['gflops'])} GFLOPS"
        return f"{where}, × {factor:.2f} of {other['stage']}, the fastest stage before it"

    def picture(self) -> dict[str, Any]:
        """The Vega-Lite specification of the picture; without a bound, of an empty one."""
        values = [
            {
                "level": NAMED.get(level, level),
                "share": share,
                "kind": "next" if place else "what bounds it" if level == record["bound"] else "this stage",
                "place": place,
            }
            for place, record in enumerate(filter(None, (self.here, self.after)))
            for level, share in record.get("levels", {}).items()
        ]
        chosen = {
            "heading": f"{self.here['stage']} {self.here['dtype']}: {self.speed}",
            "subheading": f"{self.gpu}, {self.here['problem']}, {self.here['config']}",
            "next": f"{self.after['stage']}, {gflops_text(self.after['gflops'])} GFLOPS"
            if self.after
            else "",
        }
        return charts.picture("limits", chosen, {"limits": values}, _WIDTH)


def _shares(record: Record) -> tuple[str, str]:
    """``L1's data path 99 %, math 1 %; estimated``, and what is to be said of shares above 100 %."""
    levels = sorted(record["levels"].items(), key=lambda one: -one[1])
    estimated = record["counted"] != "ncu"  # such shares end at 100 %
    shares = ", ".join(
        f"{NAMED.get(level, level)} {share:.0f} %" + " (capped)" * (estimated and share >= 100)
        for level, share in levels
    )
    why = "".join(f". {_ABOVE[level]}" for level, share in levels if share >= 100 and level in _ABOVE)
    return f"{'estimated' if estimated else 'counted by ncu'}: {shares}", why


@dataclass(frozen=True)
class Lesson:
    """A stage: the header comment of its source, by its labels, and its measurements on each GPU."""

    kernel: Kernel
    said: Mapping[str, str]
    seen: tuple[StageOnGpu, ...]


def said_by(source: str) -> dict[str, str]:
    """The header comment of a source, split by its labels, such as "The idea", in its order."""
    found: dict[str, str] = {}
    label = ""
    for line in source.splitlines():
        if not line.startswith("//"):
            break
        text = line.removeprefix("//").strip()
        if match := _LABEL.fullmatch(text):
            label = match[1]
            found[label] = match[2]
        elif label and text:
            found[label] += f" {text}"
    return found


def lessons(content: Content, kernels: Sequence[Kernel]) -> list[Lesson]:
    """A lesson for each kernel with a source that was measured, in the order of the declarations."""
    declared = charts.variants(kernels)
    newest: dict[str, ReportSource] = {}
    for source in content.baselines:  # a given file is another source of its GPU
        newest.setdefault(gpu_slug(source.gpu), source)
    # What ncu counted, and what is estimated for all: one kind for all GPUs of a lesson.
    counted, estimated = (
        {
            source.gpu: [r for r in charts.cases([source], declared, known) if r["best"]]
            for source in newest.values()
        }
        for known in (content.known, replace(content.known, seen={}))
    )
    stages = [kernel for kernel in kernels if kernel.source is not None]
    made = []
    for number, kernel in enumerate(stages):
        seen = (_seen(gpu, own, stages, number) for gpu, own in counted.items())
        there = tuple(one for one in seen if one)
        if not all(one.here.get("counted") == "ncu" for one in there):
            alike = {gpu: _seen(gpu, own, stages, number) for gpu, own in estimated.items()}
            there = tuple(
                replace(one, alike=like.here)
                if one.here.get("counted") == "ncu" and (like := alike[one.gpu])
                else one
                for one in there
            )
        if there:
            assert kernel.source is not None
            made.append(Lesson(kernel, said_by(kernel.source.read_text(encoding="utf-8")), there))
    return made


def _seen(gpu: str, measured: Sequence[Record], stages: Sequence[Kernel], number: int) -> StageOnGpu | None:
    """A stage on a GPU; None if it was not measured."""
    kernel = stages[number]
    own = [r for r in measured if r["stage"] == kernel.name and r["dtype"] == kernel.dtypes[0].name]
    if not own:
        return None
    earlier = {kernel.name for kernel in stages[:number]}
    gains = []
    for record in own:
        alike = [r for r in measured if (r["problem"], r["dtype"]) == (record["problem"], record["dtype"])]
        if before := [r for r in alike if r["stage"] in earlier]:
            gains.append((record, max(before, key=lambda r: float(r["gflops"]))))
    most = max(gains, key=lambda pair: float(pair[0]["gflops"] / pair[1]["gflops"]), default=None)
    usual = next((r for r in own if r["problem"] == SHOWN.id), None)
    here = usual or max(own, key=lambda r: (r["square"], r["place"] if r["square"] else r["share"] or 0.0))
    following = [kernel.name for kernel in stages[number + 1 : number + 2]]
    alike = [r for r in measured if (r["problem"], r["dtype"]) == (here["problem"], here["dtype"])]
    after = next((r for r in alike if r["stage"] in following), None)
    return StageOnGpu(gpu, here, after, most)


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
    for path in stale if not check else ():
        path.unlink()
    stale += charts.redraw(folder / PICTURES, pictures.items(), check)
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
        "Written by `nox -s lab -- learn` from the sources of the kernels and stored measurements; do not "
        "edit. Each *stage* of the ladder adds one optimisation. A picture shows for five hardware units the "
        "shortest time that the stage's work takes at the unit's peak rate, as a share of its time. The red "
        "bar is the bound of the stage; the grey bars are the next stage. *L1's data path* serves loads from "
        "global memory as well as from shared memory. *Math* is of the FP32 units' rate for f32, of the "
        "tensor cores' otherwise; estimated shares end at 100 %. If no bar is long, the time is spent "
        "waiting: [bounds.md](../bounds.md). [The course](../course/README.md) has pictures, arithmetic and "
        "exercises of each stage. Claims of the course notes: [claims.md](claims.md).",
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
    for label, text in said.items():
        if label not in _PLACED and not label.isupper():  # not those of parameters
            yield f"**{label}.** {_text(text)}"
    if "The limit" in said:
        yield f"**The limit.** {_text(said['The limit'])}"
    if "Next" in said:
        first, _, rest = said["Next"].partition(" ")
        yield f"**Next.** {f'`{first}`' if first == after else _text(first)} {_text(rest)}"
    if gains := [f"{seen.gain} ({seen.gpu}, {seen.here['problem']})" for seen in lesson.seen if seen.gain]:
        yield f"**What the next stage gains.** {'; '.join(gains)}."


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- learn", description=about(__doc__))
    parser.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument("--folder", type=Path, default=Path("docs/results"), help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        content = sources.gather(given.root or project.baselines)
        stale = update(given.folder, content, project.kernels, given.check)
    except (BaselineError, StoreError, ProjectError, charts.NoDrawingError, OSError) as error:
        return pages.fail(str(error))
    if stale and given.check:
        return pages.fail(f"{', '.join(map(str, stale))}: out of date; `nox -s lab -- learn` updates it")
    for path in stale:
        print(f"wrote {path}")
    return 0

"""``nox -s lab -- course``: writes docs/course/, a page and a picture for each of the first stages.

The words are in lessons.toml, the code is cut from the kernels, the numbers are stored measurements.
Exit status: 0 written or up to date; 1 out of date (``--check``), or a file that cannot be trusted; 2 a wrong
command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, project_of
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.profiler import DATA, ISSUED
from gemm_regression.files import write_whole
from gemm_regression.project.loader import ProjectError
from gemm_regression.tune.figures import Surveyed
from lab import pages
from lab.claims import Facts
from lab.claims.rules import CUBLAS, LARGE, SMALL, number, speed
from lab.course import FOLDER, LESSONS, Lesson
from lab.course.pictures import LANES, PICTURES, reads

_N = 1024
_LINE = 128  # bytes, of a wavefront
_SAID = "Written by `nox -s lab -- course`; do not edit."


def wavefronts(lesson: Lesson) -> float:
    """Of L1's data path, for 32 products, by arithmetic: one for each line or word of a warp's access, no
    loads merged, and those that copy the tiles."""
    if lesson.stage in ("strided", "naive"):
        lines = [{(row, column * 4 // _LINE) for row, column in cells} for cells in reads(lesson.stage)]
        return sum(map(len, lines))
    words = sum(lesson.thread) / (lesson.thread[0] * lesson.thread[1])
    return words + 2 * sum(1 / side for side in lesson.tile)  # loads from global, stores to shared memory


def _bounds(gpu: Surveyed, lesson: Lesson) -> dict[str, float]:
    """Microseconds that each unit needs at least at 1024³, by the rates that were measured of this GPU."""
    roofs = gpu.roofs
    return {
        "math": 2 * _N**3 / roofs["f32"]["gflops"] / 1e3,
        "data path of L1": wavefronts(lesson) * _N**3 / LANES * _LINE / roofs["shared"]["gbps"] / 1e3,
        "DRAM": 3 * 4 * _N**2 / roofs["dram"]["gbps"] / 1e3,
    }


def _table(lesson: Lesson, before: Lesson | None, facts: Facts) -> str:
    gpus = [gpu for gpu in facts.gpus if {"f32", "shared", "dram"} <= gpu.roofs.keys()]
    case = f"{lesson.variant}-{SMALL}"
    counts = [facts.seen.get(gpu.slug, {}).get(case) for gpu in gpus]
    per = _N**3 / LANES

    def counted(name: str) -> list[str]:
        return [f"{one.values[name] / per:.2f}" if one else "–" for one in counts]

    def ratio(top: str, bottom: str, problem: str, form: str) -> list[str]:
        pairs = [(speed(gpu, top, problem), speed(gpu, bottom, problem)) for gpu in gpus]
        return [form.format(a / b) if a and b else "–" for a, b in pairs]

    rows = [
        ("wavefronts of L1's data path for 32 products", f"{wavefronts(lesson):.2f}", *counted(DATA)),
        ("instructions for 32 products", "1 and more", *counted(ISSUED)),
    ]
    for name in ("math", "data path of L1", "DRAM"):
        cells = [f"{_bounds(gpu, lesson)[name]:.0f} µs" for gpu in gpus]
        rows.append((f"time that {name} needs", "", *cells))
    times = [2 * _N**3 / of / 1e3 if (of := speed(gpu, lesson.variant, SMALL)) else 0.0 for gpu in gpus]
    rows.append(("**time measured**", "", *(f"**{one:.0f} µs**" if one else "–" for one in times)))
    speeds = [speed(gpu, lesson.variant, LARGE) for gpu in gpus]
    rows.append(("GFLOPS at 4096³", "", *(number(of) if of else "–" for of in speeds)))
    rows.append(("of cuBLAS, at 4096³", "", *ratio(lesson.variant, CUBLAS, LARGE, "{:.1%}")))
    if before:
        for problem, name in ((SMALL, "1024³"), (LARGE, "4096³")):
            cells = ratio(lesson.variant, before.variant, problem, "× {:.2f}")
            rows.append((f"over `{before.stage}`, at {name}", "", *cells))
    sources = ", ".join(_measured(gpu, facts, case, lesson.variant) for gpu in gpus)
    names = [gpu.name.removeprefix("NVIDIA ").partition(" ")[0] for gpu in gpus]
    told = pages.table(("at 1024³, unless said", "by arithmetic", *names), rows, "lrrr"[: 2 + len(gpus)])
    return f"{told}\n\n`{lesson.variant}`. Counts are ncu's, at 1024³. Commits measured: {sources}."


def _measured(gpu: Surveyed, facts: Facts, case: str, variant: str) -> str:
    known, counts = facts.commits.get(gpu.slug, {}), facts.seen.get(gpu.slug, {}).get(case)
    commits = [known.get(case), known.get(f"{variant}-{LARGE}"), counts.made["commit"] if counts else None]
    return f"{gpu.name} {', '.join(dict.fromkeys(commit[:8] for commit in commits if commit))}"


def name_of(place: int) -> str:
    return f"{place}-{LESSONS[place].stage}.md"


def page(place: int, facts: Facts) -> str:
    """The page of a lesson."""
    lesson = LESSONS[place]
    given = {
        "title": PICTURES[lesson.stage](lesson.stage).title,
        "file": lesson.source.name,
        "code": "\n".join(lesson.lines),
        "table": _table(lesson, LESSONS[place - 1] if place else None, facts),
        "links": " · ".join(_links(place)),
    }
    text = (FOLDER / "page.md").read_text(encoding="utf-8")
    return text.format(number=place, said=_SAID, **given, **vars(lesson))


def _links(place: int) -> Iterator[str]:
    for head, other in (("before", place - 1), ("next", place + 1)):
        if 0 <= other < len(LESSONS):
            yield f"{head}: [{LESSONS[other].stage}]({name_of(other)})"
    yield "[the course](README.md)"


def index() -> str:
    """The first page."""
    rows = [(str(n), f"[{one.stage}]({name_of(n)})", one.task) for n, one in enumerate(LESSONS)]
    table = pages.table(("", "stage", "the exercise"), rows)
    return (FOLDER / "index.md").read_text(encoding="utf-8").format(said=_SAID, table=table)


def files(facts: Facts) -> dict[str, str]:
    """Every file of the course, by its path in the folder."""
    made = {"README.md": index()}
    for place, lesson in enumerate(LESSONS):
        made[name_of(place)] = page(place, facts)
        made[f"pictures/{lesson.stage}.svg"] = PICTURES[lesson.stage](lesson.stage).svg()
    return made


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- course", description=about(__doc__))
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument("--folder", type=Path, help="default: docs/course of the project")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        folder = given.folder or project.root / "docs" / "course"
        made = files(Facts.of(project))
        there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        stale = sorted(there - made.keys())
        for name in stale if not given.check else ():
            (folder / name).unlink()
        for name, text in made.items():
            if name not in there or (folder / name).read_text(encoding="utf-8") != text:
                stale.append(name)
                if not given.check:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    write_whole(folder / name, text)
    except (BaselineError, StoreError, ProjectError, OSError, ValueError) as error:
        return pages.fail(str(error))
    if stale and given.check:
        return pages.fail(f"{', '.join(stale)} of {folder}: out of date; `nox -s lab -- course` updates it")
    return 0

"""``nox -s lab -- course``: writes docs/course/, a page and a picture for each stage.

``--html FOLDER`` makes a site of them. The words are in lessons.toml, the code is cut from the kernels, the
numbers are stored measurements.
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
from gemm_regression.model import DTYPES, find_problem
from gemm_regression.project.loader import ProjectError
from gemm_regression.tune.figures import Surveyed
from lab import pages
from lab.claims import Facts
from lab.claims.rules import number, short, speed
from lab.course import FOLDER, LESSONS, Lesson
from lab.course.later import MORE, PICTURES
from lab.course.pictures import LANES, reads

_LINE = 128  # bytes, of a wavefront
_SAID = "Written by `nox -s lab -- course`; do not edit."


def wavefronts(lesson: Lesson) -> float:
    """Of L1's data path, for 32 products, by arithmetic: one for each line or word of a warp's access, no
    loads merged, and those that copy the tiles."""
    if lesson.waves:
        return sum(above / below for _, above, below in lesson.waves)
    if lesson.stage in ("strided", "naive"):
        lines = [{(row, column * 4 // _LINE) for row, column in cells} for cells in reads(lesson.stage)]
        return sum(map(len, lines))
    words = sum(lesson.thread) / (lesson.thread[0] * lesson.thread[1])
    return words + 2 * sum(1 / side for side in lesson.tile)  # loads from global, stores to shared memory


def products(problem: str) -> int:
    of = find_problem(problem)
    return of.m * of.n * of.k * of.batch


def bounds(gpu: Surveyed, lesson: Lesson) -> dict[str, float]:
    """Microseconds that each unit needs at least for the problem of the counts, by the rates measured of this
    GPU."""
    roofs, of, dtype = gpu.roofs, find_problem(lesson.at), lesson.dtype
    operands = of.m * of.k + of.k * of.n
    count = products(lesson.at)
    return {
        "math": 2 * count * lesson.products / roofs[lesson.unit or dtype]["gflops"] / 1e3,
        "data path of L1": wavefronts(lesson) * count / LANES * _LINE / roofs["shared"]["gbps"] / 1e3,
        "DRAM": of.batch
        * (operands * DTYPES[dtype].storage.itemsize + 4 * of.m * of.n)
        / roofs["dram"]["gbps"]
        / 1e3,
    }


def named(problem: str) -> str:
    """``1024³``, ``1,398,101 times 8³``."""
    size, _, batch = problem.partition("-batch")
    return f"{int(batch):,} times {short(size)}" if batch else short(size)


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _sum(parts: Sequence[tuple[str, int, int]], total: float) -> str:
    """``operands 3/32, copies of A 5/128: 0.13``; without parts the total alone."""
    said = ", ".join(f"{what} {above}" + f"/{below}" * (below > 1) for what, above, below in parts)
    return f"{said}: {_number(total)}" if said else _number(total)


def _table(lesson: Lesson, before: str, facts: Facts) -> str:
    gpus = [gpu for gpu in facts.gpus if {"f32", "shared", "dram"} <= gpu.roofs.keys()]
    case = f"{lesson.variant}-{lesson.at}"
    counts = [facts.seen.get(gpu.slug, {}).get(case) for gpu in gpus]
    per = products(lesson.at) / LANES
    problems = {problem: named(problem) for problem in (lesson.at, lesson.large)}
    rows: list[tuple[str, ...]] = []

    def row(what: str, said: str, cells: Sequence[str]) -> None:
        """Unless it is empty."""
        if any(cell != "–" for cell in cells):
            rows.append((what, said, *cells))

    def counted(name: str) -> list[str]:
        return [_number(one.values[name] / per) if one else "–" for one in counts]

    def ratio(top: str, bottom: str, problem: str, form: str) -> list[str]:
        pairs = [(speed(gpu, top, problem), speed(gpu, bottom, problem)) for gpu in gpus]
        return [form.format(a / b) if a and b else "–" for a, b in pairs]

    row("wavefronts of L1's data path for 32 products", _sum(lesson.waves, wavefronts(lesson)), counted(DATA))
    issued = sum(above / below for _, above, below in lesson.issue) or 1
    said = f"{_sum(lesson.issue, issued)} and more" if lesson.issue else "1 and more"
    row("instructions for 32 products", said, counted(ISSUED))
    for name in ("math", "data path of L1", "DRAM"):
        row(f"time that {name} needs", "", [f"{bounds(gpu, lesson)[name]:.0f} µs" for gpu in gpus])
    speeds = [speed(gpu, lesson.variant, lesson.at) for gpu in gpus]
    times = [2 * products(lesson.at) / of / 1e3 if of else 0.0 for of in speeds]
    row("**time measured**", "", [f"**{one:.0f} µs**" if one else "–" for one in times])
    speeds = [speed(gpu, lesson.variant, lesson.large) for gpu in gpus]
    row(f"GFLOPS at {named(lesson.large)}", "", [number(of) if of else "–" for of in speeds])
    cublas = f"cublas-{lesson.dtype}"
    row(f"of cuBLAS, at {named(lesson.large)}", "", ratio(lesson.variant, cublas, lesson.large, "{:.1%}"))
    for problem, said in problems.items():
        other = before.partition("-")[0]
        row(f"over `{other}`, at {said}", "", ratio(lesson.variant, before, problem, "× {:.2f}"))
    sources = ", ".join(_measured(gpu, facts, case, f"{lesson.variant}-{lesson.large}") for gpu in gpus)
    names = [gpu.name.removeprefix("NVIDIA ").partition(" ")[0] for gpu in gpus]
    heads = (f"at {problems[lesson.at]}, unless said", "by arithmetic", *names)
    told = pages.table(heads, rows, "lrrr"[: 2 + len(gpus)])
    missing = " –: not counted on this GPU." if None in counts else ""
    counting = f"Counts are ncu's, at {named(lesson.at)}.{missing}" if any(counts) else "Not counted by ncu."
    said = f"{counting} Commits measured: {sources}."
    return f"{told}\n\n`{lesson.variant}`. {said}"


def _measured(gpu: Surveyed, facts: Facts, *cases: str) -> str:
    known, counts = facts.commits.get(gpu.slug, {}), facts.seen.get(gpu.slug, {}).get(cases[0])
    commits = [*map(known.get, cases), counts.made["commit"] if counts else None]
    return f"{gpu.name} {', '.join(dict.fromkeys(commit[:8] for commit in commits if commit))}"


def name_of(place: int) -> str:
    return f"{place}-{LESSONS[place].stage}.md"


def page(place: int, facts: Facts) -> str:
    """The page of a lesson."""
    lesson = LESSONS[place]
    given = {
        "title": PICTURES[lesson.stage](lesson.stage).title,
        "more": f"\n![{MORE[lesson.stage](lesson.stage).title}](pictures/{lesson.stage}-more.svg)\n"
        if lesson.stage in MORE
        else "",
        "file": lesson.shown or lesson.source.name,
        "code": "\n".join(lesson.lines),
        "table": _table(lesson, lesson.over or (LESSONS[place - 1].variant if place else ""), facts),
        "links": " · ".join(_links(place)),
    }
    text = (FOLDER / "page.md").read_text(encoding="utf-8")
    return text.format(number=place, said=_SAID, **given, **vars(lesson))


def _links(place: int) -> Iterator[str]:
    for head, other in (("before", place - 1), ("next", place + 1)):
        if 0 <= other < len(LESSONS):
            yield f"{head}: [{LESSONS[other].stage}]({name_of(other)})"
    yield "[the course](README.md)"


def index(facts: Facts) -> str:
    """The first page."""
    ideas = {kernel.name: kernel.idea for kernel in facts.kernels}
    rows = []
    for place, one in enumerate(LESSONS):
        speeds = [speed(gpu, one.variant, one.large) for gpu in facts.gpus]
        cells = [*(number(of) if of else "–" for of in speeds), one.dtype, named(one.large)]
        rows.append((str(place), f"[{one.stage}]({name_of(place)})", *cells, ideas[one.stage]))
    names = [f"GFLOPS, {gpu.name.removeprefix('NVIDIA ').partition(' ')[0]}" for gpu in facts.gpus]
    table = pages.table(("", "stage", *names, "dtype", "at", "idea"), rows, f"ll{'r' * len(names)}lll")
    return (FOLDER / "index.md").read_text(encoding="utf-8").format(said=_SAID, table=table)


def files(facts: Facts) -> dict[str, str]:
    """Every file of the course, by its path in the folder."""
    other = (FOLDER / "other.md").read_text(encoding="utf-8").format(said=_SAID)
    made = {"README.md": index(facts), "other-lessons.md": other}
    for place, lesson in enumerate(LESSONS):
        made[name_of(place)] = page(place, facts)
        for pictures, end in ((PICTURES, ""), (MORE, "-more")):
            if lesson.stage in pictures:
                made[f"pictures/{lesson.stage}{end}.svg"] = pictures[lesson.stage](lesson.stage).svg()
    return made


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- course", description=about(__doc__))
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument("--folder", type=Path, help="default: docs/course of the project")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    parser.add_argument("--html", type=Path, metavar="FOLDER", help="write the pages as HTML there instead")
    parser.add_argument("--source", default="", metavar="URL", help="of the repository's files, for links")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        folder = given.folder or project.root / "docs" / "course"
        made = files(Facts.of(project))
        if given.html:
            from lab.course import site  # needs markdown-it-py

            for name, text in site.pages(made, given.source).items():
                (given.html / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(given.html / name, text)
            return 0
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

"""Commands that only read what is stored: ``report``, ``select``, ``shards`` and ``evidence``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError, stored
from gemm_regression.cli.common import Group, command, fail, option, project_of
from gemm_regression.files import write_whole
from gemm_regression.model import find_dtype, find_problem
from gemm_regression.project.loader import Project
from gemm_regression.report import charts, sources, tuning
from gemm_regression.report import page as pages
from gemm_regression.report.figures import update_page
from gemm_regression.report.tuning import selected_text, why_text
from gemm_regression.run.replay import ShardFile, Whole, add_up, read, replay
from gemm_regression.tune.figures import SelectError, gpus
from gemm_regression.tune.select import Selector, header

# report


@command(
    "report html",
    option("files", nargs="*", type=Path, metavar="FILE", help="JSON of runs and comparisons, XML of tests"),
    option("--output", type=Path, default=Path("results/report.html"), help="default: %(default)s"),
    option("--markdown", type=Path, metavar="FILE", help="append the essentials to this file"),
    "--root",
    "--project",
    failed=1,
)
def _html(given: argparse.Namespace) -> int:
    """Writes one HTML file of the stored baselines and the given files: the JSON of a run (--benchmark-json)
    or of a comparison (compare --json), the XML of tests (--junitxml), a baseline."""
    project = project_of(given)
    content = sources.gather(given.root or project.baselines, given.files)
    page = pages.html(content, project.kernels)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.output, page)
    if given.markdown:
        with given.markdown.open("a", encoding="utf-8") as file:
            file.write(pages.markdown(content, project.kernels))
    print(f"wrote {given.output}, {len(page.encode()) / 1e6:.1f} MB")
    return 0


@command(
    "report readme",
    option("--readme", type=Path, default=Path("README.md")),
    *("--check", "--root", "--project"),
    failed=1,
)
def _readme(given: argparse.Namespace) -> int:
    """Updates the ladder table in the README from the stored baselines."""
    project = project_of(given)
    section = pages.readme_section(stored(given.root or project.baselines), project.kernels)
    try:
        fresh = update_page(given.readme, section, given.check, pages.BEGIN, pages.END)
    except ValueError as error:
        raise ValueError(f"{given.readme}: {error}") from None
    return _stale([] if fresh else [given.readme], "report -- readme") if given.check else 0


@command(
    "report pictures",
    option("--folder", type=Path, default=Path("docs")),
    *("--check", "--root", "--project"),
    failed=1,
)
def _pictures(given: argparse.Namespace) -> int:
    """Updates the pictures of ladder and roofline."""
    project = project_of(given)
    content = sources.gather(given.root or project.baselines)
    stale = charts.update(given.folder, content, project.kernels, given.check)
    if given.check:
        return _stale(stale, "report -- pictures")
    for path in stale:
        print(f"wrote {path}")
    return 0


def _stale(pages: Sequence[Path], command: str) -> int:
    """The exit status of --check."""
    return fail(f"{', '.join(map(str, pages))}: out of date; `nox -s {command}` updates it") if pages else 0


report = Group(
    "report",
    """Writes a report of measurements, updates the README's ladder and pictures.

    Exit status: 0 written or up to date, 1 out of date, or a file that cannot be trusted.""",
    (_html, _readme, _pictures),
)


# select


@command(
    "select",
    option("shapes", nargs="*", metavar="MxNxK", help="such as 4096x64x4096, or 8x8x8-batch1000"),
    option(
        "--gpu", metavar="NAME", help="such as nvidia-h200, its folder of baselines; or sm_80: unmeasured"
    ),
    option("--dtype", default="f32", metavar="NAME", help="default: f32"),
    option("--why", action="store_true", help="explain the choice"),
    option("--header", type=Path, metavar="FILE", help="write the choices as a C++ header"),
    option("--markdown", type=Path, metavar="PAGE", help="update the tables in a page"),
    "--check",
    "--project",
)
def select(given: argparse.Namespace) -> int:
    """Which kernel and config to use for a problem, by what was measured on a GPU.

    Exit status: 0; 1 for a page that is out of date; 2 for a wrong command line, a problem that no kernel
    takes, or figures that cannot be trusted.
    """
    project = project_of(given)
    if given.markdown:
        section = tuning.section([Selector.of(project, gpu) for gpu in gpus(project)])
        try:
            fresh = update_page(given.markdown, section, given.check, tuning.BEGIN, tuning.END)
        except ValueError as error:
            raise ValueError(f"{given.markdown}: {error}") from None
        return _stale([given.markdown] if given.check and not fresh else [], "select -- --markdown")
    if not (given.shapes or given.header):
        raise SelectError("name a problem, such as 4096x64x4096, or --header FILE")
    problems = [find_problem(text) for text in given.shapes]
    dtype = find_dtype(given.dtype)
    selector = Selector.of(project, given.gpu or _only(project))
    if not selector.measured and given.gpu in gpus(project):
        where = project.baselines / given.gpu
        raise SelectError(f"{where}: no figure of a declared kernel; measure them with `nox -s baseline`")
    for problem in problems:
        choice = selector.select(problem, dtype)
        print("\n".join(why_text(choice)) if given.why else selected_text(choice))
    if given.header:
        write_whole(given.header, header(selector))
        print(f"wrote {given.header}")
    return 0


def _only(project: Project) -> str:
    """The one measured GPU. Raises SelectError if there are none or several."""
    there = gpus(project)
    if len(there) != 1:
        raise SelectError(
            f"name a GPU with --gpu; measured are {', '.join(there) or 'none'}, and sm_80 or sm_90 stands "
            "for a GPU without measurements"
        )
    return there[0]


# shards

_LISTED = 20


@command(
    "shards",
    option("files", nargs="+", type=Path, metavar="FILE", help="JSON of a part, or a folder of them"),
    option("--model", action="append", default=[], metavar="SLUG", help="a GPU model that must be there"),
    option("--output", type=Path, metavar="FOLDER", help="write one JSON a model with all cases"),
    option("--job-summary", type=Path, metavar="FILE", help="add what is printed to this file"),
)
def shards(given: argparse.Namespace) -> int:
    """Adds up the parts of a run that `gpu --shard 1/4` to `4/4` wrote.

    Exit status: 0 every part is there, and every test of the whole passed or was skipped in one of them; 1 a
    part is missing, a test failed or was not run; 2 a wrong command line.
    """
    each = (sorted(path.rglob("*.json")) if path.is_dir() else [path] for path in given.files)
    parts, lines = list[ShardFile](), list[str]()
    for path in (path for some in each for path in some):
        try:
            parts.append(read(path))
        except BaselineError as error:
            lines.append(f"error: {error}")
    unread, wholes = len(lines), add_up(parts, given.model)
    if not wholes:
        lines.append(f"error: no shard in {', '.join(map(str, given.files))}")
    for whole in wholes:
        lines += _told(whole)
        if given.output and whole.parts:
            given.output.mkdir(parents=True, exist_ok=True)
            write_whole(given.output / f"{whole.model}.json", json.dumps(whole.merged(), indent=1) + "\n")
    print("\n".join(lines))
    if given.job_summary:
        with given.job_summary.open("a", encoding="utf-8") as file:
            file.write("\n".join(["```text", *lines, "```", ""]))
    return int(unread > 0 or not wholes or any(whole.faults or whole.red for whole in wholes))


def _told(whole: Whole) -> list[str]:
    """One line of what is there, then one for each fault and each test that is not green."""

    def counts(words: Iterable[object]) -> str:
        return ", ".join(f"{count} {word}" for word, count in Counter(map(str, words)).items())

    verdicts = counts(info.get("verdict") for info in whole.timed)
    boards = f" on {len(whole.boards)} boards ({', '.join(whole.boards)})" if whole.boards else ""
    lines = [
        f"{whole.model}: {len(whole.parts)} of {whole.of or '?'} shards{boards}: {len(whole.tests)} tests, "
        f"{counts(whole.tests.values()) or 'none'}; {len(whole.timed)} cases timed"
        + (f", {verdicts}" if verdicts else "")
    ]
    lines += [f"  error: {fault}" for fault in whole.faults]
    lines += [f"  {whole.tests[name]}: {name}" for name in whole.red[:_LISTED]]
    if len(whole.red) > _LISTED:
        lines.append(f"  and {len(whole.red) - _LISTED} more")
    return lines


# evidence


@command(
    "evidence",
    option("runs", nargs="+", type=Path, metavar="RUN.json", help="a file written by --benchmark-json"),
)
def evidence(given: argparse.Namespace) -> int:
    """Judges the cases of stored runs again.

    Exit status: 0 if every verdict is as recorded, 1 if not, 2 for a bad file.
    """
    cases = [case for run in given.runs for case in replay(run)]
    differing = [case for case in cases if case.now != case.said]
    for case in differing:
        print(f"{case.case}: {case.now}, but the run recorded {case.said}")
    red = sum(case.red for case in cases)
    print(
        f"{len(cases)} cases judged again ({red} failed), {len(differing)} differ from the recorded verdict"
    )
    return int(bool(differing))

"""Commands that only read what is stored: ``report``, ``select``, ``shards`` and ``evidence``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError, stored
from gemm_regression.cli.common import Group, command, fail, option, project_of
from gemm_regression.files import write_whole
from gemm_regression.hints import typed
from gemm_regression.model import find_dtype, find_problem
from gemm_regression.project.loader import Project
from gemm_regression.report import charts, page, sources, tuning
from gemm_regression.report.figures import counted_text, update_page
from gemm_regression.run.replay import ShardFile, Whole, add_up, read, replay
from gemm_regression.tune.figures import SelectError, gpus
from gemm_regression.tune.select import Selector, header

# report


@command(
    "report html",
    option("files", nargs="*", type=Path, metavar="FILE", help="JSON of runs, comparisons; XML of tests"),
    option("--output", type=Path, default=Path("results/report.html"), help="default: %(default)s"),
    option("--markdown", type=Path, metavar="FILE", help="append a summary to this file, as Markdown"),
    "--root",
    "--project",
    failed=1,
)
def _html(given: argparse.Namespace) -> int:
    """Writes one HTML file that shows the stored baselines and the given files: the JSON of a run
    (--benchmark-json) or of a comparison (compare --json), the XML of tests (--junitxml), an exported
    baseline."""
    project = project_of(given)
    content = sources.gather(given.root or project.baselines, given.files)
    made = page.html(content, project.kernels)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(given.output, made)
    if given.markdown:
        with given.markdown.open("a", encoding="utf-8") as file:
            file.write(page.markdown(content, project.kernels))
    print(f"wrote {given.output}, {len(made.encode()) / 1e6:.1f} MB")
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
    section = page.readme_section(stored(given.root or project.baselines), project.kernels)
    fresh = update_page(given.readme, section, given.check, page.BEGIN, page.END)
    return _stale([] if fresh or not given.check else [given.readme], "report", "readme")


@command(
    "report pictures",
    option("--folder", type=Path, default=Path("docs")),
    *("--check", "--root", "--project"),
    failed=1,
)
def _pictures(given: argparse.Namespace) -> int:
    """Updates the pictures of the ladder and the roofline."""
    project = project_of(given)
    content = sources.gather(given.root or project.baselines)
    stale = charts.update(given.folder, content, project.kernels, given.check)
    if given.check:
        return _stale(stale, "report", "pictures")
    for path in stale:
        print(f"wrote {path}")
    return 0


def _stale(files: Sequence[Path], *command: str) -> int:
    """The exit status of --check."""
    return fail(f"{', '.join(map(str, files))}: out of date; `{typed(*command)}` updates it") if files else 0


report = Group(
    "report",
    """Writes a report of measurements, updates the README's ladder and pictures.

    Exit status: 0 written or up to date, 1 out of date, or a file that cannot be trusted.""",
    (_html, _readme, _pictures),
)


# select


@command(
    "select",
    option("shapes", nargs="*", metavar="MxNxK", help="a problem, such as 4096x64x4096 or 8x8x8-batch1000"),
    option("--gpu", metavar="NAME", help="folder of baselines/ (nvidia-h200), or an architecture (sm_80)"),
    option("--dtype", default="f32", metavar="NAME", help="default: f32"),
    option("--why", action="store_true", help="explain the choice"),
    option("--header", type=Path, metavar="FILE", help="write the choices as a C++ header"),
    option("--markdown", type=Path, metavar="PAGE", help="update the tables of a Markdown page"),
    "--check",
    "--project",
)
def select(given: argparse.Namespace) -> int:
    """Recommends a kernel and config for a problem, from the measurements on a GPU.

    Exit status: 0 done; 1 a page is out of date; 2 a wrong command line, a problem that no kernel accepts, or
    damaged measurements.
    """
    project = project_of(given)
    if given.markdown:
        section = tuning.section([Selector.of(project, gpu) for gpu in gpus(project)])
        fresh = update_page(given.markdown, section, given.check, tuning.BEGIN, tuning.END)
        return _stale([given.markdown] if given.check and not fresh else [], "select", "--markdown")
    if not (given.shapes or given.header):
        raise SelectError("name a problem, such as 4096x64x4096, or --header FILE")
    problems, dtype = [find_problem(text) for text in given.shapes], find_dtype(given.dtype)
    selector = Selector.of(project, given.gpu or _only(project))
    if not selector.measured and given.gpu in gpus(project):
        where = project.baselines / given.gpu
        raise SelectError(f"{where}: no figure of a declared kernel; measure them with `{typed('baseline')}`")
    for choice in (selector.select(problem, dtype) for problem in problems):
        print("\n".join(tuning.why_text(choice)) if given.why else tuning.selected_text(choice))
    if given.header:
        write_whole(given.header, header(selector))
        print(f"wrote {given.header}")
    return 0


def _only(project: Project) -> str:
    """The one measured GPU. Raises SelectError if there are none or several."""
    there = gpus(project)
    if len(there) == 1:
        return there[0]
    without = "sm_80 or sm_90 stands for a GPU without measurements"
    raise SelectError(f"name a GPU with --gpu; measured are {', '.join(there) or 'none'}, and {without}")


# shards

_LISTED = 20


@command(
    "shards",
    option("files", nargs="+", type=Path, metavar="FILE", help="JSON of a shard, or a folder of such files"),
    option("--model", action="append", default=[], metavar="SLUG", help="GPU model that must have results"),
    option("--output", type=Path, metavar="FOLDER", help="write one JSON with all cases for each GPU model"),
    option("--job-summary", type=Path, metavar="FILE", help="append the output to this file"),
)
def shards(given: argparse.Namespace) -> int:
    """Combines the shards of a run, which `gpu --shard 1/4` to `4/4` wrote.

    Exit status: 0 every shard is there, and every test of the whole run passed or was skipped in one of them;
    1 a shard is missing, or a test failed or was not run; 2 a wrong command line.
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
    boards = f" on {len(whole.boards)} boards ({', '.join(whole.boards)})" if whole.boards else ""
    tests = f"{len(whole.tests)} tests, {counted_text(whole.tests.values()) or 'none'}"
    timed = [f"{len(whole.timed)} cases timed", counted_text(info.get("verdict") for info in whole.timed)]
    there = f"{len(whole.parts)} of {whole.of or '?'} shards{boards}"
    red = [f"  {whole.tests[name]}: {name}" for name in whole.red]
    more = [f"  and {len(red) - _LISTED} more"] if len(red) > _LISTED else []
    head = f"{whole.model}: {there}: {tests}; {', '.join(filter(None, timed))}"
    return [head, *(f"  error: {fault}" for fault in whole.faults), *red[:_LISTED], *more]


# evidence


@command(
    "evidence",
    option("runs", nargs="+", type=Path, metavar="RUN.json", help="JSON of a run (--benchmark-json)"),
)
def evidence(given: argparse.Namespace) -> int:
    """Computes the verdicts of stored runs again.

    Exit status: 0 every verdict is as recorded; 1 a verdict differs; 2 a damaged file.
    """
    cases = [case for run in given.runs for case in replay(run)]
    differing = [case for case in cases if case.now != case.said]
    for case in differing:
        print(f"{case.case}: {case.now}, but the run recorded {case.said}")
    again = f"{len(cases)} cases judged again ({sum(case.red for case in cases)} failed)"
    print(f"{again}, {len(differing)} differ from the recorded verdict")
    return int(bool(differing))

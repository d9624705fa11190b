"""Commands that only read what is stored: ``report``, ``select``, ``shards`` and ``evidence``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError, stored
from gemm_regression.cli.common import add_options, fail, project_of
from gemm_regression.cli.main import parsed
from gemm_regression.files import write_whole
from gemm_regression.model import find_dtype, find_problem
from gemm_regression.project.loader import Project, ProjectError
from gemm_regression.report import tuning
from gemm_regression.report.markdown import update_page, update_readme
from gemm_regression.report.page import charts, sources
from gemm_regression.report.tuning import selected_text, why_text
from gemm_regression.run.replay import replay
from gemm_regression.run.shards import ShardFile, Whole, add_up, read
from gemm_regression.tune.figures import SelectError, gpus
from gemm_regression.tune.header import header
from gemm_regression.tune.select import Selector

_REPORT = """Writes a report of measurements, updates the README's ladder and pictures.

`report [FILE ...]` writes one HTML file, and with --markdown its essentials for a job summary, from the
stored baselines and the given files: the JSON of a run (--benchmark-json) or of a comparison (compare
--json), the XML of tests (--junitxml), a baseline. `report readme` updates the ladder table in the README
from the stored baselines, `report pictures` the pictures of ladder and roofline; they change nothing with
--check.

Exit status: 0 written or up to date, 1 out of date, or a file that cannot be trusted, 2 a wrong command line.
"""
_SELECT = """Which kernel and config to use for a problem, by what was measured on a GPU.

Exit status: 0; 1 for figures that cannot be trusted, a page that is out of date, or a file that cannot be
written; 2 for a wrong command line, or a problem that no kernel takes.
"""
_SHARDS = """Adds up the parts of a run that `gpu --shard 1/4` to `4/4` wrote.

Exit status: 0 every part is there, and every test of the whole passed or was skipped in one of them; 1 a part
is missing, a test failed or was not run; 2 a wrong command line.
"""
_COMMANDS = ("html", "readme", "pictures")


def report(arguments: Sequence[str]) -> int:
    """Writes a report, updates the README's ladder and pictures."""
    words = list(arguments)
    if words[:1] not in ([name] for name in (*_COMMANDS, "-h", "--help")):
        words.insert(0, "html")
    given = parsed(_parser(), words)
    try:
        project = project_of(given)
        commands = {"html": _html, "readme": _readme, "pictures": _drawn}
        return commands[given.command](given, project)
    except (BaselineError, ProjectError, charts.NoDrawingError) as error:
        return fail(error)


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    add_options(shared.add_argument, "--root", "--project")
    parser = argparse.ArgumentParser(
        prog="gemm-regression report",
        description=_REPORT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    html = commands.add_parser("html", parents=[shared], help="the report; may be left out")
    html.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="JSON of runs and comparisons, XML of tests"
    )
    html.add_argument("--output", type=Path, default=Path("results/report.html"), help="default: %(default)s")
    html.add_argument("--markdown", type=Path, metavar="FILE", help="append the essentials to this file")
    for name, path in (("readme", "README.md"), ("pictures", "docs")):
        command = commands.add_parser(name, parents=[shared])
        command.add_argument("--check", action="store_true", help="change nothing; exit status 1 if stale")
        command.add_argument(f"--{'readme' if name == 'readme' else 'folder'}", type=Path, default=Path(path))
    return parser


def _html(given: argparse.Namespace, project: Project) -> int:
    try:
        from gemm_regression.report.page import render, verdicts  # late: Jinja2 is in the group `report`
    except ImportError as error:
        return fail(f"no {error.name}: `nox -s report` runs this where everything is installed")
    content = sources.gather(given.root or project.baselines, given.files)
    try:
        page = render.html(content, project.kernels)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.output, page)
        if given.markdown:
            with given.markdown.open("a", encoding="utf-8") as file:
                file.write(verdicts.markdown(content, project.kernels))
    except render.TooLargeError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{error.filename or given.output}: {error.strerror}")
    print(f"wrote {given.output}, {len(page.encode()) / 1e6:.1f} MB")
    return 0


def _readme(given: argparse.Namespace, project: Project) -> int:
    try:
        fresh = update_readme(
            given.readme, stored(given.root or project.baselines), project.kernels, given.check
        )
    except OSError as error:
        return fail(f"{given.readme}: {error.strerror}")
    except ValueError as error:
        return fail(f"{given.readme}: {error}")
    if given.check and not fresh:
        return fail(
            f"{given.readme}: the ladder is out of date; `python -m gemm_regression report readme` updates it"
        )
    return 0


def _drawn(given: argparse.Namespace, project: Project) -> int:
    content = sources.gather(given.root or project.baselines)
    try:
        stale = charts.update(given.folder, content, project.kernels, given.check)
    except OSError as error:
        return fail(f"{error.filename or given.folder}: {error.strerror}")
    if stale and given.check:
        return fail(
            f"{', '.join(map(str, stale))}: out of date; `nox -s report -- {given.command}` updates it"
        )
    for path in stale:
        print(f"wrote {path}")
    return 0


def select(arguments: Sequence[str]) -> int:
    """Which kernel and config to use for a problem."""
    parser = argparse.ArgumentParser(
        prog="gemm-regression select",
        description=_SELECT,
    )
    parser.add_argument("shapes", nargs="*", metavar="MxNxK", help="such as 4096x64x4096, or 8x8x8-batch1000")
    parser.add_argument(
        "--gpu", metavar="NAME", help="its folder of baselines, such as nvidia-h200; or sm_80: unmeasured"
    )
    parser.add_argument("--dtype", default="f32", metavar="NAME", help="default: f32")
    parser.add_argument("--why", action="store_true", help="explain the choice")
    parser.add_argument("--header", type=Path, metavar="FILE", help="write the choices as a C++ header")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="update the tables in a page, docs/results/select.md"
    )
    parser.add_argument("--check", action="store_true", help="with --markdown: exit status 1 if it is stale")
    add_options(parser.add_argument, "--project")
    given = parsed(parser, arguments)
    try:
        if given.markdown:
            return _update(given.markdown, project_of(given), given.check)
        if not (given.shapes or given.header):
            raise SelectError("name a problem, such as 4096x64x4096, or --header FILE")
        problems = [find_problem(text) for text in given.shapes]
        dtype = find_dtype(given.dtype)
        project = project_of(given)
        selector = Selector.of(project, given.gpu or _only(project))
        if not selector.known.figures and given.gpu in gpus(project):
            raise SelectError(
                f"{project.baselines / given.gpu}: no figure of a declared kernel; measure them with "
                "`nox -s baseline`"
            )
        for problem in problems:
            chosen = selector.select(problem, dtype)
            print("\n".join(why_text(chosen)) if given.why else selected_text(chosen))
        if given.header:
            write_whole(given.header, header(selector))
            print(f"wrote {given.header}")
    except BaselineError as error:
        return fail(error)
    except ValueError as error:
        return fail(error, 2)
    except OSError as error:
        return fail(f"{given.markdown or given.header}: cannot be written: {error.strerror}")
    return 0


def _update(page: Path, project: Project, check: bool) -> int:
    section = tuning.section([Selector.of(project, gpu) for gpu in gpus(project)])
    try:
        fresh = update_page(page, section, check, tuning.BEGIN, tuning.END)
    except ValueError as error:
        return fail(f"{page}: {error}")
    if check and not fresh:
        return fail(f"{page}: out of date; `python -m gemm_regression select --markdown {page}` updates it")
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


_LISTED = 20


def shards(arguments: Sequence[str]) -> int:
    """Adds up the parts of a run."""
    parser = argparse.ArgumentParser(prog="gemm-regression shards", description=_SHARDS)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON of a part, or a folder of them"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="SLUG", help="a GPU model that must be there"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write one JSON a model with all cases")
    parser.add_argument("--job-summary", type=Path, metavar="FILE", help="add what is printed to this file")
    parser.add_argument("--project", type=Path, metavar="PATH", help=argparse.SUPPRESS)
    given = parsed(parser, arguments)
    parts, lines = list[ShardFile](), list[str]()
    for path in _found(given.files):
        try:
            parts.append(read(path))
        except BaselineError as error:
            lines.append(f"error: {error}")
    wholes = add_up(parts, given.model)
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
    green = bool(wholes) and not any(whole.faults or whole.red for whole in wholes)
    return int(not green or len(parts) < len(_found(given.files)))


def _found(files: Sequence[Path]) -> list[Path]:
    """The files, and all JSON in the folders, in order of their names."""
    each = (sorted(path.rglob("*.json")) if path.is_dir() else [path] for path in files)
    return [path for some in each for path in some]


def _told(whole: Whole) -> list[str]:
    """One line of what is there, then one for each fault and each test that is not green."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in Counter(whole.tests.values()).items())
    verdicts = Counter(str(info.get("verdict")) for info in whole.timed)
    said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    boards = f" on {len(whole.boards)} boards ({', '.join(whole.boards)})" if whole.boards else ""
    lines = [
        f"{whole.model}: {len(whole.parts)} of {whole.of or '?'} shards{boards}: {len(whole.tests)} tests, "
        f"{outcomes or 'none'}; {sum(verdicts.values())} cases timed" + (f", {said}" if said else "")
    ]
    lines += [f"  error: {fault}" for fault in whole.faults]
    lines += [f"  {whole.tests[name]}: {name}" for name in whole.red[:_LISTED]]
    if len(whole.red) > _LISTED:
        lines.append(f"  and {len(whole.red) - _LISTED} more")
    return lines


def evidence(arguments: Sequence[str]) -> int:
    """Judges the cases of stored runs again. Exit status: 0 if every verdict is as recorded, 1 if not, 2 for
    a bad file."""
    parser = argparse.ArgumentParser(
        prog="gemm-regression evidence", description="Judges the cases of a stored run again."
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN.json", help="a file written by --benchmark-json"
    )
    try:
        cases = [case for run in parsed(parser, arguments).runs for case in replay(run)]
    except BaselineError as error:
        return fail(error, 2)
    differing = [case for case in cases if case.now != case.said]
    for case in differing:
        print(f"{case.case}: {case.now}, but the run recorded {case.said}")
    red = sum(case.red for case in cases)
    print(
        f"{len(cases)} cases judged again ({red} failed), {len(differing)} differ from the recorded verdict"
    )
    return int(bool(differing))

"""``gemm-regression report``: writes a report of measurements, updates the README's ladder and pictures.

``report [FILE ...]`` writes one HTML file, and with ``--markdown`` its essentials for a job summary, from the
stored baselines and the given files: the JSON of a run (``--benchmark-json``) or of a comparison (``compare
--json``), the XML of tests (``--junitxml``), a baseline. ``report readme`` updates the ladder table in the
README from the stored baselines, ``report pictures`` the pictures of ladder and roofline; they change
nothing with ``--check``.

Exit status: 0 written or up to date, 1 out of date, or a file that cannot be trusted, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError, stored
from gemm_regression.cli.common import about, project_of
from gemm_regression.files import write_whole
from gemm_regression.project.loader import Project, ProjectError
from gemm_regression.report.markdown import update_readme
from gemm_regression.report.page import charts, pictures, sources

_COMMANDS = ("html", "readme", "pictures")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] not in ([name] for name in (*_COMMANDS, "-h", "--help")):
        words.insert(0, "html")
    given = _parser().parse_args(words)
    try:
        project = project_of(given)
        commands = {"html": _html, "readme": _readme, "pictures": _drawn}
        return commands[given.command](given, project)
    except (BaselineError, ProjectError, charts.NoDrawingError) as error:
        return _fail(str(error))


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
    shared.add_argument(
        "--project", type=Path, metavar="PATH", help="default: the nearest project above this folder"
    )
    parser = argparse.ArgumentParser(
        prog="gemm-regression report",
        description=about(__doc__),
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
        from gemm_regression.report.page import render, summary  # late: Jinja2 is in the group `report`
    except ImportError as error:
        return _fail(f"no {error.name}: `nox -s report` runs this where everything is installed")
    content = sources.gather(given.root or project.baselines, given.files)
    try:
        page = render.html(content, project.kernels)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.output, page)
        if given.markdown:
            with given.markdown.open("a", encoding="utf-8") as file:
                file.write(summary.markdown(content, project.kernels))
    except render.TooLargeError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or given.output}: {error.strerror}")
    print(f"wrote {given.output}, {len(page.encode()) / 1e6:.1f} MB")
    return 0


def _readme(given: argparse.Namespace, project: Project) -> int:
    try:
        fresh = update_readme(
            given.readme, stored(given.root or project.baselines), project.kernels, given.check
        )
    except OSError as error:
        return _fail(f"{given.readme}: {error.strerror}")
    except ValueError as error:
        return _fail(f"{given.readme}: {error}")
    if given.check and not fresh:
        return _fail(
            f"{given.readme}: the ladder is out of date; `python -m gemm_regression report readme` updates it"
        )
    return 0


def _drawn(given: argparse.Namespace, project: Project) -> int:
    content = sources.gather(given.root or project.baselines)
    try:
        stale = pictures.update(given.folder, content, project.kernels, given.check)
    except OSError as error:
        return _fail(f"{error.filename or given.folder}: {error.strerror}")
    if stale and given.check:
        return _fail(
            f"{', '.join(map(str, stale))}: out of date; `nox -s report -- {given.command}` updates it"
        )
    for path in stale:
        print(f"wrote {path}")
    return 0


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

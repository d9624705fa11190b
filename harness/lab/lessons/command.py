"""``nox -s lab -- learn``: docs/results/learn.md and its pictures, the page that walks the ladder.

Exit status: 0 written or up to date, 1 out of date (``--check``), or a file that cannot be trusted, 2 a wrong
command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, project_of
from gemm_regression.project.loader import ProjectError
from gemm_regression.report.page import charts, sources
from lab.lessons import page


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- learn", description=about(__doc__))
    parser.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument("--folder", type=Path, default=Path("docs/results"), help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if stale")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        content = sources.gather(given.root or project.baselines)
        stale = page.update(given.folder, content, project.kernels, given.check)
    except (BaselineError, ProjectError, charts.NoDrawingError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or given.folder}: {error.strerror}")
    if stale and given.check:
        return _fail(f"{', '.join(map(str, stale))}: out of date; `nox -s lab -- learn` updates it")
    for path in stale:
        print(f"wrote {path}")
    return 0


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1

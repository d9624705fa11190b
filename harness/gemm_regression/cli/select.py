"""``gemm-regression select SHAPE ... [--gpu NAME]``: which kernel and config to use for a problem, by what
was measured on that GPU.

Needs neither a GPU nor a compiler. Exit status: 0; 1 for figures that cannot be trusted, a page that is out
of date, or a file that cannot be written; 2 for a wrong command line, or a problem that no kernel takes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import project_of
from gemm_regression.files import write_whole
from gemm_regression.model import find_dtype, find_problem
from gemm_regression.project.loader import Project
from gemm_regression.report import accuracy
from gemm_regression.report.markdown import update_page
from gemm_regression.report.select import selected_text, why_text
from gemm_regression.tune.figures import SelectError, gpus
from gemm_regression.tune.header import header
from gemm_regression.tune.select import Selector


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gemm-regression select",
        description="Which kernel and config to use for a problem, by what was measured on a GPU.",
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
    parser.add_argument("--project", type=Path, metavar="PATH", help="default: the nearest project")
    given = parser.parse_args(arguments)
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
        return _fail(str(error), 1)
    except ValueError as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(f"{given.markdown or given.header}: cannot be written: {error.strerror}", 1)
    return 0


def _update(page: Path, project: Project, check: bool) -> int:
    section = accuracy.section([Selector.of(project, gpu) for gpu in gpus(project)])
    try:
        fresh = update_page(page, section, check, accuracy.BEGIN, accuracy.END)
    except ValueError as error:
        return _fail(f"{page}: {error}", 1)
    if check and not fresh:
        return _fail(
            f"{page}: out of date; `python -m gemm_regression select --markdown {page}` updates it", 1
        )
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


def _fail(reason: str, status: int) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return status

"""What commands share: the project, its test files, pytest's options, an orderly end on SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from gemm_regression.model.kernel import LARGEST_MARGIN
from gemm_regression.project.loader import Project, ProjectError, find, load
from gemm_regression.project.selection import Adds

KERNELS, PERFORMANCE, STATIC = "test_kernels.py", "test_performance.py", "test_static.py"
# What a command shows of pytest's own: no versions, and in place of dots how far it is. And a name.
# Hypothesis' plugin, where there is one, takes a second for a summary of tests that are none of these.
SHOWN = ("-p", "no:hypothesispytest", "--no-header", "-o", "console_output_style=classic", "--progress")
_LEFT_OUT = ("--ignore", "--ignore-glob", "--deselect")  # before a file or id that is not to run
# Needed if the harness is not installed, only on the path; and no warning about pytest's import order.
PLUGIN = (
    "-p",
    "gemm_regression.pytest_plugin.entry",
    "-W",
    "ignore:Module already:pytest.PytestAssertRewriteWarning",
)


def project_of(given: argparse.Namespace) -> Project:
    """The project named by --project, else the nearest one above the working directory. Raises
    ProjectError."""
    return load(find(given.project or Path.cwd()))


def in_ci() -> bool:
    """Whether this is a run of CI, which leaves nothing out."""
    return os.environ.get("CI", "") not in ("", "0", "false")


def about(doc: str | None, paragraphs: int | None = None) -> str:
    """A docstring as the description of a command: without the command's name, which it begins with, and
    with single marks around code; the first ``paragraphs``, or all."""
    said = "\n\n".join((doc or "").split("\n\n")[:paragraphs])
    said = (said.partition("``: ")[2] or said).replace("``", "`").strip()
    return said[:1].upper() + said[1:]


def for_pytest(
    name: str, doc: str, arguments: Sequence[str], own: Callable[[Adds], None] = lambda add: None
) -> tuple[Project, list[str]]:
    """The project of a command that runs pytest, and the options to pass on; ``own`` adds the command's own,
    which are passed on, too, to the help. Raises ProjectError."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=about(doc),
        usage=f"{name} [options] [pytest's options]",
        epilog="All other options are pytest's own; `pytest --help` lists them.",
        allow_abbrev=False,
    )
    if {"-h", "--help"}.intersection(arguments):
        from gemm_regression.cli.options import add_options

        parser.add_argument("-k", metavar="EXPRESSION", help='only matching cases: "f16 and not 4096"')
        own(parser.add_argument)
        add_options(parser.add_argument)
    else:
        parser.add_argument("--project", type=Path, metavar="PATH")
    given, rest = parser.parse_known_args(arguments)
    project = project_of(given)
    return project, [*PLUGIN, *(("--project", str(project.root)) if given.project else ()), *rest]


def files_of_tests(project: Project, *names: str, given: Sequence[str] = ()) -> list[str]:
    """The project's test files with these names, or those that the user named instead; none where the user
    gave ids of tests, which run alone. Raises ProjectError if one is missing."""
    words = [word for before, word in pairwise(("", *given)) if word[:1] != "-" and before not in _LEFT_OUT]
    if any(".py::" in word for word in words):
        return []
    if named := [word for word in words if word.endswith(".py") and Path(word).is_file()]:
        return named
    paths = [project.tests / name for name in names]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ProjectError(f"{os.path.relpath(missing)} does not exist; `gemm-regression init` creates it")
    return [os.path.relpath(path) for path in paths]


def swallowed(words: Sequence[str]) -> str:
    """What is wrong with the id of a test beside a file or folder that it is in, of which pytest runs all and
    does not look whether there is such a test; empty if nothing is."""
    whole = [word for word in words if "::" not in word]
    for one in (word for word in words if "::" in word):
        file = Path(one.partition("::")[0]).resolve()
        if outer := next((word for word in whole if file.is_relative_to(Path(word).resolve())), None):
            return (
                f"{one}: all of {outer} would run, this test or not; leave one of them out, or select with -k"
            )
    return ""


def share(text: str, said: str, example: str) -> float:
    """A percentage as a share of 1: "1.5%" is 0.015. Raises ValueError, one line that begins with ``said``,
    unless it lies between 0 and 100 %."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ValueError(f"{said}: must be between 0 % and 100 %, such as {example}")
    return value


def margin_of(text: str) -> float:
    """The value of ``--margin``. Raises ValueError, one line, unless it is above 0 and at most 2 %."""
    margin = share(text, f"--margin {text}", "0.5%")
    if margin > LARGEST_MARGIN:
        raise ValueError(f"--margin {text}: must be at most {100 * LARGEST_MARGIN:g}%")
    return margin


def end_on_sigterm() -> None:
    """SIGTERM ends the process in an orderly way, as Ctrl-C does: workers are stopped, worktrees removed."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def busy_text(gpu: str, others: Sequence[str]) -> str:
    """Why nothing is timed while ``others`` use the GPU, in one line."""
    return f"{gpu} is in use by {'; '.join(others)}: timings would be useless. Stop it, or pass --allow-busy"

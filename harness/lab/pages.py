"""Writes a generated page of docs/results/, or checks whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, project_of
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.files import write_whole
from gemm_regression.project.loader import Project


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The options that these commands share."""
    made = argparse.ArgumentParser(prog=f"nox -s lab -- {name}", description=about(doc))
    made.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    made.add_argument(
        "--markdown", type=Path, metavar="FILE", help=f"default: docs/results/{name}.md of the project"
    )
    made.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    return made


def write(given: argparse.Namespace, name: str, text: Callable[[Project], str]) -> int:
    """Writes the page or, with ``--check``, reports whether it is up to date. Returns the exit status."""
    try:
        project = project_of(given)
        file = given.markdown or project.root / "docs" / "results" / f"{name}.md"
        made = text(project)
        if not given.check:
            write_whole(file, made)
        elif not file.is_file() or file.read_text(encoding="utf-8") != made:
            return fail(f"{file} is out of date; `nox -s lab -- {name}` updates it")
    except (BaselineError, StoreError, OSError, ValueError) as error:
        return fail(str(error))
    return 0


def fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table. ``align``: a letter for each column, r for right-aligned."""
    rule = ["---:" if side == "r" else "---" for side in align or "l" * len(heads)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))

"""``nox -s lab -- claims``: what the course notes say, judged by what is stored, as docs/results/claims.md.

Exit status: 0; 1 for a page that is out of date (``--check``) or stored figures that cannot be trusted; 2 for
a wrong command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, project_of
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.files import write_whole
from lab.claims import CLAIMS, Facts
from lab.claims.page import page


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- claims", description=about(__doc__))
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="default: docs/results/claims.md of the project"
    )
    parser.add_argument("--check", action="store_true", help="write nothing: is the page up to date?")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        file = given.markdown or project.root / "docs" / "results" / "claims.md"
        text = page(CLAIMS, Facts.of(project))
        if not given.check:
            write_whole(file, text)
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"error: {file} is out of date; `nox -s lab -- claims` updates it", file=sys.stderr)
            return 1
    except (BaselineError, StoreError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0

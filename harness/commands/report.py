"""``python -m harness report readme [--check]``: updates the ladder table in the README from the stored
baselines.

Exit status: 0 up to date or updated, 1 out of date or a baseline that cannot be trusted, 2 a wrong command
line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.baselines import BaselineError, stored
from harness.commands.common import project_of
from harness.project.loader import ProjectError
from harness.reports.markdown import update_readme


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression report", description=__doc__)
    command = parser.add_subparsers(dest="command", required=True).add_parser("readme")
    command.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if the table is out of date"
    )
    command.add_argument("--readme", type=Path, default=Path("README.md"), help="default: README.md")
    command.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
    command.add_argument(
        "--project", type=Path, metavar="PATH", help="default: the nearest project above this folder"
    )
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        fresh = update_readme(
            given.readme, stored(given.root or project.baselines), project.kernels, given.check
        )
    except BaselineError as error:
        return _fail(str(error))
    except ProjectError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{given.readme}: {error.strerror}")
    except ValueError as error:
        return _fail(f"{given.readme}: {error}")
    if given.check and not fresh:
        return _fail(
            f"{given.readme}: the ladder is out of date; `python -m harness report readme` updates it"
        )
    return 0


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

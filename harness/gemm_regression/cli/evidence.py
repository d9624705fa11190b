"""``python -m gemm_regression evidence RUN.json``: judges the cases of a stored run again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines.fields import BaselineError
from gemm_regression.cli.common import about
from gemm_regression.run.replay import replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Judges the cases of stored runs again. Exit status: 0 if every verdict is as recorded, 1 if not, 2 for
    a bad file."""
    parser = argparse.ArgumentParser(prog="gemm-regression evidence", description=about(__doc__))
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN.json", help="a file written by --benchmark-json"
    )
    try:
        cases = [case for run in parser.parse_args(arguments).runs for case in replay(run)]
    except BaselineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    differing = [case for case in cases if case.now != case.said]
    for case in differing:
        print(f"{case.case}: {case.now}, but the run recorded {case.said}")
    red = sum(case.red for case in cases)
    print(
        f"{len(cases)} cases judged again ({red} failed), {len(differing)} differ from the recorded verdict"
    )
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())

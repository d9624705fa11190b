"""``python -m harness evidence RUN.json``: judges the cases of a stored run again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.baselines.fields import BaselineError
from harness.gate.replay import replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Judges the cases of runs again: 0 where every verdict is as told, 1 where not, 2 for a bad file."""
    parser = argparse.ArgumentParser(prog="gemm-regression evidence", description=main.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="what --benchmark-json wrote")
    try:
        cases = [case for run in parser.parse_args(arguments).runs for case in replay(run)]
    except BaselineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    differing = [case for case in cases if case.now != case.said]
    for case in differing:
        print(f"{case.case}: {case.now}, but the run said {case.said}")
    red = sum(case.red for case in cases)
    print(f"{len(cases)} cases judged again ({red} red), {len(differing)} otherwise than the run said")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())

"""``gemm-regression shards``: adds up the parts of a run that ``gpu --shard 1/4`` to ``4/4`` wrote.

Exit status: 0 every part is there, and every test of the whole passed or was skipped in one of them; 1 a part
is missing, a test failed or was not run; 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about
from gemm_regression.files import write_whole
from gemm_regression.run.shards import ShardFile, Whole, add_up, read

_LISTED = 20


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression shards", description=about(__doc__))
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON of a part, or a folder of them"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="SLUG", help="a GPU model that must be there"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write one JSON a model with all cases")
    parser.add_argument("--job-summary", type=Path, metavar="FILE", help="add what is printed to this file")
    parser.add_argument("--project", type=Path, metavar="PATH", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

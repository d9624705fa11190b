"""``python -m tests.generated [--all] [--check] [--page] [TARGET ...]``: mutates the PTX of every kernel of
the ladder, and of the tests' own, an instruction at a time, examines the mutants without a GPU, and writes
docs/results/generated-mutants.md.

Without ``--all`` only targets are examined that are new or whose PTX has changed, or that are named; with
``--page`` none is. Exit status: 0; 1 for a survivor that nobody explained, or, with ``--check``, for a record
or a page that is out of date; 2 without the pinned compiler.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from gemm_regression.compiler.tools import ToolchainError, pinned_tools
from gemm_regression.files import write_whole
from tests.generated import page, run
from tests.generated.targets import digest, targets


def examine(named: Collection[str] = (), everything: bool = False) -> None:
    """Stores the record of each target that is named, or new, or whose PTX has changed; or of each."""
    made, records = run.load()
    fresh = made == run.provenance() and not everything
    for target in targets():
        known = records.get(target.name) if fresh and target.name not in named else None
        if known and known.sources == digest(target):
            continue
        if known and known.ptx == run.ptx_digest(target):
            records[target.name] = replace(known, sources=digest(target))
            print(f"{target.name}: its PTX is as it was", flush=True)
        else:
            records[target.name] = new = run.record(target)
            done = [by for of in new.outcomes.values() for by in of]
            print(f"{target.name}: {len(done)} mutants, {len(new.survivors)} survive", flush=True)
        run.store(records)  # what is there stays there if the rest is stopped


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=page.RENEW, description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="examine these again")
    parser.add_argument("--all", action="store_true", help="examine all again")
    parser.add_argument("--page", action="store_true", help="examine none")
    parser.add_argument("--check", action="store_true", help="are record and page up to date?")
    given = parser.parse_args(arguments)
    try:
        pinned_tools()
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not (given.check or given.page):
        examine(given.targets, given.all)
    text = page.render(run.load()[1])
    if not given.check:
        write_whole(page.FILE, text)
    faults = [*run.stale(), *page.unexplained(run.load()[1])]
    if page.FILE.read_text(encoding="utf-8") != text:
        faults.append(f"{page.FILE.name} is out of date")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

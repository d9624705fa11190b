"""``python -m harness counters [-k EXPRESSION] [CASE_ID ...]``: what kernels ask of the hardware.

Needs nvcc and no GPU. Exit status: 0; 1 for a kernel that cannot be counted; 2 for a case that does not
exist, or without a compiler.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.compiler.errors import ToolchainError
from harness.compiler.static.compiled import ARCHES
from harness.counters import counts, tables
from harness.devices import DeviceError
from harness.devices.emulated.device import EmulatedDevice
from harness.model import Case, find_problem
from harness.project.selection import find_case
from kernels import LADDER

WIDTH = 240  # where there is no terminal to ask


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="counters", description="Requests, sectors, bank conflicts and FLOP of kernels, by their PTX."
    )
    parser.add_argument("cases", nargs="*", metavar="CASE_ID", help="such as naive-f32-block32x32-96x160x64")
    parser.add_argument(
        "-k",
        default="",
        metavar="EXPRESSION",
        help='of all variants those whose case id fits, such as "tiled and not pad1"',
    )
    parser.add_argument("--shape", action="append", default=[], metavar="MxNxK", help="on these problems")
    parser.add_argument("--arch", choices=ARCHES, default="sm_90a", help="architecture (default sm_90a)")
    parser.add_argument("--lines", action="store_true", help="a table by line of the source for each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all that was counted")
    options = parser.parse_args(args)
    try:
        chosen = choose(options.cases, options.k, options.shape, options.arch)
        device = EmulatedDevice(options.arch)
        found = [counts.count(case, device=device) for case in chosen]
        if options.json:
            options.json.write_text(json.dumps(tables.document(found), indent=1) + "\n", encoding="utf-8")
    except (ValueError, ToolchainError) as error:
        print(f"counters: {error}", file=sys.stderr)
        return 2
    except DeviceError as error:
        print(f"counters: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"counters: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(tables.table(found))
    console.print(tables.LEGEND, highlight=False, style="dim")
    for one in found if options.lines else ():
        console.print()
        console.print(tables.lines_table(one))
    return 0


def choose(ids: Sequence[str], expression: str, shapes: Sequence[str], arch: str) -> list[Case]:
    """The cases of these ids, else those that fit the expression, else every stage's default config.

    Raises ValueError for an id that names none, and where nothing fits.
    """
    if ids:
        found = [find_case(text, ARCHES[arch]) for text in ids]
    else:
        problems = [find_problem(text) for text in shapes] or counts.PROBLEMS
        found = (counts.cases if expression else counts.default_cases)(LADDER, arch, problems)
    found = [case for case in found if not expression or fits(expression, case.id)]
    if library := next((case for case in found if case.kernel.library), None):
        raise ValueError(f"{library.id}: a library has no PTX to count")
    if not found:
        raise ValueError(f"no case fits -k {expression!r}")
    return found


def fits(expression: str, case_id: str) -> bool:
    """Whether an id contains the words of an expression of and, or, not, as pytest's -k without brackets."""
    parts = [re.split(r"\s+and\s+", part) for part in re.split(r"\s+or\s+", expression.strip())]
    terms = [[re.fullmatch(r"(not\s+)?(\S+)", word) for word in part] for part in parts]
    if not all(term and term[2] not in ("and", "or", "not") for part in terms for term in part):
        raise ValueError(f"-k {expression!r}: words, with and, or, not between them")
    return any(all(bool(t[1]) != (t[2] in case_id) for t in part if t) for part in terms)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

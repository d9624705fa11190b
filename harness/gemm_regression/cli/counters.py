"""``gemm-regression counters [CASE_ID ...]``: memory counters and FLOP of kernels, from their PTX.

Needs nvcc and no GPU. Exit status: 0; 1 for a kernel that cannot be counted; 2 for a case that does not
exist, or without a compiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from gemm_regression.cli.common import project_of
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.static.metrics import ARCHES
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.counters import counts, tables
from gemm_regression.counters.counts import chosen
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.files import write_whole
from gemm_regression.project.selection import Choice, add_selection
from gemm_regression.report.terminal import fitted, room


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gemm-regression counters",
        description="Memory requests, sectors, bank conflicts and FLOP of kernels, from their PTX.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE_ID", help="such as naive-f32-block32x32-96x160x64")
    add_selection(parser)
    parser.add_argument("--arch", choices=ARCHES, default="sm_90a", help="architecture (default sm_90a)")
    parser.add_argument("--lines", action="store_true", help="also a table by source line for each case")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show how far it is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counters")
    options = parser.parse_args(args)
    try:
        cases = chosen(project_of(options), Choice.of(options), ARCHES[options.arch], options.cases)
        device = EmulatedDevice(options.arch)
        found = []
        with progress("counters", len(cases), options.quiet) as step:
            for case in cases:
                step.now(case.id)
                found.append(counts.count(case, device=device))
                step(case.id)
        if options.json:
            write_whole(options.json, json.dumps(tables.document(found), indent=1) + "\n")
    except (ValueError, ToolchainError) as error:
        print(f"counters: {error}", file=sys.stderr)
        return 2
    except DeviceError as error:
        print(f"counters: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"counters: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    width = room()
    print(fitted(tables.table(found), width, names=4))
    for line in tables.LEGEND.splitlines():
        print(textwrap.fill(line, width or 110, subsequent_indent="  "))
    for one in found if options.lines else ():
        print()
        print(fitted(tables.lines_table(one), width))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``ptxsan kernel.cu --grid 4 --block 256 ARG...``: a kernel run and checked without a GPU."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ptxsan import api, arguments, report
from ptxsan.frontend.syntax import PtxError


def _extents(text: str) -> tuple[int, ...]:
    """4, 4x2 or 4,2,1."""
    return tuple(int(extent) for extent in re.split(r"[x,]", text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ptxsan",
        description="Runs a CUDA kernel without a GPU and reports values, hazards with their lines, and\n"
        "memory counters. Exit status: 0 clean, 1 hazards, 2 if it cannot be run.",
        epilog=f"ARG, one for each parameter of the kernel:\n{arguments.HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="FILE", help="a .cu file, compiled with nvcc, or a .ptx file")
    parser.add_argument("arguments", nargs="*", metavar="ARG", help="see below")
    parser.add_argument("--entry", metavar="NAME", help="the kernel, if there are several")
    parser.add_argument("--grid", type=_extents, required=True, metavar="X[xYxZ]", help="blocks")
    parser.add_argument("--block", type=_extents, required=True, metavar="X[xYxZ]", help="threads per block")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    parser.add_argument("--arch", default="sm_90a", help="for nvcc (default sm_90a)")
    parser.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="for nvcc"
    )
    parser.add_argument("-I", dest="folders", action="append", default=[], metavar="DIR", help="for nvcc")
    parser.add_argument(
        "--steps",
        type=int,
        default=api.STEPS,
        metavar="N",
        help="basic blocks to execute before it counts as a hang",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 for notes, too: undefined in CUDA C++ but not in PTX, or not used",
    )
    parser.add_argument(
        "--save", action="append", default=[], metavar="N=FILE.npy", help="write argument N after the launch"
    )
    return parser


def main(args: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(args)
    try:
        given = [arguments.read(word, i) for i, word in enumerate(options.arguments)]
        saves = [_save(text, len(given)) for text in options.save]
        result = api.run(
            Path(options.source),
            grid=options.grid,
            block=options.block,
            arguments=given,
            entry=options.entry,
            shared=options.shared,
            arch=options.arch,
            defines=options.defines,
            flags=[f"-I{folder}" for folder in options.folders],
            steps=options.steps,
        )
        for i, path in saves:
            if i not in result.arrays:
                raise PtxError(f"--save {i}={path}: argument {i} is not an array")
            np.save(path, result.arrays[i])
    except (PtxError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(report.describe(result, given))
    return 0 if result.clean and not (options.strict and result.notes) else 1


def _save(text: str, count: int) -> tuple[int, str]:
    number, _, path = text.partition("=")
    if not (number.isdigit() and int(number) < count and path):
        raise PtxError(f"--save {text}: must be N=FILE.npy, where N is the index of an argument, from 0")
    return int(number), path


def run() -> None:
    """The program of the installed package."""
    sys.exit(main(sys.argv[1:]))

"""``ptxsan run kernel.cu --grid 4 --block 256 ARG...``: a kernel run and checked without a GPU;
``ptxsan explain CHECK``: what a finding means."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan import __version__, api, report
from ptxsan.api import LaunchResult
from ptxsan.arguments import Empty
from ptxsan.checks import Hazard
from ptxsan.frontend import PtxError
from ptxsan.lanes import Array
from ptxsan.machine.counters import Tally
from ptxsan.report import CHECKS, explain

# Arguments of a kernel as words of a command line: int:1000, float:2.5, in.npy, normal:float32:64x64.


_NUMBERS: dict[str, Any] = {
    **{"int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64},
    **{"short": np.int16, "ushort": np.uint16, "char": np.int8, "uchar": np.uint8, "bool": np.bool_},
    **{"float": np.float32, "double": np.float64},
}
_FILLS: dict[str, Callable[[tuple[int, ...], np.random.Generator], Array]] = {
    "zeros": lambda shape, random: np.zeros(shape),
    "ones": lambda shape, random: np.ones(shape),
    "nan": lambda shape, random: np.full(shape, np.nan),
    "arange": lambda shape, random: np.arange(np.prod(shape)).reshape(shape),
    "normal": lambda shape, random: random.standard_normal(shape),
    "integers": lambda shape, random: random.integers(-8, 8, shape),
}
HELP = f"""\
numbers   {", ".join(f"{name}:VALUE" for name in _NUMBERS)}
arrays    FILE.npy, or FILL:DTYPE:SHAPE such as normal:float32:64x64, where FILL is
          {", ".join(_FILLS)} or empty (uninitialised memory),
          and DTYPE is a NumPy dtype or bfloat16
structs   bytes:HEX
pointers  null, or an array
"""


def read(word: str, position: int) -> Any:
    """The value of an argument on the command line. Random values depend on the argument's position and are
    the same in each run. Raises PtxError, one line, for a malformed argument."""
    head, _, rest = word.partition(":")
    try:
        if word == "null":
            return None
        if head in _NUMBERS and rest:
            return _number(head, rest)
        if head == "bytes":
            return bytes.fromhex(rest)
        if head in _FILLS or head == "empty":
            name, _, extents = rest.partition(":")
            shape = tuple(int(extent) for extent in extents.split("x"))
            dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
            if min(shape) < 1:
                raise ValueError("an extent must be at least 1")
            if head == "empty":
                return Empty(shape, dtype)
            with np.errstate(all="ignore"):
                made = _FILLS[head](shape, np.random.default_rng(position)).astype(dtype)
            if head == "nan" and (made == made).any():
                raise ValueError(f"{name} has no NaN")
            return made
        if word.endswith(".npy"):
            return np.load(Path(word), allow_pickle=False)
    except (ValueError, TypeError, OSError, OverflowError) as error:
        raise PtxError(f"argument {position}, {word}: {error}") from None
    raise PtxError(
        f"argument {position}, {word}: neither a number, a .npy file nor FILL:DTYPE:SHAPE (see --help)"
    )


def _number(kind: str, text: str) -> Any:
    dtype = _NUMBERS[kind]
    if np.dtype(dtype).kind == "f":
        return dtype(float(text))
    value = int(text, 0)
    if dtype is not np.bool_ and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ValueError(f"does not fit into {kind}")
    return dtype(value)


# A result in words.


_HEAD = 6  # values shown


def describe(result: LaunchResult, arguments: Sequence[Any]) -> str:
    """What a launch did: its arguments afterwards, hazards, notes, counts."""
    return "\n".join(_lines(result, arguments))


def _lines(result: LaunchResult, arguments: Sequence[Any]) -> Iterator[str]:
    shape = ", ".join(str(extent) for extent in (result.grid, result.block))
    ending = ", stopped" if result.stopped else ""
    yield f"{result.entry}<<<{shape}>>>: {result.lane_instructions:,} thread instructions{ending}"
    width = max((len(name) for name in result.names), default=0)
    for i, (name, argument) in enumerate(zip(result.names, arguments, strict=True)):
        yield f"  {i} {name:{width}}  {_argument(argument, result.arrays.get(i))}"
    yield f"hazards: {len(result.hazards) or 'none'}"
    yield from _hazards(result.hazards)
    if result.notes:
        yield f"notes, which are no errors: {len(result.notes)}"
        yield from _hazards(result.notes)
    if result.printed:
        yield "printed"
        yield from (f"  {line}" for line in "".join(result.printed).splitlines())
    yield "counts"
    yield from _counts(result.counts)


def _hazards(hazards: Sequence[Hazard]) -> Iterator[str]:
    """The first hazard of each check and source line: an unrolled loop has several."""
    groups: dict[tuple[str, str], list[Hazard]] = {}
    for hazard in hazards:
        groups.setdefault((hazard.check, hazard.place or hazard.ptx), []).append(hazard)
    for first, *more in groups.values():
        said = f"{first.check}: {first.thread} {first.problem}"
        yield from textwrap.wrap(said, 108, initial_indent="  ", subsequent_indent="    ")
        if first.where:
            yield f"    at {first.where}" + (f", and {len(more)} more of this line" if more else "")


def _argument(given: Any, after: Array | None) -> str:
    if given is None:
        return "null"
    if after is None:
        return f"{type(given).__name__} {given}"
    shape = "x".join(str(extent) for extent in after.shape)
    flat = after.ravel()
    head = " ".join(_value(v) for v in flat[:_HEAD]) + (" ..." if flat.size > _HEAD else "")
    before = None if isinstance(given, Empty) else np.ascontiguousarray(given)
    same = before is not None and before.tobytes() == after.tobytes()
    return f"{after.dtype}[{shape}]  {head}{'  (unchanged)' if same else ''}"


def _value(v: Any) -> str:
    real = np.issubdtype(type(v), np.floating) or (v.dtype.kind == "V" and not isinstance(v, np.void))
    return f"{float(v):.6g}" if real else str(v)


def _counts(t: Tally) -> Iterator[str]:
    yield f"  warp instructions {t.instructions:,}, divergent branches {t.divergent:,}"
    yield f"  barriers of warps {t.barriers:,}, floating-point operations {t.flop:,}"
    for name, on_global in (("loads", t.loads), ("stores", t.stores), ("async copies", t.copies)):
        if on_global.requests:
            excess = f", {on_global.excess:,} more than the bytes need" if on_global.excess else ""
            rest = f"   ({on_global.sectors_per_request:.1f} a request{excess})"
            yield _line(f"global {name}", on_global.requests, on_global.sectors, "sectors", rest)
    accesses = (("loads", t.shared_loads), ("stores", t.shared_stores), ("async copies", t.shared_copies))
    for name, on_shared in accesses:
        if on_shared.requests:
            rest = f"({on_shared.conflicts:,} bank conflicts)"
            yield _line(f"shared {name}", on_shared.requests, on_shared.wavefronts, "wavefronts", rest)


def _line(name: str, requests: int, many: int, of: str, rest: str) -> str:
    return f"  {name:19}{requests:>9,} requests {many:>10,} {of}  {rest}"


# The command.
def _extents(text: str) -> tuple[int, ...]:
    """4, 4x2 or 4,2,1."""
    return tuple(int(extent) for extent in re.split(r"[x,]", text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ptxsan run",
        description="Runs a CUDA kernel without a GPU. Reports values, hazards with their source lines, and\n"
        "memory counters. Exit status: 0 no hazards, 1 hazards, 2 the kernel cannot be run.",
        epilog=f"ARG, one for each parameter of the kernel:\n{HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="FILE", help="a .cu file, compiled with nvcc, or a .ptx file")
    parser.add_argument("arguments", nargs="*", metavar="ARG", help="see below")
    parser.add_argument("--entry", metavar="NAME", help="the kernel's name, if there are several")
    parser.add_argument("--grid", type=_extents, required=True, metavar="X[xYxZ]", help="blocks in the grid")
    parser.add_argument("--block", type=_extents, required=True, metavar="X[xYxZ]", help="threads in a block")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    parser.add_argument("--arch", default="sm_90a", help="nvcc's -arch (default sm_90a)")
    parser.add_argument(
        "-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]", help="define a macro"
    )
    parser.add_argument(
        "--nvcc-flags",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help="more options of nvcc, as one word",
    )
    parser.add_argument("--schedule", type=int, metavar="SEED", help="warps are late at random, by a seed")
    parser.add_argument(
        "--inexact",
        type=int,
        metavar="SEED",
        help="results of .approx are off by their error bounds, by a seed",
    )
    parser.add_argument("--cooperative", action="store_true", help="a cooperative launch")
    parser.add_argument("-I", dest="folders", action="append", default=[], metavar="DIR", help="include path")
    parser.add_argument(
        "--steps",
        type=int,
        default=api.STEPS,
        metavar="N",
        help=f"basic blocks to execute before the launch counts as hanging (default {api.STEPS})",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 for notes, too (undefined in CUDA C++ but not in PTX, or without effect)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for the standard output")
    parser.add_argument("--sarif", metavar="FILE", help="write the findings as SARIF 2.1.0")
    parser.add_argument(
        "--save", action="append", default=[], metavar="N=FILE.npy", help="write argument N after the launch"
    )
    return parser


USAGE = """\
usage: ptxsan run [-h] FILE --grid X --block X [ARG ...]
       ptxsan explain [CHECK]

run      runs a CUDA kernel without a GPU, and reports its errors
explain  says what a finding means, and how it is mended
"""


def main(args: Sequence[str]) -> int:
    command, *rest = args or [""]
    if command in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    if command == "--version":
        print(f"ptxsan {__version__}")
        return 0
    if command not in ("run", "explain"):
        print(f"{USAGE}error: {command or 'no command'}: neither run nor explain", file=sys.stderr)
        return 2
    return _run(rest) if command == "run" else _explain(rest)


def _explain(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="ptxsan explain", description="Says what a finding means.")
    parser.add_argument("check", nargs="*", metavar="CHECK", help=f"{', '.join(CHECKS)} (default: all)")
    wanted = [name.lower() for name in parser.parse_args(args).check] or list(CHECKS)
    if unknown := [name for name in wanted if name not in CHECKS]:
        print(f"error: there is no check {unknown[0]}; there are: {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    print("\n\n\n".join(map(explain, wanted)))
    return 0


def _run(args: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(args)
    try:
        given = [read(word, i) for i, word in enumerate(options.arguments)]
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
            flags=[*(f"-I{folder}" for folder in options.folders), *options.nvcc_flags],
            steps=options.steps,
            cooperative=options.cooperative,
            schedule=options.schedule,
            inexact=options.inexact,
        )
        for i, path in saves:
            if i not in result.arrays:
                raise PtxError(f"--save {i}={path}: argument {i} is not an array")
            np.save(path, result.arrays[i])
        if options.sarif:
            log = report.sarif("ptxsan", __version__, report.sarif_results(result))
            Path(options.sarif).write_text(json.dumps(log, indent=1), encoding="utf-8")
        if options.json and options.json != "-":
            Path(options.json).write_text(json.dumps(report.as_json(result), indent=1), encoding="utf-8")
    except (PtxError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report.as_json(result), indent=1) if options.json == "-" else describe(result, given))
    if os.environ.get("GITHUB_ACTIONS") == "true" and options.json != "-":
        print("\n".join(report.github_annotations(result, result.hazards)))
    return 0 if result.clean and not (options.strict and result.notes) else 1


def _save(text: str, count: int) -> tuple[int, str]:
    number, _, path = text.partition("=")
    if not (number.isdigit() and int(number) < count and path):
        raise PtxError(f"--save {text}: must be N=FILE.npy, where N is the index of an argument, from 0")
    return int(number), path


def run() -> None:
    """The program of the installed package."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()

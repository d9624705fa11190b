"""``gemm-regression COMMAND``, or ``python -m gemm_regression COMMAND``: runs the module of that command."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import gemm_regression

# The modules of this package, each with a main(arguments) that returns the exit status.
COMMANDS = {
    "init": "create a project in this folder: a kernel, its declaration, tests, a noxfile, two workflows",
    "check": "check every kernel without a GPU: execute its PTX, compare compiler metrics with stored ones",
    "gpu": "check and time every kernel on this GPU, and compare with the stored baseline",
    "compare": "time the working tree side by side with another commit, or another nvcc, on this GPU",
    "bisect": "find the first commit that made a case slower: CASE [GOOD [BAD]]",
    "baseline": "measure this GPU and append it to its baseline; show, history, export, prune, merge",
    "tune": "search a kernel's declared space for its fastest config; replay a search without a GPU",
    "static": "compare registers, occupancy, SASS and memory counters with stored ones; --refresh stores "
    "them",
    "counters": "memory requests, sectors, bank conflicts and FLOP of kernels, from their PTX",
    "profile": "coalescing, bank conflicts and occupancy of selected cases, with Nsight Compute",
    "sanitize": "memory errors, races, uninitialised reads and barrier errors, with compute-sanitizer",
    "select": "which kernel and config to use for a problem on a GPU, and why; --header writes it for C++",
    "report": "an HTML page of stored baselines, runs and comparisons; the ladder of a README, its pictures",
    "shards": "add up the parts of a run, `gpu --shard 1/4` to `4/4`: red if one, or a case, is missing",
    "evidence": "judge the cases of a stored run again",
    "doctor": "what this machine has for the suite, one line each, and what to do",
}
USAGE = "usage: gemm-regression [--project PATH] COMMAND ..."
_MORE = "`gemm-regression COMMAND --help` shows the options; --project PATH selects another project folder."


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns 2 if it does not exist. ``--project`` may precede it."""
    words = list(arguments)
    project: list[str] = []
    while words and words[0].partition("=")[0] == "--project":
        length = 1 if "=" in words[0] else 2
        project, words = words[:length], words[length:]
    if words[:1] in (["-h"], ["--help"]):
        print(
            "\n".join([USAGE, "", *(f"  {name:<9} {about}" for name, about in COMMANDS.items()), "", _MORE])
        )
        return 0
    if words[:1] == ["--version"]:
        print(f"gemm-regression {gemm_regression.__version__}")
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"no command {words[0]!r}" if words else "a command is missing"
        print(f"{USAGE}\nerror: {said}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        module = import_module(f"gemm_regression.cli.{words[0]}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("gemm_regression", "ptxsan")):
            raise
        print(
            f"error: {sys.executable} has no {error.name}: `nox -s {words[0]}` runs this in one that "
            "has everything, or install the package with pip",
            file=sys.stderr,
        )
        return 2
    rest = words[1:]
    # After the subcommand of `baseline` and `report`.
    place = int(words[0] in ("baseline", "report") and bool(rest) and not rest[0].startswith("-"))
    return int(module.main([*rest[:place], *project, *rest[place:]]))


def _children_find_it() -> None:
    """Programs that are started from here, such as workers, import what this one does, installed or not."""
    home = str(Path(gemm_regression.__file__).parents[1])
    if home not in sysconfig.get_paths().values():
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (home, known)))


def run() -> None:
    """The program of the installed package. A terminal that cannot show a character shows ? in its place."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    _children_find_it()
    if "_ARGCOMPLETE" in os.environ:
        from gemm_regression.cli.completion import complete

        complete(COMMANDS)
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)

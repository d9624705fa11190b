"""``python -m gemm_regression COMMAND``, or ``gemm-regression COMMAND``: runs it.

A new command is a line of COMMANDS, and a function that `cli.common.command` declares.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

import gemm_regression
from gemm_regression.hints import IN_CHECKOUT, typed

# Of each command where it is, module:function below `cli`, and its line of --help. Modules are imported late:
# each needs other packages.
COMMANDS = {
    "init": (
        "init:main",
        "create a project: a kernel, its declaration, tests, a noxfile, two workflows",
    ),
    "check": ("suite:check", "check every kernel without a GPU: execute its PTX, compare compiler metrics"),
    "gpu": ("suite:gpu", "check and time every kernel on this GPU, and compare with the stored baseline"),
    "compare": (
        "paired:compare",
        "time the working tree beside another commit, or another nvcc, on this GPU",
    ),
    "bisect": ("paired:bisect", "find the first commit that made a case slower: CASE [GOOD [BAD]]"),
    "baseline": ("baseline:main", "measure this GPU's baseline; show, history, export, prune, merge"),
    "tune": ("tune:main", "search for a kernel's fastest config; replay a stored search"),
    "static": (
        "suite:static",
        "compare registers, occupancy, SASS and memory counters with stored values",
    ),
    "counters": ("profile:counters", "count memory requests, sectors, bank conflicts and FLOP, from PTX"),
    "profile": ("profile:main", "show hardware counters of selected cases, with Nsight Compute"),
    "sanitize": ("suite:sanitize", "find memory errors, races, uninitialised reads, with compute-sanitizer"),
    "select": ("stored:select", "recommend a kernel and config for a problem on a GPU"),
    "report": ("stored:report", "write an HTML page of baselines, runs and comparisons"),
    "shards": ("stored:shards", "combine the shards of a run; fails if a shard or a test is missing"),
    "evidence": ("stored:evidence", "compute the verdicts of a stored run again"),
    "cache": ("cache:main", "show what is kept of compiled kernels and passed tests; clear it"),
    "doctor": ("doctor:main", "check what the suite needs on this machine, and say what to do"),
}
USAGE = "usage: gemm-regression COMMAND ..."


def main(words: Sequence[str]) -> int:
    """Runs a command; returns 2 if it does not exist."""
    if words[:1] in (["-h"], ["--help"]):
        lines = (f"  {name:<9} {about}" for name, (_, about) in COMMANDS.items())
        print("\n".join([USAGE, "", *lines, "", "`gemm-regression COMMAND --help` shows the options."]))
        return 0
    if words[:1] == ["--version"]:
        print(f"gemm-regression {gemm_regression.__version__}")
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"no command {words[0]!r}" if words else "a command is missing"
        print(f"{USAGE}\nerror: {said}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return int(_command(words[0])(words[1:]))
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("gemm_regression", "ptxsan")):
            raise
        nox = f"`{typed(words[0])}` runs this in one that has everything, or " if IN_CHECKOUT else ""
        remedy = f"{nox}install the package with pip"
        print(f"error: {sys.executable} has no {error.name}: {remedy}", file=sys.stderr)
        return 2


def _command(name: str) -> Callable[[Sequence[str]], int]:
    """What runs a command: it takes the words after its name and returns the exit status."""
    module, function = COMMANDS[name][0].split(":")
    return getattr(import_module(f"gemm_regression.cli.{module}"), function)  # type: ignore[no-any-return]


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
        import_module("gemm_regression.cli.common").complete(COMMANDS, _command)
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    run()

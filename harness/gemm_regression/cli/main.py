"""``gemm-regression COMMAND``, or ``python -m gemm_regression COMMAND``: runs it, or completes its line.

Completion in a shell is argcomplete's: commands, options, and names of kernels, configs, suites and cases.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gemm_regression

if TYPE_CHECKING:
    from gemm_regression.project.loader import Project

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
    "shards": "add up the parts of a run, `gpu --shard 1/4` to `4/4`: fails if one, or a case, is missing",
    "evidence": "judge the cases of a stored run again",
    "doctor": "what this machine has for the suite, one line each, and what to do",
}
# The modules with several of them: each is a function of that name, elsewhere it is `main`.
_TOGETHER = {
    **dict.fromkeys(("check", "gpu", "static"), "suite"),
    **dict.fromkeys(("report", "select", "shards", "evidence"), "stored"),
    "counters": "profile",
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
        command = _command(words[0])
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
    return int(command([*rest[:place], *project, *rest[place:]]))


def _command(name: str) -> Callable[[Sequence[str]], int]:
    """What runs a command: it takes the arguments and returns the exit status."""
    module = import_module(f"gemm_regression.cli.{_TOGETHER.get(name, name)}")
    return getattr(module, name if name in _TOGETHER else "main")  # type: ignore[no-any-return]


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
    if completes():
        _complete()
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command. Where a shell completes its line, prints the words that fit and ends."""
    completed(parser)
    return parser.parse_args(arguments)


def completes() -> bool:
    """Whether a shell completes its line: the program is then to print the words that fit."""
    return "_ARGCOMPLETE" in os.environ


def completed(parser: argparse.ArgumentParser) -> None:
    """Ends the process where a shell completes a line of this parser."""
    if completes():
        import argcomplete

        _with_names(parser)
        argcomplete.autocomplete(parser)


def _complete() -> None:
    """Completes COMP_LINE: the name of the command, or what its own parser knows."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 1 << 30))]
    words = line.split()
    for place, word in enumerate(words if line.endswith(" ") else words[:-1]):
        if word in COMMANDS:
            os.environ["_ARGCOMPLETE"] = str(place + 1)  # the command stands for the program
            _command(word)(words[place + 1 :] or ["--help"])
    parser = argparse.ArgumentParser(prog="gemm-regression")
    parser.add_argument("command", choices=sorted(COMMANDS))
    completed(parser)


def _with_names(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _with_names(each)
        elif names := _NAMES.get(action.dest):
            action.completer = _completer(names)  # type: ignore[attr-defined]


def _completer(names: Callable[[Project], Iterable[str]]) -> Callable[..., list[str]]:
    def complete(**_: Any) -> list[str]:
        from gemm_regression.project.loader import ProjectError, find, load

        try:
            return list(names(load(find(Path.cwd()))))
        except ProjectError:
            return []

    return complete


def _cases(project: Project) -> Iterable[str]:
    from gemm_regression.model import variant_name

    every = ((k, c, d) for k in project.kernels for d in k.dtypes for c in k.configs)
    return (f"{variant_name(*each)}-1024x1024x1024" for each in every)


_NAMES: dict[str, Callable[[Project], Iterable[str]]] = {
    "kernel": lambda project: (kernel.name for kernel in project.kernels),
    "config": lambda project: sorted({c.label for k in project.kernels for c in k.configs if c.label}),
    "suite": lambda project: project.suites,
    **dict.fromkeys(("cases", "case", "accept_slower"), _cases),
}

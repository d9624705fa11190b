"""``gemm-regression COMMAND``, or ``python -m harness COMMAND``: runs the module that the word names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import harness

# The modules of this package, each with a main(arguments) that returns the exit status.
COMMANDS = {
    "init": "begin a project in this folder: a kernel, its declaration, tests, a noxfile, two workflows",
    "check": "is every kernel right, without a GPU? Its PTX is executed, its figures held to stored ones",
    "gpu": "is every kernel right and still fast on this GPU?",
    "compare": "is the working tree slower than a commit? Both are timed side by side on this GPU",
    "baseline": "measure this GPU's baseline and write it; show, prune and merge what is stored",
    "static": "registers, occupancy, SASS and counts against the stored ones; --refresh stores them",
    "counters": "what kernels ask of the hardware, counted from their PTX",
    "profile": "coalescing, bank conflicts and occupancy of chosen cases, by Nsight Compute",
    "sanitize": "memory errors, races, uninitialised reads and barriers, by compute-sanitizer",
    "report": "the table of a README, made from the stored baselines",
    "evidence": "judge the cases of a stored run again",
}
USAGE = "usage: gemm-regression [--project PATH] COMMAND ..."
_MORE = "`gemm-regression COMMAND --help` tells more; --project PATH names another folder than the nearest."


def main(arguments: Sequence[str]) -> int:
    """Runs a command; 2 for one that does not exist. ``--project`` may stand before it."""
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
        print(f"gemm-regression {harness.__version__}")
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"no command {words[0]!r}" if words else "a command is missing"
        print(f"{USAGE}\nerror: {said}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = import_module(f"harness.commands.{words[0]}")
    rest = words[1:]
    # After the word that `baseline` and `report` have of their own.
    place = int(words[0] in ("baseline", "report") and bool(rest) and not rest[0].startswith("-"))
    return int(module.main([*rest[:place], *project, *rest[place:]]))


def run() -> None:
    """The program of the installed package."""
    sys.exit(main(sys.argv[1:]))

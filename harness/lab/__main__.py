"""``python -m lab NAME ...``: runs the command of that name."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib import import_module

# The modules, each with a main(arguments) that returns the exit status.
COMMANDS = {
    "advice": ("lab.advice.command", "compare the course notes' recommended configs with the fastest"),
    "benchmark": ("lab.benchmark", "measure the speed of the emulated device on one core"),
    "classes": ("lab.classes", "compare the fastest kernels with cuBLAS, by class of shapes"),
    "claims": ("lab.claims.command", "check statements of the course notes against stored measurements"),
    "course": ("lab.course.command", "write the pages and pictures of the course"),
    "exercises": ("lab.course", "lay out the exercises of the course in an empty folder"),
    "learn": ("lab.lessons", "write the page that explains each stage of the ladder"),
    "lines": ("lab.lines", "count the lines of code, and check their limits"),
    "study": ("lab.study.command", "measure how small a slowdown is detected: measure, report"),
}
USAGE = "usage: nox -s lab -- NAME ..."


def main(arguments: Sequence[str]) -> int:
    words = list(arguments)
    if words[:1] in (["-h"], ["--help"]):
        print("\n".join([USAGE, "", *(f"  {name:<9} {about}" for name, (_, about) in COMMANDS.items())]))
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"no command {words[0]!r}" if words else "a command is missing"
        print(f"{USAGE}\nerror: {said}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return int(import_module(COMMANDS[words[0]][0]).main(words[1:]))


def _end(number: int, _: object) -> None:
    """Exits as after Ctrl-C, so that worker processes are stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))

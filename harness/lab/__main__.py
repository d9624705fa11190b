"""``python -m lab NAME ...``: runs the command of that name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from gemm_regression.cli.common import end_on_sigterm

# The modules, each with a main(arguments) that returns the exit status.
COMMANDS = {
    "advice": ("lab.advice.command", "how far the course notes' recommendations are behind the best"),
    "benchmark": ("lab.benchmark", "the speed of the emulated device on one core"),
    "claims": ("lab.claims.command", "what the course notes say, judged by what is stored: docs/claims.md"),
    "learn": ("lab.lessons.command", "the ladder, step by step: docs/learn.md and its pictures"),
    "study": ("lab.study.command", "how small a slowdown is detected: measure, report"),
}


def main(arguments: Sequence[str]) -> int:
    words = list(arguments)
    lines = [
        "usage: python -m lab NAME ...",
        "",
        *(f"  {n:<9} {about}" for n, (_, about) in COMMANDS.items()),
    ]
    if words[:1] in (["-h"], ["--help"]):
        print("\n".join(lines))
        return 0
    if not words or words[0] not in COMMANDS:
        said = f"no command {words[0]!r}" if words else "a command is missing"
        print(f"{lines[0]}\nerror: {said}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    module = import_module(COMMANDS[words[0]][0])
    return int(module.main(words[1:]))


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main(sys.argv[1:]))

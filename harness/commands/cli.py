"""The one command: which module does what its first word names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# The modules of this package, each with a main(arguments) that returns the exit status.
COMMANDS = ("baseline", "compare", "counters", "evidence", "profile", "report", "sanitize", "static")


def main(arguments: Sequence[str]) -> int:
    """Runs a command; 2 for one that does not exist."""
    if not arguments or arguments[0] not in COMMANDS:
        print(f"usage: python -m harness {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return 2
    module = import_module(f"harness.commands.{arguments[0]}")
    return int(module.main(arguments[1:]))

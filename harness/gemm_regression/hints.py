"""How a command is typed, and a package installed, where this runs: for messages that say what to do."""

from __future__ import annotations

import os
from pathlib import Path

IN_CHECKOUT = (Path(__file__).parents[2] / "noxfile.py").is_file()


def typed(command: str, words: str = "") -> str:
    """A command of the suite with its words: by nox in the checkout and below a session of nox, whose
    environment alone has the program; else by that."""
    if IN_CHECKOUT or "NOX_CURRENT_SESSION" in os.environ:
        return f"nox -s {command}" + (f" -- {words}" if words else "")
    return f"gemm-regression {command} {words}".rstrip()


def install(extra: str) -> str:
    """The command that installs what the suite needs for something: a group of the checkout, or an extra."""
    return f"pip install --group {extra}" if IN_CHECKOUT else f'pip install "gemm-regression[{extra}]"'

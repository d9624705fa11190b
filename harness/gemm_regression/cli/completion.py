"""What a shell completes, by argcomplete: commands, options, names of kernels, configs, suites, cases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import argcomplete

from gemm_regression.cli.common import Command, Group
from gemm_regression.model import variant_name
from gemm_regression.project.loader import Project, ProjectError, find, load


def complete(commands: Iterable[str], find_command: Callable[[str], Command | Group]) -> None:
    """Prints the words that fit what is typed, and ends the process."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 1 << 30))]
    words = line.split()
    typed = words[1:] if line.endswith(" ") else words[1:-1]
    parser = argparse.ArgumentParser("gemm-regression")
    if typed and typed[0] in commands:
        parser, depth = find_command(typed[0]).completed(typed[1:])
        os.environ["_ARGCOMPLETE"] = str(2 + depth)  # the last word of the command stands for the program
    else:
        parser.add_argument("command", choices=sorted(commands))
    for action in parser._actions:
        if names := _NAMES.get(action.dest):
            action.completer = _completer(names)  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _completer(names: Callable[[Project], Iterable[str]]) -> Callable[..., list[str]]:
    def completed(**_: Any) -> list[str]:
        try:
            return list(names(load(find(Path.cwd()))))
        except ProjectError:
            return []

    return completed


def _cases(project: Project) -> Iterable[str]:
    every = ((k, c, d) for k in project.kernels for d in k.dtypes for c in k.configs)
    return (f"{variant_name(*each)}-1024x1024x1024" for each in every)


_NAMES: dict[str, Callable[[Project], Iterable[str]]] = {
    "kernel": lambda project: (kernel.name for kernel in project.kernels),
    "config": lambda project: sorted({c.label for k in project.kernels for c in k.configs if c.label}),
    "suite": lambda project: project.suites,
    **dict.fromkeys(("cases", "case", "accept_slower"), _cases),
}

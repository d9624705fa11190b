"""Completion in a shell, by argcomplete: commands, options, names of kernels, configs, suites and cases.

The shell runs the program with ``_ARGCOMPLETE`` set; what it prints then are the words that fit.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import argcomplete

from gemm_regression.model import variant_name
from gemm_regression.project.loader import Project, ProjectError, find, load

_PARSES = argparse.ArgumentParser.parse_known_args


def complete(commands: Collection[str]) -> None:
    """Prints the completions of COMP_LINE, and ends the process."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", 1 << 30))]
    words = line.split()
    begun = [word for word in words[1:] if word in commands]
    if not begun or (line.endswith(begun[0]) and words[-1] == begun[0]):
        parser = argparse.ArgumentParser(prog="gemm-regression")
        parser.add_argument("command", choices=sorted(commands))
        argcomplete.autocomplete(parser)
        return
    # The command takes the place of the program: its own parser knows the rest.
    os.environ["_ARGCOMPLETE"] = str(words.index(begun[0]) + 1)
    argparse.ArgumentParser.parse_known_args = _instead  # type: ignore[method-assign,assignment]
    after = words[words.index(begun[0]) + 1 :]
    measures = begun[0] == "baseline" and after[:1] and after[0].startswith("-")  # its default
    import_module(f"gemm_regression.cli.{begun[0]}").main(["measure"] * bool(measures) + ["--help"])


def _instead(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
    """Completes what a parser is about to parse."""
    argparse.ArgumentParser.parse_known_args = _PARSES  # type: ignore[method-assign]
    try:
        project = load(find(Path.cwd()))
    except ProjectError:
        project = None
    for action in parser._actions:
        if project is not None and action.dest in NAMES:
            action.completer = _completer(NAMES[action.dest](project))  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)
    raise SystemExit(0)


def _completer(names: Sequence[str]) -> Callable[..., Sequence[str]]:
    return lambda **_: names


NAMES: dict[str, Callable[[Project], Sequence[str]]] = {
    "kernel": lambda project: [kernel.name for kernel in project.kernels],
    "config": lambda project: sorted({c.label for k in project.kernels for c in k.configs if c.label}),
    "suite": lambda project: list(project.suites),
    "cases": lambda project: _cases(project),
    "case": lambda project: _cases(project),
    "accept_slower": lambda project: _cases(project),
}


def _cases(project: Project) -> list[str]:
    return [
        f"{variant_name(k, c, d)}-1024x1024x1024"
        for k in project.kernels
        for d in k.dtypes
        for c in k.configs
    ]

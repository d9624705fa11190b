"""Finds a project: the table ``[tool.gemm-regression]`` of a pyproject.toml.

Imports only the standard library, because pytest loads this in every repository of an environment.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE, TOOL = "pyproject.toml", "gemm-regression"
_SHOWN = f"{FILE}: [tool.{TOOL}]"


class ProjectError(ValueError):
    """A project cannot be found or loaded. One line: where, what, and what to do."""


@dataclass(frozen=True)
class Table:
    """The keys of the table, paths relative to its folder: ``kernels``, the declarations, a package folder or
    a .py file; ``baselines``, the folder of stored measurements; ``tests``, the folder of the test files."""

    kernels: str = "kernels"
    baselines: str = "baselines"
    tests: str = "tests"


def read(root: Path) -> Table | None:
    """The table in a folder's pyproject.toml, None if there is none. Raises ProjectError."""
    try:
        document = tomllib.loads((root / FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ProjectError(f"{root / FILE}: cannot be read ({error})") from None
    tools = document.get("tool", {})
    if not isinstance(tools, dict) or TOOL not in tools:
        return None
    return _table(tools[TOOL], root)


def _table(given: Any, root: Path) -> Table:
    known = Table.__dataclass_fields__
    if not isinstance(given, dict):
        raise ProjectError(f"{root / _SHOWN} is not a table")
    for key, value in given.items():
        if key not in known:
            raise ProjectError(f"{root / _SHOWN} has the unknown key {key!r}; known: {', '.join(known)}")
        if not isinstance(value, str) or not value:
            raise ProjectError(f"{root / _SHOWN}: {key} = {value!r} is not a path")
    return Table(**given)


def has_table(root: Path) -> bool:
    """Whether a folder's pyproject.toml has the table; if it cannot be parsed, whether it mentions it."""
    try:
        text = (root / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    if f"tool.{TOOL}" not in text.replace(" ", "").replace('"', ""):
        return False
    try:
        return read(root) is not None
    except ProjectError:
        return True


def find(start: Path) -> Path:
    """The nearest folder, this one or above, whose pyproject.toml has the table. Raises ProjectError."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if has_table(folder):
            return folder
    raise ProjectError(
        f"no project: neither {start} nor a folder above it has a {FILE} with the table [tool.{TOOL}]; "
        f"create one with `{TOOL} init`, or name one with --project PATH"
    )

"""Finds a project: the table ``[tool.gemm-regression]`` of a pyproject.toml.

Imports only the standard library, because pytest loads this in every repository of an environment.
"""

from __future__ import annotations

import contextlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE, TOOL = "pyproject.toml", "gemm-regression"


class ProjectError(ValueError):
    """A project cannot be found or loaded. One line: where, what, and what to do."""


@dataclass(frozen=True)
class ProjectTable:
    """The keys of the table, paths relative to its folder: ``kernels``, the declarations, a package folder or
    a .py file; ``baselines``, the folder of stored measurements; ``tests``, the folder of the test files.
    ``architectures``: those of which compiler metrics are stored, ``sm_80 sm_90a``; by default all known."""

    kernels: str = "kernels"
    baselines: str = "baselines"
    tests: str = "tests"
    architectures: str = ""


def read(root: Path) -> ProjectTable | None:
    """The table in a folder's pyproject.toml, None if there is none. Raises ProjectError."""
    file, known = root / FILE, ProjectTable.__dataclass_fields__
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get(TOOL)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise ProjectError(f"{file}: cannot be read ({error})") from None
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ProjectError(f"{file}: [tool.{TOOL}] is not a table")
    for key, value in given.items():
        if key not in known:
            what = f"has the unknown key {key!r}; known: {', '.join(known)}"
            raise ProjectError(f"{file}: [tool.{TOOL}] {what}")
        if not isinstance(value, str) or not value:
            kind = "a line of names" if key == "architectures" else "a path"
            raise ProjectError(f"{file}: [tool.{TOOL}]: {key} = {value!r} is not {kind}")
    return ProjectTable(**given)


def has_table(root: Path) -> bool:
    """Whether a folder's pyproject.toml has the table; if it cannot be parsed, whether it mentions it."""
    try:
        return read(root) is not None
    except ProjectError:
        with contextlib.suppress(OSError):
            return f"tool.{TOOL}" in (root / FILE).read_text(errors="replace").replace('"', "")
        return False


def nearest(start: Path) -> Path | None:
    """The nearest folder, this one or above, whose pyproject.toml has the table; None without one."""
    start = start.resolve()
    return next(filter(has_table, (start, *start.parents)), None)


def find(start: Path) -> Path:
    """The `nearest` folder. Raises ProjectError."""
    if found := nearest(start):
        return found
    start = start.resolve()
    raise ProjectError(
        f"no project: neither {start} nor a folder above it has a {FILE} with the table [tool.{TOOL}]; "
        f"create one with `{TOOL} init`, or name one with --project PATH"
    )

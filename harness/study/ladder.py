"""The project whose cases are studied: that of the working directory."""

from __future__ import annotations

import functools
from pathlib import Path

from harness.model import Case
from harness.project.loader import Project, find, load
from harness.project.selection import find_case


@functools.cache
def project() -> Project:
    """Raises ProjectError if there is none."""
    return load(find(Path.cwd()))


def case_of(text: str, capability: tuple[int, int]) -> Case:
    """The case with this id. Raises ValueError."""
    return find_case(project(), text, capability)

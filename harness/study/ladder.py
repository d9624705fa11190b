"""The project whose cases are studied: that of the working directory."""

from __future__ import annotations

import functools
from pathlib import Path

from harness.model import Case
from harness.project.loader import Project, find, load
from harness.project.selection import Choice, find_case, select

_QUICK = ("prefetch", "double_buffered", "async_copy", "warp_tiled", "split_k", "lean_loop", "stream_k")
_QUICK_SHAPES = ("1000x1000x1000", "1024x1024x1024")


@functools.cache
def project() -> Project:
    """Raises ProjectError if there is none."""
    return load(find(Path.cwd()))


def case_of(text: str, capability: tuple[int, int]) -> Case:
    """The case with this id. Raises ValueError."""
    return find_case(project(), text, capability)


def quick(capability: tuple[int, int]) -> list[str]:
    """Ids of the timed cases whose trials take least: 50 to 250 µs on an H200, on CUDA cores, so that there
    is no rest between bursts, and all on random numbers that a process makes once."""
    timed = select(project(), Choice(suite="full"), capability).timed
    return [case.id for case in timed if case.kernel.name in _QUICK and case.problem.id in _QUICK_SHAPES]

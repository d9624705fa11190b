"""Tests that the test command takes in turns: of those marked so one part of several, another one with each
commit. ``GEMM_PART=2/3`` is the second of three; without it all run, as they do in CI. ``GEMM_CHANGED`` has
the files that the commit changed, a line each: of a test file among them, or whose folder of data has one,
all run."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

VARIABLE, CHANGED = "GEMM_PART", "GEMM_CHANGED"
ROOT = Path(__file__).parents[1]


def part(given: str) -> tuple[int, int]:
    """Which part, from 0 on, of how many. Raises UsageError."""
    found = re.fullmatch(r"(\d+)/(\d+)", given)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"{VARIABLE}={given}: must be one part of several, such as 2/3")
    return int(found[1]) - 1, int(found[2])


def its_turn(tests: list[tuple[str, str]], number: int, parts: int) -> list[bool]:
    """Of each test whether it is in a part, by its file and what it is about: tests of a file that are about
    the same, such as a mutant, are in the same one."""
    places = defaultdict[str, dict[str, int]](dict)
    for file, about in tests:
        places[file].setdefault(about, len(places[file]))
    return [places[file][about] % parts == number for file, about in tests]


def changed(file: Path, names: list[str]) -> bool:
    """Whether a test file, ``test_NAME.py``, or what is in the folder NAME beside it, is among these."""
    path = file.relative_to(ROOT).as_posix()
    folder = path.removesuffix(".py").replace("/test_", "/") + "/"
    return any(name == path or name.startswith(folder) for name in names)


def pytest_configure(config: pytest.Config) -> None:
    part(os.environ.get(VARIABLE, "1/1"))


def pytest_report_header() -> list[str]:
    given = os.environ.get(VARIABLE, "1/1")
    return [] if given == "1/1" else [f"part {given} of the tests taken in turns ({VARIABLE})"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, parts = part(os.environ.get(VARIABLE, "1/1"))
    in_turns = [item for item in items if item.get_closest_marker("turns")]
    tests = [(str(item.path), _about(item)) for item in in_turns]
    chosen = zip(in_turns, its_turn(tests, number, parts), strict=True)
    names = os.environ.get(CHANGED, "").split("\n")
    if left_out := {item for item, taken in chosen if not taken and not changed(item.path, names)}:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _about(item: pytest.Item) -> str:
    group, parameters = item.get_closest_marker("xdist_group"), getattr(item, "callspec", None)
    return str(group.args[0] if group else parameters.id if parameters else item.name)

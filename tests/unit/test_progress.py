"""Progress: lines with what, how many and the time left; nothing where it is not wanted."""

from __future__ import annotations

import re

import pytest

from harness.commands.progress import progress, quiet


def test_lines_say_what_how_many_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sanitize", 2) as step:
        step("memcheck")
        step("racecheck")
    out, err = capsys.readouterr()
    first, second, third = err.splitlines()
    assert out == ""
    assert first == "sanitize: 2 steps"
    assert re.fullmatch(r"sanitize: 1 of 2: memcheck, \d+ s, \d+ s left", second)
    assert re.fullmatch(r"sanitize: 2 of 2: racecheck, \d+ s", third)


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sanitize", 2, quiet(["-k", "tiled", "-q"])) as step:
        step("memcheck")
    assert capsys.readouterr() == ("", "")
    assert not quiet(["-k", "q"])

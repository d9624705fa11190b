"""What is said of a mutant, and what a GPU run stores of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError, Outputs
from tests.mutants import MUTANTS, SLOW, WRONG, gpu, matrix, synccheck
from tests.mutants.examine import Seen

BROKEN, SLOWER = WRONG[0], SLOW[0]


def test_a_wrong_kernel_is_caught_by_a_wrong_result_and_by_nothing_else() -> None:
    assert matrix.caught(BROKEN, Seen(hazards=("race",)))
    assert matrix.caught(BROKEN, Seen(value="exact"))
    assert not matrix.caught(BROKEN, Seen(figures="registers 32 -> 40", counters="other counts"))


def test_a_slow_kernel_is_caught_where_it_is_right() -> None:
    assert matrix.caught(SLOWER, Seen(figures="registers 32 -> 40"))
    assert matrix.caught(SLOWER, Seen(counters="global loads: 1 -> 2 requests"))
    assert not matrix.caught(SLOWER, Seen())
    assert not matrix.caught(SLOWER, Seen(value="exact", figures="registers 32 -> 40"))


class Failing:
    """A device on which every launch ends in an error, or gives what it was given."""

    name = "failing"

    def __init__(self, code: str) -> None:
        self._code = code

    def run(self, case: Any, inputs: Any) -> Outputs:
        if self._code:
            raise DeviceError(self._code, "")
        return Outputs(inputs["C"].copy())

    def close(self) -> None:
        pass


def test_values_are_caught_by_the_error_of_a_launch_or_the_first_check(tmp_path: Path) -> None:
    assert gpu.caught_by_values(BROKEN, tmp_path, Failing("HANG")) == "HANG"
    assert gpu.caught_by_values(BROKEN, tmp_path, Failing("")) == "unwritten"


@pytest.fixture
def sanitizer(tmp_path: Path) -> Path:
    """A program that speaks as compute-sanitizer does: what $SAYS_<tool> holds."""
    path = tmp_path / "compute-sanitizer"
    path.write_text('#!/bin/sh\neval "echo \\"========= \\$SAYS_$2\\""\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck", ""])
def test_the_first_tool_that_finds_something_is_named(
    tool: str, sanitizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("memcheck", "racecheck", "initcheck", "synccheck"):
        found = 2 if name in (tool, "synccheck") and tool else 0
        monkeypatch.setitem(os.environ, f"SAYS_{name}", f"ERROR SUMMARY: {found} errors")
    assert gpu.caught_by_sanitizer(BROKEN.name, str(sanitizer)) == tool


def test_a_tool_that_checked_nothing_has_not_missed_it(sanitizer: Path) -> None:
    with pytest.raises(ToolchainError, match="memcheck: ended without a summary"):
        gpu.caught_by_sanitizer(BROKEN.name, str(sanitizer))


def test_a_mutant_that_nothing_catches_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = matrix.FILE.read_text(encoding="utf-8")
    monkeypatch.setattr(matrix, "examine_all", lambda: dict.fromkeys((m.name for m in MUTANTS), Seen()))
    monkeypatch.setattr(matrix, "pinned_tools", lambda: None)
    assert matrix.main([]) == 1
    assert f"nothing catches {BROKEN.name}, " in capsys.readouterr().err
    assert matrix.FILE.read_text(encoding="utf-8") == page


def test_a_stale_page_fails_the_check_and_is_written_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen = {m.name: Seen(hazards=("race",) * m.wrong, figures="x") for m in MUTANTS}
    monkeypatch.setattr(matrix, "examine_all", lambda: seen)
    monkeypatch.setattr(matrix, "pinned_tools", lambda: None)
    monkeypatch.setattr(matrix, "FILE", tmp_path / "kill-matrix.md")
    assert matrix.main(["--check"]) == 1
    assert (
        "kill-matrix.md is out of date; `python -m tests.mutants.matrix` updates it"
        in capsys.readouterr().err
    )
    assert not matrix.FILE.exists()
    assert matrix.main([]) == 0
    assert matrix.main(["--check"]) == 0


# The patterns of barriers that docs/results/synccheck.md compares with a GPU


@pytest.mark.compile
@pytest.mark.parametrize("name", synccheck.PATTERNS)
def test_a_pattern_of_barriers(name: str) -> None:
    assert synccheck.checks(name).partition(":")[0] == synccheck.PATTERNS[name].verdict


@pytest.mark.compile
def test_the_page_says_what_is_told() -> None:
    assert synccheck.PAGE.read_text(encoding="utf-8") == synccheck.render(synccheck.load())

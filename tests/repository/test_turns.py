"""Tests that the test command takes in turns: none is in no part."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, VARIABLE, its_turn, part, pytest_report_header, touched
from tests.ladder import PROJECT

TESTS = [("mutants", name) for name in "abcdefg"] + [("outputs", name) for name in "xxyyz"]
TESTS += [("mutants", name) for name in "abcdefg"]  # the second test of each
WHOLE = [(file, "") for file in ("one", "one", "two", "three", "four")]


def test_each_is_in_one_part_with_what_is_about_the_same() -> None:
    parts = [its_turn(TESTS + WHOLE, number, 3) for number in range(3)]
    assert [sum(each) for each in zip(*parts, strict=True)] == [1] * len(TESTS + WHOLE)
    taken = {test for test, here in zip(TESTS + WHOLE, parts[0], strict=True) if here}
    whole = {("one", ""), ("four", "")}
    assert taken == {("mutants", name) for name in "adg"} | {("outputs", "x")} | whole
    assert all(its_turn(TESTS, *part("1/1")))


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("tests/test_mutants.py", "tests/mutants/order.toml"),
        ("tests/test_mutants.py", "kernels/s01_naive.cu"),
        ("tests/ptxsan/test_halves.py", "tests/ptxsan/halves.toml"),
        ("tests/test_instructions.py", "harness/ptxsan/isa/integer.py"),
        ("tests/ptxsan/test_warps.py", "harness/ptxsan/machine/flow.py"),
        ("tests/gemm_regression/run/test_gate.py", "harness/gemm_regression/run/timed.py"),
        ("tests/repository/test_docs.py", "docs/commands.md"),
    ],
)
def test_all_of_a_file_run_where_the_commit_touched_what_it_tests(file: str, changed: str) -> None:
    assert touched(ROOT / file, ["LICENSE", changed])
    assert touched(ROOT / file, [file])
    assert not touched(ROOT / file, ["", "tests/mutants.py", "harness/lab/lines.py", "other/docs/a.md"])


@pytest.mark.parametrize("given", ["", "2", "0/3", "4/3", "1/0", "a/b", "1/3/2"])
def test_a_malformed_part_is_refused(given: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"{VARIABLE}={given}: must be one part of several"):
        part(given)


def test_a_run_says_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert pytest_report_header() == []
    monkeypatch.setenv(VARIABLE, "2/3")
    assert pytest_report_header() == [f"part 2/3 of the tests, taken in turns ({VARIABLE})"]


def test_a_run_says_what_is_wrong_with_its_part_in_one_line() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", __file__]
    environment = {**os.environ, VARIABLE: "3"}
    done = subprocess.run(command, cwd=PROJECT.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.strip() == f"ERROR: {VARIABLE}=3: must be one part of several, such as 2/3"

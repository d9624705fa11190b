"""The commands of the lab, which are no part of the installed program."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gemm_regression import __main__ as suite
from lab import benchmark
from lab.__main__ import COMMANDS, main
from tests.ladder import PROJECT


@pytest.mark.parametrize("name", COMMANDS)
def test_each_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name not in suite.COMMANDS
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_what_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name:<9} " in said for name in COMMANDS)
    assert main(["grow"]) == 2
    assert "error: no command 'grow'; there are: advice, " in capsys.readouterr().err
    assert main([]) == 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("advice", "as for Hopper", "as for Blackwell"),
        ("claims", "| HOLDS |", "| CONTRADICTED |"),
        ("classes", "| yes |", "| no |"),
    ],
)
def test_a_page_that_was_edited_is_told(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{name}.md"
    words = [name, "--project", str(PROJECT.root), "--markdown", str(file)]
    assert main([*words, "--check"]) == 1
    assert main(words) == main([*words, "--check"]) == 0
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    capsys.readouterr()
    assert main([*words, "--check"]) == 1
    assert "is out of date" in capsys.readouterr().err


@pytest.mark.compile
def test_a_rate_without_and_with_counters(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    assert benchmark.main(["naive-f32-block32x32-33x18x5", "--rounds", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("naive-f32-block32x32-33x18x5, sm_90a, one core of ")
    assert [line.split(":")[0] for line in said[2:]] == ["all checks on", "and counters"]
    assert all(re.search(r": \d+\.\d million lane-instructions per second", line) for line in said[2:])
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("case", ["nothing", "cublas-f32-4x4x4"])
def test_a_mistake_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([case]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: benchmark: ")

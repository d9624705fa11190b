"""The commands of the lab, which are no part of the installed program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_regression import __main__ as suite
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

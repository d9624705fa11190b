"""The commands of the lab, which are no part of the installed program."""

from __future__ import annotations

import pytest

from gemm_regression import __main__ as suite
from lab.__main__ import COMMANDS, main


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

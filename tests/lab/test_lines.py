"""How much code there is: what counts as a line, and that growth is red."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import lines

SOURCE = '''"""A module.

Of two paragraphs.
"""

import os  # one


def f(  # two
    x: int,
) -> str:
    """A docstring."""
    # A comment.

    return """a text
of two lines"""
'''
LIMITS = """[tool.lines]
ptxsan = { code = 1, modules = 1, longest = 2 }
gemm_regression = { code = 2, modules = 1, longest = 2 }
lab = { code = 1, modules = 1, longest = 2 }
tests = { code = 1, modules = 1, longest = 2 }
later = { modules = 1 }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in lines.PARTS.values():
        (tmp_path / folder / "build").mkdir(parents=True)
        (tmp_path / folder / "build" / "copy.py").write_text(SOURCE)
        (tmp_path / folder / "one.py").write_text("import os\n")
    (tmp_path / "pyproject.toml").write_text(LIMITS)
    return tmp_path


def test_comments_docstrings_and_blank_lines_are_no_code() -> None:
    assert lines.code_lines(SOURCE) == 6


def test_what_is_within_its_limits_is_green(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines.main([], root) == 0
    table = capsys.readouterr().out
    assert "gemm_regression  lines of code 1 of 2, modules 1 of 1, longest module 1 of 2 (one.py)" in table


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("one.py", "import os\nimport sys\n", "lab: lines of code 2 of 1"),
        (
            "one.py",
            "import os\nimport re\nimport sys\n",
            "lab: longest module 3 of 2 (one.py)",
        ),
        ("two.py", "", "lab: modules 2 of 1"),
    ],
)
def test_what_has_grown_is_red(
    root: Path, file: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "harness" / "lab" / file).write_text(text)
    assert lines.main([], root) == 1
    assert f"error: {said}: " in capsys.readouterr().err

"""What a shell completes: commands, their options, and names of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = "import sys; sys.argv = ['gemm-regression']; from gemm_regression.__main__ import run; run()"


def completed(line: str, folder: Path) -> list[str]:
    """The words that argcomplete's function for bash would get, on descriptor 8."""
    environment = {
        **os.environ,
        **{"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": " "},
        "PYTHONPATH": str(ROOT / "harness"),
    }
    command = ["bash", "-c", f'"$0" -c "{RUN}" 8>&1 9>/dev/null', sys.executable]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("gemm-regression comp", ["compare"]),
        ("gemm-regression check --kern", ["--kernel"]),
        ("gemm-regression gpu --kernel dou", ["double_buffered"]),
        ("gemm-regression static --config tile16", ["tile16-pad0", "tile16-pad1"]),
        ("gemm-regression profile naive-f32-block16", ["naive-f32-block16x16-1024x1024x1024"]),
        ("gemm-regression baseline pr", ["prune"]),
        ("gemm-regression compare --mar", ["--markdown", "--margin"]),
        ("gemm-regression baseline --acc", ["--accept-slower"]),
        (
            "gemm-regression baseline --accept-slower naive-f32-block16",
            ["naive-f32-block16x16-1024x1024x1024"],
        ),
        ("gemm-regression bis", ["bisect"]),
        ("gemm-regression bisect naive-f32-block16", ["naive-f32-block16x16-1024x1024x1024"]),
    ],
)
def test_commands_options_and_names(line: str, words: list[str]) -> None:
    assert completed(line, Path(__file__).parents[1] / "sample") == words


def test_without_a_project_options_are_completed(tmp_path: Path) -> None:
    assert completed("gemm-regression check --kern", tmp_path) == ["--kernel"]
    assert completed("gemm-regression check --kernel na", tmp_path) == []

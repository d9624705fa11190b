"""A worker of pytest-xdist that is killed costs its test; the run ends, red, and all other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, pytest

@pytest.mark.parametrize("i", [pytest.param(i, marks=pytest.mark.xdist_group(str(i // 3))) for i in range(9)])
def test_x(i):
    if i in (1, 7, 8):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_worker_is_a_red_test_and_no_endless_run(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "harness.commands.plugin_workers",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "-q", "-n", "2", "--dist", "loadgroup", "-rf", "."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout
    assert "3 failed, 6 passed" in done.stdout
    for i in (1, 7, 8):
        assert f"crashed while running 'test_x.py::test_x[{i}]'" in done.stdout

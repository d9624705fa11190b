"""A worker of pytest-xdist that is killed costs its test; the run ends, red, and all other tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = """
import os, signal, pytest

@pytest.mark.parametrize("i", range(9))
def test_x(i):
    if i in (1, 7, 8):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest on TESTS, with the suite's part for workers alone."""
    (folder / "test_x.py").write_text(TESTS)
    plugins = ["-p", "gemm_regression.pytest_plugin.workers", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", *options, "."],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "harness"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_killed_worker_is_a_red_test_and_no_endless_run(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "--dist", "worksteal", "-rf")
    assert done.returncode == 1, done.stdout
    assert "3 failed, 6 passed" in done.stdout
    for i in (1, 7, 8):
        assert f"crashed while running 'test_x.py::test_x[{i}]'" in done.stdout


@pytest.mark.parametrize(
    "refused",
    [
        ("-m", "typo", "--strict-markers", "Unknown marker(s) in '-m' expression: typo"),
        ("-k", "(x", "-q", "Wrong expression passed to '-k': (x"),
    ],
)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_a_worker_refuses_ends_the_run_with_that_line(
    refused: tuple[str, str, str, str], workers: str, tmp_path: Path
) -> None:
    *options, said = refused
    done = run(tmp_path, "-n", workers, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert f"ERROR: {said}" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).strip().splitlines()) <= 5

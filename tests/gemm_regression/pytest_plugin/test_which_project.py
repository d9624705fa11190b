"""Which project a run of pytest is of: that of the tests that it was asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "sample"


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """A project in a folder of another project; only the outer one has a table of pytest's own."""
    for folder, more in ((tmp_path, "\n[tool.pytest.ini_options]\n"), (tmp_path / "team" / "inner", "")):
        shutil.copytree(SAMPLE, folder, dirs_exist_ok=True)
        (folder / "pyproject.toml").write_text((SAMPLE / "pyproject.toml").read_text() + more)
        (folder / "tests").mkdir()
        (folder / "tests" / "test_here.py").write_text(
            "def test_here(request):\n"
            "    from gemm_regression.pytest_plugin.session import open_session\n"
            "    print('project:', open_session(request.config).project.root)\n"
        )
    return tmp_path


def _said(at: Path, *words: str) -> str:
    entry = ("-p", "gemm_regression.pytest_plugin.entry")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "no:cacheprovider",
        *entry,
        "--device=emulated",
        *words,
    ]
    ran = subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=120)
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("at", "words", "project"),
    [
        ("team/inner", ("tests",), "team/inner"),
        ("team/inner", (), "team/inner"),
        ("team/inner/tests", (), "team/inner"),
        (".", ("team/inner/tests/test_here.py::test_here",), "team/inner"),
        (".", ("tests",), "."),
        ("team/inner", ("--rootdir", "../..", "tests"), "."),
        ("team/inner", ("--project", "../..", "tests"), "."),
    ],
)
def test_the_project_of_the_tests_is_tested(
    nested: Path, at: str, words: tuple[str, ...], project: str
) -> None:
    assert f"project: {(nested / project).resolve()}\n" in _said(nested / at, *words)


def test_tests_of_two_projects_are_refused(nested: Path) -> None:
    said = _said(nested, "tests", "team/inner/tests", "--import-mode=importlib")
    assert f"tests of more than one project, {nested} and {nested / 'team' / 'inner'}" in said
    assert "project:" not in said.replace("more than one project:", "")

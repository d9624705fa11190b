"""The commands: what nox runs, seen by a python on PATH that only writes down how it was called."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHECKED = ["tests/test_kernels.py", "tests/test_static.py"]


def nox(*args: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", *args]
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True)


@pytest.fixture
def calls(tmp_path: Path) -> Any:
    """Runs a session in a copy of the checkout's root files; gives its exit code and python's arguments."""
    for name in ("noxfile.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    log = tmp_path / "calls"

    def run(session: str, *posargs: str, fail_at: int = 0) -> tuple[int, list[list[str]]]:
        stub = tmp_path / "bin" / "python"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(
            f"#!{sys.executable} -S\nimport json, sys\n"
            f"log = open({str(log)!r}, 'a+')\nprint(json.dumps(sys.argv[1:]), file=log, flush=True)\n"
            f"log.seek(0)\nsys.exit(len(log.readlines()) == {fail_at})\n"
        )
        stub.chmod(0o755)
        args = ("--no-venv", "--no-install", "-s", session, "--", *posargs)
        done = nox(*args, cwd=tmp_path, PATH=f"{stub.parent}:{os.environ['PATH']}")
        lines = log.read_text().splitlines() if log.exists() else []
        return done.returncode, [json.loads(line) for line in lines]

    return run


def listing() -> list[tuple[str, str, str]]:
    """(mark, session, description); the mark of a session that plain `nox` runs is a star."""
    return re.findall(r"^([*-]) (\w+) -> (.*)$", nox("--list").stdout, re.MULTILINE)


def test_plain_nox_needs_no_gpu() -> None:
    assert [name for mark, name, _ in listing() if mark == "*"] == ["lint", "typing", "tests", "check"]


def test_every_command_is_there_and_says_what_it_does() -> None:
    found = {name: description for _, name, description in listing()}
    assert set(found) == {
        "lint",
        "typing",
        "tests",
        "check",
        "judge",
        "static",
        "gpu",
        "compare",
        "study",
        "baseline",
        "sanitize",
        "profile",
    }
    assert all(len(description.split()) > 3 for description in found.values())


def test_gpu_is_red_when_its_command_is(calls: Any) -> None:
    assert calls("gpu", fail_at=1)[0] == 1


def test_tests_leave_the_gpu_out(calls: Any) -> None:
    ((*command, one, other),) = calls("tests")[1]
    assert command == ["-m", "pytest", "-n", "auto", "-m", "not gpu"]
    assert {one, other} == {f"--ignore={file}" for file in CHECKED}


@pytest.mark.parametrize(
    ("said", "command"),
    [("GPU 0: NVIDIA H200", "gpu"), ("No devices found", "check"), (None, "check")],
    ids=["gpu", "driver without a gpu", "no driver"],
)
def test_judge_takes_the_gpu_where_there_is_one(
    calls: Any, tmp_path: Path, said: str | None, command: str
) -> None:
    if said is not None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho '{said}'\n")
        tool.chmod(0o755)
    assert calls("judge", "-k", "naive") == (0, [["-m", "harness", command, "-k", "naive"]])


@pytest.mark.parametrize("session", ["check", "gpu", "baseline", "static", "sanitize", "profile", "study"])
def test_commands_take_the_selection(session: str, calls: Any) -> None:
    program = ["harness.study"] if session == "study" else ["harness", session]
    assert calls(session, "-k", "naive")[1] == [["-m", *program, "-k", "naive"]]


def test_compare_takes_the_commit_and_the_selection(calls: Any) -> None:
    assert calls("compare", "main", "-k", "naive")[1] == [["-m", "harness", "compare", "main", "-k", "naive"]]

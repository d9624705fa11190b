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
SPREAD = ["-n", "auto", "--dist", "loadgroup"]


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


def test_gpu_asks_for_the_gpu_and_passes_the_selection_on(calls: Any) -> None:
    code, [args] = calls("gpu", "-k", "tiled and not 4096", "--junitxml=out.xml")
    assert code == 0
    assert args[:2] == ["-m", "pytest"]
    assert args[args.index("--device") + 1] == "cuda"
    assert args[-3:] == ["-k", "tiled and not 4096", "--junitxml=out.xml"]


def test_gpu_is_red_when_pytest_is(calls: Any) -> None:
    assert calls("gpu", fail_at=1)[0] == 1


def test_tests_leave_the_gpu_out(calls: Any) -> None:
    ((*command, one, other),) = calls("tests")[1]
    assert command == ["-m", "pytest", "-n", "auto", "-m", "not gpu"]
    assert {one, other} == {f"--ignore={file}" for file in CHECKED}


def test_check_emulates_and_keeps_the_cases_of_a_variant_together(calls: Any) -> None:
    ((*command,),) = calls("check", "-k", "naive")[1]
    assert command[2:] == [*CHECKED, "--device", "emulated", *SPREAD, "-k", "naive"]


def test_check_leaves_the_number_of_processes_to_its_user(calls: Any) -> None:
    ((*command,),) = calls("check", "-n", "0")[1]
    assert command[2:] == [*CHECKED, "--device", "emulated", "-n", "0"]


@pytest.mark.parametrize(
    ("said", "device"),
    [("GPU 0: NVIDIA H200", "cuda"), ("No devices found", "emulated"), (None, "emulated")],
    ids=["gpu", "driver without a gpu", "no driver"],
)
def test_judge_takes_the_gpu_where_there_is_one(
    calls: Any, tmp_path: Path, said: str | None, device: str
) -> None:
    if said is not None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho '{said}'\n")
        tool.chmod(0o755)
    code, ((*command,),) = calls("judge", "-k", "naive")
    assert code == 0
    assert command[command.index("--device") + 1] == device
    assert command[-2:] == ["-k", "naive"]


def test_baseline_is_a_check_five_runs_and_a_merge(calls: Any) -> None:
    code, made = calls("baseline", "-k", "naive")
    assert code == 0
    check, *runs, merge = made
    assert {"tests/test_kernels.py", "tests/test_performance.py", "--verify-timed"} < set(check)
    assert "--baseline-run" not in check
    assert check[-2:] == ["-k", "naive"]
    assert not any("tests/test_kernels.py" in run or "--verify-timed" in run for run in runs)
    written = [arg.split("=")[1] for run in runs for arg in run if arg.startswith("--benchmark-json=")]
    assert len(written) == len(set(written)) == 5
    assert all("--baseline-run" in run and run[-2:] == ["-k", "naive"] for run in runs)
    assert merge == ["-m", "harness", "baseline", "merge", *written, "--yes"]


@pytest.mark.parametrize("step", [1, 2, 4])
def test_baseline_stops_at_the_first_red_run(step: int, calls: Any) -> None:
    """Nothing is merged from a set with a wrong or a throttled run."""
    code, made = calls("baseline", fail_at=step)
    assert code == 1
    assert len(made) == step


def test_baseline_merges_no_run_of_an_earlier_refresh(calls: Any, tmp_path: Path) -> None:
    old = tmp_path / ".benchmarks" / "baseline" / "run_1.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    calls("baseline")
    assert not old.exists()


@pytest.mark.parametrize("session", ["static", "sanitize", "profile", "study"])
def test_tools_take_the_selection(session: str, calls: Any) -> None:
    program = ["harness.study"] if session == "study" else ["harness", session]
    assert calls(session, "-k", "naive")[1] == [["-m", *program, "-k", "naive"]]


def test_compare_takes_the_commit_and_the_selection(calls: Any) -> None:
    assert calls("compare", "main", "-k", "naive")[1] == [["-m", "harness", "compare", "main", "-k", "naive"]]

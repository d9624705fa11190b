"""What a machine lacks is a line that says what to do; what it has is a line, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gemm_regression.baselines import append
from gemm_regression.cli import doctor
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from tests.unit import synthetic

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_machine_that_has_all_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--project", str(ROOT)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} >= {
        "python",
        "packages",
        "nvcc",
        "g++",
        "cache",
        "project",
        "git",
    }
    assert not [line for line in lines if line.startswith("fail")]


def test_a_missing_compiler_fails_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> tools.Nvcc:
        raise ToolchainError("no nvcc found: set CUDA_HOME")

    monkeypatch.setattr(tools, "find_nvcc", missing)
    assert doctor.main(["--project", str(ROOT)]) == 1
    assert "fail nvcc          no nvcc found: set CUDA_HOME" in capsys.readouterr().out


def test_it_needs_nothing_but_python() -> None:
    command = [sys.executable, "-S", "-m", "gemm_regression", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not installed; run this through nox, or pip install" in done.stdout
    assert done.stderr == ""


def test_a_folder_that_is_no_project_and_a_shallow_clone(tmp_path: Path) -> None:
    assert doctor.project(tmp_path).state == "fail"
    assert doctor.history(tmp_path).do == "commits cannot be compared: git init"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(tmp_path / "shallow")], check=True
    )
    assert "git fetch --unshallow" in doctor.history(tmp_path / "shallow").do
    assert doctor.history(ROOT).what == "git"


def test_a_repository_in_which_branches_that_measure_conflict(tmp_path: Path) -> None:
    assert list(doctor.merging(tmp_path)) == []  # no repository, which another line says
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (line,) = doctor.merging(tmp_path)
    assert line.state == "note"
    (tmp_path / ".gitattributes").write_text(line.do.partition(": ")[2])
    assert list(doctor.merging(tmp_path)) == []
    assert list(doctor.merging(ROOT)) == []


def test_a_reader_that_has_enough_sees_no_traceback() -> None:
    command = [sys.executable, "-m", "gemm_regression", "doctor"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 1


def test_baselines_are_read_and_binaries_that_are_missing_counted(tmp_path: Path) -> None:
    assert doctor.baselines(tmp_path).do == "nothing timed can be judged: nox -s baseline"
    one, library = synthetic.case("tiled"), synthetic.case("cublas")
    file = append(tmp_path, synthetic.baseline(synthetic.entry(library, cubin=None)), {})
    assert doctor.baselines(tmp_path).state == "ok"
    append(tmp_path, synthetic.baseline(synthetic.entry(one)), {})
    assert doctor.baselines(tmp_path).found == "test-gpu-1000: 2 cases; 1 without their binary"
    file.write_text("{")
    assert (doctor.baselines(tmp_path).state, "truncated" in doctor.baselines(tmp_path).found) == (
        "fail",
        True,
    )


def test_settings_of_the_repository_are_asked_of_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path,
        "gh",
        'case "$*" in "auth status") ;; "repo view"*) echo me/kernels ;; *"environments/gpu "*) exit 1 ;;\n'
        "*workflow*) echo false ;; *fork-pr*) echo true ;; *nvidia-h200*) echo true ;; *) echo false ;; esac",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    lines = list(doctor.repository(ROOT, ["nvidia-h200", "nvidia-l4"]))
    found = {line.what: line for line in lines}
    assert (found["pull requests"].state, found["pull requests"].found) == ("note", "not set")
    assert (found["environment"].found, found["environment"].state) == ("cannot be read", "note")
    assert (found["branches"].found, found["branches"].state) == ("not set", "note")
    assert found["approvals"].state == "ok"
    assert [(line.state, line.do) for line in lines if line.what == "runner"] == [
        ("ok", ""),
        ("note", "Settings, Actions, Runners: one with the labels gpu and nvidia-l4"),
    ]


def test_settings_that_nobody_may_ask_for_are_where_they_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "gh", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (line,) = doctor.repository(ROOT)
    assert (line.found, line.do.split()[0]) == ("gh is not signed in", "CONTRIBUTING.md")
    listed = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for what, *_ in doctor.SETTINGS:
        assert f"**{what}**" in listed.lower()


def test_headers_are_found_where_the_session_that_builds_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda.h").touch()
    monkeypatch.setenv("CPATH", f"/nowhere:{tmp_path}")
    assert (doctor.headers().state, doctor.headers().found) == ("ok", str(tmp_path))


def test_counters_that_only_root_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "ncu", "")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert doctor.counters(lambda: "RmProfilingAdminOnly: 1\n").do.startswith(
        "load the driver with NVreg_Restrict"
    )
    assert doctor.counters(lambda: "RmProfilingAdminOnly: 0\n").state == "ok"


def test_clocks_below_the_highest_are_noted() -> None:
    assert doctor.clocks(1200, 1980, 700.0).state == "note"
    assert doctor.clocks(1980, 1980, 700.0).state == "ok"

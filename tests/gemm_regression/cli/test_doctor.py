"""What a machine lacks is a line that says what to do; what it has is a line, too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gemm_regression.baselines import append
from gemm_regression.cli import doctor
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from tests.gemm_regression import synthetic
from tests.ladder import PROJECT


def test_a_machine_that_has_all_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--project", str(PROJECT.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} >= {"python", "nvcc", "g++", "cache", "project", "git", "gpu"}
    assert not [line for line in lines if line.startswith("fail")]


def test_what_is_missing_fails_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> tools.Nvcc:
        raise ToolchainError("no nvcc found: set CUDA_HOME")

    monkeypatch.setattr(tools, "find_nvcc", missing)
    assert doctor.main(["--project", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "fail nvcc          not found; no nvcc found: set CUDA_HOME" in said
    assert "fail project       none; no project: " in said


def test_of_commits_git_may_have_none_or_few(tmp_path: Path) -> None:
    assert doctor.history(tmp_path).do == "commits cannot be compared: git init"
    clone = ["git", "clone", "-q", "--depth", "1", f"file://{PROJECT.root}", str(tmp_path / "shallow")]
    subprocess.run(clone, check=True)
    assert "git fetch --unshallow" in doctor.history(tmp_path / "shallow").do


def test_baselines_are_read_and_binaries_that_are_missing_counted(tmp_path: Path) -> None:
    assert doctor.baselines(tmp_path).do == "nothing timed can be judged: nox -s baseline"
    one, library = synthetic.case("tiled"), synthetic.case("cublas")
    file = append(tmp_path, synthetic.baseline(synthetic.entry(library, cubin=None)), {})
    assert doctor.baselines(tmp_path).do == ""
    append(tmp_path, synthetic.baseline(synthetic.entry(one)), {})
    assert doctor.baselines(tmp_path).found == "test-gpu-1000: 2 cases; 1 without their binary"
    file.write_text("{")
    assert doctor.baselines(tmp_path).fails
    assert "truncated" in doctor.baselines(tmp_path).do


def test_counters_that_only_root_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu = tmp_path / "ncu"
    ncu.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in doctor.counters(lambda: "RmProfilingAdminOnly: 1\n").do
    assert str(doctor.counters(lambda: "RmProfilingAdminOnly: 0\n")).startswith("ok   ncu")


def test_clocks_below_the_highest_are_noted() -> None:
    assert str(doctor.clocks(1200, 1980, 700.0)).startswith("note")
    assert str(doctor.clocks(1980, 1980, 700.0)).startswith("ok")

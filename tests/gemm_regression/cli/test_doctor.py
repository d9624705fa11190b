"""What a machine lacks is a line that says what to do; what it has is a line, too. Progress: lines with what,
how many and the time left; nothing where it is not wanted."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression.baselines import append
from gemm_regression.cli import doctor
from gemm_regression.cli import progress as module
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression import synthetic
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import CASES, OURS, Printed, Rig
from tests.ladder import PROJECT


def test_a_machine_that_has_all_is_told_so(printed: Printed) -> None:
    assert doctor.main(["--project", str(PROJECT.root)]) == 0
    lines = printed.out.splitlines()
    assert {line.split()[1] for line in lines} >= {"python", "nvcc", "g++", "cache", "project", "git", "gpu"}
    assert not [line for line in lines if line.startswith("fail")]


def test_what_is_missing_fails_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    missing = Mock(side_effect=ToolchainError("no nvcc found: set CUDA_HOME"))
    monkeypatch.setattr(tools, "find_nvcc", missing)
    assert doctor.main(["--project", str(tmp_path)]) == 1
    said = printed.out
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


# Progress


def test_a_line_says_what_and_how_many(printed: Printed) -> None:
    with progress("sanitize", 2) as step:
        step("memcheck")
        step("racecheck")
    said = r"sanitize: 2 of 2: racecheck, \d+ s\n"
    assert re.fullmatch(said, printed.error)  # of quick steps the last alone


def test_of_many_steps_lines_are_few(printed: Printed) -> None:
    with progress("check", 1000) as step:
        for number in range(1000):
            step(str(number))
    assert printed.err == ""  # over before the first is due


class Slow(ReplayDevice):
    """Compiles, and takes a while for the first case, which then fails."""

    def prepare(self, cases: Any, step: Any = None) -> dict[str, str]:
        for case in cases:
            step(case.variant)
        return {}

    def time(self, case: Any, plan: Any) -> Measurement:
        if case.id == CASES[0]:
            time.sleep(1.2)
            raise DeviceError("CRASHED", f"{case.id}: an illegal address")
        return super().time(case, plan)


def test_a_run_of_cases_shows_lines_in_place_of_dots(empty_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.1)
    shown = ("-o", "console_output_style=classic", "--progress", "gpu")
    text = empty_rig.run(*OURS, *shown, "--allow-no-baseline", device=Slow(), outputs=False).text
    count = len(CASES) + 2  # and that there are no orphans, and the machine
    assert re.search(rf"gpu: \d+ of {count}: 1 failed, ", text)
    assert ("gpu: NVIDIA H200" in text, "compiling" in text) == (True, False)
    assert not re.search(r"^tests/\S+ [.FE]", text, re.MULTILINE)
    assert "1 failed" in text.splitlines()[-1]
    assert not re.search("gpu: . of|compile: ", empty_rig.run(*OURS, *shown, "-q", outputs=False).text)


def test_quiet_shows_nothing(printed: Printed) -> None:
    with progress("sanitize", 2, quiet(["-k", "tiled", "-q"])) as step:
        step("memcheck")
    assert printed.both() == ("", "")
    assert not quiet(["-k", "q"])

"""Progress: lines with what, how many and the time left; nothing where it is not wanted."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from gemm_regression.cli import progress as module
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.devices import DeviceError
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import CASES, OURS, Rig


def test_a_line_says_what_and_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sanitize", 2) as step:
        step("memcheck")
        step("racecheck")
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"sanitize: 2 of 2: racecheck, \d+ s\n", err)  # of quick steps the last alone


def test_of_many_steps_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("check", 1000) as step:
        for number in range(1000):
            step(str(number))
    assert capsys.readouterr().err == ""  # over before the first is due


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


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("run"))


def test_a_run_of_cases_shows_lines_in_place_of_dots(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.1)
    shown = ("-o", "console_output_style=classic", "--progress", "gpu")
    text = rig.run(*OURS, *shown, "--allow-no-baseline", device=Slow(), outputs=False).text
    count = len(CASES) + 2  # and that there are no orphans, and the machine
    assert re.search(rf"gpu: \d+ of {count}: 1 failed, ", text)
    assert "gpu: NVIDIA H200" in text
    assert "compiling" not in text
    assert not re.search(r"^tests/\S+ [.FE]", text, re.MULTILINE)
    assert "1 failed" in text.splitlines()[-1]
    assert not re.search("gpu: . of|compile: ", rig.run(*OURS, *shown, "-q", outputs=False).text)


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("sanitize", 2, quiet(["-k", "tiled", "-q"])) as step:
        step("memcheck")
    assert capsys.readouterr() == ("", "")
    assert not quiet(["-k", "q"])

"""The benchmark of the emulated device says what ran, where, and how fast."""

from __future__ import annotations

import os
import re

import pytest

from lab import benchmark


@pytest.mark.compile
def test_a_rate_without_and_with_counters(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    assert benchmark.main(["naive-f32-block32x32-33x18x5", "--rounds", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("naive-f32-block32x32-33x18x5, sm_90a, one core of ")
    assert [line.split(":")[0] for line in said[2:]] == ["all checks on", "and counters"]
    assert all(re.search(r": \d+\.\d million lane-instructions per second", line) for line in said[2:])
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("case", ["nothing", "cublas-f32-4x4x4"])
def test_a_mistake_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([case]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: benchmark: ")

"""Runs without a GPU: the table of what was checked, and which device a run gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.compiler import tools
from harness.compiler.errors import ToolchainError
from harness.reports.check import check_rows, check_table
from harness.reports.markdown import job_summary
from tests.ladder import LADDER
from tests.unit.rig import KERNELS_FILE, SUITE_FILE, Rig

NAIVE, TILED = "naive-f32-block32x32", "tiled-f32-tile32-pad0"
SMALL = ("--kernel", "naive", "--shape=33x17x9")


def report(variant: str, failed: bool = False, **said: object) -> Any:
    properties = [("variant", variant), *said.items()]
    return SimpleNamespace(user_properties=properties, failed=failed, skipped=False)


REPORTS = [
    report(TILED, problem="1x1x1", findings=""),
    report(TILED, True, problem="3x5x7", findings="race race exact"),
    report(TILED, True, arch="sm_80", registers=40, occupancy="50.0% (registers)", change="BAR 2 -> 1"),
    report(TILED, arch="sm_90a", registers=32, occupancy="100.0% (threads)", change=""),
    report(NAIVE, problem="1x1x1", findings=""),
    SimpleNamespace(user_properties=[], failed=True, skipped=False),
]


def test_a_row_gathers_what_the_tests_of_a_variant_recorded() -> None:
    naive, tiled = check_rows(REPORTS, "sm_90a", LADDER)
    assert naive.cells()[:5] == ("naive", "f32", "block32x32", "1/1", "0")
    assert tiled.cells() == (
        *("! tiled", "f32", "tile32-pad0", "1/2", "2", "", "", "32", "100.0% (threads)"),
        *("sm_80", "race 2, exact 1"),
    )


def test_columns_that_nothing_fills_are_left_out() -> None:
    text = check_table(check_rows(REPORTS, "sm_90a"), color=False)
    assert "sectors/request" not in text
    assert text.splitlines()[0].split() == [
        *("stage", "dtype", "config", "right", "races", "registers", "occupancy", "changed", "found")
    ]


@pytest.mark.parametrize(("status", "colour"), [(0, "Green"), (1, "Red")])
def test_a_check_alone_is_a_summary_too(status: int, colour: str) -> None:
    text = job_summary([], [], status, checked=check_rows(REPORTS, "sm_90a"))
    assert text.startswith(f"## {colour}: 2 variants checked without a GPU")
    assert "| ! tiled | f32 | tile32-pad0 | 1/2 | 2 |" in text


@pytest.mark.compile
def test_without_a_gpu_kernels_are_emulated_and_nothing_is_timed(rig: Rig) -> None:
    outcome = rig.run(*SMALL, KERNELS_FILE, SUITE_FILE, device="the driver is asleep")
    assert outcome.status == 0, outcome.text
    assert outcome.passed == {"test_kernel[naive-f32-block32x32-33x17x9]"}
    assert set(outcome.skipped.values()) == {"no GPU: the driver is asleep"}
    assert "gpu: none (the driver is asleep); sm_90a is emulated" in outcome.text
    assert "kernels without a GPU, sm_90a" in outcome.text


@pytest.mark.compile
def test_another_architecture_is_emulated_where_it_is_asked_for(rig: Rig) -> None:
    outcome = rig.run(*SMALL, KERNELS_FILE, "--device=emulated", "--arch=sm_80", "-k", "test_kernel")
    assert outcome.status == 0, outcome.text
    assert outcome.opened == 0
    assert "kernels without a GPU, sm_80" in outcome.text


def test_emulating_without_a_compiler_is_refused_in_one_line(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolchainError("no nvcc in PATH")

    monkeypatch.setattr(tools, "find_nvcc", missing)
    outcome = rig.run(*SMALL, KERNELS_FILE, "--device=emulated", outputs=False)
    assert outcome.status == 4
    assert outcome.errors == ["--device emulated: no nvcc in PATH"]


@pytest.mark.parametrize("device", ["auto", "emulated"])
def test_a_library_call_is_not_emulated(rig: Rig, device: str) -> None:
    outcome = rig.run("--kernel=cublas", f"--device={device}", KERNELS_FILE, device="asleep", outputs=False)
    assert outcome.status == 4
    (error,) = outcome.errors
    assert "cublas is a library call, which has no PTX to execute" in error

"""What pytest-benchmark lets pass in silence, or tells that it should not, through the whole suite."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression.cli import stored as evidence_command
from gemm_regression.devices import DeviceError
from gemm_regression.model import Case
from gemm_regression.timing.plan import Measurement
from gemm_regression.timing.samples import PairedSamples
from tests.gemm_regression.judge.replay import ReplayDevice, slowed
from tests.gemm_regression.rig import (
    CASES,
    KERNELS_FILE,
    LIBRARY,
    OTHER,
    OURS,
    RECORDED,
    REPOSITORY,
    SLOW,
    Rig,
    named,
)
from tests.gemm_regression.samples import find_case

SLOWED, UNTOUCHED = RECORDED[SLOW], RECORDED[OTHER]


# Nothing to compare with


@pytest.mark.parametrize("option", ["--benchmark-compare", "--benchmark-compare=0001"])
def test_comparing_without_a_baseline_is_refused(empty_rig: Rig, option: str) -> None:
    error = empty_rig.run(*OURS, option).refusal
    assert error.startswith(f"{option}: ")
    assert "baselines/nvidia-h200" in error


@pytest.mark.parametrize(
    ("option", "device", "said"),
    [
        ("=0009", None, "no such file, and .*baselines/nvidia-h200/figures.jsonl has measurements 1 to 1"),
        ("", "it is asleep", r"nothing can be compared without a GPU.* \(it is asleep\)"),
    ],
)
def test_comparing_with_what_is_not_there_is_refused(
    rig: Rig, option: str, device: str | None, said: str
) -> None:
    option = f"--benchmark-compare{option}"
    assert re.fullmatch(f"{option}: {said}", rig.run(*OURS, option, device=device).refusal)


# Timing switched off


def test_timing_switched_off_is_red(rig: Rig) -> None:
    outcome = rig.run(*OURS, "--benchmark-disable")
    assert outcome.red == named(*CASES)
    assert all("timing is disabled" in message for message in outcome.failures.values())


def test_workers_of_xdist_time_nothing_and_are_red(rig: Rig) -> None:
    device = """
        from tests.gemm_regression.judge.replay import ReplayDevice

        pytest_plugins = ["gemm_regression.pytest_plugin.plugin"]

        def pytest_gemm_device(config):
            return ReplayDevice()
    """
    (rig.root / "conftest.py").write_text("\n".join(line[8:] for line in device.splitlines()))
    outcome = rig.run(*OURS, "-n", "2")
    assert outcome.red == named(*CASES)
    assert all("timing is disabled (by pytest-xdist's -n" in message for message in outcome.failures.values())


# --benchmark-compare-fail


def _check_of(field: str, percent: int) -> str:
    return f"--benchmark-compare-fail={field}:{percent}%"


@pytest.mark.parametrize("compare", [(), ("--benchmark-compare",)], ids=["alone", "with --benchmark-compare"])
@pytest.mark.parametrize("edited", [True, False])
def test_compare_fail_is_a_failure_of_each_case(rig: Rig, compare: tuple[str, ...], edited: bool) -> None:
    options = (*compare, _check_of("median", 1), "--margin=2%", "--allow-drift")
    outcome = rig.run(*OURS, *options, device=ReplayDevice(3, slowed(1.016, SLOW, edited)))
    assert outcome.red == named(*SLOWED)
    assert all("more than 1 % slower" in message for message in outcome.failures.values())
    assert not re.search("PerformanceRegression|INTERNALERROR|Traceback", outcome.text)
    assert rig.run(*OURS, *options, device=ReplayDevice(3, slowed(1.005, SLOW, edited))).status == 0


def test_compare_fail_does_not_widen_the_margin(rig: Rig) -> None:
    outcome = rig.run(*OURS, _check_of("median", 50), device=ReplayDevice(3, slowed(1.016, SLOW)))
    assert outcome.red == named(*SLOWED)


def test_compare_fail_looks_at_the_field_it_names(rig: Rig) -> None:
    def outlier(case: Case, m: Measurement, attempt: int) -> Measurement:
        if case.id != SLOWED[0]:
            return m
        return dataclasses.replace(m, seconds=(*m.seconds[1:], 2 * max(m.seconds)))

    assert rig.run(*OURS, device=ReplayDevice(2, outlier)).status == 0
    outcome = rig.run(*OURS, _check_of("max", 50), device=ReplayDevice(2, outlier))
    assert outcome.red == named(SLOWED[0])
    assert ": max " in outcome.failures[named(SLOWED[0]).pop()]


def test_compare_fail_in_seconds(rig: Rig) -> None:
    medians = {case: _recorded(3, case).median for case in SLOWED}
    longest = max(medians, key=medians.__getitem__)
    limit = 0.05 * medians[longest]
    assert all(0.08 * medians[case] < limit for case in SLOWED if case != longest)
    options = f"--benchmark-compare-fail=median:{limit:.9f}", "--allow-drift"
    outcome = rig.run(*OURS, *options, device=ReplayDevice(3, slowed(1.08, SLOW, edited=False)))
    assert outcome.red == named(longest)


def _recorded(run: int, case: str) -> Measurement:
    return ReplayDevice(run).time(find_case(case, (9, 0)), None)


# Saving


def _saved(rig: Rig) -> list[Path]:
    return sorted((rig.root / ".benchmarks").rglob("*.json"))


SAVING = pytest.mark.parametrize("option", ["--benchmark-autosave", "--benchmark-save=mine"])


@SAVING
def test_run_with_a_failure_is_not_saved(rig: Rig, option: str) -> None:
    outcome = rig.run(*OURS, option, device=ReplayDevice(3, slowed(1.03, SLOW)))
    assert (outcome.status, _saved(rig)) == (1, [])
    assert "not saved: a run with failures must not become the baseline of the next one" in outcome.text


@SAVING
def test_green_run_is_saved_under_the_name_of_the_gpu(rig: Rig, option: str) -> None:
    stored = sorted(rig.baselines.iterdir())
    outcome = rig.run(*OURS, option)
    assert outcome.green
    (saved,) = _saved(rig)
    assert saved.parent == rig.root / ".benchmarks" / "nvidia-h200"
    assert "not saved" not in outcome.text
    assert sorted(rig.baselines.iterdir()) == stored
    assert _leaks(saved.read_text(), rig) == []


# A case that did not come to its end


class _Breaks(ReplayDevice):
    """Raises in one case in its ``start``th process, timed alone or, where it has changed, in its pair."""

    def __init__(self, code: str, changed: bool, start: int = 1) -> None:
        super().__init__(3, slowed(1.03, SLOWED[0]) if changed else None)
        self.code, self.breaks_in = code, start

    def time(self, case: Case, plan: Any) -> Measurement:
        self._break(case)
        return super().time(case, plan)

    def pair(self, base: Any, case: Any, plan: Any) -> PairedSamples:
        if isinstance(case, Case):
            self._break(case)
        return super().pair(base, case, plan)

    def _break(self, case: Case) -> None:
        if case.id == SLOWED[0] and self.restarts == self.breaks_in:
            raise DeviceError(self.code, f"{case.id}: that is what the device said")


@pytest.mark.parametrize(
    ("mode", "changed"), [((), False), ((), True), (("--baseline-run",), False)], ids=str
)
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("WRONG", ["WRONG", "OUTPUT"]),
        ("HANG", ["CRASHED", "HANG"]),
        ("WORKER_DIED", ["CRASHED", "WORKER_DIED"]),
        ("ILLEGAL_ADDRESS", ["CRASHED", "ILLEGAL_ADDRESS"]),
    ],
)
def test_case_that_broke_is_red_without_samples(
    rig: Rig, code: str, shown: list[str], mode: tuple[str, ...], changed: bool
) -> None:
    outcome = rig.run(*OURS, *mode, device=_Breaks(code, changed))
    assert outcome.red == named(SLOWED[0])
    (message,) = outcome.failures.values()
    assert message.startswith(f"Failed: {shown[0]}: {SLOWED[0]}: ")
    assert "that is what the device said" in message
    assert outcome.passed == named(*CASES) - named(SLOWED[0]) | {"test_no_orphans", "test_machine"}
    assert (set(outcome.timed), outcome.row(SLOWED[0])[-2:]) == (set(CASES) - {SLOWED[0]}, shown)
    assert evidence_command.evidence([str(rig.root / "out.json")]) == 0


def test_case_that_breaks_in_the_second_process_stays_red(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=_Breaks("ILLEGAL_ADDRESS", changed=True, start=2))
    assert outcome.red == named(SLOWED[0])
    assert outcome.row(SLOWED[0])[-2:] == ["REGRESSED", "SLOWER"]


def test_device_that_dies_at_the_end_loses_no_samples(rig: Rig) -> None:
    device: Any = ReplayDevice()
    device.facts = Mock(side_effect=DeviceError("WORKER_DIED", "gone"))
    outcome = rig.run(*OURS, device=device)
    assert outcome.green
    assert outcome.timed.keys() == set(CASES)
    assert outcome.json["machine_info"]["name"] == "NVIDIA H200"


def test_device_that_cannot_even_compile_ends_the_run_in_one_line(rig: Rig) -> None:
    device: Any = ReplayDevice()
    device.prepare = Mock(side_effect=DeviceError("WORKER_DIED", "prepare: it died (exit code 1)"))
    said = "the GPU cannot be used: WORKER_DIED: prepare: it died (exit code 1)"
    assert rig.run(*OURS, device=device, outputs=False).refusal == said


# What a file tells about the machine


def _leaks(text: str, rig: Rig) -> list[str]:
    """Host, user and folders of this machine that stand in a text."""
    secrets = [platform.node(), getpass.getuser(), str(REPOSITORY), str(rig.root), str(Path.home())]
    return [s for s in secrets if s and re.search(rf"(?<![\w-]){re.escape(s)}(?![\w-])", text)]


def test_json_names_the_gpu_and_never_the_host(rig: Rig, recorded_baseline: Path) -> None:
    outcome = rig.run(*OURS, "--kernel", LIBRARY)
    assert _leaks(json.dumps(outcome.json), rig) == []
    assert outcome.json["machine_info"]["name"] == "NVIDIA H200"
    assert "cpu" not in outcome.json["machine_info"]
    figures = recorded_baseline / "nvidia-h200" / "figures.jsonl"
    assert _leaks(figures.read_text(), rig) == []


def test_commit_of_a_tree_without_git(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_SHA", raising=False)
    for given, known in (("f" * 40, "f" * 40), ("", "unknown")):
        monkeypatch.setenv("GEMM_COMMIT", given)
        commit = {"id": known, "dirty": not given, "time": None}
        assert rig.run(*OURS).json["commit_info"] == commit


def test_samples_are_the_device_s_own(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=ReplayDevice(1))
    for case in CASES:
        seconds = _recorded(1, case).seconds
        assert outcome.timed[case]["stats"]["data"] == pytest.approx(seconds, rel=1e-12, abs=0)


def test_without_pytest_xdist_and_with_junit_xml_there_is_nothing_to_warn_of(rig: Rig) -> None:
    outcome = rig.run(KERNELS_FILE, "--kernel=naive", "--shape=3x5x7", "-p", "no:xdist", device="no driver")
    assert outcome.green
    assert "warnings" not in outcome.text
    assert outcome.junit["test_kernel[naive-f32-block32x32-3x5x7]"].find("properties") is not None


# A worker of pytest-xdist that is killed costs its test; the run ends, red, and all other tests run.

TESTS = """
import os, signal, pytest

@pytest.mark.parametrize("i", range(9))
def test_x(i):
    if i in (1, 7, 8):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def pytest_on_tests(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest on TESTS, with the suite's part for workers alone."""
    (folder / "test_x.py").write_text(TESTS)
    plugins = ["-p", "gemm_regression.pytest_plugin.workers", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-q", *options, "."],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(REPOSITORY / "harness"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_killed_worker_is_a_red_test_and_no_endless_run(tmp_path: Path) -> None:
    done = pytest_on_tests(tmp_path, "-n", "2", "--dist", "worksteal", "-rf")
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
    done = pytest_on_tests(tmp_path, "-n", workers, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert f"ERROR: {said}" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).strip().splitlines()) <= 5

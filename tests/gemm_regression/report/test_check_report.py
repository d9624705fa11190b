"""Runs without a GPU: the table of what was checked, and which device a run gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.cli import init
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.model import Case, Config, Constraints, Finding, Problem
from gemm_regression.pytest_plugin import session
from gemm_regression.report.runs import check_rows, checks, counts_text, job_summary, notes_lines
from gemm_regression.report.wording import checked_text
from gemm_regression.run.ahead import Ahead
from gemm_regression.run.checked import check
from tests.gemm_regression import synthetic
from tests.gemm_regression.cli.repo import harness as harness_in
from tests.gemm_regression.fakes import NumpyDevice
from tests.gemm_regression.rig import KERNELS_FILE, SUITE_FILE, Rig
from tests.gemm_regression.samples import KERNELS as LADDER

NAIVE, TILED = "naive-f32-block32x32", "tiled-f32-tile32-pad0"
SMALL = ("--kernel", "naive", "--shape=33x17x9")


def report(variant: str, failed: bool = False, **said: object) -> Any:
    properties = [("variant", variant), *said.items()]
    return SimpleNamespace(user_properties=properties, failed=failed, skipped=False, when="call")


REPORTS = [
    report(TILED, problem="1x1x1", findings="", verdict="PASS CORRECT"),
    report(TILED, True, problem="3x5x7", findings="race race exact", verdict="WRONG OUTPUT"),
    report(TILED, True, arch="sm_80", registers=40, occupancy="50.0% (registers)", change="BAR 2 -> 1"),
    report(TILED, arch="sm_90a", registers=32, occupancy="100.0% (threads)", change=""),
    report(NAIVE, problem="1x1x1", findings="", verdict="PASS CORRECT"),
    SimpleNamespace(user_properties=[], failed=True, skipped=False, when="call"),
]


def test_a_row_gathers_what_the_tests_of_a_variant_recorded() -> None:
    naive, tiled = check_rows(REPORTS, "sm_90a", LADDER)
    assert naive.cells[:5] == ("naive", "f32", "block32x32", "1/1", "0")
    assert tiled.cells == (
        *("! tiled", "f32", "tile32-pad0", "1/2", "2", "", "", "32", "100.0% (threads)"),
        *("sm_80", "race 2, exact 1", "WRONG"),
    )
    assert naive.verdict == "PASS"


def test_a_variant_whose_metrics_are_not_those_stored_has_not_passed() -> None:
    """It is red, though correct."""
    right = [report(TILED, problem="1x1x1", findings="", verdict="PASS CORRECT")]
    for change, verdict in (("", "PASS"), ("no metrics are stored", "METRICS")):
        (row,) = check_rows([*right, report(TILED, bool(change), arch="sm_90a", change=change)], "sm_90a")
        assert (row.verdict, row.cells[0]) == (verdict, "! tiled" if change else "tiled")


def test_a_variant_of_which_the_run_ended_before_some_has_not_passed() -> None:
    left = [f"tests/test_kernels.py::test_kernel[{NAIVE}-{n}x1x1]" for n in range(2, 5)]
    left += [f"tests/test_static.py::test_compiler_metrics[{name}-sm_90a]" for name in (NAIVE, TILED)]
    naive, tiled = rows = check_rows(REPORTS, "sm_90a", LADDER, left)
    assert (naive.cells[-1], naive.verdict) == ("1 of 4, interrupted", "interrupted")
    assert (tiled.cells[-1], tiled.verdict) == ("2 of 2, interrupted, WRONG", "WRONG")
    assert counts_text(rows) == "2 variants checked without a GPU: 1 interrupted, 1 WRONG"


@pytest.mark.compile
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_that_is_interrupted_says_how_far_it_was(
    processes: str, keep_library: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, after five tests."""
    keep_library(tmp_path / "cache")
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "cache"))
    assert init.main(["--project", str(tmp_path)]) == 0
    (tmp_path / "tests" / "conftest.py").write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it\n"
        "ran = []\n"
        "def pytest_runtest_logreport(report):\n"
        "    if report.when == 'call' and ('PYTEST_XDIST_WORKER' not in os.environ):\n"
        "        ran.append(report)\n"
        "        if len(ran) == 5:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = harness_in(tmp_path, "check", "-n", processes, "-k", "tile16")
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert re.search(r" [3-9] of 2\d, interrupted$", done.stdout, re.MULTILINE), done.stdout
    assert "1 variant checked without a GPU: 1 interrupted" in done.stdout
    assert "PASS" not in done.stdout


def test_a_test_that_killed_its_worker_makes_its_variant_red() -> None:
    nodes = f"tests/test_kernels.py::test_kernel[{NAIVE}-3x5x7]", "tests/test_x.py::test_y[1]"
    told: dict[str, Any] = {"user_properties": [], "failed": True, "skipped": False, "when": "???"}
    killed, elsewhere = (SimpleNamespace(**told, nodeid=node) for node in nodes)
    (naive,) = check_rows([REPORTS[4], killed, elsewhere], "sm_90a", LADDER)
    assert (naive.cells[:4], naive.verdict) == (("! naive", "f32", "block32x32", "1/2"), "CRASHED")


def test_what_was_not_emulated_is_counted_and_neither_right_nor_red() -> None:
    skipped = report(NAIVE, problem="3x5x7", verdict="NOT_EMULATED UNSUPPORTED")
    skipped.skipped = True
    (naive,) = check_rows([REPORTS[4], skipped], "sm_90a", LADDER)
    assert (naive.cells[:4], naive.verdict) == (("naive", "f32", "block32x32", "1/1"), "NOT_EMULATED")
    rows = check_rows([*REPORTS, skipped], "sm_90a", LADDER)
    assert counts_text(rows) == "2 variants checked without a GPU: 1 NOT_EMULATED, 1 WRONG"


class Told(NumpyDevice):
    """A device that fails, or tells of a violation, or notes something twice."""

    def __init__(self, error: str = "", violation: str = "", note: Finding | None = None) -> None:
        super().__init__()
        self.error, self.violation, self.note = error, violation, note

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        if self.error:
            raise DeviceError(self.error, f"{case.variant}: line 7: no wgmma.fence")
        violations = (Finding(self.violation, "at line 7"),) if self.violation else ()
        notes = (self.note, self.note) if self.note else ()
        return replace(super().run(case, inputs), violations=violations, notes=notes)


SMALL_CASE = synthetic.case("naive", problem=Problem(3, 5, 7))


@pytest.mark.parametrize(
    ("device", "features", "outcome"),
    [
        (Told(error="UNSUPPORTED"), ("wgmma",), "NOT_EMULATED UNSUPPORTED"),
        (Told(error="UNSUPPORTED"), (), "CRASHED UNSUPPORTED"),
        (Told(error="HANG"), ("wgmma",), "CRASHED HANG"),
        # What an interpreter meets on its way is excused where nothing else is wrong.
        (Told(violation="unsupported"), ("tma",), "NOT_EMULATED UNSUPPORTED"),
        (Told(violation="unsupported"), (), "WRONG OUTPUT"),
        (Told(violation="race"), ("tma",), "WRONG OUTPUT"),
    ],
)
def test_only_a_declared_feature_excuses_what_the_interpreter_lacks(
    device: Told, features: tuple[str, ...], outcome: str
) -> None:
    checked = check(device, replace(SMALL_CASE, kernel=replace(SMALL_CASE.kernel, features=features)))
    assert str(checked.outcome) == outcome
    text = checked_text(checked)
    assert text.startswith(outcome.partition(" ")[0] + ": ")
    assert ("line 7: no wgmma.fence" if device.error else "at line 7") in text
    assert ("features=(" in text) == (outcome == "CRASHED UNSUPPORTED")


NOTE = Finding("barrier", "… at naive.cu:7 (PTX line 9)", "naive.cu", 7, "thread 1", "waits elsewhere")


def test_a_note_is_kept_once_and_is_no_failure() -> None:
    checked = check(Told(note=NOTE), SMALL_CASE)
    assert (str(checked.outcome), checked.notes) == ("PASS CORRECT", (NOTE,))


def test_notes_pass_and_are_shown_and_strict_notes_fail(
    empty_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which device is opened is up to the option; what it says of the kernel is the same."""

    def opened(arch: str, strict: bool, time_limit: float) -> NumpyDevice:
        return Told(violation="barrier") if strict else Told(note=NOTE)

    monkeypatch.setattr(session, "open_emulated", opened)
    only = (*SMALL, KERNELS_FILE, "--device=emulated", "-k", "test_kernel")
    lenient = empty_rig.run(*only)
    assert lenient.status == 0, lenient.text
    assert "1 note, no errors without --strict-notes:" in lenient.text
    assert (
        "naive: barrier at kernels/naive.cu:7: thread 1 waits elsewhere (variants: 1, problems: 1)"
        in lenient.text
    )
    terse = empty_rig.run(*only, "-q")
    assert "1 variant checked without a GPU: 1 PASS" in terse.text
    assert "block" not in terse.text.split("kernels without a GPU")[1].split("1 variant")[0]
    red = empty_rig.run(*only, "-q", "--strict-notes")
    assert "! naive" in red.text
    strict = empty_rig.run(*only, "--strict-notes")
    assert strict.status == 1, strict.text
    assert "1 variant checked without a GPU: 1 WRONG" in strict.text


def test_notes_are_gathered_by_kernel_check_and_line() -> None:
    where = ("k.cu", 7)
    threads = ((f"PTX {n}", *where, f"thread {n}", "waits elsewhere") for n in (5, 6))
    one, two = (Finding("barrier", *told).to_json() for told in threads)
    other = Finding("printf", "prints 'x'").to_json()
    notes = ((TILED, "1x1x1", one), (TILED, "3x5x7", one), ("tiled-f32-tile16-pad0", "3x5x7", two))
    reports = [report(of, problem=p, verdict="PASS CORRECT", note=note) for of, p, note in notes]
    reports[1].user_properties.append(("note", other))
    reports.append(REPORTS[4])
    rows = check_rows(reports, "sm_90a", LADDER)
    assert {row.verdict for row in rows} == {"PASS"}
    assert notes_lines(rows) == [
        "2 notes, no errors without --strict-notes:",
        "tiled: barrier at k.cu:7: thread 5 waits elsewhere (variants: 2, problems: 3)",
        "tiled: printf: prints 'x' (variants: 1, problems: 1)",
    ]
    assert notes_lines(check_rows(REPORTS, "sm_90a")) == []


def test_a_problem_that_is_not_taken_is_refused_and_a_wrong_result_is_wrong() -> None:
    case = SMALL_CASE
    taken = replace(case, kernel=replace(case.kernel, constraints=Constraints(multiples={"m": 8})))
    refused = check(NumpyDevice(), taken)
    assert str(refused.outcome) == "REFUSED NOT_TAKEN"
    assert checked_text(refused) == f"REFUSED: {case.id}: NOT_TAKEN: m 3 is not a multiple of 8"
    assert str(check(NumpyDevice(), case).outcome) == "PASS CORRECT"

    def zero(c: Any, inputs: Inputs, problem: Problem) -> None:
        c[:] = 0

    wrong = check(NumpyDevice(finish=zero), case)
    assert str(wrong.outcome) == "WRONG OUTPUT"
    first, *lines = checked_text(wrong).splitlines()
    assert first == f"WRONG: {case.id}"
    assert len(lines) == len(wrong.findings) > 0


def test_columns_that_nothing_fills_are_left_out() -> None:
    text = checks(check_rows(REPORTS, "sm_90a")).text()
    assert "sectors/request" not in text
    heads = "stage dtype config correct races registers occupancy changed found verdict"
    assert text.splitlines()[0].split() == heads.split()


@pytest.mark.parametrize(("status", "colour"), [(0, "Green"), (1, "Red")])
def test_a_check_alone_is_a_summary_too(status: int, colour: str) -> None:
    text = job_summary([], [], status, checked=check_rows(REPORTS, "sm_90a"))
    assert text.startswith(f"## {colour}: 2 variants checked without a GPU")
    assert "| ! tiled | f32 | tile32-pad0 | 1/2 | 2 |" in text


@pytest.mark.compile
@pytest.mark.parametrize(
    ("words", "arch", "why"),
    [((), "sm_90a", "asleep"), (("--device=emulated", "--arch=sm_80"), "sm_80", "--device emulated")],
)
def test_without_a_gpu_kernels_are_emulated_and_nothing_is_timed(
    empty_rig: Rig, words: tuple[str, ...], arch: str, why: str
) -> None:
    outcome = empty_rig.run(*SMALL, KERNELS_FILE, SUITE_FILE, *words, device=why)
    assert outcome.status == 0, outcome.text
    assert outcome.passed == {"test_kernel[naive-f32-block32x32-33x17x9]"}
    assert set(outcome.skipped.values()) == {f"no GPU: {why}"}
    assert f"gpu: none ({why}); {arch} is emulated" in outcome.text
    assert f"kernels without a GPU, {arch}" in outcome.text
    assert not (words and outcome.opened)  # what is not asked for


def test_emulating_without_a_compiler_is_refused_in_one_line(
    empty_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolchainError("no nvcc in PATH")

    monkeypatch.setattr(tools, "find_nvcc", missing)
    outcome = empty_rig.run(*SMALL, KERNELS_FILE, "--device=emulated", outputs=False)
    assert (outcome.status, outcome.errors) == (4, ["--device emulated: no nvcc in PATH"])


@pytest.mark.parametrize("device", ["auto", "emulated"])
def test_a_library_call_is_not_emulated(empty_rig: Rig, device: str) -> None:
    outcome = empty_rig.run(
        "--kernel=cublas", f"--device={device}", KERNELS_FILE, device="asleep", outputs=False
    )
    assert outcome.status == 4
    (error,) = outcome.errors
    assert "cublas has no PTX to execute" in error


def test_a_variant_that_no_launch_can_run_here_is_named_with_the_reason() -> None:
    """It has no test; its kernel's other variants do."""
    of = next(kernel for kernel in LADDER if kernel.name == "tiled")
    large = replace(
        of, configs=(Config(TILE_SIZE=64, PADDING=0), Config(TILE_SIZE=32, PADDING=0)), advised=()
    )
    other = replace(large, name="later", min_capability=(12, 0))
    project: Any = SimpleNamespace(kernels=(large, other))
    said = session.Session(project, Ahead(project), "sm_90a").illegal()
    assert said == "tiled-f32-tile64-pad0: 4096 threads per block (64×64), at most 1024 allowed"
    several: Any = SimpleNamespace(kernels=(large, replace(large, name="again")))
    assert (
        session.Session(several, Ahead(several), "sm_90a")
        .illegal()
        .endswith("; 1 other variant, see --list-cases")
    )
    whole: Any = SimpleNamespace(kernels=(other,))
    assert not session.Session(whole, Ahead(whole), "sm_90a").illegal()
    assert not session.Session(project, Ahead(project), "sm_90a").illegal(["later"])

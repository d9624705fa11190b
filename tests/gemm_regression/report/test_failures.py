"""What failed: equal findings of a kernel once, on a page, at lines of sources, in SARIF; how many lines a
red run prints of one dropped barrier, one syntax error, a template's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sarif_kit.validate import validation_errors

from gemm_regression.cli import init
from gemm_regression.cli.common import SHOWN
from gemm_regression.compiler.tools import CompileError, excerpt
from gemm_regression.model import Finding
from gemm_regression.pytest_plugin.shown import _measured_together
from gemm_regression.report import failures as report
from gemm_regression.report.failures import Failure, github_annotations, of_error, page, sarif_of
from tests.gemm_regression.cli.repo import harness
from tests.gemm_regression.rig import OURS, Rig
from tests.gemm_regression.simulated import SimulatedDevice

RACE, OTHER_RACE, HEADER = (
    Finding("race", "thread 0 reads Bs+0 at t.cu:35 (PTX line 10)", "t.cu", 35, "thread 0", "reads Bs+0"),
    Finding("race", "thread 1 reads Bs+4 at t.cu:35 (PTX line 11)", "t.cu", 35, "thread 1", "reads Bs+4"),
    Finding("bounds", "thread 3 reads at v.cuh:40, included by t.cu", "../common/v.cuh", 40),
)
EXACT = Finding("exact", "C(0, 0) is 100 %\nwrong")
METRICS = Finding("compiler metrics", "BAR 2 -> 1")
LOG = """t.cu(21): warning #550-D: variable "As" was set but never used
      __shared__ float As[32];

t.cu(34): error: expected a ";"
          for (int k = 0; k < 32; ++k)
          ^
"""


def failure(variant: str, *findings: Finding, test: str = "test_kernel") -> Failure:
    return Failure(f"tests/test_kernels.py::{test}[{variant}-1x1x1]", variant, findings)


def test_a_finding_is_the_same_after_a_run_has_recorded_it() -> None:
    for finding in (RACE, EXACT):
        assert Finding.from_json(finding.to_json()) == finding
    assert (RACE.title, EXACT.title) == ("race at t.cu:35", "exact")


def test_findings_of_one_line_are_one_entry_and_the_first_is_shown_in_full() -> None:
    both = RACE, OTHER_RACE, EXACT
    found = [failure("tiled-f32-a", *both), failure("tiled-f32-b", *both), failure("wide-f32-a", RACE)]
    assert page(found) == [
        "tiled: race at t.cu:35   (2 tests, 2 variants)",
        f"  {RACE.message}",
        "tiled: exact   (2 tests, 2 variants)",
        "  C(0, 0) is 100 %",
        "  wrong",
        "wide: race at t.cu:35   (1 test, 1 variant)",
        f"  {RACE.message}",
    ]


def test_a_summary_has_a_line_per_test_function_kernel_and_first_finding() -> None:
    found = [failure(f"tiled-f32-{i}", RACE, EXACT) for i in range(5)]
    found.append(failure("tiled-f32-0", METRICS, test="test_compiler_metrics"))
    broken = of_error(LOG, "")
    found += [failure("w-f32-0", broken, test=test) for test in ("test_kernel", "test_compiler_metrics")]
    assert report.summary(found) == [
        "FAILED tests/test_kernels.py::test_kernel[w-f32-0-1x1x1] and 1 more - does not compile at t.cu:34",
        "FAILED tests/test_kernels.py::test_kernel[tiled-f32-0-1x1x1] and 4 more - race at t.cu:35",
        "FAILED tests/test_kernels.py::test_compiler_metrics[tiled-f32-0-1x1x1] - compiler metrics",
    ]


def test_a_syntax_error_is_the_same_whatever_the_options() -> None:
    one, other = (
        of_error(str(CompileError(f"t {name} does not compile (-DTILE={name})", LOG)), "") for name in "ab"
    )
    assert (one, one.file, one.line, one.problem) == (other, "t.cu", 34, 'expected a ";"')
    assert "warning" not in one.message
    assert of_error("t: nvcc has no such option", "x").check == "does not compile"
    assert of_error("an illegal memory access", "CRASHED ILLEGAL_ADDRESS").title == "CRASHED ILLEGAL_ADDRESS"


def test_a_long_log_is_cut_to_its_first_errors_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trace = "".join(f"            instantiation of f<{i}> at line {i}\n" for i in range(2000))
    message = "a.hpp({0}): error: no match {0}\n      copy(a, b);\n      ^\n          detected during:\n"
    log = "".join((message + trace).format(i) for i in range(7))
    said = excerpt(log).splitlines()
    assert len(said) <= 25
    errors = [line for line in said if "error" in line][:2]
    assert errors == [f"a.hpp({i}): error: no match {i}" for i in range(2)]
    (kept,) = tmp_path.iterdir()
    assert ["5 more errors" in said[-1], str(kept) in said[-1], kept.read_text() == log] == [True] * 3


def test_the_log_of_a_compiler_that_names_no_error_is_its_end(tmp_path: Path) -> None:
    assert (excerpt("Killed").strip(), excerpt("")) == ("Killed", "")
    assert "shared data" in excerpt("ptxas error   : Entry function 'f' uses too much shared data")


def test_a_place_is_a_path_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a terminal opens it; what is no file, such as an element of C, stays."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "common").mkdir()
    for name in ("kernels/t.cu", "common/v.cuh"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "kernels" / "t.cu"
    message = "reads C(0) at t.cu:35 and ../common/v.cuh(4): other.cu:7 (PTX line 10)"
    found = report.placed(Finding("race", message, "t.cu", 35), source)
    assert found.title == "race at kernels/t.cu:35"
    assert found.message == "reads C(0) at kernels/t.cu:35 and common/v.cuh(4): other.cu:7 (PTX line 10)"
    assert report.placed(HEADER, source).file == "common/v.cuh"
    assert report.placed(RACE, None) == RACE


def test_a_line_that_failed_is_annotated_in_its_file() -> None:
    found = [failure("tiled-f32-a", RACE, EXACT)]
    (line,) = github_annotations(found)
    assert line == f"::error file=t.cu,line=35::tiled: race at t.cu:35: {RACE.message}"
    (line,) = github_annotations([failure("tiled-f32-a", replace(RACE, file="odd, names:/t.cu"))])
    assert line.startswith("::error file=odd%2C names%3A/t.cu,line=35::tiled: race")
    first = "1 test, 1 variant, first tests/test_kernels.py::test_kernel[tiled-f32-a-1x1x1]"
    assert report.bullets(found)[1] == f"tiled: exact ({first}): C(0, 0) is 100 %"


def test_what_has_no_line_is_annotated_where_its_kernel_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "kernels" / "t.cu"
    source.parent.mkdir()
    source.write_text("// gemm\ntemplate <int T>\n__global__ void gemm_t(int M)\n{}\n")
    for entry, line in (("gemm_t", 3), ("a::gemm_t<64>", 3), ("gemm", 1), ("", 1)):
        assert report.entry_of(source, entry) == ("kernels/t.cu", line)
    assert report.entry_of(tmp_path / "none.cu", "f") == ("", 0)
    found = replace(failure("tiled-f32-a", EXACT, RACE), entry=("kernels/t.cu", 3))
    exact, race = github_annotations([found])
    assert exact.startswith("::error file=kernels/t.cu,line=3::tiled: exact: C(0, 0) is 100 %25")
    assert race.startswith("::error file=t.cu,line=35::")
    (run,) = sarif_of([found])["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert [place["region"]["startLine"] for place in places] == [3, 35]
    lacking = replace(found, findings=(report.NOT_STORED,))
    assert github_annotations([lacking]) == []


def test_what_failed_at_a_line_is_sarif() -> None:
    found = [failure("tiled-f32-b", RACE, HEADER), failure("tiled-f32-a", OTHER_RACE)]
    found += [failure("naive-f32-a", of_error(LOG, "")), failure("naive-f32-b", EXACT)]
    log = sarif_of(found)
    assert validation_errors(log) == []
    (run,) = log["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    named = [result["ruleId"] for result in run["results"]]
    at = [(place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in places]
    assert named == ["race", "bounds", "does-not-compile"]
    assert at == [("t.cu", 35), ("../common/v.cuh", 40), ("t.cu", 34)]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == named
    assert run["results"][0]["properties"] == {"kernel": "tiled", "variants": ["tiled-f32-a", "tiled-f32-b"]}
    assert run["results"][0]["message"]["text"] == f"tiled: race at t.cu:35: {RACE.message}"


def test_a_run_that_found_nothing_is_sarif_too() -> None:
    log = sarif_of([])
    assert validation_errors(log) == []
    assert log["runs"][0]["results"] == []
    assert validation_errors({**log, "version": "2.0"}) != []  # the schema does judge


@pytest.mark.parametrize(
    ("reasons", "what"),
    [
        (("NOT_IN_BASELINE", "NOT_IN_BASELINE"), "not in the baseline"),
        (("BINARY_NOT_KEPT", "NOT_IN_BASELINE"), "not in the baseline, or without their binary"),
    ],
)
def test_cases_that_the_baseline_lacks_have_one_remedy(reasons: tuple[str, ...], what: str) -> None:
    """Those that it has without a binary, too."""
    results: Any = [
        SimpleNamespace(case=SimpleNamespace(id=f"tiled-{n}"), verdict=SimpleNamespace(reason=reason))
        for n, reason in enumerate((*reasons, "SLOWER"))
    ]
    failures = [failure("tiled", report.NOT_STORED, test="test_performance") for _ in reasons]
    found = _measured_together(failures, results)
    command = 'nox -s baseline -- -k "[tiled-0] or [tiled-1]"'
    finding = Finding(f"NO_BASELINE: {command}", f"{what}: tiled-0 and 1 more")
    assert {f.findings[0] for f in found} == {finding}


# What a red run prints is a page


def edited(folder: Path, old: str, new: str, workers: int = 0, *, more: str = "") -> list[str]:
    """The lines of a check of a new project whose kernel was edited."""
    assert init.main(["--project", str(folder)]) == 0
    kernel = folder / "kernels" / "sgemm.cu"
    text = kernel.read_text()
    assert old in text
    kernel.write_text(text.replace(old, new))
    several = ("-n", str(workers), "--dist", "loadgroup" if workers else "no")
    done = harness(folder, "check", *several, "--time-limit", "300", *more.split())
    assert done.returncode == 1, done.stdout + done.stderr
    # Lines of progress are as many as the machine is slow.
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("check: ")]


@pytest.mark.compile
def test_a_dropped_barrier(tmp_path: Path) -> None:
    lines = edited(tmp_path, "__syncthreads();  // No thread reads them any more.", "", 2)
    assert len(lines) <= 40, "\n".join(lines)
    first = next(
        number for number, line in enumerate(lines) if line.startswith("sgemm: race at kernels/sgemm.cu:")
    )
    assert "which other threads read with no barrier between" in lines[first + 1]
    table = next(number for number, line in enumerate(lines) if "2 WRONG" in line)
    assert "race at kernels/sgemm.cu:" in next(line for line in lines[table:] if line.startswith("FAILED"))


@pytest.mark.compile
@pytest.mark.parametrize("more", ["", "-v"])
def test_rows_that_pass_are_left_out_beside_red_ones(tmp_path: Path, more: str) -> None:
    barrier = "__syncthreads();  // No thread reads them any more."
    lines = edited(tmp_path, barrier, f"if (TILE == 16) {barrier}", more=more)
    counted = "2 variants checked without a GPU: 1 PASS, 1 WRONG"
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith(counted))]
    rows = [line for line in table if line.startswith(("sgemm ", "! sgemm "))]
    assert [line.endswith("PASS") for line in rows] == ([True, False] if more else [False])
    assert lines[len(table)] == counted + ("" if more else "; -v shows those that pass, too")


@pytest.mark.compile
def test_a_syntax_error(tmp_path: Path) -> None:
    lines = edited(tmp_path, "Bs[TILE][TILE];", "Bs[TILE][TILE]")  # and more errors for what follows
    assert len(lines) <= 25, "\n".join(lines)
    assert any('kernels/sgemm.cu(12): error: expected a ";"' in line for line in lines)
    (failed,) = [line for line in lines if line.startswith("FAILED")]
    assert "2 variants checked without a GPU: 2 NOT_COMPILED" in lines
    assert failed.endswith("does not compile at kernels/sgemm.cu:12")


@pytest.mark.compile
def test_a_signature_that_is_not_the_declared_one(tmp_path: Path) -> None:
    lines = edited(tmp_path, "int ldc)", "int ldc, int more)")
    assert "2 variants checked without a GPU: 2 NOT_LAUNCHED" in lines
    assert any("the kernel takes" in line for line in lines), "\n".join(lines)
    assert not any("CRASHED" in line for line in lines)


def test_cases_without_a_baseline(tmp_path_factory: pytest.TempPathFactory) -> None:
    """52 of three problems are 72 lines: a row each, a heading a problem, and 17 more."""
    rig = Rig(tmp_path_factory.mktemp("run"))
    shapes = [f"{256 * m}x256x256" for m in range(1, 10)]
    options = [word for shape in shapes for word in ("--shape", shape)]
    outcome = rig.run(*OURS, *options, *SHOWN, "gpu", device=SimulatedDevice(), suite="full", outputs=False)
    rows = outcome.text.count(" NO_BASELINE\n")
    assert rows >= 52
    lines = [line for line in outcome.text.splitlines() if not line.startswith(("gpu: 0", "gpu: 1"))]
    assert len(lines) - rows - len(shapes) <= 17, outcome.text
    assert outcome.text.count("\nFAILED ") == 1

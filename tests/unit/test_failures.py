"""What failed, on a page: equal reasons once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sarif_kit.validate import validation_errors

from gemm_regression.compiler.tools import CompileError, excerpt
from gemm_regression.oracle import Finding
from gemm_regression.pytest_plugin.plugin_failures import _measured_together
from gemm_regression.report.failures import (
    NOT_STORED,
    Failure,
    Reason,
    bullets,
    github_annotations,
    of_error,
    of_finding,
    page,
    summary,
)
from gemm_regression.report.sarif import sarif

RACE = (
    "thread (0, 1, 0) reads shared memory Bs+{0}, which thread 0 wrote at t.cu:35 (PTX line 1{0}: ld) [1x1x1]"
)
LOG = """t.cu(21): warning #550-D: variable "As" was set but never used
      __shared__ float As[32];

t.cu(34): error: expected a ";"
          for (int k = 0; k < 32; ++k)
          ^
"""


def failure(test: str, variant: str, *reasons: Reason) -> Failure:
    return Failure(f"tests/test_kernels.py::{test}[{variant}-1x1x1]", variant, reasons)


def test_findings_of_one_line_are_one_entry_and_the_first_is_shown_in_full() -> None:
    races = [of_finding(Finding("race", RACE.format(i))) for i in range(10)]
    found = [failure("test_kernel", name, *races) for name in ("tiled-f32-a", "tiled-f32-b", "wide-f32-a")]
    lines = page(found)
    assert lines == [
        "tiled: race at t.cu:35   (2 tests, 2 variants)",
        f"  {RACE.format(0)}",
        "wide: race at t.cu:35   (1 test, 1 variant)",
        f"  {RACE.format(0)}",
    ]
    assert races[0].place == ("t.cu", 35)


def test_wrong_values_and_a_race_of_one_kernel_are_two_entries() -> None:
    both = (Reason("exact", "C(0, 0) is 1, expected 2"), Reason("race at t.cu:35", "x"))
    lines = page([failure("test_kernel", "tiled-f32-a", *both)])
    assert [line for line in lines if not line.startswith("  ")] == [
        "tiled: exact   (1 test, 1 variant)",
        "tiled: race at t.cu:35   (1 test, 1 variant)",
    ]


def test_a_summary_has_a_line_per_test_function_kernel_and_first_reason() -> None:
    race, metrics = Reason("race at t.cu:35", "x"), Reason("compiler metrics", "BAR 2 -> 1")
    found = [failure("test_kernel", f"tiled-f32-{i}", race) for i in range(5)]
    found.append(failure("test_compiler_metrics", "tiled-f32-0", metrics))
    assert summary(found) == [
        "FAILED tests/test_kernels.py::test_kernel[tiled-f32-0-1x1x1] and 4 more - race at t.cu:35",
        "FAILED tests/test_kernels.py::test_compiler_metrics[tiled-f32-0-1x1x1] - compiler metrics",
    ]


def test_a_syntax_error_is_the_same_reason_whatever_the_options() -> None:
    one, other = (
        of_error(str(CompileError(f"t {name} does not compile (-DTILE={name})", LOG))) for name in "ab"
    )
    assert one == other
    assert one.what == 'does not compile: t.cu:34: expected a ";"'
    assert one.place == ("t.cu", 34)
    assert "warning" not in one.details


def test_a_reason_survives_its_record() -> None:
    reason = Reason("race at t.cu:35", "two\nlines")
    assert Reason.parse(str(reason)) == reason


def test_a_long_log_is_cut_to_its_first_errors_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trace = "".join(f"            instantiation of f<{i}> at line {i}\n" for i in range(2000))
    message = (
        "a.hpp({0}): error: no match {0}\n      copy(a, b);\n      ^\n          detected during:\n" + trace
    )
    log = "".join(message.format(i) for i in range(7))
    said = excerpt(log).splitlines()
    assert len(said) <= 25
    assert [line for line in said if "error" in line][:2] == [
        f"a.hpp({i}): error: no match {i}" for i in range(2)
    ]
    (kept,) = tmp_path.iterdir()
    assert "5 more errors" in said[-1]
    assert str(kept) in said[-1]
    assert kept.read_text() == log


def test_the_log_of_a_compiler_that_names_no_error_is_its_end(tmp_path: Path) -> None:
    assert excerpt("Killed").strip() == "Killed"
    assert excerpt("") == ""
    assert "shared data" in excerpt("ptxas error   : Entry function 'f' uses too much shared data")


def test_a_line_that_failed_is_annotated_in_its_file() -> None:
    race, values = of_finding(Finding("race", RACE.format(1))), Reason("exact", "C(0, 0) is 100 %\nwrong")
    found = [failure("test_kernel", "tiled-f32-a", race, values)]
    (line,) = github_annotations(found, {"tiled": Path("kernels/t.cu")})
    assert line.startswith("::error file=kernels/t.cu,line=35::tiled: race at t.cu:35: thread (0, 1, 0)")
    assert github_annotations(found, {}) == []
    (line,) = github_annotations(found, {"tiled": Path("odd, names:/t.cu")})
    assert line.startswith("::error file=odd%2C names%3A/t.cu,line=35::tiled: race")
    assert validation_errors(sarif(found, {"tiled": Path("kernels/t.cu")})) == []
    assert bullets(found)[1] == (
        "tiled: exact (1 test, 1 variant, first tests/test_kernels.py::test_kernel[tiled-f32-a-1x1x1]): "
        "C(0, 0) is 100 %"
    )


def test_what_failed_at_a_line_is_sarif() -> None:
    race, compiler = of_finding(Finding("race", RACE.format(1))), of_error(LOG)
    header = Reason("bounds at t.cu:7", "thread 3 reads at t.cu:7 in ../common/v.cuh:40 (PTX line 1)")
    found = [
        failure("test_kernel", "tiled-f32-b", race, header),
        failure("test_kernel", "tiled-f32-a", race),
        failure("test_kernel", "naive-f32-a", compiler),
        failure("test_kernel", "naive-f32-b", Reason("exact", "no line")),
    ]
    log = sarif(found, {"tiled": Path("kernels/t.cu"), "naive": Path("n.cu")})
    assert validation_errors(log) == []
    (run,) = log["runs"]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert [
        (result["ruleId"], place["artifactLocation"]["uri"], place["region"]["startLine"])
        for result, place in zip(run["results"], places, strict=True)
    ] == [
        ("race", "kernels/t.cu", 35),
        ("bounds", "kernels/t.cu", 7),
        ("does-not-compile", "t.cu", 34),
    ]
    (related,) = run["results"][1]["relatedLocations"]
    assert related["physicalLocation"]["artifactLocation"]["uri"] == "common/v.cuh"
    assert related["physicalLocation"]["region"] == {"startLine": 40}
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert run["results"][0]["properties"] == {"kernel": "tiled", "variants": ["tiled-f32-a", "tiled-f32-b"]}
    assert run["results"][0]["message"]["text"].startswith("tiled: race at t.cu:35: thread (0, 1, 0)")


def test_a_run_that_found_nothing_is_sarif_too() -> None:
    log = sarif([], {})
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
    results = [
        SimpleNamespace(case=SimpleNamespace(id=f"tiled-{n}"), verdict=SimpleNamespace(reason=reason))
        for n, reason in enumerate((*reasons, "SLOWER"))
    ]
    session: Any = SimpleNamespace(results=results)
    failures = [failure("test_performance", "tiled", Reason(NOT_STORED)) for _ in reasons]
    found = _measured_together(failures, session)
    command = 'nox -s baseline -- -k "[tiled-0] or [tiled-1]"'
    assert {f.reasons[0] for f in found} == {Reason(f"NO_BASELINE: {command}", f"{what}: tiled-0 and 1 more")}

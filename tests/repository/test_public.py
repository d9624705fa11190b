"""Public kernels: what the records say, what a report amounts to, and a whole run on a made-up repository."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemm_regression.cli import init
from gemm_regression.compiler.tools import ToolchainError, pinned_tools
from tests.public.__main__ import REPORT, main
from tests.public.results import (
    FILE,
    Explained,
    Judged,
    Ran,
    Result,
    Source,
    judge,
    read_results,
    read_source,
    render,
)

RECORD = """
repository = "someone/sgemm"
revision = "0123456789ab"
date = "2020-01-01"
licence = "MIT"
declared = "Whole tiles."
"""
EXPLAINED = '\n[explained.{}]\nchecks = ["{}"]\nwhy = "{}"\n'
SOURCE = Source(repository="someone/sgemm", revision="0123", date="2020-01-01", licence="MIT")


def case(variant: str, body: str = "", problem: str = "8x8x8", **said: str) -> str:
    told = {"variant": variant, **({"problem": problem} if problem else {}), **said}
    properties = "".join(f'<property name="{name}" value="{value}" />' for name, value in told.items())
    return f'<testcase name="test_kernel[{variant}]"><properties>{properties}</properties>{body}</testcase>'


def read(*cases: str) -> list[Ran]:
    return read_results(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def results(*cases: str, **explained: Explained) -> list[Judged]:
    return list(judge(SOURCE.model_copy(update={"explained": explained}), read(*cases)))


WRONG = '<failure message="WRONG: a">WRONG: a-f32\nuninit: reads A(0, 8)\nexact: C(0, 0) is 1</failure>'
FAILED = case("a-f32", WRONG, verdict="WRONG WRONG", findings="uninit exact")
PASSED = case("a-f32", verdict="PASS CORRECT", findings="")


NOTES = "&#10;".join(
    (
        "barrier: two places at a.cu:3 (PTX line 7: bar.sync 0)",
        "barrier: again",
        "race: at PTX line 9: st [a]",
    )
)


def test_right_and_right_with_a_note() -> None:
    noted = case("b-f32", verdict="PASS CORRECT", notes=NOTES, findings="")
    assert results(PASSED, noted) == [
        Judged("a", Result.PASS),
        Judged("b", Result.NOTE, "barrier: two places at a.cu:3; race: at PTX line 9"),
    ]


def test_a_failure_without_an_explanation_is_shown_with_its_first_messages() -> None:
    (found,) = results(PASSED, FAILED)
    assert found == Judged("a", Result.UNEXPLAINED, "uninit: reads A(0, 8); exact: C(0, 0) is 1")
    assert found.failed


def test_an_explanation_covers_the_checks_that_it_names_and_no_others() -> None:
    (found,) = results(FAILED, a=Explained(checks=("exact", "uninit"), why="reads a column too many"))
    assert found == Judged("a", Result.EXPLAINED, "exact, uninit: reads a column too many")
    assert not found.failed
    assert (
        results(FAILED, a=Explained(checks=("exact", "race", "uninit"), why="reads on"))[0].result
        is Result.EXPLAINED
    )
    assert (
        results(FAILED, a=Explained(checks=("uninit", "race"), why="reads on"))[0].result
        is Result.UNEXPLAINED
    )


def test_an_explanation_of_what_passes_or_is_not_there_fails() -> None:
    known = Explained(checks=("exact",), why="wrong")
    found = results(PASSED, a=known, b=known)
    assert [(judged.kernel, judged.result) for judged in found] == [
        ("a", Result.OUTDATED),
        ("b", Result.OUTDATED),
    ]
    assert all(judged.failed for judged in found)


def test_an_unsupported_instruction_is_named_whether_it_was_declared_or_not() -> None:
    text = "a needs wgmma: a-f32: unknown instruction wgmma.fence.sync.aligned: PTX line 7"
    declared = case(
        "a-f32", f'<skipped message="NOT_EMULATED: {text}" />', verdict="NOT_EMULATED UNSUPPORTED"
    )
    crashed = case("b-f32", f"<failure>CRASHED: {text}</failure>", verdict="CRASHED UNSUPPORTED")
    counters = case("b-f32", f"<failure>CRASHED: b: UNSUPPORTED: {text}</failure>", problem="")
    assert results(declared, crashed, counters) == [
        Judged("a", Result.NOT_EMULATED, "wgmma.fence.sync.aligned"),
        Judged("b", Result.NOT_EMULATED, "wgmma.fence.sync.aligned"),
    ]


@pytest.mark.parametrize(
    ("said", "instruction"),
    [
        ("unknown instruction wgmma.fence.sync.aligned: PTX line 7", "wgmma.fence.sync.aligned"),
        ("unknown form of mma, mma.sync.m8n8k16 (only m16n8k*): PTX line 7", "mma.sync.m8n8k16"),
        (
            "PTX line 7: cannot read the operands of 'cp.async.bulk.tensor.2d [a], [b]'",
            "cp.async.bulk.tensor.2d",
        ),
        ("an atomic of 128 bits", "an atomic of 128 bits"),
    ],
)
def test_the_instruction_is_found_in_each_message(said: str, instruction: str) -> None:
    refused = case("a-f32", f"<failure>{said}</failure>", verdict="CRASHED UNSUPPORTED")
    assert results(refused) == [Judged("a", Result.NOT_EMULATED, instruction)]


def test_a_kernel_that_ran_no_problem_is_not_right() -> None:
    refused = case("a-f32", '<skipped message="REFUSED: m 3" />', verdict="REFUSED NOT_TAKEN")
    assert results(refused) == [Judged("a", Result.UNEXPLAINED, "no problem was run")]
    with pytest.raises(ValueError, match="the check ran no kernel"):
        read('<testcase name="other" />')


def test_a_failure_of_the_compiler_metrics_counts() -> None:
    (found,) = results(PASSED, case("a-f32", "<failure>does not compile</failure>", problem=""))
    assert found == Judged("a", Result.UNEXPLAINED, "does not compile")


def test_the_page_counts_by_repository_and_gives_the_reason_of_what_is_not_plainly_right() -> None:
    kernels = [Judged("a", Result.PASS), Judged("b", Result.EXPLAINED, "exact: |x| is lost")]
    page = render({"sgemm": (SOURCE, kernels)}, "command")
    origin = "[someone/sgemm](https://github.com/someone/sgemm) | 0123 (2020-01-01) | MIT"
    assert f"| {origin} | 2 | 1 |  | 1 |  |" in page
    assert "| all |  |  | 2 | 1 |  | 1 |  |" in page
    assert "| someone/sgemm | `b` | red, explained | exact: \\|x\\| is lost |" in page
    assert "UNEXPLAINED" not in page
    assert "| someone/sgemm | not run |" in page
    assert "- **someone/sgemm**: `a`, `b`." in page
    assert "UNEXPLAINED" in render({"sgemm": (SOURCE, [Judged("a", Result.UNEXPLAINED)])}, "command")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("revision = ", "source.toml: Invalid value"),
        (RECORD.replace('licence = "MIT"', ""), "source.toml: licence: Field required"),
        (RECORD + "\nlicense = 'MIT'", "source.toml: license: Extra inputs"),
        (RECORD + EXPLAINED.format("a", "exact", ""), "source.toml: explained.a.why: String should have"),
    ],
)
def test_a_record_that_is_not_understood_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_source(tmp_path)


CU = """
__global__ void right(int M, int N, int K, const float* A, const float* B, float* C) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}
__global__ void wrong(int M, int N, int K, const float* A, const float* B, float* C) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y;
    float sum = 0;
    for (int k = 1; k < K; k++) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}
"""
DECLARED = """
from gemm_regression.model import BlockShape, Kernel, Constraints

KERNELS = tuple(
    Kernel(name, "sgemm.cu", name, BlockShape((32, 1), (1, 32)), constraints=Constraints({"n": 32}),
           parameters="int M, int N, int K, const float* A, const float* B, float* C")
    for name in ("right", "wrong")
)
"""


@pytest.mark.compile
def test_a_made_up_repository_is_checked_and_its_fault_has_to_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        pinned_tools()
    except ToolchainError as error:
        pytest.skip(str(error))
    project, templates = tmp_path / "sgemm", Path(init.__file__).with_name("templates")
    (project / "tests").mkdir(parents=True)
    for name in ("test_kernels", "test_static"):
        shutil.copy(templates / f"{name}.template", project / "tests" / f"{name}.py")
    (project / "pyproject.toml").write_text('[tool.gemm-regression]\nkernels = "kernels.py"\n')
    (project / "sgemm.cu").write_text(CU)
    (project / "kernels.py").write_text(DECLARED)
    (project / FILE).write_text(RECORD)
    page = tmp_path / "public.md"
    run = [str(tmp_path), "--suite", "smoke", "--markdown", str(page)]

    assert main(run) == 1
    assert "UNEXPLAINED: wrong: exact: C(0, 0) is" in capsys.readouterr().out

    failed = {name for ran in read_results((project / REPORT).read_text()) for name in ran.checks}
    known = EXPLAINED.format("wrong", '", "'.join(sorted(failed)), "the first product is left out")
    (project / FILE).write_text(RECORD + known)
    assert main(run) == 0
    assert "the first product is left out" in page.read_text()

    (project / "kernels.py").write_text("KERNELS = 1")
    assert main(run) == 2
    assert capsys.readouterr().err.startswith(f"error: {project}: the check ended with status ")

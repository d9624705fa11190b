"""Public kernels: what the records say, what a report amounts to, and a whole run on a made-up repository."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gemm_regression.cli import init
from tests.public import results as found_by
from tests.public.__main__ import REPORT, main
from tests.public.results import FILE, Explained, Judged, Ran, Result, judge, read_results, read_source

RECORD = """
repository = "someone/sgemm"
revision = "0123456789ab"
date = "2020-01-01"
licence = "MIT"
declared = "Whole tiles."
"""
EXPLAINED = '\n[explained.{}]\nchecks = ["{}"]\nwhy = "{}"\n'
SOURCE = found_by.Source(repository="someone/sgemm", revision="0123", date="2020-01-01", licence="MIT")


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


NOTES = (
    "barrier: two places at a.cu:3 (PTX line 7: bar.sync 0)&#10;barrier: again&#10;race: at PTX line 9: st"
)


NOTED = case("a-f32", verdict="PASS CORRECT", notes=NOTES, findings="")
UNSUPPORTED = "NOT_EMULATED UNSUPPORTED"
NEEDS = "a needs wgmma: a-f32: unknown instruction wgmma.fence.sync.aligned: PTX line 7"


UNEXPLAINED = ("a", Result.UNEXPLAINED, "uninit: reads A(0, 8); exact: C(0, 0) is 1")
EXACT_UNINIT = ("a", Result.EXPLAINED, "exact, uninit: reads on")


def explained(*checks: str) -> Explained:
    return Explained(checks=checks, why="reads on")


@pytest.mark.parametrize(
    ("cases", "known", "found"),
    [
        ([PASSED], {}, [("a", Result.PASS, "")]),
        ([NOTED], {}, [("a", Result.NOTE, "barrier: two places at a.cu:3; race: at PTX line 9")]),
        ([PASSED, FAILED], {}, [UNEXPLAINED]),
        # An explanation covers the checks that it names and no others.
        ([FAILED], {"a": explained("exact", "uninit")}, [EXACT_UNINIT]),
        ([FAILED], {"a": explained("exact", "race", "uninit")}, [EXACT_UNINIT]),
        ([FAILED], {"a": explained("uninit", "race")}, [UNEXPLAINED]),
        # One of what passes or is not there fails.
        (
            [PASSED],
            {"a": explained("exact"), "b": explained("exact")},
            [
                ("a", Result.OUTDATED, "explained as exact, but passes"),
                ("b", Result.OUTDATED, "explained, but there is no such kernel"),
            ],
        ),
        # An instruction that is not supported is named, whether it was declared or not.
        (
            [
                case("a-f32", f'<skipped message="NOT_EMULATED: {NEEDS}" />', verdict=UNSUPPORTED),
                case("b-f32", f"<failure>CRASHED: {NEEDS}</failure>", verdict="CRASHED UNSUPPORTED"),
                case("b-f32", f"<failure>CRASHED: b: UNSUPPORTED: {NEEDS}</failure>", problem=""),
            ],
            {},
            [(name, Result.NOT_EMULATED, "wgmma.fence.sync.aligned") for name in "ab"],
        ),
        # A kernel that ran no problem is not right; a failure of the compiler metrics counts.
        (
            [case("a-f32", '<skipped message="REFUSED: m 3" />', verdict="REFUSED NOT_TAKEN")],
            {},
            [("a", Result.UNEXPLAINED, "no problem was run")],
        ),
        (
            [PASSED, case("a-f32", "<failure>does not compile</failure>", problem="")],
            {},
            [("a", Result.UNEXPLAINED, "does not compile")],
        ),
    ],
)
def test_what_a_report_amounts_to(
    cases: list[str], known: dict[str, Explained], found: list[tuple[str, Result, str]]
) -> None:
    judged = results(*cases, **known)
    assert judged == [Judged(*one) for one in found]
    bad = {Result.UNEXPLAINED, Result.OUTDATED}
    assert [one.failed for one in judged] == [result in bad for _, result, _ in found]


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


def test_a_report_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="the check ran no kernel"):
        read('<testcase name="other" />')


def test_the_page_counts_by_repository_and_gives_the_reason_of_what_is_not_plainly_right() -> None:
    kernels = [Judged("a", Result.PASS), Judged("b", Result.EXPLAINED, "exact: |x| is lost")]
    page = found_by.render({"sgemm": (SOURCE, kernels)}, "command")
    origin = "[someone/sgemm](https://github.com/someone/sgemm) | 0123 (2020-01-01) | MIT"
    assert f"| {origin} | 2 | 1 |  | 1 |  |" in page
    assert "| all |  |  | 2 | 1 |  | 1 |  |" in page
    assert "| someone/sgemm | `b` | red, explained | exact: \\|x\\| is lost |" in page
    assert "UNEXPLAINED" not in page
    assert "| someone/sgemm | not run |" in page
    assert "- **someone/sgemm**: `a`, `b`." in page
    assert "UNEXPLAINED" in found_by.render({"sgemm": (SOURCE, [Judged("a", Result.UNEXPLAINED)])}, "command")


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


DECLARED = """
from gemm_regression.model import BlockShape, Kernel, Constraints

KERNELS = tuple(
    Kernel(name, "sgemm.cu", name, BlockShape((32, 1), (1, 32)), constraints=Constraints({"n": 32}),
           parameters="int M, int N, int K, const float* A, const float* B, float* C")
    for name in ("right", "wrong")
)
"""


@pytest.mark.compile
@pytest.mark.usefixtures("pinned_compiler")
def test_a_made_up_repository_is_checked_and_its_fault_has_to_be_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, templates = tmp_path / "sgemm", Path(init.__file__).with_name("templates")
    (project / "tests").mkdir(parents=True)
    for name in ("test_kernels", "test_static"):
        shutil.copy(templates / f"{name}.template", project / "tests" / f"{name}.py")
    (project / "pyproject.toml").write_text('[tool.gemm-regression]\nkernels = "kernels.py"\n')
    shutil.copy(Path(__file__).parent / "sources" / "sgemm.cu", project)
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

"""The learner's page: each stage by its own words and stored figures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.baselines import append
from gemm_regression.report import sources
from gemm_regression.report.sources import Content
from lab.lessons import NAMED, Lesson, lessons, main, page, said_by
from tests.gemm_regression.report import made_report
from tests.ladder import LADDER, PROJECT

SKINNY = "4096x64x4096"
COMPILED = [kernel for kernel in LADDER if kernel.compiled]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baselines of an H200, and of another GPU that is slower by a quarter."""
    root = tmp_path_factory.mktemp("baselines")
    append(root, made_report.stored(), {})
    shutil.copytree(PROJECT.static, root / "static")
    made_report.other_gpu(made_report.stored(), root)
    return root


@pytest.fixture(scope="module")
def content(two: Path) -> Content:
    return sources.gather(two)


@pytest.fixture(scope="module")
def found(content: Content) -> list[Lesson]:
    return lessons(content, LADDER)


def test_a_source_says_its_idea_its_limit_and_what_is_next() -> None:
    text = (
        "// a: x.\n//\n// The idea    One\n//      two.\n// PADDING     Three.\n// Few rows    A.\n"
        "// Next      Four.\n\n// no"
    )
    assert said_by(text) == {"The idea": "One two.", "PADDING": "Three.", "Few rows": "A.", "Next": "Four."}
    assert said_by("int x;\n// The idea    Late.") == {}
    for kernel in COMPILED:
        assert kernel.source is not None
        said = said_by(kernel.source.read_text(encoding="utf-8"))
        assert {"The idea", "The limit", "Next"} <= set(said), kernel.name


def test_every_stage_is_a_step_on_every_gpu(found: list[Lesson]) -> None:
    baseline = made_report.stored()
    measured = {tuple(str(entry.info["variant"]).split("-")[:2]) for entry in baseline.entries.values()}
    names = [lesson.kernel.name for lesson in found]
    assert names == [kernel.name for kernel in COMPILED if (kernel.name, kernel.dtypes[0].name) in measured]
    for lesson in found:
        seen = {of.gpu: of for of in lesson.seen}
        assert set(seen) == {made_report.OTHER_GPU, "NVIDIA H200"}
        one, other = seen[made_report.OTHER_GPU], seen["NVIDIA H200"]
        assert one.here["problem"] == other.here["problem"]
        assert one.here["gflops"] == pytest.approx(other.here["gflops"] / 1.25, rel=1e-4)


def test_a_step_has_what_the_next_stage_bought(found: list[Lesson]) -> None:
    lesson = next(one for one in found if one.kernel == COMPILED[1])
    seen = lesson.seen[1]
    assert seen.after is not None
    assert seen.after["stage"] == COMPILED[2].name
    assert seen.gain.endswith(f"× {seen.after['gflops'] / seen.here['gflops']:.2f}")
    assert seen.most is not None
    own, other = seen.most
    assert (own["problem"], other["stage"], found[0].seen[1].best) == (own["problem"], COMPILED[0].name, "")


def test_the_picture_marks_the_bound_and_has_the_next_stage(found: list[Lesson]) -> None:
    seen = found[1].seen[1]
    values = seen.picture()["datasets"]["limits"]
    marked = [value for value in values if value["kind"] == "what bounds it"]
    (bound,) = [(value["level"], value["share"]) for value in marked]
    assert bound == (NAMED.get(seen.here["bound"], seen.here["bound"]), seen.here["of_bound"])
    drawn = {value["level"] for value in values if value["kind"] != "next"}
    assert drawn == {NAMED.get(level, level) for level in seen.here["levels"]}
    assert seen.after is not None
    beside = [value["share"] for value in values if value["kind"] == "next"]
    assert beside == list(seen.after["levels"].values())


def test_a_share_above_all_of_a_rate_says_of_what_it_is(found: list[Lesson]) -> None:
    """And one that ends at 100 % because it is estimated says so; no level has its memory's name alone."""
    seen = found[1].seen[1]
    assert "shared memory" not in seen.limit
    above = replace(seen, here=seen.here | {"levels": {"math": 124.0, "DRAM": 20.0}, "counted": "ncu"})
    said = "Math is of the FP32 units' rate; this stage multiplies on the tensor cores, and can pass it"
    assert above.limit.endswith(f"counted by ncu: math 124 %, DRAM 20 %). {said}")
    capped = replace(seen, here=seen.here | {"levels": {"L2": 100.0, "DRAM": 20.0}, "counted": "estimated"})
    assert capped.limit.endswith("(estimated: L2 100 % (capped), DRAM 20 %)")


def test_what_one_gpu_counted_has_the_estimate_of_the_other_beside_it() -> None:
    """So that figures of one kind stand side by side."""
    content = sources.gather(PROJECT.baselines)
    for lesson in lessons(content, PROJECT.kernels):
        kinds = [one.here.get("counted") == "ncu" for one in lesson.seen]
        for counted, one in zip(kinds, lesson.seen, strict=True):
            assert bool(one.alike) == (counted and not all(kinds)), (lesson.kernel.name, one.gpu)
            if one.alike:
                assert one.limit.count("estimated: ") == 1


def test_names_of_code_are_code(content: Content) -> None:
    (one,) = lessons(content, [COMPILED[1]])
    said = {"The idea": "As[ty][k] in __restrict__ of TILE_SIZE, and #pragma unroll.", "Next": "other does."}
    text = page([replace(one, said={**said, "Few rows": "A.", "PADDING": "B."})])
    assert "**Few rows.** A." in text
    assert "B." not in text
    assert "`As[ty][k]` in `__restrict__` of `TILE_SIZE`, and `#pragma unroll`." in text
    assert "**Next.** other does." in text


def test_files_are_stale_after_a_stage_is_measured_anew(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--root", str(two), "--folder", str(tmp_path)]
    assert main(words) == 0
    pictures = sorted(path.name for path in (tmp_path / "learn").iterdir())
    assert len(pictures) == (tmp_path / "learn.md").read_text().count("](learn/")
    assert len(pictures) > len(lessons(sources.gather(two), LADDER))
    gone, drawn = tmp_path / "learn" / "gone-nvidia-h200.svg", tmp_path / "learn" / pictures[0]
    gone.write_text("<svg></svg>")
    drawn.write_text(drawn.read_text().replace("made of ", "made of 0"))
    (tmp_path / "learn.md").write_text("another")
    capsys.readouterr()
    assert main([*words, "--check"]) == 1
    said = capsys.readouterr().err.removeprefix("error: ").partition(": out of date")[0]
    assert {*said.split(", ")} == {str(path) for path in (gone, drawn, tmp_path / "learn.md")}
    assert main(words) == 0
    assert not gone.exists()
    assert main([*words, "--check"]) == 0


def test_the_gpu_of_which_most_is_measured_is_shown_first(two: Path, tmp_path: Path) -> None:
    """And of one without 4096³ the largest square problem."""
    root = tmp_path / "baselines"
    shutil.copytree(two / "nvidia-h200", root / "nvidia-h200")
    baseline = made_report.stored()
    groups = ("1024x1024x1024", SKINNY)
    few = {case: entry for case, entry in baseline.entries.items() if entry.group in groups}
    made_report.other_gpu(replace(baseline, entries=few), root)
    content = sources.gather(root)
    gpus = [source.gpu for source in content.baselines]
    assert (gpus[0], gpus[-1]) == ("NVIDIA H200", made_report.OTHER_GPU)
    lesson = lessons(content, [COMPILED[2]])[0]
    assert [seen.here["problem"] for seen in lesson.seen] == ["4096x4096x4096", "1024x1024x1024"]


def test_nothing_measured_is_no_step(tmp_path: Path) -> None:
    assert lessons(sources.gather(tmp_path), LADDER) == []
    assert "Measured on: no GPU yet." in page([])


def test_no_picture_announces_a_next_stage_that_it_does_not_name() -> None:
    drawn = [
        path.read_text(encoding="utf-8")
        for path in (PROJECT.root / "docs" / "results" / "learn").glob("*.svg")
    ]
    assert len(drawn) > 20
    assert not [text for text in drawn if ">next:<" in text]
    assert [text for text in drawn if ">next: " in text]

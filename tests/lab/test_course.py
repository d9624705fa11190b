"""The course: its pictures and pages follow from the kernels, and the check judges its exercises."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Kernel, Problem
from gemm_regression.model.operation import F32
from gemm_regression.project.loader import load
from gemm_regression.run.checked import CORRECT, check
from lab.claims import Facts
from lab.claims.rules import COUNTED, LARGE, SMALL
from lab.course import LESSONS, Lesson, command, lay_out, main, pictures
from lab.course.command import files, wavefronts
from tests.ladder import PROJECT

ROOT = Path(__file__).parents[2]
STORED = Facts.of(PROJECT)
BY_STAGE = {lesson.stage: lesson for lesson in LESSONS}
TILES = ("rectangular", "register", "vectorized")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exercises")
    lay_out(made)
    return made


@pytest.fixture(scope="module")
def exercises(folder: Path) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in load(folder).kernels}


def test_the_lessons_are_the_first_stages_of_the_ladder_in_its_order() -> None:
    names = [kernel.name for kernel in PROJECT.kernels if kernel.compiled]
    assert [lesson.stage for lesson in LESSONS] == names[: len(LESSONS)]
    assert len(LESSONS) == 10


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_the_check_finds_the_mistake_of_an_exercise_and_nothing_once_it_is_mended(
    lesson: Lesson, exercises: dict[str, Kernel], emulated: EmulatedDevice
) -> None:
    kernel = exercises[lesson.stage]
    problem = Problem(*lesson.on)
    found = check(emulated, Case(kernel, F32, kernel.configs[0], problem))
    assert found.findings[0].title == lesson.finds, found
    right = check(emulated, Case(replace(kernel, source=lesson.source), F32, kernel.configs[0], problem))
    assert right.outcome == CORRECT, right


def test_a_folder_that_has_a_project_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 1
    assert "already" in capsys.readouterr().err
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert [lesson.stage for lesson in LESSONS if lesson.finds in told or lesson.because in told] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_the_code_of_a_page_is_a_few_lines_of_the_kernel(lesson: Lesson) -> None:
    text = [line.strip() for line in lesson.source.read_text(encoding="utf-8").splitlines()]
    cut = [line.strip().partition("  // lesson:")[0] for line in lesson.lines]
    assert 4 < len(cut) <= 16
    known = {line.partition("  // lesson:")[0] for line in text}
    assert set(cut) <= known
    assert "lesson:" not in "\n".join(lesson.lines) + lesson.broken()


@pytest.mark.parametrize(
    ("text", "error"),
    [("{\n  a;\n", "one pair"), ("x;  // lesson: end\ny;  // lesson: begin\n", "one pair")],
)
def test_a_kernel_without_a_pair_of_markers_is_refused(
    text: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s00_strided.cu").write_text(text)
    monkeypatch.setattr("lab.course.KERNELS", tmp_path)
    with pytest.raises(ValueError, match=error):
        _ = LESSONS[0].lines
    with pytest.raises(ValueError, match="0 times in it, not once"):
        LESSONS[0].broken()


@pytest.mark.parametrize("stage", TILES)
def test_the_threads_of_a_picture_compute_each_element_of_the_tile_once(stage: str) -> None:
    lesson = BY_STAGE[stage]
    threads = lesson.threads[0] * lesson.threads[1]
    found = Counter(cell for lane in range(threads) for cell in pictures.elements(stage, lane))
    rows, columns = lesson.tile
    assert found == Counter((row, column) for row in range(rows) for column in range(columns))


@pytest.mark.parametrize("stage", ["strided", "naive"])
def test_the_sectors_of_a_picture_are_those_that_the_emulated_device_counts(stage: str) -> None:
    of = STORED.counters[BY_STAGE[stage].variant][COUNTED]
    drawn = sum(len(pictures.sectors(cells)) for cells in pictures.reads(stage)) / 2
    assert drawn == of["loads_sectors"] / of["loads_requests"]


def test_a_warp_of_a_tile_reads_without_conflicts_as_it_is_drawn_and_counted() -> None:
    assert STORED.counters[BY_STAGE["tiled"].variant][COUNTED]["shared_loads_conflicts"] == 0
    assert pictures.banks([5 * 32 + 9] * 32) == pictures.banks(range(32)) == 1
    assert pictures.banks(range(0, 32 * 32, 32)) == 32
    assert pictures.banks(range(0, 32 * 33, 33)) == 1


def test_what_arithmetic_says_of_the_data_path_is_near_what_ncu_counts() -> None:
    """Within a tenth where no loads are merged, and above it where they are."""
    per = 1024**3 / 32
    for lesson in LESSONS:
        said = wavefronts(lesson)
        counts = STORED.seen["nvidia-h200"][f"{lesson.variant}-1024x1024x1024"]
        counted = counts.values["l1tex__data_pipe_lsu_wavefronts.sum"] / per
        merged = lesson.stage not in ("strided", "naive")
        assert counted <= said * 1.01
        assert counted > said * (0.55 if merged else 0.99), lesson.stage


def gain(top: str, bottom: str, problem: str) -> list[float]:
    """The speed of a lesson's variant over that of another, on each GPU."""
    pair = (BY_STAGE[top].variant, BY_STAGE[bottom].variant)
    return [of.gflops[problem][pair[0]] / of.gflops[problem][pair[1]] for of in STORED.gpus]


def per_products(stage: str, metric: str) -> list[float]:
    """What ncu counted at 1024³ for 32 products, on each GPU."""
    case = f"{BY_STAGE[stage].variant}-{SMALL}"
    return [STORED.seen[of.slug][case].values[metric] / (1024**3 / 32) for of in STORED.gpus]


ISSUED, ACTIVE = "smsp__inst_issued.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"
# What a text says in words, and the figures and the range that it stands for.
IN_WORDS = (
    ("tiled", "It gains a third", gain("tiled", "naive", LARGE), 1.3, 1.37),
    ("tiled_unrolled", "It gains 2 %", gain("tiled_unrolled", "tiled", LARGE), 1.01, 1.035),
    ("tiled_unrolled", "fall from 3.27", per_products("tiled", ISSUED), 3.265, 3.275),
    ("tiled_unrolled", "to 3.00 for", per_products("tiled_unrolled", ISSUED), 2.995, 3.005),
    (
        "rectangular",
        "At 4096³ it gains three quarters",
        gain("rectangular", "tiled_unrolled", LARGE),
        1.7,
        1.8,
    ),
    ("rectangular", "At 1024³ it gains nothing", gain("rectangular", "tiled_unrolled", SMALL), 0.95, 1.03),
    ("register", "1.63 instructions", per_products("register", ISSUED), 1.625, 1.635),
    ("register", "three times as fast", gain("register", "tiled", LARGE), 2.8, 3.2),
    ("vectorized", "It gains a quarter at 4096³", gain("vectorized", "register", LARGE), 1.22, 1.28),
    ("vectorized", "to 1.30 for", per_products("vectorized", ISSUED), 1.295, 1.305),
    ("prefetch", "It gains two fifths at 4096³", gain("prefetch", "vectorized", LARGE), 1.37, 1.43),
    ("prefetch", "twice the speed at 1024³", gain("prefetch", "vectorized", SMALL), 1.95, 2.1),
    ("prefetch", "to 1.14 for", per_products("prefetch", ISSUED), 1.135, 1.15),
    ("double_buffered", "by 8 % at 4096³", gain("double_buffered", "prefetch", LARGE), 0.915, 0.93),
    ("double_buffered", "2 % more instructions", per_products("double_buffered", ISSUED), 1.165, 1.18),
    ("async_copy", "by 13 % at 4096³", gain("async_copy", "double_buffered", LARGE), 0.86, 0.875),
    ("async_copy", "from 1.17 to", per_products("double_buffered", ISSUED), 1.165, 1.18),
    ("async_copy", "to 1.31 for", per_products("async_copy", ISSUED), 1.305, 1.315),
)


@pytest.mark.parametrize(
    ("stage", "words", "figures", "low", "high"), IN_WORDS, ids=lambda one: str(one)[:40]
)
def test_a_figure_in_words_is_that_which_is_stored(
    stage: str, words: str, figures: list[float], low: float, high: float
) -> None:
    assert words in BY_STAGE[stage].why
    assert [low <= figure <= high for figure in figures] == [True] * len(figures), figures


def test_the_share_of_warps_in_words_is_that_which_ncu_counted() -> None:
    counts = STORED.seen["nvidia-h200"]
    shares = [
        counts[f"{BY_STAGE[s].variant}-{SMALL}"].values[ACTIVE] for s in ("tiled_unrolled", "rectangular")
    ]
    assert [round(share) for share in shares] == [94, 25]
    assert "from 94 to 25 %" in BY_STAGE["rectangular"].why


def test_every_file_of_the_course_is_that_of_its_sources() -> None:
    course = ROOT / "docs" / "course"
    made = files(STORED)
    there = {path.relative_to(course).as_posix() for path in course.rglob("*") if path.is_file()}
    assert there == made.keys()
    assert [name for name, text in made.items() if (course / name).read_text(encoding="utf-8") != text] == []


def test_a_stale_page_and_a_leftover_are_red_with_check_and_mended_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--project", str(ROOT), "--folder", str(tmp_path)]
    assert command.main(asked) == 0
    assert command.main([*asked, "--check"]) == 0
    (tmp_path / "2-tiled.md").write_text("old")
    (tmp_path / "9-gone.md").write_text("gone")
    assert command.main([*asked, "--check"]) == 1
    assert "9-gone.md, 2-tiled.md" in capsys.readouterr().err
    assert command.main(asked) == 0
    assert not (tmp_path / "9-gone.md").exists()
    assert (tmp_path / "2-tiled.md").read_text(encoding="utf-8") != "old"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_a_picture_is_well_formed_and_says_in_words_what_it_shows(lesson: Lesson) -> None:
    made = pictures.PICTURES[lesson.stage](lesson.stage)
    root = ElementTree.fromstring(made.svg())
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == made.title
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + width <= made.width
        assert y >= 0
        assert y + height <= made.height

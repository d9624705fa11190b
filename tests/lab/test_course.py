"""The course: its pictures and pages follow from the kernels, and the check judges its exercises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gemm_regression.baselines import current
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Kernel, find_problem
from gemm_regression.project.loader import load
from gemm_regression.run.checked import CORRECT, check
from lab.claims import Facts
from lab.claims.rules import COUNTED, LARGE, SMALL
from lab.course import LESSONS, Lesson, command, later, lay_out, main, pictures, site
from lab.course.command import bounds, files, products, wavefronts
from tests.ladder import PROJECT

ROOT = Path(__file__).parents[2]
LARGEST = "8192x8192x8192"
STORED = Facts.of(PROJECT)
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "harness")}
BY_STAGE = {lesson.stage: lesson for lesson in LESSONS}
TILES = ("rectangular", "register", "vectorized", "warp_tiled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("exercises")
    lay_out(made)
    return made


@pytest.fixture(scope="module")
def exercises(folder: Path) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in load(folder).kernels}


def test_the_lessons_are_the_measured_stages_of_the_ladder_in_its_order() -> None:
    stored = [current(PROJECT.baselines, of.slug) for of in STORED.gpus]
    names = [
        kernel.name
        for kernel in PROJECT.kernels
        if kernel.compiled
        and all(each and any(n.startswith(f"{kernel.name}-") for n in each.case_ids) for each in stored)
    ]
    assert [lesson.stage for lesson in LESSONS] == names
    assert len(LESSONS) == 25


@pytest.mark.turns
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_the_check_finds_the_mistake_of_an_exercise_and_nothing_once_it_is_mended(
    lesson: Lesson, exercises: dict[str, Kernel], emulated: EmulatedDevice
) -> None:
    kernel = exercises[lesson.stage]
    problem = kernel.constraints.near(find_problem(lesson.on), kernel.configs[0])
    found = check(emulated, Case(kernel, kernel.dtypes[0], kernel.configs[0], problem))
    assert found.findings[0].title == lesson.finds, found
    right = check(
        emulated, Case(replace(kernel, source=lesson.source), kernel.dtypes[0], kernel.configs[0], problem)
    )
    assert right.outcome == CORRECT, right


def test_a_learner_sees_the_reason_mends_the_kernel_and_passes(
    tmp_path: Path, emulated: EmulatedDevice
) -> None:
    """By the commands that the first page names, without a GPU."""
    folder = tmp_path / "course"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *words]
        return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)

    assert f"wrote {len(LESSONS)} exercises" in run("lab", "exercises", str(folder)).stdout
    check_it = ("gemm_regression", "check", "--project", str(folder), "-k", "[tiled-")
    assert " ".join(check_it[2:5]) in (folder / "README.md").read_text(encoding="utf-8")
    failed = run(*check_it)
    assert failed.returncode == 1, failed.stderr
    check_name, place = BY_STAGE["tiled"].finds.split(" at ")
    assert re.search(rf"{check_name} at \S*kernels/{re.escape(place)}", failed.stdout)
    assert "warp_tiled" not in failed.stdout
    kernel = folder / "kernels" / "tiled.cu"
    (old, new) = ("            sum += As[ty][k] * Bs[k][tx];\n", "        __syncthreads();\n")
    kernel.write_text(kernel.read_text(encoding="utf-8").replace(old, old + new), encoding="utf-8")
    passed = run(*check_it)
    assert passed.returncode == 0, passed.stdout
    assert "1 variant checked without a GPU: 1 PASS" in passed.stdout


def test_a_folder_that_has_a_project_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder)]) == 1
    assert "already" in capsys.readouterr().err
    told = (folder / "README.md").read_text(encoding="utf-8")
    assert [lesson.stage for lesson in LESSONS if lesson.finds in told or lesson.because in told] == []


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_the_code_of_a_page_is_a_few_lines_of_the_kernel(lesson: Lesson) -> None:
    file = lesson.source.parent / lesson.shown if lesson.shown else lesson.source
    text = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
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
    """Of the first stages within a tenth where no loads are merged, and above it where they are; of those
    whose parts are named, within a third."""
    seen = STORED.seen["nvidia-h200"]
    counted_ones = [lesson for lesson in LESSONS if f"{lesson.variant}-{lesson.at}" in seen]
    assert {lesson.stage for lesson in LESSONS if lesson not in counted_ones} == {
        "pack",
        "wgmma_split_k",
        "wgmma_bytes",
    }
    for lesson in counted_ones:
        said = wavefronts(lesson)
        counts = seen[f"{lesson.variant}-{lesson.at}"]
        counted = counts.values["l1tex__data_pipe_lsu_wavefronts.sum"] / (products(lesson.at) / 32)
        low, high = (0.85, 1.3) if lesson.waves else (0.55, 1.01)
        if lesson.stage in ("strided", "naive"):
            low = 0.99
        assert low * said < counted <= high * said, lesson.stage


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_no_unit_needs_longer_than_was_measured_but_by_what_its_probe_lacks(lesson: Lesson) -> None:
    """A rate that a probe reached is no limit: DRAM's, by reading alone, is passed by 4 %."""
    for gpu in STORED.gpus:
        took = 2 * products(lesson.at) / gpu.gflops[lesson.at][lesson.variant] / 1e3
        # Where loads are merged, the data path needs less than arithmetic without that says.
        over = {"math": 1.0, "data path of L1": 1.0 if lesson.waves else 1.12, "DRAM": 1.05}
        assert {n: us for n, us in bounds(gpu, lesson).items() if us > over[n] * took} == {}


def test_the_chunks_that_ldmatrix_reads_lie_in_all_banks_when_swizzled_and_each_is_somewhere() -> None:
    for turned, rounds in ((False, 4), (True, 1)):
        every = [later.place(row, chunk, 4, turned) for row in range(8) for chunk in range(4)]
        assert sorted(every) == list(range(32))
        for chunk in range(4):
            column = Counter(later.place(row, chunk, 4, turned) % 8 for row in range(8))
            assert max(column.values()) == rounds


def test_stream_k_does_each_step_of_each_tile_once_and_all_blocks_as_much() -> None:
    done = Counter[int]()
    bars = later.stream_parts(9, 4, 8)
    for _, first, last, tile in bars:
        done[tile] += last - first
    assert done == Counter(dict.fromkeys(range(9), 8))
    shares = [sum(last - first for b, first, last, _ in bars if b == block) for block in range(4)]
    assert shares == [18] * 4
    assert "24 steps" in later.stream("stream_k").title
    assert "18 by" in later.stream("stream_k").title


def test_bands_take_each_block_once_also_in_a_last_band_that_is_shorter() -> None:
    for rows in (8, 16, 19):
        taken = [later.rasterized(index, (rows, 5), 8) for index in range(rows * 5)]
        assert sorted(taken) == [(row, column) for row in range(rows) for column in range(5)]
        assert taken[:3] == [(0, 0), (1, 0), (2, 0)]
    assert "need 37 rows and columns of tiles, down bands of 8 rows 25" in later.bands("warp_tiled").title


def test_half_of_a_warp_of_wgmma_tf32_loads_from_every_bank_once() -> None:
    words = [word for lane in range(16) for word in later.loads(lane)[1]]
    assert sorted(word % 32 for word in words) == list(range(32))


def test_products_to_and_fro_are_all_products_and_never_change_both_operands() -> None:
    way = later.order(16, 8, True)
    assert sorted(way) == sorted(later.order(16, 8, False))
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(way))


def gain(top: str, bottom: str, problem: str) -> list[float]:
    """The speed of a lesson's variant over that of another, on each GPU."""
    pair = (BY_STAGE[top].variant, BY_STAGE[bottom].variant)
    return [of.gflops[problem][pair[0]] / of.gflops[problem][pair[1]] for of in STORED.gpus]


def per_products(stage: str, metric: str) -> list[float]:
    """What ncu counted for 32 products, on each GPU that has counts."""
    lesson = BY_STAGE[stage]
    seen = [STORED.seen[of.slug].get(f"{lesson.variant}-{lesson.at}") for of in STORED.gpus]
    return [one.values[metric] / (products(lesson.at) / 32) for one in seen if one]


def share(stage: str, roof: str, problem: str = LARGE) -> list[float]:
    """The speed over that of cuBLAS, or of a roof, on each GPU."""
    variant = BY_STAGE[stage].variant
    if roof == "cublas":
        return [
            of.gflops[problem][variant] / of.gflops[problem][f"cublas-{variant.split('-')[1]}"]
            for of in STORED.gpus
        ]
    return [of.gflops[problem][variant] / of.roofs[roof]["gflops"] for of in STORED.gpus]


def beside_cublas(stage: str, problem: str) -> list[float]:
    """The share of cuBLAS's speed that was timed beside it, on each GPU."""
    stored = [current(PROJECT.baselines, of.slug) for of in STORED.gpus]
    found = [each.entry(f"{BY_STAGE[stage].variant}-{problem}-nt") for each in stored if each]
    return [each.cublas_ratio for each in found if each and each.cublas_ratio]


def over_halves(problem: str) -> list[float]:
    """The speed of FP8, whose B is stored as A is, over that of `wgmma` in FP16, on each GPU."""
    pair = BY_STAGE["wgmma_bytes"].variant, BY_STAGE["wgmma"].variant
    return [of.gflops[f"{problem}-nt"][pair[0]] / of.gflops[problem][pair[1]] for of in STORED.gpus]


def over_math(stage: str) -> list[float]:
    """The time over that which the tensor cores need at the rate of their probe, on each GPU."""
    lesson = BY_STAGE[stage]
    rates = [of.roofs[lesson.unit]["gflops"] / lesson.products for of in STORED.gpus]
    return [rate / of.gflops[lesson.at][lesson.variant] for rate, of in zip(rates, STORED.gpus, strict=True)]


def of_memory(stage: str) -> list[float]:
    """How much of the rate of DRAM's probe the bytes of 8 by 8 by 8 take, on each GPU."""
    per_flop = 3 * 64 * 4 / (2 * 8**3)
    speeds = [of.gflops[EIGHTS][BY_STAGE[stage].variant] for of in STORED.gpus]
    return [
        speed * per_flop / of.roofs["dram"]["gbps"] for speed, of in zip(speeds, STORED.gpus, strict=True)
    ]


EIGHTS, MIDDLE, SKINNY = "8x8x8-batch1398101", "2048x2048x2048", "4096x64x4096"
RAGGED = "4095x4095x4095"
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
    ("warp_tiled", "1 % less than `prefetch` at 4096³", gain("warp_tiled", "prefetch", LARGE), 0.985, 0.995),
    ("warp_tiled", "to 1.13 for", per_products("warp_tiled", ISSUED), 1.125, 1.135),
    ("warp_tiled", "half of the speed of", gain("warp_tiled", "prefetch", SMALL), 0.5, 0.6),
    ("wmma", "14 to 15 % of cuBLAS", share("wmma", "cublas"), 0.14, 0.15),
    ("wmma", "there are seven others", [64 * of for of in per_products("wmma", ISSUED)], 7.5, 8.5),
    ("wmma", "nine times as long", [1 / of for of in share("wmma", "f16", MIDDLE)], 8.9, 9.6),
    ("batched_small", "70 % of the speed of memory on an H100", of_memory("batched_small")[:1], 0.695, 0.705),
    ("batched_small", "half on an H200", of_memory("batched_small")[1:], 0.48, 0.53),
    ("batched_small", "15 instructions for each", per_products("batched_small", ISSUED), 15, 16),
    ("split_k", "It gains two fifths at 1024³", gain("split_k", "prefetch", SMALL), 1.37, 1.43),
    ("split_k", "five times the speed", gain("split_k", "prefetch", SKINNY), 5, 6),
    ("split_k", "more than 80 % of cuBLAS", share("split_k", "cublas", SKINNY), 0.8, 0.9),
    ("split_k", "28 % less than `prefetch`", gain("split_k", "prefetch", LARGE), 0.71, 0.73),
    ("lean_loop", "It gains 17 to 18 %", gain("lean_loop", "warp_tiled", MIDDLE), 1.165, 1.185),
    ("lean_loop", "to 1.10 for", per_products("lean_loop", ISSUED), 1.095, 1.105),
    ("lean_loop", "the first stage above cuBLAS", share("lean_loop", "cublas"), 1.0, 1.05),
    ("stream_k", "At 4096³ it gains the 3 %", gain("stream_k", "lean_loop", LARGE), 1.025, 1.035),
    ("stream_k", "2.3 to 2.4 times the speed", gain("stream_k", "lean_loop", SMALL), 2.3, 2.45),
    ("stream_k", "it loses 3 to 5 %", gain("stream_k", "lean_loop", MIDDLE), 0.95, 0.975),
    ("batched_vectors", "from 15.5 to 4.4", per_products("batched_vectors", ISSUED), 4.35, 4.45),
    ("batched_vectors", "104 % on the H100", of_memory("batched_vectors")[:1], 1.035, 1.045),
    ("batched_vectors", "101 to 103 % on H200s", of_memory("batched_vectors")[1:], 1.0, 1.035),
    ("mma_sync", "four times the speed of `wmma`", gain("mma_sync", "wmma", MIDDLE), 3.9, 4.15),
    ("mma_sync", "63 to 64 % of cuBLAS", share("mma_sync", "cublas"), 0.63, 0.645),
    ("tf32x3", "half again the speed", gain("tf32x3", "stream_k", LARGE), 1.44, 1.56),
    ("tf32x3", "82 % of the 98", [3 * of / 0.6 for of in share("tf32x3", "tf32")], 0.81, 0.835),
    ("mma_tma", "It gains 6 to 8 %", gain("mma_tma", "mma_sync", MIDDLE), 1.055, 1.085),
    ("mma_tma", "It gains 6 to 8 %", gain("mma_tma", "mma_sync", LARGE), 1.055, 1.085),
    ("wgmma", "1.4 times the speed of `mma_tma` at 4096³", gain("wgmma", "mma_tma", LARGE), 1.4, 1.45),
    ("wgmma", "99 to 100 % of cuBLAS", share("wgmma", "cublas"), 0.985, 1.005),
    ("wgmma", "three quarters of the rate", share("wgmma", "f16"), 0.74, 0.77),
    ("wgmma", "it is three fifths", share("wgmma", "f16", MIDDLE), 0.59, 0.64),
    ("wgmma_tf32", "as much as cuBLAS, a little more", share("wgmma_tf32", "cublas"), 1.0, 1.02),
    ("pack", "6.5 to 7 times the speed of `wmma`", gain("pack", "wmma", RAGGED), 6.5, 7.05),
    ("pack", "3.5 to 3.8 times that of cuBLAS", share("pack", "cublas", RAGGED), 3.5, 3.8),
    (
        "wgmma_split_k",
        "2.1 times the speed of `wgmma` on",
        gain("wgmma_split_k", "wgmma", SKINNY)[:1],
        2.05,
        2.15,
    ),
    ("wgmma_split_k", "2.6 on an H200", gain("wgmma_split_k", "wgmma", SKINNY)[1:], 2.55, 2.65),
    ("wgmma_split_k", "between 97 and 103 %", share("wgmma_split_k", "cublas", SKINNY), 0.97, 1.03),
    ("wgmma_bytes", "98 % of cuBLAS's speed at 4096³", beside_cublas("wgmma_bytes", LARGE), 0.975, 0.985),
    ("wgmma_bytes", "99 % at 8192³", beside_cublas("wgmma_bytes", LARGEST), 0.985, 0.995),
    ("wgmma_bytes", "1.9 to 2.0 times that of `wgmma`", over_halves(LARGE), 1.9, 2.0),
    ("wgmma_bytes", "2.0 to 2.1 times at 8192³", over_halves(LARGEST), 2.0, 2.1),
    ("wgmma_bytes", "four thirds of the time that math needs", over_math("wgmma_bytes"), 1.3, 1.4),
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


def test_links_of_the_site_lead_to_its_pages_to_the_sources_or_nowhere() -> None:
    links = "[b](b.md#c) [k](../../kernels/k.cu) [w](https://example.org) ![p](pictures/p.svg)"
    course = {"README.md": f"# A\n\n{links}\n", "b.md": "# B", "pictures/p.svg": "<svg/>"}
    leads = '<a href="https://x/blob/main/kernels/k.cu">k</a>'
    for source, kernel in (("https://x/blob/main", leads), ("", "<span>k</span>")):
        made = site.pages(course, source)
        assert made.keys() == {"index.html", "b.html", "pictures/p.svg"}
        page = made["index.html"]
        for part in ('<a href="b.html#c">b</a>', kernel, '<a href="https://example.org">w</a>', "<title>A<"):
            assert part in page
        assert '<img src="pictures/p.svg" alt="p"' in page


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stage)
def test_a_picture_is_well_formed_and_says_in_words_what_it_shows(lesson: Lesson) -> None:
    for drawn in (later.PICTURES, later.MORE):
        if lesson.stage in drawn:
            well_formed(drawn[lesson.stage](lesson.stage))


def well_formed(made: pictures.Drawing) -> None:
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

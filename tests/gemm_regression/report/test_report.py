"""The ladder table in the terminal, in a job summary and in the README."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import append, current
from gemm_regression.baselines.store import figures_path
from gemm_regression.cli.stored import report as main
from gemm_regression.judge.vocabulary import Verdict, VerdictKind
from gemm_regression.model import Case, Config, Problem, find_dtype, find_problem
from gemm_regression.report.figures import dram_share
from gemm_regression.report.page import BEGIN, END, readme_section
from gemm_regression.report.runs import RunRow, job_summary, ladder
from gemm_regression.run.timed import TimedCase
from gemm_regression.timing.bounds import Roofs
from tests.gemm_regression.samples import KERNELS as LADDER
from tests.gemm_regression.samples import PROJECT, find_kernel
from tests.gemm_regression.synthetic import CUBE, SLUG, case, five_runs, measurement, merged, run

ROOT = Path(__file__).parents[3]
WIDE = Config(
    TILE_M=128, TILE_N=256, TILE_K=8, THREAD_TILE_M=16, THREAD_TILE_N=8, WARP_TILE_M=64, WARP_TILE_N=64,
    STAGES=3, PADDING=4,
)  # fmt: skip
TILE32 = case("tiled").config
LONG = "tile128x256x8-thread16x8-warp64x64-stages3-pad4"
SMALL = "256x256x256"

SAMPLE = ("--project", str(PROJECT.root))


def made(
    stage: str = "tiled",
    outcome: str = "PASS SAME_BINARY",
    config: Config = TILE32,
    problem: str = SMALL,
    dtype: str = "f32",
    change: float = -0.002,
    margin: float | None = None,
    **more: Any,
) -> RunRow:
    """The row of a case with 1,234.5 GFLOPS, a quarter of cuBLAS's; of one that crashed, without."""
    of = Case(find_kernel(stage), find_dtype(dtype), config, find_problem(problem))
    kind, reason = outcome.split()
    figures: dict[str, Any] = {"change": change, "margin": margin, "gflops": 1234.5}
    timed = None if kind == "CRASHED" else measurement(0.01, reference_seconds=(0.0025,) * 9)
    verdict = Verdict(VerdictKind(kind), reason, **(figures if timed else {}))
    return RunRow(TimedCase(of, verdict, measurement=timed), **more)


RED = made("register", "REGRESSED SLOWER", WIDE, CUBE.id, change=-0.031)
CRASHED = made("naive", "CRASHED ILLEGAL_ADDRESS", problem=CUBE.id)
ROWS = [made("cublas", config=Config()), made(), made("naive"), RED, CRASHED]


@pytest.mark.parametrize(
    ("outcome", "margin", "shown"),
    [
        ("PASS SAME_BINARY", None, "PASS"),
        ("PASS LIBRARY", None, "PASS"),
        ("PASS NOT_SLOWER", 0.005, "PASS NOT_SLOWER"),
        ("PASS NOT_SLOWER", 0.0125, "PASS NOT_SLOWER margin=1.25%"),
        ("IMPROVED FASTER", 0.02, "IMPROVED margin=2%"),
        ("AMBIGUOUS CONTROL_FAILED", None, "AMBIGUOUS CONTROL_FAILED"),
        ("NO_BASELINE NOT_IN_BASELINE", None, "NO_BASELINE"),
        ("NO_BASELINE BINARY_NOT_KEPT", None, "NO_BASELINE BINARY_NOT_KEPT"),
    ],
)
def test_a_row_has_its_reason_where_it_adds_something_and_an_unusual_margin(
    outcome: str, margin: float | None, shown: str
) -> None:
    assert made("tiled", outcome, margin=margin).outcome == shown


def test_the_share_of_drams_bandwidth_is_shown_where_dram_bounds_a_case() -> None:
    of = replace(case("tiled"), problem=Problem(16, 16, 16, batch=100))
    roofs = Roofs({"f32": 66_000.0}, {"dram": 4_200.0}, "measured")
    seconds = 100 * 3 * 16 * 16 * 4 / 2.1e12  # half the bandwidth
    share = dram_share(roofs, of, of.gflops(seconds))
    assert share == pytest.approx(0.5)
    assert dram_share(roofs, replace(of, problem=Problem(256, 256, 256, batch=3)), 1.0) is None
    assert dram_share(Roofs({"f32": 66_000.0}, {}, ""), of, 1.0) is None
    head, *lines = ladder([*ROWS, made(dram=share)], LADDER).text(False, 200).splitlines()
    assert ("% DRAM" in head, "50.0" in "".join(lines)) == (True, True)
    assert "% DRAM" not in ladder(ROWS, LADDER).text(False, 200)
    assert "| 50.0 |" in job_summary([made(dram=share)], [])


def shown(rows: list[RunRow], words: int) -> list[str]:
    """The first words of each line of the table."""
    lines = ladder(rows, LADDER).text(False, 160).splitlines()[1:]
    return [" ".join(line.split()[:words]) for line in lines]


def test_every_row_stands_under_its_problem_in_the_order_of_the_ladder() -> None:
    stages = ["naive f32", "tiled f32", "cublas f32"]
    assert shown(ROWS, 2) == [SMALL, *stages, CUBE.id, "! naive", "! register"]
    lines = shown(ROWS, 20)
    assert lines[2] == "tiled f32 tile32-pad0 1,234 25.0 -0.2 % PASS"
    assert lines[5] == "! naive f32 tile32-pad0 – – – CRASHED ILLEGAL_ADDRESS"
    assert lines[6].endswith(" -3.1 % REGRESSED SLOWER")


def test_dtypes_of_one_stage_do_not_mix() -> None:
    rows = [made("cublas", config=Config(), dtype=dtype) for dtype in ("bf16", "f32", "f16")]
    stages = ["naive f32", "cublas f32", "cublas f16", "cublas bf16"]
    assert shown([*rows, made("naive")], 2) == [SMALL, *stages]


@pytest.mark.parametrize("width", [20, 80, 100, 300])
def test_no_width_cuts_a_word_or_a_figure(width: int) -> None:
    text = ladder(ROWS).text(False, width)
    assert "…" not in text
    for word in ("ILLEGAL_ADDRESS", "warp64x64-", "tile128x256x8-", "REGRESSED", "-3.1 %", "1,234"):
        assert word in text
    lines = text.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= max(width, 95)
    if width == 300:
        assert LONG in text


def test_color_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in ladder(ROWS).text(False, 120)
    monkeypatch.setenv("NO_COLOR", "1")
    colored = ladder(ROWS).text(True, 200)
    assert "\x1b[31m" in next(line for line in colored.splitlines() if "register" in line)
    assert "\x1b[31m" not in next(line for line in colored.splitlines() if "tiled" in line)


def test_a_job_summary_says_red_first() -> None:
    text = job_summary(ROWS, ["gpu: Some <b>GPU</b>"])
    assert text.startswith("## Red: 3 PASS, 1 REGRESSED, 1 CRASHED\n")
    assert "- gpu: Some &lt;b>GPU&lt;/b>" in text
    failed, _, everything = text.partition("<details>")
    assert "### Failed" in failed
    assert f"| ! register | f32 | {LONG} | 1,234 | 25.0 | -3.1 % | REGRESSED SLOWER |" in failed
    assert [said.count(" f32 |") for said in (failed, everything)] == [2, 5]
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {8}


def test_a_job_summary_is_green_only_where_something_was_judged_and_the_run_was() -> None:
    assert job_summary([made()], []).startswith("## Green: 1 PASS\n")
    assert "Failed" not in job_summary([made()], [])
    assert job_summary([], ["gpu: none"]).startswith("## Red: nothing was judged")
    assert job_summary([made()], [], exit_status=1).startswith("## Red: 1 PASS\n")
    assert job_summary([made()], [], 2).startswith("## Red: 1 PASS, pytest ended with exit status 2\n")
    text = job_summary([RED], [], 1, ["tests/test_a.py::test_b[<x>]", "tests/test_a.py::test_c"])
    assert text.startswith("## Red: 1 REGRESSED, 2 other tests failed\n")
    assert "- tests/test_a.py::test_b[&lt;x>]\n- tests/test_a.py::test_c\n" in text.split("<details>")[0]


# The README

README = f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A README and a baseline in which the second config of tiled is the faster one."""
    medians = {
        case("naive"): 0.04, case("tiled", 0): 0.02, case("tiled", 2): 0.016, case("cublas"): 0.004,
        case("tiled", 1, Problem(256, 256, 256)): 1e-6,
    }  # fmt: skip
    runs = [run(n, {of: measurement(m * (1 + 0.0001 * n)) for of, m in medians.items()}) for n in range(5)]
    append(tmp_path / "baselines", merged(tmp_path, runs), {})
    (tmp_path / "README.md").write_text(README)
    return tmp_path


def readme(project: Path, *more: str) -> int:
    where = ("--readme", f"{project}/README.md", "--root", f"{project}/baselines")
    return main(["readme", *where, *SAMPLE, *more])


def test_the_readme_shows_the_best_config_of_each_stage(project: Path) -> None:
    assert readme(project) == 0
    text = (project / "README.md").read_text()
    assert re.fullmatch(f"# Title\n\n{BEGIN}\n.*\n{END}\n\nafter\n", text, re.DOTALL)
    assert "old" not in text.splitlines()
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    heads = ["stage", "idea", "dtype", "best config", "GFLOPS", "% of cuBLAS"]
    assert rows[0] == [*heads, "measured on (board@commit)"]
    assert [r[0] for r in rows[2:]] == ["naive", "tiled", "cublas"]
    ideas = {k.name: k.idea for k in LADDER}
    # 2·4096³ FLOP in 16.0032 ms; cuBLAS in the same run takes half the time.
    figures = [case("tiled", 2).config.label, "8,588", "50.0", "unknown@01234567"]
    assert (rows[3], rows[4][5]) == (["tiled", ideas["tiled"], "f32", *figures], "100.0")
    for part in ("Test GPU 1000", "driver 999.1", "CUDA 13.0", "2026-11-02"):
        assert part in text


def again(project: Path, day: str, **machine: str) -> None:
    """Measures `naive` once more."""
    runs = five_runs([case("naive")], median=0.03)
    for document in runs:
        document["machine_info"] |= machine
        document["commit_info"]["id"] = "feedface" * 5
        document["datetime"] = document["datetime"].replace("-02T", f"-{day}T")
    append(project / "baselines", merged(project, runs), {})


def test_every_row_names_its_own_board_and_commit(project: Path) -> None:
    """One stage was measured on another board, at another commit and day, than the rest."""
    again(project, "09", board="0badcafe", driver="999.2")
    assert readme(project) == 0
    text = (project / "README.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert rows["naive"].endswith("| 0badcafe@feedface |")
    assert rows["tiled"].endswith("| unknown@01234567 |")
    assert "2026-11-02 to 2026-11-09; driver 999.2, CUDA 13.0, nvcc 13.0.88 or driver 999.1" in text
    assert "0badcafe" not in text.split("| stage")[0]


def test_two_gpus_are_one_table_side_by_side(project: Path) -> None:
    first = current(project / "baselines", SLUG)
    assert first is not None
    machine = {**first.machine_info, "name": "NVIDIA Test 2"}
    entries = {case: replace(e, machine=machine) for case, e in list(first.entries.items())[:1]}
    append(project / "baselines", replace(first, slug="nvidia-test-2", entries=entries), {})
    assert readme(project) == 0
    text = (project / "README.md").read_text().partition(BEGIN)[2].partition(END)[0]
    about = [line for line in text.splitlines() if line.startswith("- ")]
    assert [line.split(", M =")[0] for line in about] == ["- NVIDIA Test 2", "- Test GPU 1000"]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line[:1] == "|"]
    heads, _, *rows = ([cell.strip() for cell in line] for line in lines)
    columns = ("best config", "GFLOPS", "% of cuBLAS")
    named = [f"{name}: {columns[0]}" for name in ("Test 2", "Test GPU 1000")]
    assert heads[3:] == [named[0], *columns[1:], named[1], *columns[1:], "measured on (board@commit)"]
    (entry,) = entries
    shared = [row for row in rows if row[0] == entry.partition("-")[0]]
    assert [row[3:6] for row in rows if row not in shared] == [["–"] * 3] * (len(rows) - 1)
    assert {row[9] for row in rows if row not in shared} == {"–, unknown@01234567"}
    (both,) = shared
    assert "–" not in (both[4], both[7])
    assert both[9] == "unknown@01234567, unknown@01234567"
    assert readme(project, "--check") == 0


def test_check_says_whether_it_is_stale(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readme(project, "--check") == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert (project / "README.md").read_text() == README
    assert readme(project) == 0
    assert readme(project, "--check") == 0
    again(project, "03")
    assert readme(project, "--check") == 1
    assert "out of date" in capsys.readouterr().err


def test_without_a_baseline_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(README)
    assert readme(tmp_path) == 0
    said = "No baseline yet: run nox -s baseline on a GPU."
    assert f"{BEGIN}\n{said}\n{END}" in (tmp_path / "README.md").read_text()
    assert readme_section([], LADDER) == said


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_readme_without_its_marks_is_left_alone(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(text)
    assert readme(tmp_path) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/README.md: needs the line")
    assert (tmp_path / "README.md").read_text() == text


def test_a_damaged_baseline_makes_no_table(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures_path(project / "baselines", SLUG).write_text("{")
    assert readme(project) == 1
    assert "truncated" in capsys.readouterr().err
    assert (project / "README.md").read_text() == README


def test_the_command_fails_in_one_line(tmp_path: Path) -> None:
    words = ["report", "readme", "--readme", str(tmp_path / "absent.md")]
    command = [sys.executable, "-m", "gemm_regression", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}/absent.md: No such file or directory\n"

"""The commands of the lab, which are no part of the installed program; two of the small ones: what counts as
a line of code, and that growth is red; shares of cuBLAS by class."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest

from gemm_regression import __main__ as suite
from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.model import Problem
from gemm_regression.project.selection import Choice, select
from lab import benchmark, classes, lines
from lab.__main__ import COMMANDS, main
from tests.gemm_regression import synthetic
from tests.ladder import LADDER, PROJECT


@pytest.mark.parametrize("name", COMMANDS)
def test_each_says_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name not in suite.COMMANDS
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_what_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name:<9} " in said for name in COMMANDS)
    assert main(["grow"]) == 2
    assert "error: no command 'grow'; there are: advice, " in capsys.readouterr().err
    assert main([]) == 2


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("claims", "| HOLDS |", "| CONTRADICTED |"),
        ("classes", "| yes |", "| no |"),
    ],
)
def test_a_page_that_was_edited_is_told(
    name: str, old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{name}.md"
    words = [name, "--project", str(PROJECT.root), "--markdown", str(file)]
    assert main([*words, "--check"]) == 1
    assert main(words) == main([*words, "--check"]) == 0
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    capsys.readouterr()
    assert main([*words, "--check"]) == 1
    assert "is out of date" in capsys.readouterr().err


@pytest.mark.compile
def test_a_rate_without_and_with_counters(capsys: pytest.CaptureFixture[str]) -> None:
    cores = os.sched_getaffinity(0)
    assert benchmark.main(["naive-f32-block32x32-33x18x5", "--rounds", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("naive-f32-block32x32-33x18x5, sm_90a, one core of ")
    assert [line.split(":")[0] for line in said[2:]] == ["all checks on", "and counters"]
    assert all(re.search(r": \d+\.\d million lane-instructions per second", line) for line in said[2:])
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("case", ["nothing", "cublas-f32-4x4x4"])
def test_a_mistake_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([case]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: benchmark: ")


# Lines of code

SOURCE = '''"""A module.

Of two paragraphs.
"""

import os  # one


def f(  # two
    x: int,
) -> str:
    """A docstring."""
    # A comment.

    return """a text
of two lines"""
'''
LIMITS = """[tool.lines]
ptxsan = { code = 1, modules = 1, longest = 2 }
gemm_regression = { code = 2, modules = 1, longest = 2 }
lab = { code = 1, modules = 1, longest = 2 }
tests = { code = 1, modules = 1, longest = 2 }
later = { modules = 1 }
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in lines.PARTS.values():
        (tmp_path / folder / "build").mkdir(parents=True)
        (tmp_path / folder / "build" / "copy.py").write_text(SOURCE)
        (tmp_path / folder / "one.py").write_text("import os\n")
    (tmp_path / "pyproject.toml").write_text(LIMITS)
    return tmp_path


def test_comments_docstrings_and_blank_lines_are_no_code() -> None:
    assert lines.code_lines(SOURCE) == 6


def test_what_is_within_its_limits_is_green(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lines.main([], root) == 0
    table = capsys.readouterr().out
    assert "gemm_regression  lines of code 1 of 2, modules 1 of 1, longest module 1 of 2 (one.py)" in table


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("one.py", "import os\nimport sys\n", "lab: lines of code 2 of 1"),
        ("one.py", "import os\nimport re\nimport sys\n", "lab: longest module 3 of 2 (one.py)"),
        ("two.py", "", "lab: modules 2 of 1"),
    ],
)
def test_what_has_grown_is_red(
    root: Path, file: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "harness" / "lab" / file).write_text(text)
    assert lines.main([], root) == 1
    assert f"error: {said}: " in capsys.readouterr().err


# Classes: the fastest variant that counts; no mean without every shape

SQUARE = Problem(4096, 4096, 4096)
LARGE = next(of for of in classes.CLASSES if SQUARE in of.problems and of.dtype == "f32")


def _entry(variant: str, problem: Problem, seconds: float, ratio: float | None) -> BaselineEntry:
    entry = synthetic.entry(synthetic.case(problem=problem), seconds)
    return dataclasses.replace(entry, case_id=f"{variant}-{problem.id}", cublas_ratio=ratio)


def _baseline(*entries: BaselineEntry) -> Baseline:
    return Baseline("nvidia-h200", {}, {}, "", {entry.case_id: entry for entry in entries})


def test_the_fastest_variant_counts_that_computes_the_same() -> None:
    other = _entry("lean_loop-f32-tile2", Problem(64, 4096, 4096), 1e-6, 9.0)
    times = {"lean_loop-f32-tile1": 3e-3, "lean_loop-f32-tile2": 2e-3, "tf32x3-f32-tile1": 1e-3}
    times |= {"select-f32": 1e-4, "cublas-f32": 1e-4, "mma_sync-f16-tile1": 1e-5}
    entries = [_entry(name, SQUARE, s, None if "cublas" in name else 1.0) for name, s in times.items()]
    stored = _baseline(*entries, other)
    found = classes.fastest(stored, LARGE, SQUARE)
    assert found is not None
    assert found.entry.case_id == f"lean_loop-f32-tile2-{SQUARE.id}"
    assert classes.fastest(stored, LARGE, Problem(2048, 2048, 2048)) is None


@pytest.mark.parametrize(("share", "reached"), [(1.06, "yes"), (1.04, "no")])
def test_a_class_is_reached_by_its_mean_and_not_with_a_shape_missing(share: float, reached: str) -> None:
    entries = [_entry("lean_loop-f32-tile1", p, 1e-3, share) for p in LARGE.problems]
    page = classes.render(_baseline(*entries), "f")
    assert f"| {LARGE.name} | {share:.3f} | 1.05 | {reached} |" in page
    page = classes.render(_baseline(*entries[1:]), "f")
    assert f"| {LARGE.name} | – | 1.05 | – | not measured: {LARGE.problems[0].id} |" in page


def test_a_yardstick_of_another_board_is_named() -> None:
    of = next(of for of in classes.CLASSES if of.one)
    groups = [_entry(f"wgmma_grouped-{of.dtype}-tile1", problem, 2e-3, None) for problem in of.problems]
    ones = [
        _entry(f"wgmma_bytes-{of.dtype}-tile1", dataclasses.replace(problem, batch=1), 1e-3, 0.9)
        for problem in of.problems
    ]
    for board, named in (("b", ""), ("c", "; beside c")):
        there = [dataclasses.replace(entry, machine={"board": "b"}) for entry in groups]
        there += [dataclasses.replace(entry, machine={"board": board}) for entry in ones]
        found = [row for row in classes.render(_baseline(*there), "f").splitlines() if of.name in row]
        assert f"| {of.name} | 0.450 |" in found[0]
        assert all(row.endswith(f"| b, {groups[0].commit[:8]}{named} |") for row in found[1:])


def test_every_shape_of_a_class_is_timed_beside_cublas() -> None:
    chosen = select(PROJECT, Choice(suite="nightly"), (9, 0)).timed
    timed = {(c.kernel.name, c.dtype.name, c.problem) for c in chosen}
    for of in classes.CLASSES:
        counted = [kernel.name for kernel in LADDER if kernel.compiled and of.counts(kernel)]
        for problem in of.problems:
            assert any((name, of.dtype, problem) in timed for name in counted), (of.name, problem.id)
            # With each case of FP8 and INT8 cuBLAS is timed, too, and has no row of its own.
            rows = problem.batch == 1 and problem.layout == "NN"
            assert not rows or ("cublas", of.dtype, problem) in timed

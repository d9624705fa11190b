"""Baselines as pytest-benchmark's JSON: its own tools read it, and nothing is lost on the way back."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import BaselineError, append
from gemm_regression.baselines.merge import named, read_file, write_export
from gemm_regression.cli.baseline import main
from tests.gemm_regression.baselines.test_baselines import now
from tests.gemm_regression.samples import PROJECT
from tests.gemm_regression.synthetic import GPU, MACHINE, SLUG, baseline, case, entry, five_runs, saved

TILED, NAIVE = case("tiled"), case("naive")
NEWER: dict[str, Any] = {"datetime": "2026-11-09T10:00:00+00:00", "machine": {**MACHINE, "board": "0badcafe"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two measurements, of two boards."""
    root = tmp_path / "baselines"
    append(root, baseline(entry(TILED, 0.010), entry(NAIVE, 0.040, noise=0.001)), {})
    append(root, baseline(dataclasses.replace(entry(TILED, 0.008), accepted="it is right now", **NEWER)), {})
    return root


def test_nothing_is_lost_on_the_way_back(root: Path, tmp_path: Path) -> None:
    again = read_file(write_export(now(root), tmp_path / "kept.json"))
    assert again.entries == now(root).entries
    assert (again.slug, again.machine_info, again.commit_info) == (
        SLUG,
        NEWER["machine"],
        now(root).commit_info,
    )


def test_the_stock_tool_shows_names_and_numbers(root: Path, tmp_path: Path) -> None:
    file = write_export(now(root), tmp_path / "kept.json")
    command = [*(sys.executable, "-m", "pytest_benchmark", "compare", str(file)), "--csv=out.csv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "Failed to load" not in done.stdout + done.stderr
    heads, *rows = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
    (tiled,) = [dict(zip(heads, row, strict=True)) for row in rows if TILED.id in row[0]]
    shown = [float(tiled[name]) for name in ("median", "min", "ops", "rounds")]
    assert shown == pytest.approx([0.008, 0.9996 * 0.008, 1 / 0.008, 9], rel=1e-3)


def _one_run(folder: Path) -> Path:
    return saved(folder / "runs", five_runs([TILED, NAIVE])[1:2])[0]


def test_pytest_benchmark_itself_compares_with_it(root: Path, tmp_path: Path) -> None:
    file = write_export(now(root), tmp_path / "kept.json")
    tests = tmp_path / "project" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_performance.py").write_text(
        "import pytest\n"
        f"@pytest.mark.parametrize('timed_case', ['{TILED.id}'])\n"
        "def test_performance(timed_case, benchmark):\n    benchmark.pedantic(int, rounds=5)\n"
    )
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tests.parent}", str(tests)),
        *(f"--benchmark-compare={file}", "--benchmark-columns=median"),
    ]
    # A worker of xdist tells its children so, and pytest-benchmark then times nothing.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=alone, check=False)
    assert done.returncode == 0, done.stdout
    assert "(NOW)" in done.stdout  # Both rows stand in the table: the names matched.


def test_what_benchmark_compare_names(root: Path, tmp_path: Path) -> None:
    first, second = (named(root, SLUG, None, number) for number in ("1", "0002"))
    assert set(first.case_ids) == {TILED.id, NAIVE.id}
    assert (second.case_ids, second.board) == ((TILED.id,), "0badcafe")
    file = write_export(first, tmp_path / "kept.json")
    assert named(root, SLUG, None, str(file)).entries == first.entries
    run = named(root, SLUG, None, str(_one_run(tmp_path)))
    assert run.entries[TILED.id].median_s == pytest.approx(0.01)
    for wanted in ("0", "3", "-1", "absent.json", "²"):
        with pytest.raises(
            BaselineError, match=f"^--benchmark-compare={wanted}: no such file, and .* 1 to 2"
        ):
            named(root, SLUG, None, wanted)
    with pytest.raises(BaselineError, match=f"has figures of {GPU}, but this GPU's folder is nvidia-h200"):
        named(root, "nvidia-h200", None, str(file))
    with pytest.raises(BaselineError, match=r"no such file, and .* has nothing"):
        named(root, "nvidia-h200", None, "1")


def test_an_edited_export_is_refused(root: Path, tmp_path: Path) -> None:
    file = write_export(now(root), tmp_path / "kept.json")
    document = json.loads(file.read_text())
    for ours, said in (
        ({}, "gemm_baseline: gpu is missing"),
        ({"gpu": SLUG, "lines": []}, "contains no figure"),
        ({"gpu": SLUG, "lines": [1]}, "lines.0 is 1"),
        ({**document["gemm_baseline"], "gpu": "other"}, f"has figures of {GPU}"),
        ({"gpu": SLUG, "lines": document["gemm_baseline"]["lines"][1:]}, "is in no line"),
        (
            {"gpu": SLUG, "lines": [t.replace("8000", "7000") for t in document["gemm_baseline"]["lines"]]},
            "its id does not match",
        ),
    ):
        file.write_text(json.dumps({**document, "gemm_baseline": ours}))
        with pytest.raises(BaselineError, match=said) as caught:
            read_file(file)
        assert str(caught.value).startswith(str(file))


def test_the_command_exports_what_is_current(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--root", str(root), "--project", str(PROJECT.root))
    assert main(["export", *where]) == 0
    assert capsys.readouterr().out == f"wrote {SLUG}.json\n"
    assert read_file(Path(f"{SLUG}.json")).entries == now(root).entries
    assert main(["export", "kept.json", "--gpu", SLUG, *where]) == 0
    assert Path("kept.json").read_text() == Path(f"{SLUG}.json").read_text()
    assert main(["export", "--gpu", "nvidia-none", *where]) == 1
    assert f"no baseline for 'nvidia-none'; there are: {SLUG}\n" in capsys.readouterr().err

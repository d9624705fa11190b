"""A run in parts: nothing lost, nothing twice, and a part or a test that is missing is said and red."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import BaselineError, load_run
from gemm_regression.cli.stored import shards as main
from gemm_regression.report.sources import ReportSource
from gemm_regression.report.sources import read as read_source
from gemm_regression.run.replay import Shard, replay
from tests.gemm_regression.judge.replay import ReplayDevice, slowed
from tests.gemm_regression.rig import EVERY, RECORDED, SLOW, Printed, Rig
from tests.gemm_regression.rig import EVERY_KERNEL as KERNELS
from tests.gemm_regression.samples import select

Parts = Callable[..., list[Path]]


@pytest.fixture
def parts(rig: Rig) -> Parts:
    """Runs all parts, each on a board of its own, and gives their files."""
    (rig.root / "parts").mkdir()

    def run(of: int, change: Any = None, options: Sequence[str] = KERNELS) -> list[Path]:
        files = []
        for number in range(1, of + 1):
            device = ReplayDevice(3, change, board=f"0000000{number}")
            outcome = rig.run(*options, f"--shard={number}/{of}", device=device)
            assert outcome.status in (0, 1), outcome.text
            files.append((rig.root / "out.json").rename(rig.root / "parts" / f"{number}.json"))
        return files

    return run


def red(printed: Printed, *files: object) -> str:
    """What is said of parts that do not add up, or of which one failed."""
    assert main([str(file) for file in files]) == 1
    return printed.out


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_each_case_is_in_one_part_and_stays_there(of: int) -> None:
    names = [case.id for case in (*select("full").timed, *select("full").verify)]
    shards = [Shard(number, of) for number in range(1, of + 1)]
    assert all(sum(shard.has(name) for shard in shards) == 1 for name in names)
    sizes = [sum(map(shard.has, names)) for shard in shards]
    assert min(sizes) > 0.7 * len(names) / of
    # Recorded: another hash would move every case to another machine.
    assert [Shard(n, 4).has("tiled-f32-tile32-pad0-1024x1024x1024") for n in range(1, 5)].index(True) == 1


def test_parts_add_up_to_the_whole(parts: Parts, printed: Printed) -> None:
    files = parts(3)
    records = [[b["extra_info"]["case"] for b in json.loads(f.read_text())["benchmarks"]] for f in files]
    assert sorted(case for part in records for case in part) == sorted(EVERY)
    assert all(records)
    folder = files[0].parent
    assert main([str(folder), "--model", "nvidia-h200", "--output", str(folder.parent / "all")]) == 0
    out = printed.out
    assert "nvidia-h200: 3 of 3 shards on 3 boards (00000001, 00000002, 00000003): " in out
    tests = len(EVERY) + 1 + 3  # for the orphans, and for each part's machine
    assert f"{tests} tests, {tests} passed; {len(EVERY)} cases timed, {len(EVERY)} PASS" in out
    merged = folder.parent / "all" / "nvidia-h200.json"
    assert {"1.0", "2.0", "3.0"} == json.loads(merged.read_text())["gemm_machines"].keys()
    assert all(c.now == c.said for c in replay(merged))
    source = read_source(merged)
    assert isinstance(source, ReportSource)
    assert len(source.cases) == len(EVERY)
    for path in (merged, files[0]):
        with pytest.raises(BaselineError, match="spread over several GPUs, and a baseline is of one"):
            load_run(path)


def test_a_lost_part_is_red_and_named(parts: Parts, printed: Printed, tmp_path: Path) -> None:
    files = parts(3)
    kept = files[1].read_text()
    folder, missing = files[0].parent, "error: shard 2 of 3 is missing"
    files[1].unlink()
    assert missing in red(printed, folder)
    for text, said in (
        (kept[: len(kept) // 2], f"error: {files[1]}: not valid JSON"),
        (files[0].read_text(), "there twice"),
    ):
        files[1].write_text(text)
        out = red(printed, folder)
        assert (said in out, missing in out) == (True, True), out
    (tmp_path / "empty").mkdir()
    assert "error: no shard in" in red(printed, tmp_path / "empty")
    files[1].write_text(kept)
    said = "nvidia-h100: 0 of ? shards: 0 tests, none; 0 cases timed\n  error: no shard at all"
    assert said in red(printed, folder, "--model", "nvidia-h100")


def _not_run(shard: dict[str, Any]) -> None:
    shard["tests"][next(name for name in shard["tests"] if "performance[" in name)] = "not run"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda part: part["shard"]["tests"].popitem(), "tests in all shards, but"),
        (lambda part: part["shard"].update(whole="0" * 64), "of another selection of tests than"),
        (lambda part: part["commit_info"].update(id="another"), "of another commit than"),
        (lambda part: part["shard"].update(of=4), "the others are of 3"),
        (lambda part: _not_run(part["shard"]), "not run: tests/test_performance.py::"),
        (lambda part: part.pop("shard"), "not written by a run with --shard"),
    ],
)
def test_parts_that_do_not_add_up_are_red(
    change: Callable[[dict[str, Any]], Any],
    said: str,
    parts: Parts,
    printed: Printed,
) -> None:
    files = parts(3)
    document = json.loads(files[2].read_text())
    change(document)
    files[2].write_text(json.dumps(document))
    assert said in red(printed, files[0].parent)


def test_what_failed_in_a_part_is_named(parts: Parts, printed: Printed, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    out = red(printed, *parts(2, slowed(1.03, SLOW)), "--job-summary", summary)
    for case in RECORDED[SLOW]:
        assert f"  failed: tests/test_performance.py::test_performance[{case}]" in out
    assert f"{len(RECORDED[SLOW])} REGRESSED" in out
    assert summary.read_text().startswith("```text\nnvidia-h200: 2 of 2 shards")


def test_each_part_has_a_machine_of_its_own(rig: Rig, parts: Parts, printed: Printed) -> None:
    files = parts(2)
    device = ReplayDevice(3, slowed(1.2, edited=False), board="00000002")
    assert rig.run(*KERNELS, "--shard=2/2", device=device).red == {"test_machine[2/2]"}
    (rig.root / "out.json").rename(files[1])
    out = red(printed, files[0].parent)
    assert "  failed: tests/test_performance.py::test_machine[2/2]\n" in out
    assert "test_machine[1/2]" not in out


def test_a_run_that_is_stopped_leaves_tests_that_were_not_run(rig: Rig, printed: Printed) -> None:
    assert rig.run(*KERNELS, "--shard=1/1", "-x", device=ReplayDevice(3, slowed(1.03, SLOW))).status == 1
    out = red(printed, rig.root / "out.json")
    assert "not run: " in out
    assert "1 failed" in out


def test_a_part_without_a_timed_case_is_a_part(parts: Parts, printed: Printed) -> None:
    files = parts(2, options=("-k", f"[{RECORDED[SLOW][0]}]"))
    assert main([*map(str, files)]) == 0
    assert "2 of 2 shards on 2 boards (00000001, 00000002): 3 tests, 3 passed; 1 cases timed" in printed.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--shard=5/4",), "--shard 5/4: must be a part of a number of parts, such as 1/4 or 4/4"),
        (("--shard=0/4",), "--shard 0/4: must be a part"),
        (("--shard=half",), "--shard half: must be a part"),
        (("--shard=1/2", "--device=emulated"), "--shard 1/2: only runs on a GPU have parts"),
        (("--shard=1/2", "-n2"), "--shard 1/2: run without -n"),
    ],
)
def test_parts_that_cannot_be_are_refused(rig: Rig, options: tuple[str, ...], said: str) -> None:
    assert rig.run(*options).refusal.startswith(said)

"""Boards of one GPU model differ: each is judged by its own baseline where it has one, and told where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.baselines import Baseline, BaselineError, current, load, write
from harness.baselines.history import moves, note, of_boards
from harness.commands.baseline import main
from harness.model import Case
from harness.reports.wording import difference_text
from harness.verdicts import drift
from tests.unit import synthetic
from tests.unit.replay import ReplayDevice
from tests.unit.rig import OURS, Rig
from tests.unit.synthetic import SLUG

TILED, NAIVE = synthetic.case("tiled"), synthetic.case("naive")
OURS_IS, THEIRS_IS = "0a0a0a0a", "0b0b0b0b"


def runs(board: str | None, cases: Sequence[Case], seconds: float = 0.01) -> list[dict[str, Any]]:
    made = synthetic.five_runs(cases, seconds)
    for run in made:
        run["machine_info"] |= {"board": board} if board else {}
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baselines"


def stored(
    root: Path, board: str | None, cases: Sequence[Case] = (TILED, NAIVE), seconds: float = 0.01
) -> Path:
    """The next file, as ``merge`` makes it."""
    previous = current(root, SLUG, board)
    made = synthetic.merged(root.parent, runs(board, cases, seconds), load(previous) if previous else None)
    return write(made, root / SLUG)


# Which baseline


def test_a_board_is_judged_by_its_own_newest_file_else_by_the_model_s(root: Path) -> None:
    files = [stored(root, board) for board in (None, OURS_IS, OURS_IS, THEIRS_IS)]
    assert current(root, SLUG, OURS_IS) == files[2]
    assert current(root, SLUG, THEIRS_IS) == files[3]
    assert current(root, SLUG, "0c0c0c0c") == current(root, SLUG) == files[3]


def test_a_newer_file_that_cannot_be_read_is_not_passed_over(root: Path) -> None:
    stored(root, OURS_IS)
    damaged = stored(root, THEIRS_IS)
    damaged.write_text("{")
    assert current(root, SLUG, OURS_IS) == damaged
    damaged.write_text('{"machine_info": 3}')
    assert current(root, SLUG, OURS_IS) == damaged


def test_a_file_and_its_cases_know_their_board(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(root, THEIRS_IS)
    files = synthetic.saved(root.parent / "runs", runs(OURS_IS, [TILED], 0.011))
    assert main(["merge", *map(str, files), "--yes", "--root", str(root)]) == 0
    assert "1 other cases are unchanged, 1 of another board" in capsys.readouterr().out
    path = current(root, SLUG, OURS_IS)
    assert path is not None
    made = load(path)
    assert made.board == OURS_IS
    assert {case: entry.board for case, entry in made.entries.items()} == {
        TILED.id: OURS_IS,
        NAIVE.id: THEIRS_IS,
    }
    assert main(["show", "--root", str(root)]) == 0
    assert f"{synthetic.GPU}, board {OURS_IS}, driver" in capsys.readouterr().out


def test_runs_of_two_boards_make_no_baseline(tmp_path: Path) -> None:
    documents = runs(OURS_IS, [TILED])
    documents[2]["machine_info"]["board"] = THEIRS_IS
    with pytest.raises(BaselineError, match=f"run_3.json: board is {THEIRS_IS}, but {OURS_IS} in run_1.json"):
        synthetic.merged(tmp_path, documents)


# What moved


def test_history_of_a_board_is_not_that_of_another(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for board, seconds in (
        (OURS_IS, 0.01),
        (THEIRS_IS, 0.0103),
        (OURS_IS, 0.01001),
        (THEIRS_IS, 0.0103),
        (OURS_IS, 0.01002),
    ):
        stored(root, board, seconds=seconds)
    files = [load(path) for path in sorted((root / SLUG).iterdir())]
    assert [[f.path.name[:4] for f in group if f.path] for group in of_boards(files).values()] == [
        ["0002", "0004"],
        ["0001", "0003", "0005"],
    ]
    assert moves(files) == []  # all of them: those of the newest's board alone count
    assert main(["history", "--root", str(root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"0 of 2 cases changed between 0002_2026-11-02.json and 0004_2026-11-02.json on board {THEIRS_IS}",
        f"0 of 2 cases changed between 0001_2026-11-02.json and 0005_2026-11-02.json on board {OURS_IS}",
    ]
    stored(root, OURS_IS, seconds=0.011)
    assert note(root, SLUG, THEIRS_IS) == ""
    assert note(root, SLUG, OURS_IS).startswith("history: 2 cases slower than before, since 0006")


# What is told


def test_another_board_is_a_difference_that_may_explain(root: Path) -> None:
    baseline = load(stored(root, THEIRS_IS))
    entry = baseline.entry(TILED.id)
    assert entry is not None
    now = {**baseline.machine_info, "board": OURS_IS}
    then, o = baseline.machine_of(entry), synthetic.observed(TILED)
    first, *_ = drift.differences(then, entry.reference, now, o)
    assert (difference_text(first), first.decisive) == (f"board {THEIRS_IS} → {OURS_IS}", True)
    assert not any(d.decisive for d in drift.differences(then, entry.reference, baseline.machine_info, o))


def on_board(board: str) -> ReplayDevice:
    device = ReplayDevice(3)
    device.info = dataclasses.replace(device.info, board=board)
    return device


def rewritten(rig: Rig, board: str | None, of_one_case: str | None) -> None:
    """The baseline of the rig, as measured on these boards."""
    (path,) = rig.baselines.iterdir()
    old: Baseline = load(path)
    path.unlink()
    entries = {
        case: dataclasses.replace(e, info={**e.info, "board": board if at else of_one_case})
        for at, (case, e) in enumerate(old.entries.items())
    }
    machine = {**old.machine_info, "board": board}
    write(dataclasses.replace(old, machine_info=machine, entries=entries), rig.baselines)


@pytest.mark.parametrize(
    ("board", "of_one_case", "header", "strange"),
    [
        (OURS_IS, OURS_IS, "", ""),
        (OURS_IS, THEIRS_IS, "", "1 of 6 cases were compared with the baseline of another board"),
        (THEIRS_IS, THEIRS_IS, ", of another board of this model", "6 of 6 cases were compared with"),
        (None, None, ", of an unknown board of this model", ""),
    ],
)
def test_a_run_tells_whose_figures_it_is_judged_by(
    rig: Rig, board: str | None, of_one_case: str | None, header: str, strange: str
) -> None:
    rewritten(rig, board, of_one_case)
    outcome = rig.run(*OURS, device=on_board(OURS_IS))
    assert outcome.status == 0
    assert f"NVIDIA H200, board {OURS_IS}, " in outcome.text
    (line,) = (line for line in outcome.text.splitlines() if line.startswith("suite: "))
    assert line.endswith(f".json{header}")
    assert strange in outcome.text
    assert ("were compared with the baseline of another board" in outcome.text) is bool(strange)

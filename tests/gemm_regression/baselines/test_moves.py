"""Histories of baselines, made up: what moved is found where it moved, and noise is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression.baselines import Baseline, BaselineEntry, append, current
from gemm_regression.baselines.moves import Move, lost, measured, moves
from gemm_regression.cli.baseline import main
from gemm_regression.model import Case, Problem
from tests.gemm_regression import synthetic

TILED, NAIVE, WMMA = (synthetic.case(name) for name in ("tiled", "naive", "wmma"))
OTHERS = [synthetic.case("tiled", problem=Problem(64 + n, 512, 512)) for n in range(300)]
NOISE = 0.001


def entry(case: Case, seconds: float, **more: Any) -> BaselineEntry:
    made = synthetic.entry(case, seconds, more.pop("noise", NOISE))
    kept = {"duty": case.kernel.duty, "commit_info": {"id": "c" * 40, "dirty": False}, **more}
    return dataclasses.replace(made, **kept)


def history(medians: Mapping[Case, Sequence[float]], **more: Any) -> list[Baseline]:
    """Measurements 0001 and on, with these medians of these cases."""
    found = []
    for i in range(len(next(iter(medians.values())))):
        made = synthetic.baseline(*(entry(case, s[i], **more) for case, s in medians.items()))
        found.append(dataclasses.replace(made, number=i + 1))
    return found


def noisy(levels: Sequence[float], seed: int = 0) -> list[float]:
    """About 10 ms, each level off by normal noise of NOISE."""
    return list(0.01 * np.exp(np.array(levels) + np.random.default_rng(seed).normal(0, NOISE, len(levels))))


def where(found: Sequence[Move]) -> list[tuple[str, str]]:
    return [(move.case, move.at[:4]) for move in found]


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("case", [TILED, WMMA], ids=["CUDA cores", "tensor cores"])
def test_step_of_one_percent_is_found_at_its_file(case: Case, at: int) -> None:
    medians = {other: noisy([0.0] * 8, seed) for seed, other in enumerate(OTHERS)}
    medians[case] = noisy([0.0] * at + [0.01] * (8 - at), seed=at)
    (move,) = moves(history(medians))
    assert where([move]) == [(case.id, f"{at + 1:04}")]
    assert move.change == pytest.approx(medians[case][0] / medians[case][-1] - 1, abs=4 * NOISE)
    assert move.commit == "c" * 12
    assert lost([move]).keys() == {case.id}


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_not_flagged(seed: int) -> None:
    medians = {case: noisy([0.0] * 10, 1000 * seed + n) for n, case in enumerate([*OTHERS, TILED, NAIVE])}
    assert moves(history(medians)) == []


@pytest.mark.parametrize("case", [TILED, WMMA], ids=["CUDA cores", "tensor cores"])
def test_creep_is_shown(case: Case) -> None:
    """Six times 0.3 %: no step is beyond the gate's threshold."""
    found = moves(history({case: noisy([0.003 * n for n in range(7)])}))
    assert found
    assert lost(found)[case.id] < -0.008
    assert all(move.change < 0 for move in found)


def test_what_came_back_is_two_moves_and_nothing_lost() -> None:
    found = moves(history({TILED: noisy([0, 0, 0, 0.02, 0.02, 0.02, 0, 0])}))
    assert where(found) == [(TILED.id, "0004"), (TILED.id, "0007")]
    assert lost(found) == {}
    assert lost(found[:1]).keys() == {TILED.id}
    assert lost(moves(history({TILED: noisy([0, 0, -0.05, -0.05])}))) == {}


def test_noise_floor_of_a_case_counts() -> None:
    levels = {TILED: [0.01, 0.01, 0.01, 0.0101, 0.0101, 0.0101]}
    assert len(moves(history(levels))) == 1
    assert moves(history(levels, noise=0.02)) == []


BOARDS = "abc"


def on_boards(*seen: tuple[int, str, float]) -> list[Baseline]:
    """Measurements of TILED: a place in BOARDS, the binary, the seconds."""
    found = []
    for number, (b, binary, seconds) in enumerate(seen, 1):
        machine = {**synthetic.MACHINE, "board": BOARDS[b]}
        made = synthetic.baseline(entry(TILED, seconds, machine=machine, cubin_sha256=binary * 64))
        found.append(dataclasses.replace(made, number=number))
    return found


def test_boards_that_differ_are_no_change_where_they_share_a_binary() -> None:
    """Board b is 3 % slower than a, c another 3 % than b; the code is the same until it loses 1 % on a."""
    seen = [(0, "1", 0.0100), (1, "1", 0.0103), (2, "1", 0.0106), (1, "1", 0.0103), (0, "2", 0.0101)]
    found = moves(on_boards(*seen))
    assert where(found) == [(TILED.id, "0005")]
    assert found[0].change == pytest.approx(-0.01, abs=3e-4)
    assert moves(on_boards(*seen[:4])) == []


def test_what_one_board_lost_is_found_by_way_of_another() -> None:
    """The binaries of a are not those of c, but b has had both."""
    seen = [(0, "1", 0.0100), (1, "1", 0.0103), (1, "2", 0.01051), (2, "2", 0.0106)]
    (move,) = moves(on_boards(*seen))
    assert (move.at[:4], len(measured(on_boards(*seen), TILED.id))) == ("0003", 4)
    assert move.change == pytest.approx(0.0103 / 0.01051 - 1, abs=3e-4)


@pytest.mark.parametrize("change", [{"l2": "warm"}, {"duty": 0.1}])
def test_what_was_timed_otherwise_is_not_compared(change: dict[str, Any]) -> None:
    old, new = history({TILED: [0.01] * 3}), history({TILED: [0.02] * 3}, **change)
    assert moves([*old, *new]) == []


# The command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three measurements on a disk: TILED lost 2 % at the third."""
    for number, seconds in enumerate((0.01, 0.01, 0.0102)):
        cases = [TILED] if number else [TILED, NAIVE]
        runs = synthetic.five_runs(cases, seconds, day=number + 1)
        append(tmp_path / "baselines", synthetic.merged(tmp_path, runs), {})
    return tmp_path / "baselines"


def test_command_says_what_moved_where_and_by_how_much(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--root", str(root)]) == 0
    head, row, count, slower = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["case", "changed", "at"]
    assert row.split()[:3] == [TILED.id, "0003_2026-11-03", "0123456789ab"]
    assert row.endswith("-1.96 %")
    assert count == "1 of 2 cases changed between 0001_2026-11-01 and 0003_2026-11-03 on Test GPU 1000"
    assert slower == f"slower than before: {TILED.id}, -1.96 % relative to its best level"


def test_check_is_red_unless_somebody_accepted_the_loss(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["history", "--check", "--root", str(root)]) == 1
    assert main(["history", "--check", "--root", str(root), "-k", f"[{NAIVE.id}]"]) == 0
    last = current(root, synthetic.SLUG)
    assert last is not None
    said: dict[str, Any] = {"accepted": "it checks its bounds now", "datetime": "2026-11-04T10:00:00+00:00"}
    accepted = dataclasses.replace(last.entries[TILED.id], **said)
    append(root, dataclasses.replace(last, entries={TILED.id: accepted}), {})
    capsys.readouterr()
    assert main(["history", "--check", "--root", str(root)]) == 0
    assert "relative to its best level; accepted: it checks its bounds now\n" in capsys.readouterr().out

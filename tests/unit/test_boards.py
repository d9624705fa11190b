"""Boards of one GPU model differ: each is judged by its own baseline where it has one, and told where not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.baselines import Baseline, BaselineEntry, BaselineError, boards, current, load, write
from harness.baselines.moves import moves, note, of_boards
from harness.baselines.store import history
from harness.commands import evidence as evidence_command
from harness.commands.baseline import main
from harness.model import Case
from harness.reports.wording import difference_text, message
from harness.verdicts import drift
from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import judge
from harness.verdicts.vocabulary import Policy
from tests.unit import synthetic
from tests.unit.replay import ReplayDevice, slowed
from tests.unit.rig import CASES, OURS, Rig
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


def test_cases_that_another_board_alone_has_are_kept(root: Path) -> None:
    """Else a board that measures a few cases again would drop, for all others, what came since."""
    stored(root, OURS_IS, [TILED])
    stored(root, THEIRS_IS, [TILED, NAIVE], 0.02)
    files = synthetic.saved(root.parent / "runs", runs(OURS_IS, [TILED], 0.011))
    assert main(["merge", *map(str, files), "--yes", "--root", str(root)]) == 0
    path = current(root, SLUG)
    assert path is not None
    made = load(path)
    assert {case: (entry.board, entry.median_s) for case, entry in made.entries.items()} == {
        TILED.id: (OURS_IS, 0.011),
        NAIVE.id: (THEIRS_IS, 0.02),
    }


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


_SECONDS = ("min", "max", "mean", "median", "stddev", "q1", "q3", "iqr", "ld15iqr", "hd15iqr", "total")


def scaled(entry: BaselineEntry, factor: float) -> dict[str, Any]:
    """What a file has of a case that took ``factor`` times as long."""
    info = dict(entry.info)
    medians = [seconds * factor for seconds in info["run_medians"]]
    return info | {
        "median_s": info["median_s"] * factor,
        "gflops": info["gflops"] / factor,
        "run_medians": medians,
    }


def on_board(board: str, change: Any = None) -> ReplayDevice:
    device = ReplayDevice(3, change) if change else ReplayDevice(3)
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
        (OURS_IS, THEIRS_IS, "", "1 of 6 cases were judged by another board's figures"),
        (THEIRS_IS, THEIRS_IS, ", of another board of this model", "6 of 6 cases were judged by another"),
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
    assert ("were judged by another board's figures" in outcome.text) is bool(strange)


# How far boards differ


def judged_on(root: Path, board: str) -> Baseline:
    path = current(root, SLUG, board)
    assert path is not None
    return boards.judging(load(path), board, partial(history, root))


def test_a_board_s_own_figures_are_judged_as_strictly_as_ever(root: Path) -> None:
    stored(root, THEIRS_IS, seconds=0.0103)
    stored(root, OURS_IS)
    assert [e.board_spread for e in judged_on(root, OURS_IS).entries.values()] == [0.0, 0.0]
    assert [e.board_spread for e in judged_on(root, "0c0c0c0c").entries.values()] == pytest.approx(
        [0.0003 / 0.01015] * 2, rel=1e-3
    )
    for board, other in ((OURS_IS, False), ("0c0c0c0c", True)):
        assert [e.reference.other_board for e in judged_on(root, board).entries.values()] == [other] * 2


def test_another_board_is_one_also_where_no_other_file_says_how_far_it_may_differ(root: Path) -> None:
    stored(root, THEIRS_IS)
    entries = judged_on(root, OURS_IS).entries.values()
    assert [(e.reference.other_board, e.board_spread) for e in entries] == [(True, 0.0)] * len(entries)


def test_an_unseen_board_may_differ_as_those_seen_do(root: Path) -> None:
    """Of each board the newest file counts; other binaries and drivers are no difference of boards."""
    stored(root, OURS_IS, [NAIVE], seconds=0.02)
    stored(root, OURS_IS, [NAIVE], seconds=0.0102)
    path = stored(root, THEIRS_IS)
    baseline, files = load(path), [load(file) for file in sorted((root / SLUG).iterdir())]
    known = boards.spreads(baseline, files)
    assert {case: spread.boards for case, spread in known.items()} == {NAIVE.id: 2}
    assert known[NAIVE.id].relative == pytest.approx(0.0002 / 0.0101, rel=1e-3)
    for name, value in (("cubin_sha256", "c" * 64), ("duty", 0.5), ("driver", "999.2")):
        entries = {
            case: dataclasses.replace(e, info={**e.info, name: value}) for case, e in baseline.entries.items()
        }
        assert boards.spreads(dataclasses.replace(baseline, entries=entries), files) == {}


def test_a_case_differs_between_boards_as_the_most_like_it_do() -> None:
    known = {
        f"{case}": boards.Spread(relative, 3)
        for case, relative in {
            "tiled-f32-a-8x8x8": 0.01,
            "tiled-f32-a-9x9x9": 0.02,
            "naive-f32-a-7x7x7": 0.03,
            "wmma-f16-a-8x8x8": 0.05,
        }.items()
    }
    known["cublas-f32-256x256x256"] = boards.Spread(0.08, 3, library=True)
    known["select-f16-9x9x9"] = boards.Spread(0.06, 3, chosen="wmma")
    known["select-f16-7x7x7"] = boards.Spread(0.04, 3, chosen="mma")
    known["new-f16-a-7x7x7"] = boards.Spread(0.01, 2)
    expected = {
        "tiled-f32-a-8x8x8": 0.02,  # its kernel: what two boards agree on, a third need not
        "tiled-f32-b-8x8x8": 0.02,
        "naive-f32-a-7x7x7": 0.03,  # its own
        "other-f32-a-7x7x7": 0.03,  # CUDA cores
        "other-f32-a-8x8x8": 0.03,  # not what another kernel of its problem differs by
        "other-f32-a-6x6x6": 0.03,
        "other-bf16-a-7x7x7": 0.06,  # tensor cores
        "wmma-f16-a-7x7x7": 0.06,  # a choice is its kernel's, too
        "mma-f16-a-7x7x7": 0.04,
        "new-f16-a-7x7x7": 0.06,  # two boards say little of a third
    }
    assert {case: boards.expected(case, known) for case in expected} == expected
    # Seen: two boards had measured a choice, and its kernel by its own name had all that the kind differs by.
    assert boards.expected("select-f16-7x7x7", known, chosen="wmma") == 0.06
    assert boards.expected("cublas-f32-9x9x9", known, library=True) == 0.08
    assert boards.expected("otherblas-f32-9x9x9", known, library=True) == 0.08
    assert boards.expected("tiled-f32-a-8x8x8", {}) == 0.0


@pytest.mark.parametrize(
    ("slower", "verdict"), [(0.02, "PASS"), (0.0305, "PASS"), (0.035, "REGRESSED"), (-0.05, "IMPROVED")]
)
def test_between_boards_the_threshold_is_wider_by_what_they_differ_by(slower: float, verdict: str) -> None:
    reference = dataclasses.replace(synthetic.reference(TILED), board_spread=0.02)
    judged = judge(synthetic.observed(TILED, 0.01 * (1 + slower)), reference, Policy())
    assert judged.kind == verdict
    evidence = Evidence(synthetic.observed(TILED, 0.01 * (1 + slower)), reference)
    assert "threshold 3 %, of it 2 % between boards" in message(judged, evidence)
    assert "between" not in message(
        judge(synthetic.observed(TILED), synthetic.reference(TILED), Policy()), evidence
    )


def test_the_clock_of_another_board_is_part_of_what_boards_differ_by() -> None:
    """An H200 took as long as another one at 1 % more MHz, with the same cuBLAS."""
    o = synthetic.observed(TILED, 0.01, sm_clock_mhz=1020.0, cubin=synthetic.OLD)
    reference = dataclasses.replace(synthetic.reference(TILED), sm_clock_mhz=1000.0)
    assert judge(o, reference, Policy()).reason == "HIGHER_CLOCK"
    for known in (0.004, 0.0):
        elsewhere = dataclasses.replace(reference, board_spread=known, other_board=True)
        assert judge(o, elsewhere, Policy()).reason == "WITHIN_THRESHOLD"
    older = dataclasses.replace(reference, board_spread=0.004)
    assert judge(o, older, Policy()).reason == "WITHIN_THRESHOLD"
    changed = dataclasses.replace(elsewhere, cubin_sha256=synthetic.NEW)
    assert judge(o, changed, Policy()).reason == "HIGHER_CLOCK"  # the code may be slower


def test_the_clock_that_a_board_reaches_is_its_own() -> None:
    """An H200 took 2.4 % longer than another for 8192³ on tensor cores, at 2.4 % fewer MHz."""
    slow = synthetic.observed(TILED, 0.0103, sm_clock_mhz=970.0, cubin=synthetic.OLD)
    capped = dataclasses.replace(slow, clock_event_reasons=0x004)
    reference = dataclasses.replace(synthetic.reference(TILED), sm_clock_mhz=1000.0, board_spread=0.005)
    elsewhere = dataclasses.replace(reference, other_board=True)
    for known in (reference, elsewhere):  # older runs do not tell the board
        assert str(judge(capped, known, Policy()).outcome) == "PASS SAME_PER_CLOCK"
    # Of three H100s one ran at 1971 MHz where another had run at 1992, neither at its cap.
    near = synthetic.observed(TILED, 0.0102, sm_clock_mhz=985.0, cubin=synthetic.OLD)
    unknown = dataclasses.replace(elsewhere, board_spread=0.0)
    assert str(judge(near, unknown, Policy()).outcome) == "PASS SAME_PER_CLOCK"
    drifted = [
        (slow, elsewhere),  # set to another clock
        (capped, dataclasses.replace(reference, board_spread=0.0)),  # the same board
        (dataclasses.replace(capped, sm_clock_mhz=1000.0), elsewhere),  # more cycles
        (dataclasses.replace(capped, sm_clock_mhz=0.0), elsewhere),
        (dataclasses.replace(capped, cubin_sha256=synthetic.NEW), elsewhere),  # which may draw more power
    ]
    for observed, known in drifted:
        assert judge(observed, known, Policy()).reason == "SLOWER"


def test_show_has_what_boards_differ_by(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored(root, THEIRS_IS, [NAIVE], seconds=0.0103)
    stored(root, OURS_IS)
    assert main(["show", "--root", str(root)]) == 0
    _, heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split()[-3:] == ["boards", "between", "boards"]
    of = {row.split()[0]: row.split()[-3:] for row in rows}
    assert of[NAIVE.id] == ["2", "2.96", "%"]
    assert of[TILED.id][-2:] == ["1", "–"]


def test_a_run_on_an_unseen_board_is_green_where_boards_differ_as_much(rig: Rig) -> None:
    """The stored runs are said to be of another board, and a third one was 4 % slower."""
    (path,) = rig.baselines.iterdir()
    rewritten(rig, THEIRS_IS, THEIRS_IS)
    slow = slowed(1.03)
    alone = rig.run(*OURS, device=on_board(OURS_IS, slow))
    assert alone.status == 1
    assert "no file says how far these do" in alone.text
    newest = load(path)
    entries = {
        case: dataclasses.replace(
            e,
            info=scaled(e, 1.04) | {"board": "0c0c0c0c"},
            stats={k: v * 1.04 if k in _SECONDS else v for k, v in e.stats.items()},
        )
        for case, e in newest.entries.items()
    }
    machine = {**newest.machine_info, "board": "0c0c0c0c"}
    write(dataclasses.replace(newest, machine_info=machine, entries=entries), rig.baselines)
    write(newest, rig.baselines)
    both = rig.run(*OURS, device=on_board(OURS_IS, slow))
    assert both.status == 0, both.text
    assert (
        f"{len(CASES)} of {len(CASES)} cases were judged by another board's figures: their thresholds are"
        in both.text
    )
    assert "3.9 % in the median and at most 3.9 %" in both.text
    assert evidence_command.main([str(rig.root / "out.json")]) == 0
    own = rig.run(*OURS, device=on_board(THEIRS_IS, slow))
    assert own.status == 1

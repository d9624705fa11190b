"""Several files of one GPU model: what counts together, what is told apart, and how much boards differ."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.study import boards, document, methods, plot, trials
from harness.study.__main__ import main
from harness.study.analysis import GATE, PAIRED, Rate, trials_to_show
from harness.study.ladder import quick
from harness.study.raw import append, read
from harness.study.studies import Study
from tests.unit.simulated import SimulatedDevice

SECONDS = dict(zip(trials.CASES, (1e-5, 2e-5, 9e-5, 1.1e-4, 3.4e-4, 1.7e-4, 3e-3, 2e-2), strict=True))
SHORT, LONG = trials.CASES[0], trials.CASES[6]
FULL, BOARDS, OTHER = "nvidia-h200", ("nvidia-h200-board1", "nvidia-h200-board2"), "nvidia-a100"
Record = dict[str, Any]


def measured(folder: Path, name: str, seed: int, *more: str, gpu: str = "NVIDIA H200") -> None:
    """One trial of every case, on a board of its own."""
    device = SimulatedDevice(seconds=lambda case: SECONDS[case.id], process=0.0005, seed=seed)
    device.info = dataclasses.replace(device.info, name=gpu)
    assert main(["measure", str(folder / f"{name}.jsonl.gz"), "--trials", "1", *more], lambda _: device) == 0


def measured_quickly(docs: Path, name: str, seed: int) -> None:
    """One trial of each of the short cases."""
    device = SimulatedDevice(seconds=lambda case: 1e-4, process=0.0005, seed=seed)
    file = str(docs / "detection" / f"{name}.jsonl.gz")
    assert main(["measure", file, "--quick", "--trials", "1"], lambda _: device) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full study, and A/A trials alone on two other boards."""
    folder = tmp_path_factory.mktemp("made")
    measured(folder, FULL, 0)
    for number, name in enumerate(BOARDS):
        measured(folder, name, 1 + number, "--sizes", "0", "--summaries")
    return folder


@pytest.fixture
def docs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored files, to be changed at will; without what the report needs installed."""
    monkeypatch.setattr(methods, "nvbench", lambda *samples: "SAME")
    monkeypatch.setattr(plot, "draw", lambda groups, path, mark: path.write_text(mark))
    shutil.copytree(made, tmp_path / "detection")
    return tmp_path


def page(docs: Path) -> str:
    assert main(["report", "--docs", str(docs)]) == 0
    assert main(["report", "--docs", str(docs), "--check"]) == 0
    return (docs / "detection.md").read_text()


def alter(docs: Path, name: str, change: Callable[[Record, list[Record]], None]) -> None:
    """Writes the file anew, with its head and records changed."""
    path = docs / "detection" / f"{name}.jsonl.gz"
    head, records = read(path)
    change(head, records)
    path.unlink()
    append(path, [head, *records])


def false_alarm(_: Record, records: list[Record]) -> None:
    """Of the gate and of the paired comparison, in the A/A trial of LONG."""
    record = next(r for r in records if (r["case"], r["size"]) == (LONG, 0.0))
    slower = {**record["gate"][0], "samples": [round(1.1 * s) for s in record["gate"][0]["samples"]]}
    record["gate"] = [slower, slower]
    for look in record["looks"]:
        look["blocks"] = [[a, [round(1.1 * s) for s in b], *mhz] for a, b, *mhz in look["blocks"]]


def target(text: str, method: str) -> list[str]:
    """The lines of the target for false alarms, of one method."""
    return [
        line for line in text.splitlines() if line.startswith("- false alarms") and f": {method}:" in line
    ]


@pytest.mark.parametrize("method", [GATE, *PAIRED.values()])
def test_the_trials_of_all_boards_count_together(method: str, docs: Path) -> None:
    text = page(docs)
    assert "The A/A trials of all 3 files of this GPU model count: 24, 8 of them in this file." in text
    (line,) = target(text, method)
    assert f"{method}: 0 of 24, 0.00 (0.00–14.25): shown: at most 14.25 %; 0.1 % needs 3688 trials" in line
    alter(docs, BOARDS[1], false_alarm)
    text = page(docs)
    (line,) = target(text, method)
    assert f"{method}: 1 of 24, 4.17 (0.11–21.12): missed by 4.07 percentage points" in line
    row = next(
        line for line in text[text.index("A/A trials only") :].splitlines() if line.startswith(f"| {method}")
    )
    assert "| 1 of 10: 10.00 (0.25–44.50) |" in row
    assert "| 0 of 6: 0.00 (0.00–45.93) |" in row
    alarm = f"**A false alarm of the gate** (`{BOARDS[1]}.jsonl.gz`): {LONG}, trial 0: REGRESSED"
    assert text.count(alarm) == 1


def test_what_falls_short_is_told_of_all_boards(docs: Path) -> None:
    def slow(_: Record, records: list[Record]) -> None:
        records[0]["gate"][0]["gpu_seconds"] = 1.5

    seconds = f", 3 trials: 1 ({GATE})"
    assert seconds not in page(docs)
    alter(docs, BOARDS[1], slow)
    text = page(docs)
    assert "**Too few A/A trials.** There are 24 in all 3 files of this GPU model" in text
    assert seconds in text[text.index("**Over 1 s of GPU.**") :]
    assert f"{GATE}: " in text


def test_boards_get_one_section_and_the_plot_is_of_the_full_study(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    def draw(groups: Any, path: Path, mark: str) -> None:
        drawn.append(groups)
        path.write_text(mark)

    monkeypatch.setattr(plot, "draw", draw)
    text = page(docs)
    assert text.count("\n## ") == 2
    assert text.count("### Case by case") == 1
    assert "## NVIDIA H200, A/A trials only, on 2 other boards" in text
    rows = [line for line in text.splitlines() if line.startswith("| `nvidia-h200-board")]
    assert [row.split(" | ")[0] for row in rows] == [f"| `{name}.jsonl.gz`" for name in BOARDS]
    assert len({row.split(" | ")[-1] for row in rows}) == 2  # digests
    assert {cell.size for cells in drawn[0].values() for cell in cells} == set(trials.SIZES)


def test_the_plot_is_of_the_study_with_most_trials(docs: Path) -> None:
    assert "Drawn: `nvidia-h200.jsonl.gz`." in page(docs)
    measured(docs / "detection", OTHER, 7, "--sizes", "0,5", "--summaries", gpu="NVIDIA A100")
    text = page(docs)
    assert "Drawn: `nvidia-h200.jsonl.gz`." in text
    assert text.count(" No other tool was evaluated.\n") == 1


def test_a_board_that_is_named_counts_once(docs: Path) -> None:
    def name(board: str) -> Callable[[Record, list[Record]], None]:
        return lambda head, _: head["machine_info"].update(board=board)

    alter(docs, FULL, name("0a1b2c3d"))
    alter(docs, BOARDS[0], name("0a1b2c3d"))
    text = page(docs)
    assert "A/A trials only, on 1 other board\n" in text
    assert f"| `{BOARDS[0]}.jsonl.gz` | 0a1b2c3d |" in text
    assert "A file that does not name its board" in text
    assert "### The same binaries on 2 boards" in text
    assert ": 0 of 24, " in target(text, GATE)[0]
    alter(docs, BOARDS[1], name("0a1b2c3d"))
    text = page(docs)
    assert "A/A trials only, again\n" in text
    assert "does not name its board" not in text
    assert "The same binaries" not in text


def test_what_failed_on_a_board_is_told(docs: Path) -> None:
    def fail(_: Record, records: list[Record]) -> None:
        records[3] = {key: records[3][key] for key in ("trial", "case", "size")} | {"error": "HANG: late"}

    alter(docs, BOARDS[0], fail)
    text = page(docs)
    row = rf"`{BOARDS[0]}\.jsonl\.gz` \| – \| [\d-]+ \| 7, \d+ to \d+ µs \| 7 \| 1 \|"
    assert re.search(row, text)
    assert ": 0 of 23, " in target(text, GATE)[0]


def test_another_gpu_model_is_told_apart(docs: Path) -> None:
    before = target(page(docs), GATE)
    for seed, name in ((7, OTHER), (8, f"{OTHER}-board1")):
        measured(docs / "detection", name, seed, "--sizes", "0", "--summaries", gpu="NVIDIA A100")
        alter(docs, name, false_alarm)
    text = page(docs)
    # Nothing was planted on an A100: the first of its files is told in whole, after what has more trials.
    heads = [line for line in text.splitlines() if line.startswith(("## ", "### The same"))]
    assert [re.sub(r"\d{4}-\d\d-\d\d", "DATE", line) for line in heads] == [
        "## NVIDIA H200, DATE",
        "## NVIDIA H200, A/A trials only, on 2 other boards",
        "### The same binaries on 3 boards",
        "## NVIDIA A100, DATE",
        "## NVIDIA A100, A/A trials only, on 1 other board",
        "### The same binaries on 2 boards",
    ]
    own, others = target(text, GATE)
    assert ": 2 of 16, " in others
    assert f"on 2 GPU models together**, 40 A/A trials of 5 files: {GATE}: 2 of 40, at most 16.92 %" in text
    assert [own] == before


@pytest.mark.parametrize("more", [["--sizes", "0"], ["--sizes", "0,5", "--summaries"]])
def test_a_file_with_more_than_summaries_of_pairs_gets_its_section(more: list[str], docs: Path) -> None:
    measured(docs / "detection", "nvidia-h200-more", 9, *more)
    text = page(docs)
    assert text.count("### Case by case") == 2
    assert "on 2 other boards" in text
    assert all(": 0 of 32, " in line for line in target(text, GATE))


def test_quick_trials_count_for_what_they_judged_alone(docs: Path) -> None:
    before = page(docs)
    for name, seed in (("nvidia-h200-board3", 7), ("nvidia-h200-board4", 8)):
        measured_quickly(docs, name, seed)
    text = page(docs)
    cases = len(quick((9, 0)))
    many = int(re.findall(r"A/A trials: gate, red: \d+ of (\d+)", before)[0])
    assert re.findall(r"A/A trials: gate, red: \d+ of (\d+)", text)[0] == str(many + 2 * cases)
    assert re.findall(r"A/A trials: paired comparison, ±0.25 %: \d+ of (\d+)", text)[0] == str(many)
    assert re.search(rf"`nvidia-h200-board3.jsonl.gz` \| – \| \S+ \| {cases}, 100 µs, ±0.5 % alone", text)
    assert "### The same binaries on 3 boards" in text
    assert "### The same binaries on 2 boards" in text


def test_quick_trials_alone_make_a_page(docs: Path) -> None:
    for file in (docs / "detection").iterdir():
        file.unlink()
    measured_quickly(docs, "nvidia-h100", 0)
    assert f"gate, red: 0 of {len(quick((9, 0)))}" in page(docs)


def test_one_measurement_does_not_count_twice(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = docs / "detection" / "copy.jsonl.gz"
    shutil.copy(docs / "detection" / f"{BOARDS[0]}.jsonl.gz", copy)
    append(copy, [dict(read(copy)[1][0], trial=1)])  # it has gone on since
    assert main(["report", "--docs", str(docs)]) == 2
    assert f"copy.jsonl.gz and {BOARDS[0]}.jsonl.gz contain the same measurement" in capsys.readouterr().err


def test_the_order_of_the_files_does_not_matter(docs: Path) -> None:
    text = page(docs)
    files = [str(docs / "detection" / f"{name}.jsonl.gz") for name in (BOARDS[1], FULL, BOARDS[0])]
    assert main(["report", *files, "--docs", str(docs), "--check"]) == 0
    assert main(["report", *files, "--docs", str(docs)]) == 0
    assert (docs / "detection.md").read_text() == text


def test_boards_differ_by_the_medians_of_their_heads(docs: Path) -> None:
    def stored(*microseconds: float) -> Callable[[Record, list[Record]], None]:
        def change(head: Record, _: list[Record]) -> None:
            head["baseline"][LONG]["medians"] = [1e-6 * us for us in microseconds]

        return change

    alter(docs, FULL, stored(3000, 3000, 3000, 3000, 3000))
    alter(docs, BOARDS[0], stored(3029, 3030, 3030, 3031, 3031))
    alter(docs, BOARDS[1], stored(3015, 3000, 3060, 3015, 3015))
    alter(docs, BOARDS[1], lambda head, _: head["baseline"][SHORT].update(cubin_sha256="b" * 64))
    text = page(docs)
    table = text[text.index("### The same binaries on 3 boards") :]
    assert f"| {LONG} | 3015.0 | 1.00 % | 2.00 % |" in table
    assert f"| {SHORT} |" not in table
    assert "1 more is not the same binary in all files" in table
    assert " to 1.00 %, for cases of 100 µs and less" in table


@pytest.mark.parametrize("binary", [None, "b" * 64])
def test_only_a_binary_that_is_known_to_be_the_same_is_compared(binary: str | None) -> None:
    def study(**stored: Any) -> Study:
        head = {"baseline": {LONG: {"medians": [1e-3] * 5, "cubin_sha256": "a" * 64} | stored}}
        return Study("", head, [], 0, "")

    assert [d.case for d in boards.differences([study(), study()])] == [LONG]
    assert boards.differences([study(), study(cubin_sha256=binary)]) == []
    assert boards.differences([study(cubin_sha256=binary), study()]) == []
    unknown = study(cubin_sha256=None)
    assert boards.differences([unknown, unknown]) == []


@pytest.mark.parametrize(
    ("count", "trials_", "words"),
    [
        (0, 4000, "met, shown: at most 0.09 %"),
        (0, 1312, "shown: at most 0.28 %; 0.1 % needs 3688 trials without a false alarm"),
        (1, 1312, "shown: at most 0.42 %; 0.1 % needs 5570 trials with no more than 1"),
        (1, 5570, "met, shown: at most 0.10 %"),
        (1, 320, "missed by 0.21 percentage points"),
    ],
)
def test_the_three_outcomes_of_the_target_for_false_alarms(count: int, trials_: int, words: str) -> None:
    assert document.outcome(Rate(count, trials_)) == words


@pytest.mark.parametrize(
    ("count", "trials_", "words"),
    [
        (38, 38, "met by these trials; shown: at least 90.7 %"),
        (400, 400, "met, shown: at least 99.1 %"),
        (37, 38, "missed by 1.6 percentage points"),
    ],
)
def test_few_trials_do_not_show_that_a_slowdown_is_detected(count: int, trials_: int, words: str) -> None:
    assert document.detected(Rate(count, trials_), 0.99) == words


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("limit", [0.001, 0.1])
def test_no_fewer_trials_show_as_low_a_rate(count: int, limit: float) -> None:
    least = trials_to_show(limit, count)
    assert Rate(count, least).limits[1] <= limit < Rate(count, least - 1).limits[1]

"""The study of detection power on a simulated GPU: what is timed, stored, resumed, judged and told."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import StoredBinary
from gemm_regression.model import Case
from gemm_regression.timing.looks import SequentialTest
from lab.study import analysis, document, frozen, trials
from lab.study.analysis import RED, REGRESSED, Cell, Rate, load
from lab.study.command import main
from lab.study.raw import StudyError, append, read, resume
from tests.gemm_regression.simulated import SimulatedDevice
from tests.ladder import PROJECT

STORED = PROJECT.root / "docs" / "results" / "detection"
ONE = "prefetch-f32-tile64x64x8-thread8x8-pad4-1024x1024x1024"
COMMIT = "c0ffee00" * 5


def device(board: str = "0a1b2c3d", **how: Any) -> SimulatedDevice:
    gpu = SimulatedDevice(**{"seconds": lambda side: 1e-4, "process": 0.0005, **how})
    gpu.info = dataclasses.replace(gpu.info, board=board)
    return gpu


@pytest.fixture(autouse=True)
def commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.study.command.commit_id", lambda: COMMIT)


@pytest.fixture
def measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs ``measure`` into the folder of the test; gives its exit status and what it said."""

    def run(*more: str, on: Iterable[SimulatedDevice] | None = None) -> tuple[int, str]:
        opened = list(on or [device()])
        status = main(["measure", str(tmp_path), *more], lambda text, limit: opened)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def file_of(folder: Path, board: str = "0a1b2c3d", planted: str = "") -> Path:
    return folder / f"nvidia-h200-{board}-{COMMIT[:8]}{planted}.jsonl.gz"


# What is stored

HEAD = {
    **{"study": 1, "datetime": "2026-11-23T10:00:00+00:00", "baseline": {}},
    "machine_info": {
        **{"name": "NVIDIA H200", "capability": "9.0", "nvcc": "13.0.88"},
        **{"driver": "580.159.04", "cuda_driver": "13.0"},
    },
}


TRIAL = {"trial": 0, "case": "c", "size": 0.01}


def failed(trial: int) -> dict[str, Any]:
    return {"trial": trial, "case": "one", "size": 0.0, "error": "HANG: no answer"}


@pytest.mark.parametrize("lost", [1, 30])
def test_a_write_cut_short_costs_that_write_alone(lost: int, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl.gz"
    append(file, [HEAD])
    append(file, [failed(0), failed(1)])
    whole = file.stat().st_size
    append(file, [failed(2)])
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - lost)
    assert read(file) == (HEAD, [failed(0), failed(1)])
    assert resume(file) == read(file)
    assert file.stat().st_size == whole
    append(file, [failed(9)])
    assert read(file)[1][-1] == failed(9)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"s\.jsonl\.gz is not a study.s file"),
        (b"no gzip", r"s\.jsonl\.gz is not a study.s file"),
        (b'{"study": 1}\n', r"s\.jsonl\.gz is not a study.s file"),
        ([HEAD, {"trial": 0}], r"s\.jsonl\.gz is not a study.s file \(records.0.case is missing"),
        ([HEAD, TRIAL], r"is not a study.s file \(trial 0 of c has no samples and no error"),
        ([HEAD, {**TRIAL, "looks": []}], r"is not a study.s file \(records.0.looks is \[\]"),
        ([HEAD | {"study": 2}], "schema 2"),
    ],
)
def test_a_file_that_is_no_study_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl.gz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        append(file, content)
    with pytest.raises(StudyError, match=said):
        read(file)


# Measuring


def test_a_third_and_more_are_of_the_kinds_that_are_told_one_by_one() -> None:
    chosen = trials.studied((9, 0))
    kinds = [case.split("-")[0] for case in chosen]
    assert set(trials.KINDS) <= set(kinds)
    assert sum(kind in trials.KINDS for kind in kinds) >= len(kinds) / 3
    assert len(chosen) == len(set(chosen)) >= 60


def test_each_process_times_each_case_once_beside_its_stored_binary(measure: Any, tmp_path: Path) -> None:
    pairs: list[tuple[Any, Any]] = []
    gpu = device(fail=lambda base, case: pairs.append((base, case)))
    before = gpu.restarts
    assert measure("--processes", "3", on=[gpu])[0] == 0
    assert gpu.restarts - before == 3
    head, records = read(file_of(tmp_path))
    assert head["commit"] == COMMIT
    wanted = {(n, case) for n in range(3) for case in trials.studied((9, 0))}
    assert (len(records), {(r["trial"], r["case"]) for r in records}) == (len(wanted), wanted)
    assert all(isinstance(base, StoredBinary) and isinstance(case, Case) for base, case in pairs)
    assert {base.sha256 for base, _ in pairs} == {one["cubin_sha256"] for one in head["baseline"].values()}
    assert len({tuple(r["case"] for r in records if r["trial"] == n) for n in range(3)}) == 3, "by lot"
    # At most 150 KB for 500 trials.
    assert file_of(tmp_path).stat().st_size / len(records) < 300


def test_looks_end_when_a_case_is_clear_at_its_share_of_the_process(measure: Any, tmp_path: Path) -> None:
    measure("--processes", "1", on=[device(spread=0.0005, process=0.0)])
    assert {len(r["looks"]) for r in read(file_of(tmp_path))[1]} == {1}
    noisy = device("noisy", spread=0.15)
    measure("--processes", "1", "-k", ONE, on=[noisy])
    (record,) = read(file_of(tmp_path, "noisy"))[1]
    assert [len(look["blocks"]) for look in record["looks"]] == [12, 12, 24, 48]
    assert sum(len(orders) for name, orders in noisy.asked if name == ONE) == 96


def test_a_run_again_adds_processes(measure: Any, tmp_path: Path) -> None:
    assert measure("--processes", "1", "-k", "prefetch")[0] == 0
    before = file_of(tmp_path).read_bytes()
    assert measure("--processes", "2", "-k", "prefetch")[0] == 0
    assert file_of(tmp_path).read_bytes().startswith(before)
    assert {r["trial"] for r in read(file_of(tmp_path))[1]} == {0, 1, 2}
    status, said = measure("--processes", "1")
    assert status == 2
    assert "was begun with other cases or sizes" in said


def test_the_budget_ends_it_between_two_pairs(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(base: Any, case: Any) -> None:
        now[0] += 1.0

    now = [0.0]
    monkeypatch.setattr("lab.study.command.time.monotonic", lambda: now[0])
    slow = device(spread=0.0001, process=0.0, fail=later)
    status, said = measure("--processes", "3", "--budget", "10", on=[slow])
    assert status == 1
    assert "the budget of 10 s is used up" in said
    assert len(read(file_of(tmp_path))[1]) == 9  # the last one began in time


def test_boards_are_measured_at_once_each_into_its_own_file(measure: Any, tmp_path: Path) -> None:
    boards = [device("board0"), device("board1", seed=1)]
    status, _ = measure("--processes", "1", "-k", "stream_k", on=boards)
    assert status == 0
    found = [read(file_of(tmp_path, board)) for board in ("board0", "board1")]
    assert [head["machine_info"]["board"] for head, _ in found] == ["board0", "board1"]
    assert found[0][1] != found[1][1]


def test_what_is_planted_is_what_the_blocks_show(measure: Any, tmp_path: Path) -> None:
    assert measure("--processes", "2", "-k", "lean_loop", "--sizes", "0,1,5")[0] == 0
    head, records = read(file_of(tmp_path, planted="-planted"))
    assert len(records) == head["cases"] * 2
    for cell in analysis.cells(head, records):
        assert cell.planted == pytest.approx(cell.size, abs=2e-4)
        assert cell.measured == pytest.approx(cell.planted, abs=4e-3)


def test_a_case_that_fails_is_told_and_left_out(measure: Any, tmp_path: Path) -> None:
    def fail(base: Any, case: Case) -> None:
        if case.id == ONE:
            raise DeviceError("HANG", "no answer within 60 s")

    status, said = measure("--processes", "1", "-k", "prefetch", on=[device(fail=fail)])
    assert status == 0
    assert f"1 failed; {ONE}: HANG: no answer within 60 s" in said
    head, records = read(file_of(tmp_path))
    assert len(analysis.cells(head, records)) == len(records) - 1


def test_another_binary_than_when_the_file_was_begun_is_refused(measure: Any) -> None:
    assert measure("--processes", "1", "-k", "stream_k")[0] == 0
    status, said = measure("--processes", "1", "-k", "stream_k", on=[device(cubin=lambda case: b"new")])
    assert status == 2
    assert "compiles to another binary than when the file was begun; begin a new one" in said


@pytest.mark.parametrize(
    ("more", "others", "words"),
    [
        (["-k", "nothing"], [], "matches no case"),
        (["--processes", "0"], [], "--processes"),
        ([], ["pid 1 (python, 4 MiB)"], "in use by pid 1"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    more: list[str], others: list[str], words: str, measure: Any, tmp_path: Path
) -> None:
    status, said = measure(*more, on=[device(others=others)])
    assert status == 2
    assert words in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sizes", ["3", "a"])
def test_a_size_that_is_not_studied_is_refused(sizes: str, measure: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        measure("--sizes", sizes)


# Judging


def blocks(ratios: Iterable[float]) -> dict[str, Any]:
    """A look of such ratios of B to A, of 100 µs."""
    found = [[[1_000_000], [round(1_000_000 * (1 + ratio))]] for ratio in ratios]
    return {"blocks": found, "resolution": 1e-5, "gpu_seconds": 0.1}


def trial(number: int, case: str, ratios: Iterable[float]) -> dict[str, Any]:
    """Of one look."""
    return {"trial": number, "case": case, "size": 0.0, "looks": [blocks(ratios)]}


CLEAR, SLOW = ([at + 1e-4 * (i % 3 - 1) for i in range(12)] for at in (0.0, 0.009))
OPEN = [0.004 + 0.004 * (i % 2 * 2 - 1) for i in range(12)]  # maybe slower by 0.5 %


def judged(*processes: Iterable[float], head: dict[str, Any] | None = None) -> list[Cell]:
    """A case in so many processes, each of one look."""
    records = [trial(n, ONE, one) for n, one in enumerate(processes)]
    return analysis.cells(HEAD | {"cases": 1, "baseline": {ONE: {}}} | (head or {}), records)


def test_what_is_not_clear_or_slower_by_little_is_judged_by_the_next_process() -> None:
    assert [c.found[RED] for c in judged(CLEAR, SLOW, SLOW)] == [False, True, False]
    assert [c.found[REGRESSED] for c in judged(SLOW, SLOW)] == [True, True]
    assert [c.found[RED] for c in judged(OPEN, CLEAR, OPEN)] == [False, False, True]
    (alone,) = judged(SLOW)
    assert alone.found[REGRESSED], "a single trial has no second process"
    assert [c.cost for c in judged(CLEAR, SLOW)] == pytest.approx([0.1, 0.2])


def test_only_what_may_be_slower_is_red() -> None:
    faster = [-0.005 + 0.0005 * (i % 3 - 1) for i in range(12)]
    assert not any(c.found[RED] for c in judged(faster, faster))


def test_the_pairs_of_a_process_share_the_error_as_the_cases_of_a_run() -> None:
    head = HEAD | {"cases": 2, "baseline": {"one": {}, "two": {}}}
    first, second = analysis.cells(head, [trial(0, "one", CLEAR), trial(0, "two", OPEN)])
    assert first.paired.miss == SequentialTest().share(2)
    assert second.paired.miss == 2 * SequentialTest().share(2), "Holm: alone with what is left"


def test_a_margin_of_the_kernels_own_is_stored_and_judges() -> None:
    assert judged(SLOW, SLOW)[0].found[RED]
    assert not judged(SLOW, SLOW, head={"baseline": {ONE: {"margin": 0.02}}})[0].found[RED]


@pytest.mark.parametrize("file", sorted(STORED.glob("*-board*.jsonl.gz")), ids=lambda file: file.name)
def test_recorded_pairs_of_a_binary_beside_itself_are_not_red(file: Path) -> None:
    cells = [c for c in analysis.cells(*read(file)) if c.size == 0]
    assert cells
    assert not [(c.case, c.trial) for c in cells if c.found[RED]]


@pytest.mark.parametrize(
    ("case", "seconds", "kind"),
    [
        ("wgmma-f16-tile64-512x512x512", 1e-5, "wgmma"),
        ("wgmma_tf32-tf32-tile64-512x512x512", 1e-3, "wgmma_tf32"),
        (ONE, 1e-4, trials.SHORT_CASES),
        (ONE, 1.1e-4, trials.LONG_CASES),
    ],
)
def test_classes(case: str, seconds: float, kind: str) -> None:
    assert trials.class_of(case, seconds) == kind


@pytest.mark.parametrize(
    ("count", "trials_", "limits"),
    [(0, 40, (0.0, 0.0881)), (40, 40, (0.9119, 1.0)), (5, 10, (0.1871, 0.8129))],  # Zar, of the binomial
)
def test_clopper_pearson_limits(count: int, trials_: int, limits: tuple[float, float]) -> None:
    assert Rate(count, trials_).limits == pytest.approx(limits, abs=1e-4)


# Telling


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first trials of a stored file; A/A pairs on two boards, of today's format."""
    folder = tmp_path_factory.mktemp("made")
    head, records = read(STORED / "nvidia-h200.jsonl.gz")
    append(folder / "whole.jsonl.gz", [head, *records[:48]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lab.study.command.commit_id", lambda: COMMIT)
        for number in range(2):
            gpu = [device(f"board{number}", seed=number)]
            options = ["--processes", "2", "-q", "-k", "2048"]
            assert main(["measure", str(folder), *options], lambda *_: gpu) == 0  # noqa: B023
    return folder


@pytest.fixture
def docs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, to be changed at will; nothing is drawn."""
    monkeypatch.setattr(document, "draw", lambda groups, path, mark: path.write_text(mark))
    shutil.copytree(made, tmp_path / "detection")
    return tmp_path


def page(docs: Path) -> str:
    assert main(["report", "--docs", str(docs)]) == 0
    assert main(["report", "--docs", str(docs), "--check"]) == 0
    return (docs / "detection.md").read_text()


def test_before_and_after_the_freeze_and_each_class_are_told_apart(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "COMMIT", "")
    text = page(docs)
    assert "The rule is not frozen" in text
    assert "## NVIDIA H200, before the freeze" in text
    assert "after the freeze" not in text
    monkeypatch.setattr(frozen, "COMMIT", "f" * 40)
    monkeypatch.setattr(frozen, "DATE", "2026-11-22T18:00:00+00:00")
    text = page(docs)
    after = text[text.index("## NVIDIA H200, after the freeze") : text.index("## NVIDIA H200, before")]
    chosen = [case for case in trials.studied((9, 0)) if "2048" in case]
    assert f"| all | {len(chosen) * 4} | 2 | 0 |" in after
    wgmma = [case for case in chosen if case.startswith("wgmma-")]
    assert f"| wgmma | {len(wgmma) * 4} | 2 | 0 |" in after
    assert "whole.jsonl.gz" not in after
    assert "board0" in after
    before = text[text.index("## NVIDIA H200, before the freeze") :]
    assert "planted" in before
    monkeypatch.setattr(frozen, "DATE", "2999-01-01T00:00:00+00:00")
    assert "after the freeze" not in page(docs).split("The freeze.")[1]


def test_each_model_has_its_own_section_and_each_false_alarm_its_line(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "COMMIT", "")
    file = file_of(docs / "detection", "board1")
    head, records = read(file)
    head["machine_info"]["name"] = "NVIDIA H100"
    case = records[0]["case"]
    for record in records:
        if record["case"] == case:
            for look in record["looks"]:
                look["blocks"] = [[a, [round(1.01 * t) for t in b]] for a, b in look["blocks"]]
    file.unlink()
    append(file, [head, *records])
    text = page(docs)
    assert "## NVIDIA H100, before the freeze" in text
    assert text.count("- red by mistake: ") == 2
    assert f"- red by mistake: {case}, trial 0 of `{file.name}`: REGRESSED SLOWER, +" in text


def test_the_page_goes_stale_with_the_samples(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ["report", "--docs", str(docs)]
    assert main([*report, "--check"]) == 1
    text = page(docs)
    (docs / "detection.md").write_text(text.replace("100.0", "99.0", 1))
    capsys.readouterr()
    assert main([*report, "--check"]) == 1
    assert "detection.md is out of date" in capsys.readouterr().err
    assert page(docs) == text
    file = file_of(docs / "detection", "board1")
    append(file, [dict(read(file)[1][0], trial=7)])
    assert main([*report, "--check"]) == 1


def test_one_measurement_does_not_count_twice(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (docs / "detection" / "copy.jsonl.gz").write_bytes((docs / "detection" / "whole.jsonl.gz").read_bytes())
    assert main(["report", "--docs", str(docs)]) == 2
    assert "copy.jsonl.gz and whole.jsonl.gz contain the same measurement" in capsys.readouterr().err


def test_a_report_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--docs", str(tmp_path)]) == 2
    assert "contains no samples" in capsys.readouterr().err
    append(tmp_path / "s.gz", [HEAD])
    assert main(["report", str(tmp_path / "s.gz"), "--docs", str(tmp_path)]) == 2
    assert "contains no trial" in capsys.readouterr().err


def test_a_plot_is_drawn(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vl_convert", reason="the group `report` is not installed")
    study = document.pictured(load((docs / "detection").glob("*.jsonl.gz")))
    assert study.name == "whole.jsonl.gz"
    monkeypatch.undo()
    for name in ("a.svg", "b.svg"):
        document.draw(document.by_length(study), docs / name, "0123")
    drawn = (docs / "a.svg").read_text()
    assert "0123" in drawn
    assert "cases over 100 µs" in drawn
    assert drawn == (docs / "b.svg").read_text()


def test_sizes_that_can_be_planted_include_those_that_are_stored() -> None:
    head, records = read(STORED / "nvidia-h100.jsonl.gz")
    assert {r["size"] for r in records} <= set(trials.SIZES)
    assert not head.get("cases")

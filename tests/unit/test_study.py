"""The study of detection power on a simulated GPU: what is planted, stored, resumed, judged and told."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.devices import DeviceError
from harness.model import Case, Resources
from harness.study import analysis, methods, plot, shortfalls, trials
from harness.study.__main__ import main
from harness.study.ladder import quick
from harness.study.raw import StudyError, append, five_numbers, read, resume
from harness.study.studies import Study
from harness.timing.interval import PairedKind
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from tests.unit.simulated import SimulatedDevice

SECONDS = dict(zip(trials.CASES, (1e-5, 2e-5, 9e-5, 1.1e-4, 3.4e-4, 1.7e-4, 3e-3, 2e-2), strict=True))
SHORT, LONG = trials.CASES[0], trials.CASES[6]


def device(**how: Any) -> SimulatedDevice:
    return SimulatedDevice(seconds=lambda case: SECONDS[case.id], **{"process": 0.0005, **how})


@pytest.fixture
def measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs ``measure`` into the file of the test; gives its exit status and what it said."""

    def run(*more: str, on: SimulatedDevice | None = None) -> tuple[int, str]:
        opened = on or device()
        status = main(["measure", str(tmp_path / "s.jsonl.gz"), *more], lambda limit: opened)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.jsonl.gz"


@pytest.fixture(autouse=True)
def no_nvbench(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report's own dependencies need not be installed."""
    monkeypatch.setattr(methods, "nvbench", lambda *samples: "SAME")


# What is stored

HEAD = {"study": 1, "machine_info": {"name": "NVIDIA H200", "capability": "9.0"}, "baseline": {}}


def failed(trial: int) -> dict[str, Any]:
    return {"trial": trial, "case": "one", "size": 0.0, "error": "HANG: no answer"}


@pytest.mark.parametrize("lost", [1, 30])
def test_a_write_cut_short_costs_that_write_alone(lost: int, file: Path) -> None:
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


@pytest.mark.parametrize("content", [b"", b"no gzip", b'{"study": 1}\n'])
def test_a_file_that_is_no_study_is_refused_in_one_line(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(StudyError, match=r"s\.jsonl\.gz is not a study.s file"):
        read(file)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"trial": 0}, "records.0.case is missing"),
        ({"trial": 0, "case": "c", "size": 0.01}, "trial 0 of c has no samples and no error"),
        ({"trial": 0, "case": "c", "size": 0.01, "gate": [], "looks": []}, r"records.0.gate is \[\]"),
    ],
)
def test_a_trial_without_samples_is_refused(record: dict[str, Any], said: str, file: Path) -> None:
    append(file, [HEAD, record])
    with pytest.raises(StudyError, match=rf"s\.jsonl\.gz is not a study.s file \({said}"):
        read(file)


def test_another_schema_is_refused(file: Path) -> None:
    append(file, [HEAD | {"study": 2}])
    with pytest.raises(StudyError, match="schema 2"):
        read(file)


# Measuring


def test_what_is_planted_is_what_the_blocks_show(measure: Any, file: Path) -> None:
    measure("--trials", "4", "-k", LONG, "--sizes", "0,1,5")
    head, records = read(file)
    for cell in analysis.cells(head, records):
        assert cell.planted == pytest.approx(cell.size, abs=2e-4)
        assert cell.measured == pytest.approx(cell.planted, abs=2e-3)


def test_a_run_again_adds_what_is_lacking(measure: Any, file: Path) -> None:
    assert measure("--trials", "1", "-k", "naive")[0] == 0
    before = file.read_bytes()
    assert measure("--trials", "2", "-k", "naive", "--sizes", "0,5%")[0] == 0
    assert file.read_bytes().startswith(before)
    cells = [(r["trial"], r["case"], r["size"]) for r in read(file)[1]]
    naive = [case for case in trials.CASES if "naive" in case]
    assert len(cells) == len(set(cells)) == len(naive) * (len(trials.SIZES) + 2)
    unchanged = file.read_bytes()
    assert measure("--trials", "2", "-k", "naive", "--sizes", "0,5")[0] == 0
    assert file.read_bytes() == unchanged


def test_the_budget_ends_it_before_a_trial_that_would_last_longer(measure: Any, file: Path) -> None:
    status, said = measure("--trials", "3", "-k", SHORT, "--budget", "0")
    assert status == 1
    assert "the budget of 0 s is used up: 3 trials are missing" in said
    assert read(file)[1] == []  # but the baseline is there


def test_the_budget_ends_a_trial_between_two_cases_and_the_rest_follows(
    measure: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(SimulatedDevice):
        def time(self, case: Case, plan: Plan) -> Measurement:
            now[0] += 1.0
            return super().time(case, plan)

    now = [0.0]
    monkeypatch.setattr("harness.study.__main__.time.monotonic", lambda: now[0])

    def slow() -> SimulatedDevice:
        return Slow(seconds=lambda case: SECONDS[case.id])

    baseline = trials.BASELINE_RUNS * len(trials.CASES)
    wanted = ("--trials", "1", "--sizes", "0")
    status, said = measure(*wanted, "--budget", str(baseline + 4 + 3), on=slow())
    assert status == 1
    assert "1 trials are missing" in said
    assert len(begun := read(file)[1]) == 4  # the last one began in time
    assert measure(*wanted, on=slow())[0] == 0
    assert read(file)[1][:4] == begun
    assert len({r["case"] for r in read(file)[1]}) == len(read(file)[1]) == len(trials.CASES)


def test_quick_trials_are_of_the_margin_of_the_gate_alone(measure: Any, file: Path) -> None:
    def run(*more: str) -> tuple[int, str]:
        status, said = measure(*more, on=SimulatedDevice(seconds=lambda case: 1e-4, spread=0.004))
        return status, said

    assert run("--quick", "--trials", "2")[0] == 0
    head, records = read(file)
    cases = quick((9, 0))
    assert len(cases) >= 30
    assert list(head["baseline"]) == cases
    assert sorted((r["trial"], r["case"]) for r in records) == sorted((n, c) for n in (0, 1) for c in cases)
    assert {r["size"] for r in records} == {0.0}
    assert head["summaries"]
    assert all(len(run["samples"]) == 5 for r in records for run in r["gate"])
    cells = analysis.cells(head, records)
    # As many interim analyses as ±0.5 % needs: one, where ±0.25 % would have had more.
    assert {len(r["looks"]) for r in records} == {1}
    assert not any(trials.pair_finding(trials.judged(r["looks"]), 0.005) is None for r in records)
    undecided = [trials.pair_finding(trials.judged(r["looks"]), 0.0025) for r in records]
    assert any(found and found.kind is PairedKind.AMBIGUOUS for found in undecided)
    assert analysis.rate(cells, analysis.PAIRED[0.005]) == analysis.Rate(0, len(records))
    assert analysis.rate(cells, analysis.PAIRED[0.0025]) is None
    assert run("--quick", "--trials", "3", "-k", "prefetch")[0] == 0  # goes on with the file
    assert run("--trials", "3")[1].count("was begun with --quick, or of other cases; give another file") == 1
    assert run("--quick", "--sizes", "0,1")[0] == 2


def test_each_trial_is_timed_in_a_worker_of_its_own(measure: Any) -> None:
    gpu = device()
    before = gpu.restarts
    measure("--trials", "3", "-k", SHORT, on=gpu)
    assert gpu.restarts - before == trials.BASELINE_RUNS + 3


def test_a_suspicion_is_measured_again_in_a_fresh_worker(measure: Any, file: Path) -> None:
    measure("--trials", "1", "-k", LONG, "--sizes", "0,5")
    runs = {r["size"]: len(r["gate"]) for r in read(file)[1]}
    assert runs == {0: 1, 0.05: 2}


def test_no_look_is_spent_on_a_size_on_the_margin(measure: Any, file: Path) -> None:
    measure("--trials", "1", "-k", LONG, on=device(spread=0.0005))
    assert {r["size"]: len(r["looks"]) for r in read(file)[1]} == dict.fromkeys(trials.SIZES, 1)


def test_a_case_that_fails_is_told_and_left_out(measure: Any, file: Path) -> None:
    def fail(base: Case, case: Case) -> None:
        if case.id == SHORT and gpu.restarts > trials.BASELINE_RUNS + 1:
            raise DeviceError("HANG", "no answer within 60 s")

    gpu = device(fail=fail)
    status, said = measure("--trials", "2", "--sizes", "0", on=gpu)
    assert status == 0
    assert "1 failed" in said
    assert f"{SHORT}: HANG: no answer within 60 s" in said
    head, records = read(file)
    assert len(records) == 16
    assert len(analysis.cells(head, records)) == 15


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["-k", "nothing"], "matches no case"),
        (["--trials", "0"], "--trials"),
    ],
)
def test_a_wrong_command_line_is_one_line(more: list[str], words: str, measure: Any) -> None:
    status, said = measure(*more)
    assert status == 2
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("sizes", ["3", "a"])
def test_a_size_that_is_not_studied_is_refused(sizes: str, measure: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        measure("--sizes", sizes)


def test_a_gpu_in_use_is_refused(measure: Any, file: Path) -> None:
    status, said = measure(on=device(others=["pid 1 (python, 4 MiB)"]))
    assert status == 2
    assert "in use by pid 1" in said
    assert not file.exists()


def test_another_gpu_board_or_binary_is_refused(
    measure: Any, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure("--trials", "1", "-k", SHORT)
    other = device()
    other.info = dataclasses.replace(other.info, name="NVIDIA A100")
    status, said = measure("--trials", "2", "-k", SHORT, on=other)
    assert status == 2
    assert "was measured on NVIDIA H200, this is NVIDIA A100" in said

    first, other = device(), device()
    for number, gpu in enumerate((first, other)):
        gpu.info = dataclasses.replace(gpu.info, board=f"board{number}")
    elsewhere = str(file.with_name("board.jsonl.gz"))
    assert main(["measure", elsewhere, "--trials", "1", "-k", SHORT], lambda _: first) == 0
    assert main(["measure", elsewhere, "--trials", "2", "-k", SHORT], lambda _: first) == 0
    assert main(["measure", elsewhere, "--trials", "3", "-k", SHORT], lambda _: other) == 2
    assert "was measured on board board0, this is board1; give another file" in capsys.readouterr().err

    class Rebuilt(SimulatedDevice):
        def time(self, case: Case, plan: Plan) -> Measurement:
            m = super().time(case, plan)
            return dataclasses.replace(m, resources=Resources(32, 0, 0, "b" * 64))

    status, said = measure("--trials", "2", "-k", SHORT, on=Rebuilt(seconds=lambda case: SECONDS[case.id]))
    assert status == 2
    assert "another binary" in said


def test_summaries_are_judged_alike_and_are_small(tmp_path: Path) -> None:
    told = {}
    for name, more in (("all", ()), ("few", ("--summaries",))):
        file, gpu = tmp_path / f"{name}.jsonl.gz", device(spread=0.002)
        # The second run is not told again: the file knows.
        for trials_, more_ in (("2", more), ("3", ())):
            assert main(["measure", str(file), "--trials", trials_, *more_], lambda _: gpu) == 0  # noqa: B023
        told[name] = (file.stat().st_size, analysis.cells(*read(file)))
    assert told["few"][0] < told["all"][0] / 5
    gate = [analysis.GATE, analysis.GATE_SLOWER]
    methods_ = [*gate, *analysis.PAIRED.values(), analysis.ALONE, analysis.ALONE_FIRST]
    for few, every in zip(told["few"][1], told["all"][1], strict=True):
        assert list(few.found) == methods_  # and nothing of the tools that need all samples
        assert few.found == {name: every.found[name] for name in methods_}
        assert (few.open, few.cost) == (every.open, {name: every.cost[name] for name in methods_})
        assert few.measured == pytest.approx(every.measured, abs=1e-5)
        assert few.planted == every.planted


@pytest.mark.parametrize("count", [1, 4, 5, 6, 7, 100, 101])
def test_five_numbers_keep_the_median(count: int) -> None:
    numbers = random.Random(count).sample(range(10**6), count)
    kept = five_numbers(numbers)
    assert statistics.median(kept) == pytest.approx(statistics.median(numbers), abs=0.5)
    assert (min(kept), max(kept), len(kept)) == (min(numbers), max(numbers), min(5, count))


# Judging


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any]]:
    """Head and cells of three trials."""
    file = tmp_path_factory.mktemp("study") / "s.jsonl.gz"
    gpu = device(spread=0.002)
    assert main(["measure", str(file), "--trials", "3"], lambda limit: gpu) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "nvbench", lambda *samples: "SAME")
        head, records = read(file)
        return head, analysis.cells(head, records)


def test_methods_find_what_is_beyond_their_limits_and_no_more(judged: Any) -> None:
    fine, usual = analysis.PAIRED.values()
    found = {
        (method, size): {c.found[method] for c in judged[1] if c.size == size}
        for method in judged[1][0].found
        for size in trials.SIZES
    }
    for method in (fine, usual, analysis.GATE, analysis.GATE_SLOWER, analysis.ALONE):
        assert found[method, 0.0] == {False}
        assert found[method, 0.05] == {True}
    assert found[fine, 0.01] == found[usual, 0.01] == {True}
    assert found[fine, 0.005] == {True}
    assert found[usual, 0.0025] == {False}
    assert found[analysis.GATE, 0.01] == found[analysis.GATE_SLOWER, 0.01] == {True}
    assert found[analysis.GATE, 0.005] == {True}  # on the margin: AMBIGUOUS, mostly
    assert False in found[analysis.GATE_SLOWER, 0.005]
    assert False in found[analysis.ALONE, 0.01]
    assert found["two runs: pytest-benchmark median:5%", 0.02] == {False}
    assert found["two runs: pytest-benchmark median:1%", 0.05] == {True}
    asv = "two runs: Mann–Whitney p < 0.002, factor 1.1 (asv)"
    assert found[asv, 0.05] == {False}  # 1.1 is 10 %


def test_a_larger_slowdown_costs_the_baseline_alone_its_second_measurement(judged: Any) -> None:
    def spent(size: float, method: str) -> float:
        return sum(float(c.cost[method]) for c in judged[1] if c.size == size)

    alone, first = analysis.ALONE, analysis.ALONE_FIRST
    assert spent(0.05, alone) > 1.8 * spent(0.0, alone)
    assert spent(0.05, first) == pytest.approx(spent(0.0, first), rel=0.1)
    # The gate pays for the pair, and not for a repetition of what the pair calls slower.
    usual = analysis.PAIRED[0.005]
    assert spent(0.05, analysis.GATE) == pytest.approx(spent(0.05, first) + spent(0.05, usual))


@pytest.mark.parametrize(
    ("count", "trials_", "limits"),
    [
        (0, 40, (0.0, 0.0881)),
        (40, 40, (0.9119, 1.0)),
        (5, 10, (0.1871, 0.8129)),
    ],  # Zar, table of the binomial
)
def test_clopper_pearson_limits(count: int, trials_: int, limits: tuple[float, float]) -> None:
    assert analysis.Rate(count, trials_).limits == pytest.approx(limits, abs=1e-4)


def test_nvbench_is_asked_by_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("cuda.bench.scripts.nvbench_compare_robust")
    samples = [1e-4 * (1 + 1e-4 * (i % 10)) for i in range(60)]
    clocks = [1980.0] * 60
    for factor, word in ((1.0, "SAME"), (1.2, "SLOW"), (1 / 1.2, "FAST")):
        assert methods.nvbench(samples, [s * factor for s in samples], clocks, clocks) == word


# Telling


def test_the_page_is_made_of_the_samples_and_goes_stale_with_them(
    measure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "detection").mkdir()
    measure("--trials", "1")
    stored = tmp_path / "detection" / "nvidia-h200.jsonl.gz"
    (tmp_path / "s.jsonl.gz").rename(stored)
    monkeypatch.setattr(plot, "draw", lambda groups, path, mark: path.write_text(mark))
    report = ["report", "--docs", str(tmp_path)]
    assert main([*report, "--check"]) == 1
    assert main(report) == 0
    assert main([*report, "--check"]) == 0
    page = (tmp_path / "detection.md").read_text()
    assert "at least 1 of each case and size; 0 failed" in page
    assert all(case in page for case in trials.CASES)
    capsys.readouterr()
    (tmp_path / "detection.md").write_text(page.replace("100.0", "99.0", 1))
    assert main([*report, "--check"]) == 1
    assert "detection.md is out of date" in capsys.readouterr().err
    main(report)
    append(stored, [dict(read(stored)[1][0], trial=7)])
    assert main([*report, "--check"]) == 1


def test_the_page_says_where_a_study_falls_short(judged: Any) -> None:
    def told(change: Any) -> str:
        study = Study("s.jsonl.gz", judged[0], [change(cell) for cell in judged[1]], 0, "")
        return "\n".join(shortfalls.paragraphs(study, [study]))

    def gate(cell: Any, says: bool, **more: Any) -> Any:
        said = {analysis.GATE: says, analysis.ALONE: says}
        return dataclasses.replace(cell, found={**cell.found, **said}, **more)

    def alarm(cell: Any) -> Any:
        here = (cell.size, cell.case, cell.trial) == (0.0, SHORT, 1)
        more = {"against_stored": (0.08, 0.07), "said": "DRIFTED BASE_AS_SLOW"}
        return gate(cell, True, **more) if here else cell

    def on_tensor_cores_half(cell: Any) -> Any:
        return dataclasses.replace(cell, measured=cell.planted / 2) if "wmma" in cell.case else cell

    said = told(alarm)
    assert f"{SHORT}, in trial 1 two processes were slower than the stored median by 8.0 % and 7.0 %" in said
    assert f"**A false alarm of the gate** (`s.jsonl.gz`): {SHORT}, trial 1: DRIFTED BASE_AS_SLOW; in" in said
    assert "false alarm of the gate" not in told(lambda cell: cell)
    assert "**The gate and 1 %.**" in told(lambda cell: gate(cell, False))
    assert "**The gate and 1 %.**" not in told(lambda cell: gate(cell, cell.size > 0))
    assert "0.50 times on tensor cores" in told(on_tensor_cores_half)
    assert "up to 50 % smaller" in told(on_tensor_cores_half)


def test_a_report_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--docs", str(tmp_path)]) == 2
    assert "contains no samples" in capsys.readouterr().err
    append(tmp_path / "s.gz", [HEAD])
    assert main(["report", str(tmp_path / "s.gz"), "--docs", str(tmp_path)]) == 2
    assert "contains no trial" in capsys.readouterr().err


def test_a_plot_is_drawn(judged: Any, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the group `report` is not installed")
    study = Study("s.jsonl.gz", judged[0], judged[1], 0, "f" * 64)
    groups = {title: [c for c in study.cells if c.case in cases] for title, cases in study.groups.items()}
    for name in ("a.svg", "b.svg"):
        plot.draw(groups, tmp_path / name, "0123")
    drawn = (tmp_path / "a.svg").read_text()
    assert "0123" in drawn
    assert "cases over 100 µs" in drawn
    assert drawn == (tmp_path / "b.svg").read_text()

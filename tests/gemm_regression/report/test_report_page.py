"""The report: what it reads, the records that charts are drawn from, the page as a file, its pictures."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest

from gemm_regression.baselines import BaselineError
from gemm_regression.baselines.merge import write_export
from gemm_regression.cli.stored import report as main
from gemm_regression.counters.profiler import TRAFFIC
from gemm_regression.counters.traffic import NcuCounts, TrafficData
from gemm_regression.judge.machine import Health, judge_machine
from gemm_regression.model import Finding, Kernel
from gemm_regression.report import charts, page, sources
from gemm_regression.report.sources import Content, Measured, ReportSource
from gemm_regression.timing.bounds import roofs_of
from tests.gemm_regression import synthetic
from tests.gemm_regression.report import made_report
from tests.gemm_regression.report.made_report import CRASHED, SLOWER, WRONG
from tests.ladder import LADDER, PROJECT

pytest.importorskip("vl_convert", reason="the group `report` is not installed")
DECLARED = charts.variants(LADDER)
MACHINE = {"name": "NVIDIA H200", "driver": "999.1", "cuda_driver": "13.0", "nvcc": "13.0.88"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return made_report.save(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def content(files: tuple[Path, Path, Path]) -> Content:
    return sources.gather(files[2], files[:2])


@pytest.fixture(scope="module")
def measured(content: Content) -> list[dict[str, Any]]:
    return charts.cases(content.baselines[:1], DECLARED)


def source(
    label: str, case: str = f"tiled-f32-tile32-pad0-{synthetic.CUBE.id}", **machine: Any
) -> ReportSource:
    """One case of a baseline, which takes a second."""
    seconds = synthetic.stats([1.0] * 5)
    one = Measured({"case": case, "gflops": 1.0}, MACHINE | machine, "c" * 12, seconds)
    return ReportSource(label, MACHINE | machine, "2026-11-21T00:00:00+00:00", (one,))


# What it reads


def test_it_takes_runs_comparisons_and_baselines(
    files: tuple[Path, Path, Path], content: Content, tmp_path: Path
) -> None:
    assert [one.judged for one in content.sources] == [True, False]
    assert [label for label, _ in content.comparisons] == ["compare.json"]
    assert [len(found) for found in content.histories.values()] == [12]
    assert [one.name for one in content.tuned] == [f"register-f32-{synthetic.CUBE.id}"]
    exported = write_export(content.histories["nvidia-h200"][0], tmp_path / "first.json")
    again = sources.gather(files[2], [exported])
    labels = [one.label for one in again.baselines]
    assert labels == ["NVIDIA H200: baseline", "NVIDIA H200: baseline first.json"]


JUDGED = synthetic.case()
UNJUDGED = {JUDGED: synthetic.measurement()}
REMEDY = "give what pytest's --junitxml wrote"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("x.json", "{", "truncated"),
        ("x.json", "[]", "no JSON object"),
        ("x.json", "{}", "give an exported baseline"),
        ("x.json", '{"gemm_comparison": 1}', "another version"),
        ("x.json", json.dumps(synthetic.run(1, {})), "contains no judged case"),
        ("x.json", json.dumps(synthetic.run(1, UNJUDGED)), f"{JUDGED.id}: evidence is missing"),
        ("x.xml", "", REMEDY),
        ("x.xml", "<testsuites>", REMEDY),
        ("x.xml", "<testsuites/>", REMEDY),
    ],
)
def test_a_file_that_is_something_else_is_refused_in_one_line(
    name: str, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    out = tmp_path / "report.html"
    assert main([str(tmp_path / name), "--root", str(tmp_path), "--output", str(out)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


# Records


def test_the_records_of_cases(measured: list[dict[str, Any]]) -> None:
    """The fastest config of a stage is its best, and speed is over naive; ragged neighbours have places of
    their own; intensity is FLOP over compulsory and requested bytes."""
    shown = {r["stage"]: r for r in measured if r["best"] and (r["size"], r["dtype"]) == ("4096", "f32")}
    assert (shown["register"]["config"], shown["naive"]["speedup"]) == ("tile128x128x8-thread8x8-pad1", 1.0)
    assert shown["cublas"]["share"] == 100.0
    expected = shown["prefetch"]["gflops"] / shown["naive"]["gflops"]
    assert shown["prefetch"]["speedup"] == pytest.approx(expected, rel=1e-3)
    assert 6 < expected < 8
    places = {r["size"]: (r["place"], r["ragged"]) for r in measured if r["square"]}
    assert places == {"1024": (0, False), "4095": (1, True), "4096": (2, False), "4097": (3, True)}
    tiled = next(r for r in measured if r["case"].startswith("tiled-f32-tile32-pad0-4096"))
    assert tiled["compulsory"] == pytest.approx(2 * 4096**3 / (3 * 4096**2 * 4), rel=1e-3)
    requested = 2 * 4096**3 / (4 * (2 * 4096**3 / 32 + 4096**2))
    assert tiled["requested"] == pytest.approx(requested, rel=1e-3)


def test_a_tuned_space_has_its_configs_and_the_axis_that_matters_most_first() -> None:
    tuned = made_report.tuned()
    (space,) = charts.spaces([tuned])
    assert space["axes"][0] == "TILE_M"
    assert {cell["config"] for cell in space["cells"]} == {e.config.label for e in tuned.evaluations}
    assert max(cell["of_best"] for cell in space["cells"]) == 100.0
    said = "240 configs timed by random_sample, 1 failed, 7 excluded without a GPU; best: tile"
    assert said in space["note"]
    assert charts.spaces([replace(tuned, evaluations=tuned.evaluations[:2])]) == []


def test_a_case_that_is_not_declared_any_more_is_shown() -> None:
    (record,) = charts.cases([source("x", "old-f32-tile8-64x64x64")], DECLARED)
    assert (record["stage"], record["dtype"], record["config"]) == ("old", "f32", "tile8")
    assert "compulsory" not in record


def test_roofs_are_those_measured_else_the_datasheets() -> None:
    sheet, own = roofs_of(MACHINE), roofs_of(MACHINE | {"roofs": made_report.ROOFS})
    assert sheet is not None
    assert (sheet.origin, sheet.bandwidths) == ("datasheet", {"dram": 4800.0})
    assert own is not None
    assert (own.origin, sorted(own.peaks)) == ("measured", ["bf16", "f32"])
    assert own.bandwidths == {"shared": 33_000.0, "l2": 7000.0, "dram": 4300.0}
    assert roofs_of({"name": "Test GPU 1000"}) is None
    cases = [{"source": "x", "dtype": dtype} for dtype in ("f32", "bf16_bf16", "s8")]
    points = charts.roof_lines([source("x", roofs=made_report.ROOFS)], cases)
    assert {p["dtype"] for p in points} == {"f32", "bf16_bf16"}
    ridge = max(p["x"] for p in points if p["dtype"] == "f32" and p["roof"].startswith("DRAM"))
    assert ridge == pytest.approx(65_000 / 4300, rel=1e-4)


def test_a_case_has_its_bound_by_what_ncu_counted_of_its_binary(content: Content) -> None:
    run = content.runs[0]
    cubin = next(one for one in run.cases if one.case == SLOWER.id).info["cubin_sha256"]
    speed = next(r["gflops"] for r in charts.cases([run], DECLARED) if r["case"] == SLOWER.id)
    seconds = SLOWER.flop / (1e9 * speed)
    moved = 0.9 * 4300e9 * seconds  # bytes: nine tenths of the bandwidth
    values = dict.fromkeys(TRAFFIC, 1.0) | {"dram__bytes_read.sum": moved, "dram__bytes_write.sum": 0.0}
    for seen_of, bound, counted in ((cubin, "DRAM", "ncu"), ("0" * 64, "math", "estimated")):
        known = TrafficData({"nvidia-h200": {SLOWER.id: NcuCounts(seen_of, values, {})}})
        record = next(r for r in charts.cases([run], DECLARED, known) if r["case"] == SLOWER.id)
        assert (record["bound"], record["counted"], "dram" in record) == (bound, counted, counted == "ncu")
        if counted == "ncu":
            assert record["of_bound"] == pytest.approx(90, abs=0.1)
            assert record["dram"] == pytest.approx(SLOWER.flop / moved, rel=1e-3)


def test_the_regression_of_a_series_is_found_at_its_file(content: Content) -> None:
    ((_, move, slower),) = charts.change_points(content.histories)
    assert (move.case, move.at[:4], slower) == (SLOWER.id, f"{made_report.SINCE:04}", True)
    of_case = next(r for r in charts.history(content.histories, DECLARED) if r["case"] == SLOWER.id)
    assert of_case["trend"] == "slower"
    assert [n for n, moved in enumerate(of_case["moved"], start=1) if moved] == [made_report.SINCE]


# Verdicts


def test_every_verdict_has_its_evidence_and_command_the_red_ones_first(content: Content) -> None:
    said = sources.of_run(content.runs[0])
    red = [(one.verdict, one.case) for one in said if one.red]
    assert red == [("WRONG", WRONG.id), ("CRASHED", CRASHED.id), ("REGRESSED", SLOWER.id)]
    assert [one.red for one in said[:4]] == [True, True, True, False]
    assert len(said) == len(made_report.cases(made_report.stored()))
    slower, evidence = said[2], dict(said[2].evidence)
    assert slower.command == f'nox -s gpu -- -k "[{SLOWER.id}]"'
    assert "nox" not in slower.message
    assert "beside the baseline's binary (commit dddddddddddd), more than the margin" in slower.message
    assert evidence["binary"] == "differs from the baseline's"
    assert evidence["pair"] == "12 blocks; probability of a false verdict 0.001 %"
    assert evidence["change of GFLOPS"].endswith(", side by side")
    assert dict(said[3].evidence)["change of GFLOPS"].endswith(", from the stored figure")


def test_the_machine_of_a_run_is_judged_again_and_red_unless_drift_was_allowed(content: Content) -> None:
    run = content.runs[0]
    visited = judge_machine(Health(others=("pid 7 (python3)",)), [], [])
    with_machine = replace(run, machines={"0": visited.recorded()})
    said = next(one for one in sources.of_run(with_machine) if one.case == "machine of GPU 0")
    assert (said.verdict, said.reason, said.red) == ("AMBIGUOUS", "OTHER_PROCESSES", True)
    assert dict(said.evidence)["found"] == "other processes use the GPU: pid 7 (python3)"
    assert len(sources.of_run(with_machine)) == len(run.cases) + 1
    info = json.loads(json.dumps(dict(run.cases[0].info)))
    info["evidence"]["policy"]["fail_on_drift"] = False
    allowed = replace(with_machine, cases=(replace(run.cases[0], info=info),))
    assert [one.red for one in sources.of_run(allowed) if one.case.startswith("machine")] == [False]
    broken = replace(run, machines={"0": {}})
    with pytest.raises(BaselineError, match="machine of GPU 0: not a verdict of this suite"):
        sources.of_run(broken)


def test_a_comparison_is_judged_again_from_its_samples(content: Content) -> None:
    said = sources.of_comparison(*content.comparisons[0])
    assert [(one.verdict, one.red) for one in said[:2]] == [("REGRESSED", True), ("PASS", False)]
    assert said[0].command.startswith('nox -s compare -- -k "[tiled-f32')
    assert any(one.source.endswith("control") for one in said)


JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">
<testcase classname="tests.test_kernels" name="test_kernel[tiled-f32-tile16-pad0-1x1x1]"/>
{failed}
<testcase classname="tests.test_performance" name="test_performance[{case}]">
<failure message="Failed">REGRESSED: {case}: slower</failure></testcase>
</testsuite></testsuites>"""
RACE = Finding("race", "thread 0 <writes> As+0", "s02.cu", 31)
FAILED = f"""<testcase classname="tests.test_kernels" name="test_kernel[tiled-f32-tile16-pad0-{{problem}}]">
<properties><property name="variant" value="tiled-f32-tile16-pad0"/>
<property name="finding" value={quoteattr(RACE.to_json())}/>
<property name="finding" value={quoteattr(replace(RACE, line=32).to_json())}/></properties>
<failure message="Failed: WRONG">WRONG</failure></testcase>"""


def test_failed_tests_with_one_finding_are_one_entry(tmp_path: Path, content: Content) -> None:
    path = tmp_path / "junit.xml"
    failed = "".join(FAILED.replace("{problem}", problem) for problem in ("16x32x64", "37x29x41"))
    path.write_text(JUNIT.format(failed=failed, case=SLOWER.id))
    found = sources.read_tests(path, {SLOWER.id, "tiled-f32-tile16-pad0-16x32x64"})
    assert (found.tests, found.red) == (4, 3)
    race, other = found.failed  # the timed case is told by its run
    assert (other.case, race.case) == ("tiled: race at s02.cu:32", "tiled: race at s02.cu:31")
    assert dict(race.evidence)["tests"] == "2"
    test = "tests/test_kernels.py::test_kernel[tiled-f32-tile16-pad0-16x32x64]"
    assert race.command == f'nox -s judge -- "{test}"'
    assert len(sources.gather(tmp_path, [path]).tested[0].failed) == 3
    made = page.html(Content(tested=(found,)), LADDER)
    assert "junit.xml: 4 tests, 3 failed." in made
    assert "&lt;writes&gt;" in made


# The page


def test_the_page_needs_no_network_and_keeps_its_budget(
    content: Content, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the samples of passed cases go."""
    made = page.html(content, LADDER)
    assert len(made.encode()) < page.BUDGET
    assert "default-src 'none'" in made
    own = re.sub(r'<script type="module">const n=.*?</script>', "", made, flags=re.DOTALL)
    assert len(own) < len(made) - 500_000
    assert not re.findall(r'(?:src|href)="(?!#|data:)', own)
    monkeypatch.setattr(page, "BUDGET", len(made.encode()) - 1000)
    smaller = page.html(content, LADDER)
    assert "samples of cases that are not red are left out" in smaller
    data = json.loads(gzip.decompress(base64.b64decode(re.findall(r'id="records">(.*?)</', smaller)[0])))
    assert list(*(of_run for of_run in data["rounds"].values())) == [SLOWER.id]


def test_what_files_say_is_escaped(content: Content) -> None:
    evil = "</script><script>alert(1)</script>"
    run = replace(content.runs[0], label=evil, cases=content.runs[0].cases[:3])
    made = page.html(replace(content, runs=(run,)), LADDER)
    assert evil not in made
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in made


def test_the_page_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path), "--output", str(tmp_path / "report.html")]) == 0
    assert "nox -s baseline" in (tmp_path / "report.html").read_text()


def test_the_summary_has_the_failures_the_ladder_and_the_history(
    files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    out, summary = tmp_path / "new" / "report.html", tmp_path / "summary.md"
    summary.write_text("before\n")
    run, compared, root = map(str, files)
    assert main([run, compared, "--root", root, "--output", str(out), "--markdown", str(summary)]) == 0
    text = summary.read_text()
    assert text.startswith("before\n## Red: run: NVIDIA H200")
    for part in (
        "1 WRONG, 1 CRASHED, 1 REGRESSED",
        f'`nox -s gpu -- -k "[{CRASHED.id}]"`',
        "| prefetch | f32 | tile128x128x8-thread8x8-pad4 | 45,",
        "1 change points, 1 of cases that are slower now",
        f"**slower** {SLOWER.id}",
    ):
        assert part in text


def test_side_by_side_a_run_stands_next_to_the_baseline_of_its_gpu() -> None:
    def chosen(**values: Any) -> list[Any]:
        made = page.html(Content(**values), LADDER)
        selects = re.findall(r'<select id="against-(?:one|other)">(.*?)</select>', made, re.DOTALL)
        return [re.findall(r'value="(.)" selected', options)[0] for options in selects]

    made = [source(label, name=gpu) for label, gpu in (("a", "GPU 1"), ("b", "GPU 2"), ("c", "GPU 1"))]
    assert (chosen(baselines=tuple(made)), chosen(baselines=tuple(made[:2]))) == (["c", "a"], ["b", "a"])
    assert chosen(baselines=tuple(made[:1])) == []  # nothing to compare with


# Pictures


def pictures(*arguments: object) -> int:
    return main(["pictures", *map(str, arguments)])


def test_pictures_are_stale_once_a_baseline_changes(
    files: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--folder", tmp_path, "--root", files[2])
    assert [pictures(*where, "--check"), pictures(*where), pictures(*where, "--check")] == [1, 0, 0]
    drawn = (tmp_path / "ladder-nvidia-h200.svg").read_text()
    assert drawn.count("prefetch") >= 1
    (tmp_path / "ladder-nvidia-h200.svg").write_text(f"<<<<<<< HEAD\n{drawn}>>>>>>> main\n")
    assert pictures(*where, "--check") == 1
    capsys.readouterr()
    assert pictures("--folder", tmp_path, "--check") == 1  # other baselines: those of this repository
    assert "out of date" in capsys.readouterr().err


@pytest.mark.parametrize("new", [(), (replace(LADDER[0], name="new"),)])
def test_the_pictures_of_this_repository_are_up_to_date(new: tuple[Kernel, ...]) -> None:
    """A kernel without a baseline leaves them as they are."""
    content = sources.gather(PROJECT.baselines)
    assert charts.update(PROJECT.root / "docs" / "results", content, (*new, *LADDER), check=True) == []


def test_every_chart_can_be_drawn(content: Content) -> None:
    """vl-convert refuses a specification that is wrong; a parameter that a chart lacks is an error."""
    data = page.datasets(content, LADDER) | {"configs": [], "limits": [], "rounds": []}
    folder = Path(charts.__file__).with_name("charts")
    for name in (path.name.partition(".")[0] for path in folder.glob("*.vl.json")):
        assert charts.svg(charts.picture(name, {}, data, 400)).startswith("<svg")
    with pytest.raises(KeyError):
        charts.specification("ladder", {"nothing": 1})

"""Fresh runs made into a baseline, and the commands that do it. Baselines as pytest-benchmark's JSON: its own
tools read it, and nothing is lost on the way back."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gemm_regression.baselines import BaselineError, append, binary, history, stored
from gemm_regression.baselines.merge import load_run, named, read_file, write_export
from gemm_regression.baselines.store import figures_path
from gemm_regression.cli.baseline import main, store
from gemm_regression.devices import Gpu
from gemm_regression.devices.work import StoredBinary
from gemm_regression.model import Case, Problem
from tests.gemm_regression import synthetic
from tests.gemm_regression.baselines.test_baseline_binaries import built
from tests.gemm_regression.baselines.test_baselines import now
from tests.gemm_regression.samples import PROJECT, select
from tests.gemm_regression.synthetic import GPU, SLUG, baseline, case, entry, five_runs, merged, run, saved

TILED, NAIVE, CUBLAS = case("tiled"), case("naive"), case("cublas")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of baselines that holds one, of tiled, naive and cublas."""
    append(tmp_path / "baselines", merged(tmp_path, five_runs([TILED, NAIVE, CUBLAS])), {})
    return tmp_path / "baselines"


def test_the_middle_run_gives_the_stats(tmp_path: Path) -> None:
    medians = [0.0102, 0.0099, 0.0101, 0.0110, 0.0098]
    runs = [run(n, {TILED: synthetic.measurement(m)}) for n, m in enumerate(medians)]
    entry = merged(tmp_path, runs).entry(TILED.id)
    assert entry is not None
    assert entry.median_s == 0.0101
    assert entry.noise_floor == pytest.approx((0.0110 - 0.0098) / 0.0101, rel=1e-2)
    assert entry.medians == tuple(medians)


def test_the_clock_of_each_run_is_kept_if_it_is_known(tmp_path: Path) -> None:
    clocks = [1000.0, 990.0, 995.0, 1005.0, 1000.0]
    runs = [
        run(n, {TILED: synthetic.measurement(10.0 / mhz, sm_clock_mhz=mhz)}) for n, mhz in enumerate(clocks)
    ]
    assert merged(tmp_path, runs).entries[TILED.id].clocks_mhz == tuple(clocks)
    runs[2]["benchmarks"][0]["extra_info"]["sm_clock_mhz"] = 0.0
    assert merged(tmp_path, runs).entries[TILED.id].clocks_mhz == ()


def test_roofs_that_each_run_measures_may_differ(tmp_path: Path) -> None:
    runs = five_runs([TILED])
    for number, document in enumerate(runs):
        document["machine_info"]["roofs"] = {"dram": {"gbps": 4000.0 + number}}
    assert merged(tmp_path, runs).machine_info["roofs"] == {"dram": {"gbps": 4000.0}}


def all_info(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: [b["extra_info"].update(values) for b in d["benchmarks"]]


def sick(kind: str, reason: str) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d["gemm_machines"]["0"].update(kind=kind, reason=reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["machine_info"].update(name="Other GPU"), "name is Other GPU, but Test"),
        (lambda d: d["machine_info"].update(driver="1.0"), "driver is 1.0"),
        (lambda d: d["machine_info"].pop("ecc"), "ecc is None"),
        (lambda d: d["commit_info"].update(id="feedface"), "commit id is feedface"),
        (all_info(cubin_sha256="c" * 64), "cubin_sha256 differs"),
        (all_info(l2="warm"), "l2 differs"),
        (all_info(throttled=True), "throttled"),
        (all_info(verdict="WRONG", verdict_reason="WRONG"), "WRONG"),
        (all_info(gflops=1.0), "gflops is 1"),
        (sick("DRIFTED", "POWER_LIMIT"), "run_3.json: its machine was DRIFTED (POWER_LIMIT)"),
        (lambda d: d.pop("gemm_machines"), "run_3.json: says nothing of its machine; run it again"),
        (lambda d: d.update(gemm_machines={"0": {"kind": "FINE"}}), "'reason' is missing"),
        (lambda d: d["benchmarks"][0]["stats"].update(rounds=4), "4 rounds, at least 5"),
        (lambda d: d["benchmarks"][0]["stats"].update(median=float("nan")), "us.0 is nan"),
        (lambda d: d["benchmarks"].pop(), f"run_3.json does not contain {NAIVE.id}"),
        (lambda d: d["benchmarks"].clear(), "no timed case"),
        (lambda d: d["benchmarks"].append(d["benchmarks"][0]), " twice"),
        (lambda d: d["benchmarks"][0].update(fullname="test_x.py::test_y"), "not a timed case of this suite"),
        (lambda d: d.update(datetime="2026-11-02T10:00:00+00:00"), "the same run was given twice"),
        (lambda d: d.update(machine_info={"gpu": None}), "machine.driver is missing"),
    ],
)
def test_runs_no_baseline_can_rest_on(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = five_runs([TILED, NAIVE])
    change(documents[2])
    files = saved(tmp_path / "runs", documents)
    assert main(["merge", *map(str, files), "--root", str(tmp_path / "baselines")]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert reason in error
    assert not (tmp_path / "baselines").exists()


def test_four_runs_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="4 runs; a baseline needs at least 5"):
        merged(tmp_path, five_runs([TILED])[:4])


def test_a_partial_refresh_leaves_the_others_as_they_are(root: Path, tmp_path: Path) -> None:
    before = now(root).entries[NAIVE.id]
    documents = five_runs([TILED], median=0.008, day=3)
    for document in documents:
        document["machine_info"]["driver"] = "1000.2"
        document["commit_info"]["id"] = "feedface"
    append(root, merged(tmp_path, documents), {})
    naive, tiled = (now(root).entries[each.id] for each in (NAIVE, TILED))
    assert (naive, naive.machine["driver"], naive.commit[:8]) == (before, "999.1", "01234567")
    assert (tiled.median_s, tiled.machine["driver"], tiled.commit) == (0.008, "1000.2", "feedface")
    assert [len(each.entries) for each in history(root, SLUG)] == [3, 1]


def test_one_run_alone_is_compared_by_the_spread_of_its_rounds(tmp_path: Path) -> None:
    (file,) = saved(tmp_path / "runs", five_runs([TILED])[:1])
    found = load_run(file).entries[TILED.id]
    assert len(found.medians) == 1
    assert found.noise_floor == pytest.approx(found.stats["iqr"] / found.median_s, rel=1e-2)
    with pytest.raises(BaselineError, match="us has 1 medians"):
        append(tmp_path, load_run(file), {})


# The command line


class Compiles:
    """A GPU that need not time anything: what it is compared with was not kept."""

    info = SimpleNamespace(capability=(9, 0))

    def binary(self, of: Case) -> StoredBinary:
        return built(of)

    def close(self) -> None:
        pass


def refreshed(folder: Path, root: Path) -> int:
    """Five runs of tiled a day later, 25 % faster, with another binary."""
    documents = five_runs([TILED], median=0.008, cubin=built(TILED).sha256, day=3)
    files, opens = saved(folder / "new", documents), lambda index: cast(Gpu, Compiles())
    return store(files, root, PROJECT, {}, opens=opens)


def test_merge_shows_old_against_new(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refreshed(tmp_path, root) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.startswith(TILED.id))
    assert line.split()[1:7] == ["13,744", "17,180", "+25.0", "%", "0.04", "%"]
    assert NAIVE.id not in shown
    assert shown.splitlines()[-1] == f"wrote {figures_path(root, SLUG)}"
    assert [len(each.entries) for each in history(root, SLUG)] == [3, 1]


def test_merge_makes_the_first_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refreshed(tmp_path, tmp_path / "new") == 0
    assert now(tmp_path / "new").case_ids == (TILED.id,)
    assert binary(tmp_path / "new", now(tmp_path / "new").entries[TILED.id]) == built(TILED)
    assert "–" in capsys.readouterr().out


def test_prune_drops_what_the_suite_has_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, gone = tmp_path / "baselines", case(problem=Problem(17, 19, 23))
    live = select().timed[0]
    append(root, merged(tmp_path, five_runs([gone, live])), {})
    command = ["prune", "--root", str(root), "--project", str(PROJECT.root)]
    assert main(command) == 0
    assert f"removing {gone.id}" in capsys.readouterr().out
    assert [b.case_ids for b in stored(root)] == [(live.id,)]
    assert main(command) == 0
    assert "figures.jsonl: 0 figures removed" in capsys.readouterr().out


def test_show_prints_provenance_and_figures(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--root", str(root)]) == 0
    out = capsys.readouterr().out
    for part in (GPU, "driver 999.1", TILED.id, "13,744", "50.0", "0.04 %", "3 cases of 1 boards"):
        assert part in out
    row = next(line for line in out.splitlines() if line.startswith(f"{TILED.id} "))
    assert row.endswith("unknown  0123456789ab  not kept")


def test_show_says_what_was_accepted_as_slower(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = now(root).entries[TILED.id]
    told = dataclasses.replace(one, accepted="it is right now", datetime="2026-11-05T10:00:00+00:00")
    append(root, dataclasses.replace(now(root), entries={TILED.id: told}), {})
    assert main(["show", "--root", str(root)]) == 0
    assert f"accepted as slower: {TILED.id}: it is right now\n" in capsys.readouterr().out


# As pytest-benchmark has them

NEWER: dict[str, Any] = {
    "datetime": "2026-11-09T10:00:00+00:00",
    "machine": {**synthetic.MACHINE, "board": "0badcafe"},
}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two measurements, of two boards."""
    root = tmp_path / "baselines"
    append(root, baseline(entry(TILED, 0.010), entry(NAIVE, 0.040, noise=0.001)), {})
    append(root, baseline(dataclasses.replace(entry(TILED, 0.008), accepted="it is right now", **NEWER)), {})
    return root


def test_nothing_is_lost_on_the_way_back(two: Path, tmp_path: Path) -> None:
    again = read_file(write_export(now(two), tmp_path / "kept.json"))
    assert again.entries == now(two).entries
    about = (SLUG, NEWER["machine"], now(two).commit_info)
    assert (again.slug, again.machine_info, again.commit_info) == about


def test_the_stock_tool_shows_names_and_numbers(two: Path, tmp_path: Path) -> None:
    file = write_export(now(two), tmp_path / "kept.json")
    command = [*(sys.executable, "-m", "pytest_benchmark", "compare", str(file)), "--csv=out.csv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "Failed to load" not in done.stdout + done.stderr
    heads, *rows = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
    (tiled,) = [dict(zip(heads, row, strict=True)) for row in rows if TILED.id in row[0]]
    shown = [float(tiled[name]) for name in ("median", "min", "ops", "rounds")]
    assert shown == pytest.approx([0.008, 0.9996 * 0.008, 1 / 0.008, 9], rel=1e-3)


def test_pytest_benchmark_itself_compares_with_it(two: Path, tmp_path: Path) -> None:
    file = write_export(now(two), tmp_path / "kept.json")
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


def test_what_benchmark_compare_names(two: Path, tmp_path: Path) -> None:
    first, second = (named(two, SLUG, None, number) for number in ("1", "0002"))
    assert set(first.case_ids) == {TILED.id, NAIVE.id}
    assert (second.case_ids, second.board) == ((TILED.id,), "0badcafe")
    file = write_export(first, tmp_path / "kept.json")
    assert named(two, SLUG, None, str(file)).entries == first.entries
    (alone,) = saved(tmp_path / "runs", five_runs([TILED, NAIVE])[1:2])
    run = named(two, SLUG, None, str(alone))
    assert run.entries[TILED.id].median_s == pytest.approx(0.01)
    for wanted in ("0", "3", "-1", "absent.json", "²"):
        said = f"^--benchmark-compare={wanted}: no such file, and .* 1 to 2"
        with pytest.raises(BaselineError, match=said):
            named(two, SLUG, None, wanted)
    with pytest.raises(BaselineError, match=f"has figures of {GPU}, but this GPU's folder is nvidia-h200"):
        named(two, "nvidia-h200", None, str(file))
    with pytest.raises(BaselineError, match=r"no such file, and .* has nothing"):
        named(two, "nvidia-h200", None, "1")


def test_an_edited_export_is_refused(two: Path, tmp_path: Path) -> None:
    file = write_export(now(two), tmp_path / "kept.json")
    document = json.loads(file.read_text())
    lines = document["gemm_baseline"]["lines"]
    for ours, said in (
        ({}, "gemm_baseline: gpu is missing"),
        ({"gpu": SLUG, "lines": []}, "contains no figure"),
        ({"gpu": SLUG, "lines": [1]}, "lines.0 is 1"),
        ({**document["gemm_baseline"], "gpu": "other"}, f"has figures of {GPU}"),
        ({"gpu": SLUG, "lines": lines[1:]}, "is in no line"),
        ({"gpu": SLUG, "lines": [t.replace("8000", "7000") for t in lines]}, "its id does not match"),
    ):
        file.write_text(json.dumps({**document, "gemm_baseline": ours}))
        with pytest.raises(BaselineError, match=said) as caught:
            read_file(file)
        assert str(caught.value).startswith(str(file))


def test_the_command_exports_what_is_current(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--root", str(two), "--project", str(PROJECT.root))
    assert main(["export", *where]) == 0
    assert capsys.readouterr().out == f"wrote {SLUG}.json\n"
    assert read_file(Path(f"{SLUG}.json")).entries == now(two).entries
    assert main(["export", "kept.json", "--gpu", SLUG, *where]) == 0
    assert Path("kept.json").read_text() == Path(f"{SLUG}.json").read_text()
    assert main(["export", "--gpu", "nvidia-none", *where]) == 1
    assert f"no baseline for 'nvidia-none'; there are: {SLUG}\n" in capsys.readouterr().err

"""Stored baselines: what is refused and why, what is kept, and that a write is whole or nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.baselines import BaselineError, current, gpu_slug, load, stored, write
from harness.baselines.store import _checksum
from harness.model import Problem
from tests.unit.synthetic import GPU, SECRETS, SLUG, case, contents, five_runs, measurement, merged, run

ROOT = Path(__file__).parents[2]
TILED, NAIVE, CUBLAS = case("tiled"), case("naive"), case("cublas")
Document = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of baselines that holds one, of tiled, naive and cublas."""
    write(merged(tmp_path, five_runs([TILED, NAIVE, CUBLAS])), tmp_path / "baselines" / SLUG)
    return tmp_path / "baselines"


@pytest.fixture
def file(root: Path) -> Path:
    path = current(root, SLUG)
    assert path is not None
    return path


def edited(path: Path, change: Callable[[Document], Any], sealed: bool = True) -> Path:
    """Changes a stored file; ``sealed`` makes its checksum fit again."""
    document = json.loads(path.read_text())
    change(document)
    if sealed:
        document["gemm_baseline"]["checksum"] = _checksum(document)
    path.write_text(json.dumps(document))
    return path


# What is stored


def test_a_round_trip_keeps_every_figure(root: Path, file: Path, tmp_path: Path) -> None:
    baseline = load(file)
    assert file.name == "0001_2026-11-02.json"
    assert (baseline.slug, baseline.runs, baseline.path) == (SLUG, 5, file)
    assert set(baseline.case_ids) == {TILED.id, NAIVE.id, CUBLAS.id}
    entry = baseline.entry(TILED.id)
    assert entry is not None
    # Run 2 is the middle one; all five medians lie within 0.04 %.
    assert entry.median_s == entry.stats["median"] == 0.01
    assert entry.gflops == pytest.approx(TILED.problem.gflops(0.01), rel=1e-5)
    assert entry.noise_floor == pytest.approx(0.0004, rel=1e-2)
    assert len(entry.info["run_medians"]) == 5
    assert entry.info["commit"] == baseline.commit_info["id"]
    assert (entry.info["driver"], entry.info["nvcc"]) == ("999.1", "13.0.88")
    assert baseline.entry("nothing") is None
    again = load(write(baseline, root / SLUG))
    assert again.entries == baseline.entries
    assert current(root, SLUG) == again.path == root / SLUG / "0002_2026-11-02.json"
    assert file.exists()


def test_nothing_of_the_host_or_its_user_is_stored(file: Path) -> None:
    text = file.read_text()
    assert SECRETS[0] in json.dumps(five_runs([TILED]))  # The runs do tell.
    for secret in (*SECRETS, "jane", "Some CPU", "node", "branch", "perf_counter", os.uname().nodename):
        assert secret not in text


def test_figures_are_rounded_and_rounds_are_not_stored(tmp_path: Path) -> None:
    runs = [run(n, {TILED: measurement(0.01 / 3, power_w=123.456789)}) for n in range(5)]
    path = write(merged(tmp_path, runs), tmp_path / SLUG)
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    assert "data" not in benchmark["stats"]
    assert benchmark["stats"]["median"] == 0.00333333
    assert benchmark["extra_info"]["power_w"] == 123.5
    assert all(len(repr(v)) <= 12 for v in benchmark["stats"].values())


def test_what_a_board_does_not_tell_is_null_not_nan(tmp_path: Path) -> None:
    runs = [run(n, {TILED: measurement(power_w=float("nan"))}) for n in range(5)]
    path = write(merged(tmp_path, runs), tmp_path / SLUG)
    assert json.loads(path.read_text())["benchmarks"][0]["extra_info"]["power_w"] is None


def test_a_large_suite_stays_small(tmp_path: Path) -> None:
    cases = [case(config=c, problem=Problem(1000 + n, 4096, 4096)) for c in range(6) for n in range(39)]
    path = write(merged(tmp_path, five_runs(cases)), tmp_path / SLUG)
    assert len(cases) >= 230
    assert path.stat().st_size < 900_000


def test_pytest_benchmark_reads_it(file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(file), "--columns=median,outliers"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert f"test_performance[{TILED.id}]" in done.stdout + done.stderr
    assert "Failed to load" not in done.stdout + done.stderr


def test_pytest_benchmark_compares_with_it_by_number(file: Path, root: Path, tmp_path: Path) -> None:
    tests = tmp_path / "project" / "tests"
    tests.mkdir(parents=True)
    (tests / "test_performance.py").write_text(
        "import pytest\n"
        f"@pytest.mark.parametrize('timed_case', ['{TILED.id}'])\n"
        "def test_performance(timed_case, benchmark):\n    benchmark.pedantic(int, rounds=5)\n"
    )
    command = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tests.parent}", str(tests)),
        *(
            f"--benchmark-storage=file://{root}",
            f"--benchmark-compare={SLUG}/0001",
            "--benchmark-columns=median",
        ),
    ]
    # A worker of xdist tells its children so, and pytest-benchmark then times nothing.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=alone, check=False)
    assert done.returncode == 0, done.stdout
    assert f"benchmarks from: {SLUG}/{file.name}" in done.stdout + done.stderr
    assert "(NOW)" in done.stdout  # Both rows stand in the table: the names matched.


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA GeForce RTX™ 4090 (Laptop)", "nvidia-geforce-rtx-4090-laptop"),
        ("../../etc/passwd", "etc-passwd"),
        ("™", "unnamed-gpu"),
    ],
)
def test_a_gpu_s_folder(name: str, slug: str) -> None:
    assert gpu_slug(name) == slug


def test_the_highest_number_is_current(root: Path) -> None:
    folder = root / SLUG
    for name in ("0010_x.json", "0009_z.json", "notes.json", "0011_y.json.tmp", "0012_y.txt"):
        (folder / name).write_text("{}")
    assert current(root, SLUG) == folder / "0010_x.json"
    assert current(root, "other-gpu") is None
    assert stored(root / "nowhere") == []


# What is refused when read


def test_refusals_of_what_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, reason in [
        ("", "not valid JSON"),
        ('{"gemm_baseline": {"schema"', "truncated"),
        ('{"gemm_baseline": {"schema": 1, "schema": 2}}', "contains schema twice; "),
        ("[" * 100_000, "not valid JSON"),
        ("[1, 2]", "no JSON object"),
        ("{}", "no gemm_baseline"),
        (json.dumps(five_runs([TILED])[0]), "not a baseline of this suite"),
        ('{"gemm_baseline": 3}', "no gemm_baseline"),
        ('{"gemm_baseline": {"schema": 2}}', "schema 2, but this version reads 1"),
        ('{"gemm_baseline": {}}', "schema None"),
    ]:
        path.write_text(text)
        refused(path, reason, "measure again")
    path.write_bytes(b"\xff\xfe{}")
    refused(path, "not valid JSON")
    refused(tmp_path / "absent.json", "No such file")
    refused(tmp_path, "cannot be read")


def refused(path: Path, *reasons: str) -> None:
    with pytest.raises(BaselineError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for reason in reasons:
        assert reason in message


def test_a_truncated_baseline_is_refused_at_every_length(file: Path) -> None:
    text = file.read_text()
    for end in range(0, len(text) - 2, 97):
        file.write_text(text[:end])
        refused(file, "truncated", "restore it from git")


def test_an_edit_by_hand_is_refused(file: Path) -> None:
    edited(file, lambda d: d["benchmarks"][0]["extra_info"].update(noise_floor=0.5), sealed=False)
    refused(file, "checksum does not match", "restore it from git")


def test_layout_is_not_content(file: Path) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()), indent=4, sort_keys=True))
    assert load(file).case_ids


def set_info(**values: Any) -> Callable[[Document], Any]:
    return lambda d: d["benchmarks"][0]["extra_info"].update(values)


def set_stats(**values: Any) -> Callable[[Document], Any]:
    return lambda d: d["benchmarks"][0]["stats"].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_info(median_s=float("nan")), "median_s is nan: input should be a finite number"),
        (set_info(median_s=float("inf")), "median_s is inf: input should be a finite number"),
        (set_info(median_s=10**400), "median_s is 1000"),
        (set_info(median_s=-0.01), "median_s is -0.01: input should be greater than 0"),
        (set_info(median_s=0), "median_s is 0: input should be greater than 0"),
        (set_info(median_s="0.01"), "median_s is '0.01': input should be a valid number"),
        (set_info(median_s=True), "median_s is True: input should be a valid number"),
        (set_info(median_s=0.0101), "median_s is 0.0101, but 0.01 follows from the other values"),
        (set_info(gflops=13730.0), "gflops is 13730, but 13743.9 follows from the other values"),
        (set_info(noise_floor=float("nan")), "noise_floor is nan"),
        (set_info(noise_floor=-1), "noise_floor is -1"),
        (set_info(noise_floor=0.02), "noise_floor 0.02 does not follow"),
        (set_info(run_medians=[0.01] * 4), "4 run medians; at least 5"),
        (set_info(run_medians=[0.01] * 4 + ["x"]), "run_medians.4 is 'x'"),
        (set_info(run_medians=7), "run_medians is 7: input should be a valid list"),
        (set_info(cublas_ratio=-0.1), "cublas_ratio is -0.1"),
        (set_info(cubin_sha256="zz"), "cubin_sha256 is 'zz'"),
        (set_info(cubin_sha256=5), "cubin_sha256 is 5"),
        (set_info(l2=None), "l2 is None"),
        (set_info(case="other"), "not a timed case"),
        (set_info(flops=None), "flops is None"),
        (set_stats(min=-1), "min is -1"),
        (set_stats(stddev=float("nan")), "stddev is nan"),
        (set_stats(rounds=0), "rounds is 0"),
        (set_stats(median=0.02), "gflops is 13743.9, but 6871.95 follows from the other values"),
        (lambda d: d["benchmarks"][0].pop("stats"), "stats is missing"),
        (lambda d: d["benchmarks"][0].pop("group"), "group is missing"),
        (lambda d: d["benchmarks"].append(d["benchmarks"][0]), f"contains {TILED.id} twice"),
        (lambda d: d["benchmarks"].append("x"), "it is 'x': it should be an object"),
        (lambda d: d.pop("benchmarks"), "benchmarks is missing"),
        (lambda d: d.update(datetime="../../x"), "isoformat"),
        (lambda d: d["commit_info"].pop("id"), "id is missing"),
        (lambda d: d["machine_info"].pop("driver"), "driver is missing"),
        (lambda d: d["machine_info"].update(name="Other GPU"), "names two different GPUs"),
        (lambda d: d["gemm_baseline"].update(runs="5"), "runs is '5'"),
    ],
)
def test_nonsense_is_refused_even_under_a_fitting_checksum(
    file: Path, change: Callable[[Document], Any], reason: str
) -> None:
    assert load(file)
    refused(edited(file, change), reason, "restore it from git")


def test_a_baseline_of_another_gpu_is_refused(file: Path) -> None:
    baseline = load(file)
    baseline.require_gpu(SLUG, GPU)
    with pytest.raises(BaselineError, match=f"of {GPU}, but this GPU is NVIDIA H200; measure it"):
        baseline.require_gpu("nvidia-h200", "NVIDIA H200")


def test_a_baseline_in_the_folder_of_another_gpu_is_refused(file: Path, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    (root / "nvidia-h200").mkdir(parents=True)
    shutil.copy(file, root / "nvidia-h200")
    with pytest.raises(BaselineError, match=f"is the baseline of {GPU}, but this GPU is nvidia-h200"):
        stored(root)


# Writing is whole or nothing


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_loses_nothing(file: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, before = load(file), contents(file.parent)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(BaselineError, match="No space left on device") as caught:
        write(baseline, file.parent)
    assert "the old files are unchanged" in str(caught.value)
    assert contents(file.parent) == before


WRITER = """
import os, resource, signal, sys
from pathlib import Path
from harness.baselines import BaselineError, load, write
path = Path(sys.argv[1])
baseline = load(path)
{fault}
try:
    write(baseline, path.parent)
except BaselineError as error:
    sys.exit(f"error: {{error}}")
"""


def write_with(fault: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WRITER.format(fault=fault), str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_file_that_cannot_grow_loses_nothing(file: Path) -> None:
    before = contents(file.parent)
    done = write_with("resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))", file)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "File too large" in done.stderr
    assert contents(file.parent) == before


def test_a_kill_in_the_middle_loses_nothing(file: Path, root: Path) -> None:
    before = contents(file.parent)
    done = write_with("os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)", file)
    assert done.returncode == -signal.SIGKILL
    left = set(contents(file.parent)) - set(before)
    assert {name.rpartition(".")[2] for name in left} == {"tmp"}  # It was in the middle.
    assert current(root, SLUG) == file
    assert load(file).case_ids
    (file.parent / "0007_2026-10-01.json.tmp").write_text("{")  # Of a kill long ago.
    write(load(file), file.parent)
    assert sorted(contents(file.parent)) == ["0001_2026-11-02.json", "0002_2026-11-02.json"]


def test_a_folder_that_cannot_be_made_is_one_line(file: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(BaselineError, match="could not be written"):
        write(load(file), tmp_path / "taken" / SLUG)


def test_what_would_be_refused_is_not_written(file: Path, tmp_path: Path) -> None:
    baseline = load(file)
    info = {**baseline.entries[TILED.id].info, "gflops": -1.0}
    broken = replace(baseline.entries[TILED.id], info=info)
    baseline = replace(baseline, entries={**baseline.entries, TILED.id: broken})
    with pytest.raises(BaselineError, match=r"not written: .*gflops is -1"):
        write(baseline, tmp_path / "new")
    assert not (tmp_path / "new").exists()

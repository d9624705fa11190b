"""The one command: what it lists, what it starts, and how it fails."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gemm_regression
from gemm_regression.cli import baseline, init, measuring
from gemm_regression.cli import main as cli
from gemm_regression.cli.common import PLUGIN, SHOWN
from gemm_regression.cli.suite import check, gpu, static
from tests.ladder import PROJECT
from tests.unit.test_init import harness as harness_in

CHECKED = ["tests/test_kernels.py", "tests/test_static.py"]
TIMED = ["tests/test_kernels.py", "tests/test_performance.py"]
SPREAD = ["--from-cache", "-n", "auto", "--dist", "loadgroup"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs of pytest in this process."""
    found: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        found.append(arguments)
        return 3

    monkeypatch.setattr(pytest, "main", main)
    return found


def test_help_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(cli.COMMANDS)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_needs_no_project_compiler_or_gpu(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gemm_regression", command, "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROJECT.root / "harness"), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: gemm-regression ")
    assert "``" not in done.stdout
    assert "gemm-regression" not in done.stdout.partition("\n\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("command", ["check", "gpu", "static", "sanitize"])
def test_help_shows_the_options_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    said = capsys.readouterr().out
    assert "--list-cases" in said
    assert "--project PATH" in said


def test_help_of_measuring_has_what_it_takes_besides(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["baseline", "measure", "--help"])
    said = capsys.readouterr().out
    assert "--accept-slower CASE REASON" in said
    assert "--list-cases" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gemm-regression {gemm_regression.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["--project", "x"], ["--project"]])
def test_no_such_command_is_told_what_there_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "there are: init, check, gpu" in capsys.readouterr().err


def test_project_before_the_command_goes_on_to_it(
    runs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--project", str(PROJECT.root), "check", "-k", "naive", "-n", "0"]) == 3
    (run,) = runs
    assert [Path(file).resolve() for file in run[:2]] == [PROJECT.root / file for file in CHECKED]
    assert run[2:] == [
        *SHOWN,
        "check",
        "--device",
        "emulated",
        "--from-cache",
        *PLUGIN,
        "--project",
        str(PROJECT.root),
        "-k",
        "naive",
        "-n",
        "0",
    ]


def test_without_a_project_a_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("check", "gpu", "compare", "static", "sanitize", "baseline", "counters", "profile"):
        assert cli.main([command, *(["HEAD"] if command == "compare" else [])]) > 0
        (line,) = capsys.readouterr().err.splitlines()
        assert f": no project: neither {tmp_path} nor a folder above it has a pyproject.toml with" in line


def test_check_emulates_and_keeps_the_cases_of_a_variant_together(runs: list[list[str]]) -> None:
    assert check(["-k", "naive"]) == 3
    assert runs == [[*CHECKED, *SHOWN, "check", "--device", "emulated", *SPREAD, *PLUGIN, "-k", "naive"]]


def test_check_leaves_the_number_of_processes_to_its_user(runs: list[list[str]]) -> None:
    check(["-n", "0"])
    assert runs == [[*CHECKED, *SHOWN, "check", "--device", "emulated", "--from-cache", *PLUGIN, "-n", "0"]]


@pytest.mark.parametrize("command", [check, gpu], ids=["check", "gpu"])
def test_a_test_by_its_id_runs_alone(command: Any, runs: list[list[str]]) -> None:
    pasted = "tests/test_kernels.py::test_kernel[naive-f32-block32x32-1x1x1]"
    command([pasted])
    (arguments,) = runs
    assert [word for word in arguments if word.startswith("tests/")] == [pasted]
    assert "-n" not in arguments


@pytest.mark.compile
@pytest.mark.parametrize("processes", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tests/test_kernels.py::nope"], r"not found: \S+/tests/test_kernels\.py::nope$"),
        (["tests/test_kernels.py::test_kernel[nope]"], r"not found: \S+::test_kernel$"),
        (
            ["tests/test_kernels.py", "tests/test_kernels.py::nope"],
            r"nope: all of tests/test_kernels\.py would",
        ),
        (["tests", "tests/test_kernels.py::nope"], r"nope: all of tests would run"),
    ],
)
def test_an_id_that_no_test_has_is_an_error(
    given: list[str], said: str, processes: tuple[str, ...], tmp_path: Path
) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    done = harness_in(tmp_path, "check", *given, *processes)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert len(re.findall(f"ERROR: .*{said}", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "passed" not in done.stdout


@pytest.mark.parametrize("command", [check, gpu, static], ids=["check", "gpu", "static"])
def test_an_id_that_names_no_test_does_not_run_all_others(
    command: Any, runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemm_regression.compiler.tools.pinned_tools", lambda: None)
    assert command(["tests/test_static.py::nope"]) == 3
    assert [word for word in runs[0] if word.startswith("tests")] == ["tests/test_static.py::nope"]


@pytest.mark.parametrize("command", [check, gpu], ids=["check", "gpu"])
@pytest.mark.parametrize(
    ("given", "runs_those"),
    [
        (["-v", "tests/test_kernels.py"], {"tests/test_kernels.py"}),
        (["--suite", "smoke", "tests/test_static.py"], {"tests/test_static.py"}),
        (["--ignore", "tests/test_kernels.py"], set()),
        (["--deselect", "tests/test_kernels.py::test_kernel"], set()),
        (["-k", "not f16::"], set()),
    ],
)
def test_a_named_file_runs_in_place_of_the_others(
    command: Any, given: list[str], runs_those: set[str], runs: list[list[str]]
) -> None:
    command(given)
    files = CHECKED if command is check else TIMED
    own = runs[0][: runs[0].index(SHOWN[0])]
    assert set(own) == (runs_those or set(files))
    assert ("-n" in runs[0]) is (command is check)


def test_gpu_asks_for_the_gpu_and_passes_the_selection_on(runs: list[list[str]]) -> None:
    assert gpu(["-k", "tiled and not 4096", "--junitxml=out.xml"]) == 3
    given = ["-k", "tiled and not 4096", "--junitxml=out.xml"]
    assert runs == [[*TIMED, *SHOWN, "gpu", "--device", "cuda", "-m", "gpu", *PLUGIN, *given]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Measures in a project of its own; gives the exit status and what was run, the merge last."""
    for name, text in (("pyproject.toml", "[tool.gemm-regression]\n"), ("kernels/one.cu", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "kernels" / "__init__.py").write_text(
        "from gemm_regression.model import BlockShape, Kernel\n"
        "KERNELS = (Kernel('one', 'one.cu', 'one', BlockShape((32, 1), (1, 32))),)\n"
    )
    for file in TIMED:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)

    def measure(*options: str, fail_at: int = 0) -> tuple[int, list[list[str]]]:
        made: list[list[str]] = []

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
            assert command[:3] == [sys.executable, "-m", "pytest"]
            made.append(command[3:])
            return subprocess.CompletedProcess(command, int(len(made) == fail_at))

        def store(files: Any, root: Path, *given: Any) -> int:
            *_, accepting, index = given
            made.append([*map(str, files), str(root), str(index), *map(str, accepting.items())])
            return 0

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(baseline, "store", store)
        return baseline.main(options), made

    return measure


def test_baseline_is_a_check_five_runs_and_a_merge(measured: Any) -> None:
    code, made = measured("-k", "naive")
    assert code == 0
    checked, *timed, merged = made
    assert {*TIMED, "--verify-timed"} < set(checked)
    assert "--baseline-run" not in checked
    assert all(run[-2:] == ["-k", "naive"] for run in (checked, *timed))
    assert not any("tests/test_kernels.py" in run or "--verify-timed" in run for run in timed)
    written = [arg.split("=")[1] for run in timed for arg in run if arg.startswith("--benchmark-json=")]
    assert len(written) == len(set(written)) == 5
    assert all("--baseline-run" in run for run in timed)
    assert merged == [*written, "baselines", "None"]


def test_baseline_hands_on_what_may_be_slower(measured: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = measured("-k", "naive", "--accept-slower", "naive-f32-1", "it is right now")
    assert code == 0
    assert made[-1][-1] == "('naive-f32-1', 'it is right now')"
    assert not any("--accept-slower" in run for run in made[:-1])
    assert measured("--accept-slower", "naive-f32-1", " ")[0] == 1
    assert "--accept-slower naive-f32-1: needs a reason" in capsys.readouterr().err


@pytest.mark.parametrize("step", [1, 2, 4])
def test_baseline_stops_at_the_first_red_run(step: int, measured: Any) -> None:
    """Nothing is merged from a set with a wrong or a throttled run."""
    code, made = measured(fail_at=step)
    assert code == 1
    assert len(made) == step


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "count_gpus", lambda: 4)


def test_each_of_several_gpus_gets_a_baseline_of_its_own(measured: Any, four_gpus: None) -> None:
    code, made = measured("--gpus", "0,2", "-k", "naive")
    assert code == 0
    *runs, first, second = made
    for number, merged in (("0", first), ("2", second)):
        mine = [run for run in runs if run[run.index("--gpus") + 1] == f"{number},"]
        assert [("--verify-timed" in run) for run in mine] == [True, *[False] * 5]
        written = [arg.split("=")[1] for run in mine for arg in run if arg.startswith("--benchmark-json=")]
        assert merged == [*written, "baselines", number]
        assert all(f"gpu{number}/run_" in path for path in written)
    assert not any("0,2" in run for run in runs)


def test_a_gpu_whose_run_fails_gets_no_baseline_and_the_others_do(
    measured: Any, four_gpus: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, made = measured("--gpus=all", fail_at=6)  # the second run to be timed, of any GPU
    assert code == 1
    assert sum(run[-2] == "baselines" for run in made) == 3
    assert len([run for run in made if "--verify-timed" in run]) == 4
    assert "failed; the end of .benchmarks/baseline/gpu" in capsys.readouterr().err


def test_one_gpu_by_its_number(measured: Any, four_gpus: None) -> None:
    code, made = measured("--gpus", "3,")
    assert code == 0
    assert all(run[run.index("--gpus") + 1] == "3," for run in made[:-1])
    assert len(made) == 7
    assert made[-1][-1] == "3"
    assert measured("--gpus", "9")[0] == 1


def test_baseline_merges_no_run_of_an_earlier_refresh(measured: Any, tmp_path: Path) -> None:
    old = tmp_path / ".benchmarks" / "baseline" / "run_1.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps({}))
    measured("measure")
    assert not old.exists()

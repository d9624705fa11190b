"""The one command: what it lists, what a shell completes, what it starts, and how it fails."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gemm_regression
from gemm_regression import __main__ as cli
from gemm_regression.cli import baseline, init
from gemm_regression.cli.common import PLUGIN, SHOWN, command, option
from gemm_regression.devices import DeviceError
from tests.gemm_regression.cli.repo import harness
from tests.gemm_regression.rig import Printed
from tests.ladder import PROJECT, importing

CHECKED = ["tests/test_kernels.py", "tests/test_static.py"]
TIMED = ["tests/test_kernels.py", "tests/test_performance.py"]
SPREAD = ["--from-cache", "-n", "auto", "--dist", "worksteal"]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs of pytest in this process."""
    found: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        found.append(arguments)
        return 3

    monkeypatch.setattr(pytest, "main", main)
    monkeypatch.setattr("gemm_regression.compiler.tools.pinned_tools", lambda: None)
    return found


def test_help_has_a_line_for_each_command(printed: Printed) -> None:
    assert cli.main(["--help"]) == 0
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(cli.COMMANDS)
    assert max(map(len, lines)) <= 110
    assert cli.main(["--version"]) == 0
    assert printed.out == f"gemm-regression {gemm_regression.__version__}\n"


# Runs the command in children of one process, which has imported what all need: of each line the words and
# variables. Prints for each its status, what it wrote to 1 and 2, and to 8, where argcomplete writes.
FORKED = """
import json, os, sys, tempfile
import numpy, pydantic, pytest
from gemm_regression.__main__ import run
import gemm_regression.cli.common
told = []
for words, variables in json.load(sys.stdin):
    files = {number: tempfile.TemporaryFile("w+") for number in (1, 2, 8)}
    if not (child := os.fork()):
        sys.stdin.close()
        os.environ.update(variables)
        for number, file in files.items():
            os.dup2(file.fileno(), number)
        sys.argv = ["gemm-regression", *words]
        run()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files.values():
        file.seek(0)
    told.append([status, *(file.read() for file in files.values())])
print(json.dumps(told))
"""


def forked(
    folder: Path, given: list[tuple[list[str], dict[str, str]]], path: str = ""
) -> list[tuple[int, str, str, str]]:
    """``path``: PATH where nothing else of this environment is known."""
    env = {"PATH": path} if path else {**os.environ}
    env["PYTHONPATH"] = str(PROJECT.root / "harness")
    words = [sys.executable, "-c", FORKED]
    done = subprocess.run(words, input=json.dumps(given), cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(status, *texts) for status, *texts in json.loads(done.stdout)]


def test_help_of_a_command_needs_no_project_compiler_or_gpu(tmp_path: Path) -> None:
    found = forked(tmp_path, [([name, "--help"], {}) for name in cli.COMMANDS], "/nowhere")
    for name, (status, out, err, _) in zip(cli.COMMANDS, found, strict=True):
        assert (status, err) == (0, ""), name
        assert out.startswith("usage: gemm-regression "), name
        assert "``" not in out, name


@pytest.mark.parametrize(
    ("words", "has", "lacks"),
    [
        (["check"], "--list-cases --arch --no-cache --sarif", "--gpus --margin --device"),
        (["gpu"], "--list-cases --gpus --sustained --allow-busy", "--arch --no-cache --device"),
        (["static"], "--list-cases --refresh --job-summary", "--gpus --margin --arch --no-cache"),
        (["sanitize"], "--time-limit", "--gpus --sustained --baseline-run --list-cases --sarif"),
        (["baseline", "measure"], "--accept-slower --gpus --allow-busy", "--margin --list-cases --shard"),
        (["compare"], "--margin --seed --allow-busy", "--gpus --list-cases --sustained"),
    ],
)
def test_help_has_the_options_that_do_something_there_and_no_others(
    words: list[str], has: str, lacks: str, printed: Printed
) -> None:
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    said = set(re.findall(r"^  (-\S+)", printed.out, re.MULTILINE))
    assert {*has.split(), "--project", "--suite", "--kernel", "--config", "--shape", "-k"} <= said
    assert not said & set(lacks.split())


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["--project", "x"]])
def test_no_such_command_is_told_what_there_is(arguments: list[str], printed: Printed) -> None:
    assert cli.main(arguments) == 2
    assert "there are: init, check, gpu" in printed.err


def test_a_new_command_is_a_line_and_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """In two files: COMMANDS, and its module, here of a package of its own beside the others."""
    (tmp_path / "grow.py").write_text(
        "from gemm_regression.cli.common import command, option\n\n"
        "@command('grow', option('--by', type=int), '--project')\n"
        "def main(given):\n"
        "    '''Grows.'''\n"
        "    print(given.by + 1)\n"
        "    return 0\n"
    )
    monkeypatch.setattr("gemm_regression.cli.__path__", [str(tmp_path)])
    monkeypatch.setitem(cli.COMMANDS, "grow", ("grow:main", "grow"))
    assert cli.main(["grow", "--by", "6"]) == 0
    assert printed.out == "7\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such case"), "error: no such case\n"),
        (DeviceError("CRASHED", "an illegal address"), "error: an illegal address\n"),
        (FileNotFoundError(2, "No such file", "a.json"), "error: a.json: No such file\n"),
    ],
)
def test_an_error_is_a_line_and_a_fault_of_the_suite_is_none(
    error: Exception, said: str, printed: Printed
) -> None:
    def fail(given: argparse.Namespace) -> int:
        raise error

    assert command("x", option("--by"), failed=7)(fail)([]) == 7
    assert printed.err == said
    error = KeyError("a mistake in the code")
    with pytest.raises(KeyError):
        command("x")(fail)([])
    error = KeyboardInterrupt()  # type: ignore[assignment]
    assert command("x")(fail)([]) == 130
    with pytest.raises(SystemExit):
        command("x")(fail)(["--unknown"])
    assert "unrecognized arguments: --unknown" in printed.err


def test_a_reader_that_has_enough_sees_no_traceback() -> None:
    words = [sys.executable, "-m", "gemm_regression", "doctor"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=importing(PROJECT.root / "harness"), **pipes) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 1


def test_what_is_not_installed_is_named() -> None:
    words = [sys.executable, "-S", "-m", "gemm_regression", "check"]
    done = subprocess.run(words, env=importing(PROJECT.root / "harness"), capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"error: \S+ has no \w+: `nox -s check` runs this in one .*\n", done.stderr)


def test_without_a_project_a_command_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("check", "gpu", "compare", "static", "sanitize", "baseline", "counters", "profile"):
        assert cli.main([name, *(["HEAD"] if name == "compare" else [])]) > 0
        line = printed.error
        assert f": no project: neither {tmp_path} nor a folder above it has a pyproject.toml with" in line


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (["check", "-k", "naive"], [*CHECKED, *SHOWN, "check", "--device", "emulated", *SPREAD, *PLUGIN]),
        (["check", "-n", "0"], [*CHECKED, *SHOWN, "check", "--device", "emulated", SPREAD[0], *PLUGIN]),
        (["gpu", "--junitxml=x"], [*TIMED, *SHOWN, "gpu", "--device", "cuda", "-m", "gpu", *PLUGIN]),
    ],
)
def test_pytest_is_started_with_what_the_user_gave(
    words: list[str], started: list[str], runs: list[list[str]]
) -> None:
    assert cli.main(words) == 3
    assert runs == [[*started, *words[1:]]]


def test_a_project_elsewhere_is_named_to_pytest(
    runs: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "--project", str(PROJECT.root), "-k", "naive"]) == 3
    assert [Path(file).resolve() for file in runs[0][:2]] == [PROJECT.root / file for file in CHECKED]
    assert runs[0][-4:] == ["--project", str(PROJECT.root), "-k", "naive"]


@pytest.mark.parametrize("name", ["check", "gpu", "static"])
@pytest.mark.parametrize(
    ("given", "alone"),
    [
        (["tests/test_kernels.py::test_kernel[naive-f32-block32x32-1x1x1]"], None),
        (["tests/test_static.py::nope"], None),  # does not run all others
        (["-v", "tests/test_kernels.py"], {"tests/test_kernels.py"}),
        (["--suite", "smoke", "tests/test_static.py"], {"tests/test_static.py"}),
        (["--ignore", "tests/test_kernels.py"], set()),
        (["--deselect", "tests/test_kernels.py::test_kernel"], set()),
        (["-k", "not f16::"], set()),
    ],
)
def test_a_test_or_file_that_is_named_runs_alone(
    name: str, given: list[str], alone: set[str] | None, runs: list[list[str]]
) -> None:
    assert cli.main([name, *given]) == 3
    files = {"check": CHECKED, "gpu": TIMED, "static": CHECKED[1:]}[name]
    before = {word for word in runs[0][: runs[0].index(PLUGIN[1])] if word.startswith("tests/")}
    assert before == (set() if alone is None else alone or set(files))
    assert runs[0][-len(given) :] == given
    assert ("-n" in runs[0]) is (name == "check" and alone is not None)


@pytest.mark.compile
@pytest.mark.parametrize("processes", [(), ("-n", "2")])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tests/test_kernels.py::nope"], r"not found: \S+/tests/test_kernels\.py::nope$"),
        (["tests/test_kernels.py::test_kernel[nope]"], r"not found: \S+::test_kernel$"),
        (["tests", "tests/test_kernels.py::nope"], r"nope: all of tests would run"),
    ],
)
def test_an_id_that_no_test_has_is_an_error(
    given: list[str], said: str, processes: tuple[str, ...], tmp_path: Path
) -> None:
    assert init.main(["--project", str(tmp_path)]) == 0
    done = harness(tmp_path, "check", *given, *processes)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert len(re.findall(f"ERROR: .*{said}", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert "passed" not in done.stdout


# What a shell completes


def completed(folder: Path, *lines: str) -> dict[str, list[str]]:
    """By line the words that argcomplete's function for bash would get, on descriptor 8."""
    asked = []
    for line in (f"gemm-regression {line}" for line in lines):
        point = {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        asked.append((list[str](), {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " ", **point}))
    found = forked(folder, asked)
    assert {err for _, _, err, _ in found} == {""}
    return {line: told.split() for line, (_, _, _, told) in zip(lines, found, strict=True)}


def test_commands_options_and_names() -> None:
    wanted = {
        "comp": ["compare"],
        "check --kern": ["--kernel"],
        "gpu --kernel dou": ["double_buffered"],
        "static --config tile16": ["tile16-pad0", "tile16-pad1"],
        "profile naive-f32-block16": ["naive-f32-block16x16-1024x1024x1024"],
        "baseline pr": ["prune"],
        "compare --mar": ["--markdown", "--margin"],
        "baseline --acc": ["--accept-slower"],
        "baseline --accept-slower naive-f32-block16": ["naive-f32-block16x16-1024x1024x1024"],
        "bis": ["bisect"],
        "bisect naive-f32-block16": ["naive-f32-block16x16-1024x1024x1024"],
    }
    assert completed(Path(__file__).parents[1] / "sample", *wanted) == wanted


def test_without_a_project_options_are_completed(tmp_path: Path) -> None:
    wanted: dict[str, list[str]] = {"check --kern": ["--kernel"], "check --kernel na": []}
    assert completed(tmp_path, *wanted) == wanted


# Measuring


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Measures in a project of its own, on a host with four GPUs; gives the exit status and what was run, the
    merge last."""
    assert init.main(["--project", str(tmp_path)]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(baseline, "count_gpus", lambda: 4)

    def measure(*options: str, fail_at: int = 0) -> tuple[int, list[list[str]]]:
        made: list[list[str]] = []

        def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
            assert words[:3] == [sys.executable, "-m", "pytest"]
            made.append(words[3:])
            return subprocess.CompletedProcess(words, int(len(made) == fail_at))

        def store(files: Any, root: Path, *given: Any) -> int:
            *_, accepting, index = given
            made.append([*map(str, files), str(root), str(index), *map(str, accepting.items())])
            return 0

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(baseline, "store", store)
        return baseline.main(options), made

    return measure


def written(runs: list[list[str]]) -> list[str]:
    return [word.split("=")[1] for run in runs for word in run if word.startswith("--benchmark-json=")]


def test_baseline_is_a_check_five_runs_and_a_merge(measured: Any, tmp_path: Path) -> None:
    old = tmp_path / ".benchmarks" / "baseline" / "run_1.json"  # of an earlier refresh
    old.parent.mkdir(parents=True)
    old.touch()
    code, (checked, *timed, merged) = measured("-k", "naive")
    assert (code, old.exists()) == (0, False)
    assert {*TIMED, "--verify-timed"} < set(checked)
    assert "--baseline-run" not in checked
    assert all(run[-2:] == ["-k", "naive"] for run in (checked, *timed))
    assert not any({"tests/test_kernels.py", "--verify-timed"} & set(run) for run in timed)
    assert len(set(written(timed))) == sum("--baseline-run" in run for run in timed) == len(timed) == 5
    assert merged == [*written(timed), "baselines", "None"]


def test_an_interrupted_baseline_keeps_its_runs_where_asked(measured: Any, tmp_path: Path) -> None:
    """All are merged, and the kernels are verified again."""
    home = tmp_path / ".benchmarks" / "baseline"
    home.mkdir(parents=True)
    for number in (1, 2, 4):
        (home / f"run_{number}.json").touch()
    code, (checked, *timed, merged) = measured("--resume")
    assert code == 0
    assert "--verify-timed" in checked
    assert [Path(file).name for file in written(timed)] == ["run_3.json", "run_5.json"]
    assert [Path(file).name for file in merged[:5]] == [f"run_{n}.json" for n in range(1, 6)]


def test_baseline_hands_on_what_may_be_slower(measured: Any, printed: Printed) -> None:
    code, made = measured("-k", "naive", "--accept-slower", "naive-f32-1", "it is right now")
    assert code == 0
    assert made[-1][-1] == "('naive-f32-1', 'it is right now')"
    assert not any("--accept-slower" in run for run in made[:-1])
    assert measured("--accept-slower", "naive-f32-1", " ")[0] == 1
    assert "--accept-slower naive-f32-1: needs a reason" in printed.err


@pytest.mark.parametrize("step", [1, 2, 4])
def test_baseline_stops_at_the_first_red_run(step: int, measured: Any) -> None:
    """Nothing is merged from a set with a wrong or a throttled run."""
    code, made = measured(fail_at=step)
    assert (code, len(made)) == (1, step)


def test_each_of_several_gpus_gets_a_baseline_of_its_own(measured: Any) -> None:
    code, (*runs, first, second) = measured("--gpus", "0,2", "-k", "naive")
    assert code == 0
    assert all("--verify-timed" in run for run in runs[:2])  # before the first is timed
    for number, merged in (("0", first), ("2", second)):
        mine = [run for run in runs if run[run.index("--gpus") + 1] == f"{number},"]
        assert [("--verify-timed" in run) for run in mine] == [True, *[False] * 5]
        assert merged == [*written(mine), "baselines", number]
        assert all(f"gpu{number}/run_" in path for path in written(mine))


def test_a_gpu_whose_run_fails_gets_no_baseline_and_the_others_do(measured: Any, printed: Printed) -> None:
    code, made = measured("--gpus=all", fail_at=6)  # the second run to be timed, of any GPU
    assert code == 1
    assert sum(run[-2] == "baselines" for run in made) == 3
    assert len([run for run in made if "--verify-timed" in run]) == 4
    assert "failed; the end of .benchmarks/baseline/gpu" in printed.err


def test_one_gpu_by_its_number(measured: Any) -> None:
    code, made = measured("--gpus", "3,")
    assert (code, len(made), made[-1][-1]) == (0, 7, "3")
    assert all(run[run.index("--gpus") + 1] == "3," for run in made[:-1])
    assert measured("--gpus", "9")[0] == 1

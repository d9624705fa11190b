"""The commands: what nox runs, seen by a python on PATH that only writes down how it was called; tests that
the test command takes in turns."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from nox import registry

from gemm_regression.__main__ import COMMANDS
from tests.conftest import VARIABLE, its_turn, not_imported, part, pytest_report_header, touched
from tests.gemm_regression.cli.repo import git

ROOT = Path(__file__).parents[2]
CHECKED = ["tests/test_kernels.py", "tests/test_static.py"]


def nox(*args: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", *args]
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True)


@pytest.fixture
def calls(tmp_path: Path) -> Any:
    """Runs a session in a copy of the checkout's root files; gives its exit code and python's arguments."""
    for name in ("noxfile.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "harness").symlink_to(ROOT / "harness")
    log = tmp_path / "calls"

    def run(session: str, *posargs: str, fail_at: int = 0) -> tuple[int, list[list[str]]]:
        stub = tmp_path / "bin" / "python"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(
            f"#!{sys.executable} -S\nimport json, sys\n"
            f"log = open({str(log)!r}, 'a+')\nprint(json.dumps(sys.argv[1:]), file=log, flush=True)\n"
            f"log.seek(0)\nsys.exit(len(log.readlines()) == {fail_at})\n"
        )
        stub.chmod(0o755)
        args = ("--no-venv", "--no-install", "-s", session, "--", *posargs)
        done = nox(*args, cwd=tmp_path, PATH=f"{stub.parent}:{os.environ['PATH']}")
        lines = log.read_text().splitlines() if log.exists() else []
        return done.returncode, [json.loads(line) for line in lines]

    return run


def listing() -> list[tuple[str, str, str]]:
    """(mark, session, description); the mark of a session that plain `nox` runs is a star."""
    return re.findall(r"^([*-]) (\w+) -> (.*)$", nox("--list").stdout, re.MULTILINE)


def test_every_command_is_there_says_what_it_does_and_plain_nox_needs_no_gpu() -> None:
    found = {name: description for _, name, description in listing()}
    own = {"lint", "typing", "tests", "browser", "frontends", "judge", "docs", "lab", "course"}
    assert set(found) == {*COMMANDS, *own} - {"init"}
    assert all(len(description.split()) > 3 for description in found.values())
    plain = {name for mark, name, _ in listing() if mark == "*"}
    assert plain == {"lint", "typing", "tests", "check", "browser"}
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    ran = [line.split("nox -s ")[1].split(")")[0].split(" 2>")[0] for line in commands if "nox -s " in line]
    assert sorted(" ".join(ran).split()) == sorted(plain)


def test_gpu_is_red_when_its_command_is(calls: Any) -> None:
    assert calls("gpu", fail_at=1)[0] == 1


def test_tests_leave_the_gpu_out(calls: Any) -> None:
    (command,) = calls("tests")[1]
    assert command[:8] == ["-m", "pytest", "-n", "auto", "--dist", "worksteal", "-m", "not gpu"]
    assert set(command[8:]) == {f"--ignore={file}" for file in (*CHECKED, "tests/browser", "tests/frontends")}


@pytest.mark.parametrize(
    ("said", "command"),
    [("GPU 0: NVIDIA H200", "gpu"), ("No devices found", "check"), (None, "check")],
    ids=["gpu", "driver without a gpu", "no driver"],
)
def test_judge_takes_the_gpu_where_there_is_one(
    calls: Any, tmp_path: Path, said: str | None, command: str
) -> None:
    if said is not None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho '{said}'\n")
        tool.chmod(0o755)
    assert calls("judge", "-k", "naive") == (0, [["-m", "gemm_regression", command, "-k", "naive"]])


@pytest.mark.parametrize(
    ("session", "words", "started"),
    [
        ("check", ["-k", "naive"], ["gemm_regression", "check", "-k", "naive"]),
        ("compare", ["main", "-k", "naive"], ["gemm_regression", "compare", "main", "-k", "naive"]),
        ("report", ["run.json"], ["gemm_regression", "report", "run.json"]),
        ("lab", ["study", "measure"], ["lab", "study", "measure"]),
        ("course", ["there"], ["lab", "exercises", "there"]),
        ("browser", [], ["pytest", "-m", "browser", "tests/browser"]),
    ],
)
def test_a_session_takes_the_words_after_it(
    session: str, words: list[str], started: list[str], calls: Any
) -> None:
    assert calls(session, *words)[1] == [["-m", *started]]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The noxfile, and a session in an environment of nox's own, which notes what it installs."""
    spec = importlib.util.spec_from_file_location("noxfile_under_test", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.chdir(ROOT)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings(action="ignore"):  # nox says that the sessions are there twice
        spec.loader.exec_module(module)

    class Session:
        virtualenv = SimpleNamespace(is_sandboxed=True, location=str(tmp_path / "own"))
        posargs: ClassVar[list[str]] = []
        installed: ClassVar[list[tuple[str, ...]]] = []

        def install(self, *wanted: str) -> None:
            self.installed.append(wanted)

        def run(self, *_: str, **__: object) -> str:
            return "GPU 0: NVIDIA H200"

        def error(self, text: str) -> None:
            raise SystemExit(text)

    for name in ("own", "other"):
        (tmp_path / name / "lib" / "python3.11").mkdir(parents=True)
    Session.posargs, Session.installed = [], []
    return module, Session()


def test_an_environment_is_installed_again_where_its_group_changed_or_it_failed(session: Any) -> None:
    module, running = session
    running.install = lambda *_: running.error("no network")
    with pytest.raises(SystemExit, match="no network"):
        module.install(running, "lint")
    del running.install
    module.install(running, "lint")
    module.install(running, "lint")
    assert len(running.installed) == 1
    module.install(running, "typing")
    assert len(running.installed) == 2


def test_an_environment_that_has_all_of_a_group_is_used(session: Any, tmp_path: Path) -> None:
    module, running = session
    running.virtualenv = SimpleNamespace(is_sandboxed=True, location=str(tmp_path / "other"))
    other = module.install(running, "tests")
    del running.virtualenv
    assert module.install(running, "test") == other == str(tmp_path / "other" / "bin" / "python")
    assert len(running.installed) == 1
    assert module.install(running, "lint") == str(tmp_path / "own" / "bin" / "python")
    assert len(running.installed) == 2
    (tmp_path / "other" / "lib" / "python3.11").rename(tmp_path / "other" / "lib" / "python3.13")
    assert module.install(running, "test") == str(tmp_path / "own" / "bin" / "python")


def test_without_a_gpu_or_headers_nothing_is_installed(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, running = session
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    said = r"nvidia-smi shows no GPU on this machine; `nox -s check` needs none"
    with pytest.raises(SystemExit, match=said):
        module.install_gpu(running)
    monkeypatch.setattr(module, "gpu_there", lambda session: True)
    monkeypatch.setattr(module, "include_folders", lambda: [ROOT])
    with pytest.raises(SystemExit, match=r"no cuda\.h found .* PyCUDA is built"):
        module.install_gpu(running)
    assert running.installed == []


@pytest.mark.parametrize(
    ("name", "words"),
    [("baseline", "show"), ("baseline", "history"), ("gpu", "--list-cases"), ("tune", "--simulate x.json")],
)
def test_what_only_shows_stored_files_needs_no_gpu(
    name: str, words: str, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, running = session
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    running.posargs = words.split()
    running.run = lambda *_, **__: ""
    registry.get()[name].func(running)
    (installed,) = running.installed
    assert not any(package.startswith("pycuda") for package in installed)


def run_ci(folder: Path, nox: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs it in a folder where python makes an environment with this script as its nox."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    stub = folder / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text(
        "#!/bin/sh\nmkdir -p .venv/bin\nprintf '#!/bin/sh\\nexit 0\\n' > .venv/bin/pip\n"
        f"printf '#!/bin/sh\\n{nox}\\n' > .venv/bin/nox\nchmod +x .venv/bin/*\n"
    )
    stub.chmod(0o755)
    command = [str(folder / ".ci" / "run"), *words]
    env = os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "red", "status"),
    [((), "", 0), ((), "lint typing browser check", 1), ((), "tests", 1), (("-s", "lint"), "lint", 1)],
)
def test_the_test_command_is_red_when_any_session_is(
    words: tuple[str, ...], red: str, status: int, tmp_path: Path
) -> None:
    done = run_ci(tmp_path, f'echo nox "$@"\\n[ "$*" != "-s {red}" ]', *words)
    assert done.returncode == status, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("nox ")]
    asked = [line for line in said if "--install-only" not in line]
    assert asked == (["nox -s lint"] if words else ["nox -s tests", "nox -s lint typing browser check"])
    assert done.stdout.splitlines()[-1] == f"0 passed, {status} failed, 0 skipped"
    assert ("what failed:" in done.stdout) is bool(status)


def test_what_failed_is_named_at_the_end_of_the_test_command(tmp_path: Path) -> None:
    red = "\\033[31mFAILED\\033[0m tests/a.py::test_b - no"
    said = f'printf "nox > Running session $2\\n{red}\\nnox > Session $2 failed.\\nmuch more\\n"; exit 1'
    done = run_ci(tmp_path, said)
    assert done.stdout.splitlines()[-5:] == [
        "what failed:",
        "FAILED tests/a.py::test_b - no",
        "Session lint failed.",
        "Session tests failed.",
        "0 passed, 2 failed, 0 skipped",
    ], done.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tests = { code = 2 }", "one.py "),
        ('dependencies = ["numpy"]', "one.py pyproject.toml "),
        ("tests = { code = 2 }\nx = 1", "one.py pyproject.toml "),
    ],
)
def test_the_tests_are_told_what_the_commit_touched_but_for_limits_of_lines(
    line: str, told: str, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    for text in ("tests = { code = 1 }\n", f"{line}\n"):
        (tmp_path / "pyproject.toml").write_text(text)
        (tmp_path / "one.py").write_text(text)
        git(tmp_path, "add", "pyproject.toml", "one.py")
        git(tmp_path, "commit", "-q", "-m", "a change")
    done = run_ci(tmp_path, "echo told $GEMM_CHANGED .")
    assert f"told {told}." in done.stdout, done.stdout + done.stderr


def test_the_last_line_of_the_test_command_is_the_sum_of_its_sessions(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text(
        "nox > Running session tests\n"
        "==== 1 failed, 2 passed in 0.10s ====\n"  # of a run within a test, in what failed
        "\x1b[31m=== 3 failed, \x1b[1m208 passed\x1b[0m, 5 skipped, 1 error in 75.43s (0:01:15) ===\n"
        "nox > Session tests failed.\n"
        "nox > Running session check\n"
        "======== 47 passed, 16 skipped in 5.59s ========\n"
        "nox > Session check was successful.\n"
    )
    (tmp_path / "the others").write_text(
        "nox > Running session lint\nnox > Session lint failed.\n"
        "nox > Running session browser\n==== 14 skipped in 0.50s ====\n"
    )
    script = re.search(r"^told\(\) \{.*?^\}", (ROOT / ".ci" / "run").read_text(), re.DOTALL | re.MULTILINE)
    assert script
    command = f"said={tmp_path} status=1\n{script[0]}\ntold"
    told = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    assert told == "255 passed, 5 failed, 35 skipped\n"


# Turns: each test is in one part

TESTS = [("mutants", name) for name in "abcdefg"] + [("outputs", name) for name in "xxyyz"]
TESTS += [("mutants", name) for name in "abcdefg"]  # the second test of each
WHOLE = [(file, "") for file in ("one", "one", "two", "three", "four")]
FILES = ["one", "two", "three", "four", "mutants", "outputs"]


def test_each_is_in_one_part_with_what_is_about_the_same() -> None:
    parts = [its_turn(TESTS + WHOLE, number, 3, FILES) for number in range(3)]
    assert [sum(each) for each in zip(*parts, strict=True)] == [1] * len(TESTS + WHOLE)
    taken = [{test for test, here in zip(TESTS + WHOLE, each, strict=True) if here} for each in parts]
    assert sum(map(len, taken)) == len({*TESTS, *WHOLE})
    whole = [{file for file, about in each if not about} for each in taken]
    assert whole == [{"one", "four"}, {"two"}, {"three"}]
    of_x = {("mutants", "x"), ("outputs", "x")}
    assert sorted(sum(its_turn([*of_x], number, 3, FILES)) for number in range(3)) == [0, 0, 2]
    assert all(its_turn(TESTS, *part("1/1"), FILES))


def test_what_is_not_imported_has_its_turn_within_three_commits() -> None:
    """Unless the commit touched what it tests; files of which each part has tests are always imported."""
    left = [not_imported(number, 3, "LICENSE") for number in range(3)]
    counts = Counter(file for part in left for file in part)
    assert {*counts.values()} == {2}
    assert len(counts) > 50
    always = {"tests/test_kernels.py", "tests/test_static.py", "tests/test_mutants.py"}
    assert not {*counts} & {*always, "tests/browser/test_report.py"}
    (home,) = (number for number, files in enumerate(left) if "tests/lab/test_lab.py" not in files)
    other = (home + 1) % 3
    assert left[other] - not_imported(other, 3, "harness/lab/lines.py") >= {"tests/lab/test_lab.py"}
    assert not not_imported(0, 1, "")


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("tests/test_mutants.py", "tests/mutants/order.toml"),
        ("tests/test_mutants.py", "kernels/s01_naive.cu"),
        ("tests/ptxsan/test_halves.py", "tests/ptxsan/halves.toml"),
        ("tests/test_instructions.py", "harness/ptxsan/isa/integer.py"),
        ("tests/ptxsan/test_warps.py", "harness/ptxsan/machine/flow.py"),
        ("tests/gemm_regression/run/test_gate.py", "harness/gemm_regression/run/timed.py"),
        ("tests/repository/test_docs.py", "docs/commands.md"),
        ("tests/test_kernels.py", "harness/gemm_regression/oracle/verify.py"),
        ("tests/test_static.py", "baselines/static/13.0.88/sm_90a.jsonl"),
    ],
)
def test_all_of_a_file_run_where_the_commit_touched_what_it_tests(file: str, changed: str) -> None:
    assert touched(ROOT / file, ["LICENSE", changed])
    assert touched(ROOT / file, [file])
    assert not touched(ROOT / file, ["", "tests/mutants.py", "harness/lab/lines.py", "other/docs/a.md"])


def test_many_tests_stay_in_turns_unless_the_commit_touched_them() -> None:
    file = ROOT / "tests/test_mutants.py"
    assert not touched(file, ["kernels/s01_naive.cu", "harness/ptxsan/isa/mma.py"], many=True)
    assert touched(file, ["tests/test_mutants.py"], many=True)
    assert touched(file, ["tests/mutants/order.toml"], many=True)


@pytest.mark.parametrize("given", ["", "2", "0/3", "4/3", "1/0", "a/b", "1/3/2"])
def test_a_malformed_part_is_refused(given: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"{VARIABLE}={given}: must be one part of several"):
        part(given)


def test_a_run_says_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert pytest_report_header() == []
    monkeypatch.setenv(VARIABLE, "2/3")
    assert pytest_report_header() == [f"part 2/3 of the tests, taken in turns ({VARIABLE})"]


def test_a_run_says_what_is_wrong_with_its_part_in_one_line() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", __file__]
    environment = {**os.environ, VARIABLE: "3"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 4
    assert done.stderr.strip() == f"ERROR: {VARIABLE}=3: must be one part of several, such as 2/3"

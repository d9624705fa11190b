"""The actions that other repositories use, and the workflow that they call: by what their scripts do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_regression.cli.init import main as init_main
from tests.repository.test_workflows import CALLED, FILES, ROOT, WORKFLOWS, program

ACTION_FILES = (ROOT / "action.yml", ROOT / ".github" / "actions" / "kernels" / "action.yml")
ACTIONS: tuple[dict[str, Any], ...] = tuple(yaml.safe_load(path.read_text()) for path in ACTION_FILES)
ACTION, KERNELS_ACTION = ACTIONS
BASH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]


def test_the_actions_own_actions_are_pinned_as_in_the_workflows() -> None:
    for file in ACTION_FILES:
        (pin,) = re.findall(r"uses: (.*)", file.read_text())
        assert any(pin in path.read_text() for path in FILES)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action["name"])
def test_inputs_of_an_action_reach_its_scripts_as_variables(action: dict[str, Any]) -> None:
    """Not as text of the script, into which a pull request could write commands."""
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    handed = re.findall(r"inputs\.(\w+)", json.dumps([s.get("env") for s in action["runs"]["steps"]]))
    assert sorted(set(handed)) == sorted(action["inputs"])


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """A runner's environment, whose pip installs nothing: the packages are this checkout's."""

    def made(name: str, **more: str) -> dict[str, str]:
        bin = tmp_path / "temp" / name / "bin"
        program(bin / "pip", '#!/bin/sh\nprintf "%s\\n" "$@" > "$RUNNER_TEMP/pip.txt"\n')
        (bin / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (bin / "python").chmod(0o755)
        program(tmp_path / "bin" / "python", "#!/bin/sh\n")  # -m venv, which is there
        named = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        return {
            **os.environ,
            **named,
            "GITHUB_ACTIONS": "true",
            "RUNNER_TEMP": str(tmp_path / "temp"),
            "PYTHONPATH": str(ROOT / "harness"),
            **more,
        }

    return made


@pytest.mark.compile
@pytest.mark.parametrize("strict", ["false", "true"])
def test_the_action_annotates_what_it_finds(
    strict: str, runner: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    folder = tmp_path / "my tests"
    folder.mkdir()
    code = "__global__ void k(int* y, int n) { if (n) y[threadIdx.x + n] = 1; y[0] = 7; }\n"
    (folder / "k.cu").write_text(code)
    (folder / "test_k.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', [0, 1])\ndef test_k(ptxsan, n):\n"
        "    ptxsan.load('k.cu').kernel('k')[1, 32](ptxsan.Empty(32, 'i4'), n)\n"
    )
    environment = runner(
        "ptxsan",
        **{"GITHUB_ACTION_PATH": str(ROOT), "PYTEST_PLUGINS": "ptxsan.pytest_plugin"},
        **{"NVCC": "13.0.*", "REQUIREMENTS": "hypothesis", "ARCH": "sm_80", "STRICT": strict},
        TESTS='"my tests" -p no:cacheprovider',
    )
    _, install, tests = ACTION["runs"]["steps"]
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    subprocess.run([*BASH, install["run"]], cwd=tmp_path, env=environment | {"PATH": path}, check=True)
    words = (tmp_path / "temp" / "pip.txt").read_text().split("\n")
    assert words[2:4] == [f"{ROOT}/harness/ptxsan[pytest]", "nvidia-cuda-nvcc==13.0.*"]
    assert "hypothesis" in words
    done = subprocess.run(
        [*BASH, tests["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert ("2 failed" if strict == "true" else "1 failed, 1 passed") in done.stdout
    assert "::error file=my tests/k.cu,line=1::bounds: " in done.stdout


@pytest.mark.compile
def test_the_kernels_of_another_repository_are_judged(
    runner: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The action's scripts, on the project that `init` writes, with a kernel that is wrong."""
    (tmp_path / "my kernels").mkdir()
    assert init_main(["--project", str(tmp_path / "my kernels")]) == 0
    source = tmp_path / "my kernels" / "kernels" / "sgemm.cu"
    text = source.read_text()
    assert text.count("= alpha * sum") == 1
    source.write_text(text.replace("= alpha * sum", "= 2 * alpha * sum"))
    folder = ROOT / ".github" / "actions" / "kernels"
    given = {
        "COMMAND": "check",
        "PROJECT": "my kernels",
        "REQUIREMENTS": "",
        "GITHUB_ACTION_PATH": str(folder),
    }
    environment = runner("gemm-regression", **given, OPTIONS='-n 0 -k "sgemm and 1x1x1"')
    _, install, judge = KERNELS_ACTION["runs"]["steps"]
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment_now = environment | more
        return subprocess.run(
            [*BASH, script], cwd=tmp_path, env=environment_now, capture_output=True, text=True, check=False
        )

    assert run(install["run"], PATH=path).returncode == 0
    words = (tmp_path / "temp" / "pip.txt").read_text().split("\n")
    assert words[2:4] == [f"{ROOT}/harness/ptxsan", f"{ROOT}[compiler]"]
    wrong = run(install["run"], PATH=path, COMMAND="chekc")
    assert (wrong.returncode, wrong.stdout) == (2, "::error::command: chekc is neither check nor gpu\n")
    done = run(judge["run"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::error file=my kernels/kernels/sgemm.cu,line=8::sgemm: bound: C(0, 0) is " in done.stdout
    assert "2 failed" in done.stdout
    assert "Red" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    sarif = (tmp_path / "GITHUB_OUTPUT").read_text().removeprefix("sarif=").strip()
    assert json.loads(Path(sarif).read_text())["version"] == "2.1.0"
    source.write_text(text)
    assert run(judge["run"]).returncode == 0


def test_a_called_workflow_runs_no_code_of_a_fork_on_a_runner_and_asks_for_what_its_action_takes() -> None:
    check, gpu = CALLED["check"], CALLED["gpu"]
    assert "self-hosted" not in check["runs-on"]
    assert "head.repo.full_name == github.repository" in gpu["if"]
    assert "github.event_name != 'pull_request_target'" in gpu["if"]
    assert check["permissions"] == gpu["permissions"] == {"contents": "read"}
    asked = WORKFLOWS["kernels"][True]["workflow_call"]["inputs"]
    handed = [job["steps"][-1]["with"] for job in (check, gpu)]
    assert [set(one) - set(KERNELS_ACTION["inputs"]) for one in handed] == [set(), set()]
    named = re.findall(r"inputs\.([\w-]+)", json.dumps(CALLED))
    assert set(named) == set(asked)

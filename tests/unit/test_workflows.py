"""What the workflows must keep to, beyond their schema: pins, permissions, and the GPU runner's safety."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[Any, Any]:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text())
    return workflow


def triggers(workflow: dict[Any, Any]) -> set[str]:
    return set(workflow[True])  # YAML 1.1 reads the key "on" as a truth value.


JOBS = [(path, job) for path in FILES for job in load(path)["jobs"].values()]
GPU_JOBS = [(path, job) for path, job in JOBS if "self-hosted" in job["runs-on"]]


def test_the_workflows_are_there() -> None:
    assert [path.stem for path in FILES] == ["baseline", "ci", "gpu", "pages"]
    assert len(GPU_JOBS) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_say_their_version(path: Path) -> None:
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert uses
    for action in uses:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_one_version_of_each_action() -> None:
    pins = {pin for path in FILES for pin in re.findall(r"uses: (.*)", path.read_text())}
    assert len(pins) == len({pin.split("@")[0] for pin in pins})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_is_permitted_but_by_a_job(path: Path) -> None:
    assert load(path)["permissions"] == {}


@pytest.mark.parametrize(("path", "job"), JOBS)
def test_scripts_take_inputs_from_the_environment(path: Path, job: dict[str, Any]) -> None:
    """An expression in a script would be code of whoever chose its value."""
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize(("path", "job"), JOBS)
def test_every_job_ends_and_leaves_no_credentials(path: Path, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"] <= 120
    for step in job["steps"]:
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_the_gpu_job_has_the_commits_that_baselines_were_measured_at() -> None:
    """A clone of the last commit alone leaves nothing to pair a suspected regression with."""
    (job,) = load(next(path for path in FILES if path.stem == "gpu"))["jobs"].values()
    (checkout,) = (step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["fetch-depth"] == 0


@pytest.mark.parametrize(("path", "job"), GPU_JOBS)
def test_gpu_jobs_read_only_and_run_no_code_of_a_fork(path: Path, job: dict[str, Any]) -> None:
    assert triggers(load(path)) <= {"push", "schedule", "workflow_dispatch"}
    assert job["permissions"] == {"contents": "read"}
    assert job["environment"] == "gpu"


@pytest.mark.parametrize(("path", "job"), GPU_JOBS)
def test_gpu_jobs_wait_for_each_other_and_show_the_gpu_first(path: Path, job: dict[str, Any]) -> None:
    """Also across workflows: the group is the runner's label."""
    label = job["runs-on"][-1]
    assert job["concurrency"] == {"group": f"gpu-{label}", "cancel-in-progress": False}
    assert job["steps"][0]["run"] == "nvidia-smi"


@pytest.mark.parametrize(("path", "job"), GPU_JOBS)
def test_a_runner_keeps_its_environments_and_nothing_else(
    path: Path, job: dict[str, Any], tmp_path: Path
) -> None:
    checkout = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["clean"] is False
    clean = job["steps"][job["steps"].index(checkout) + 1]["run"]
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name in (".venv/bin/nox", ".nox/gpu/x", "results/report.txt", "kernels/left.cu", "harness/left.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["bash", "-e", "-c", clean], cwd=tmp_path, check=True)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.glob("[!.]*")} | {
        str(file.relative_to(tmp_path)) for file in tmp_path.glob(".[!g]*/**/*") if file.is_file()
    }
    assert left == {".venv/bin/nox", ".nox/gpu/x"}


def test_what_follows_a_gpu_that_does_not_answer_is_left_out() -> None:
    (job,) = load(ROOT / ".github" / "workflows" / "gpu.yml")["jobs"].values()
    for step in job["steps"]:
        if "cancelled" in str(step.get("if", "")):
            assert "steps.install.outcome == 'success'" in step["if"]


def test_a_pull_request_is_checked_once_and_tested_on_each_python() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if ".ci/run" in step.get("run", "")]
    assert sorted(run.split(" -- ")[0] for run in runs) == [
        ".ci/run -s check",
        ".ci/run -s docs",
        ".ci/run -s lint typing tests browser",
    ]
    assert list(jobs["tests"]["strategy"]["matrix"]["python"]) == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(("path", "job"), JOBS)
def test_scripts_are_bash(path: Path, job: dict[str, Any]) -> None:
    for step in job["steps"]:
        if "run" in step:
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)


@pytest.mark.parametrize(
    ("files", "passes"),
    [
        ({"nvidia-h200/0001.json": "{}"}, True),
        ({"nvidia-h200/0001.json": "{"}, False),
        ({"nvidia-h200/0001.json": "{}", "nvidia-h200/run.py": ""}, False),
    ],
)
def test_a_baseline_from_the_gpu_machine_is_json_only(
    files: dict[str, str], passes: bool, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / "measured" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "baselines").mkdir()
    steps = load(ROOT / ".github" / "workflows" / "baseline.yml")["jobs"]["propose"]["steps"]
    script = next(step["run"] for step in steps if step.get("name", "").startswith("Take over"))
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True)
    assert (done.returncode == 0) == passes
    assert (tmp_path / "baselines" / "nvidia-h200" / "0001.json").exists() == passes


def test_every_nox_session_of_a_workflow_exists() -> None:
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    asked = {name for path in FILES for name in re.findall(r"nox -s (\w+)", path.read_text())}
    assert asked == {"gpu", "baseline", "report"}
    assert asked <= sessions


def test_nox_is_the_same_version_everywhere() -> None:
    files = [*FILES, ROOT / "noxfile.py", ROOT / "pyproject.toml", ROOT / ".ci" / "run", ROOT / "README.md"]
    versions = {version for path in files for version in re.findall(r"nox==([\d.]+\d)", path.read_text())}
    assert len(versions) == 1

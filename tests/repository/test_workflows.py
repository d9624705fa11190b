"""What the workflows must keep to, beyond their schema: pins, permissions, and the GPU runner's safety."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_regression.__main__ import COMMANDS
from gemm_regression.baselines import current
from gemm_regression.project.selection import Choice, select
from tests.gemm_regression.cli.repo import git
from tests.ladder import PROJECT

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
CALLED = WORKFLOWS["kernels"]["jobs"]  # by other repositories
GPU_JOBS = [
    (name, job) for name, job in JOBS if "self-hosted" in job["runs-on"] and job not in CALLED.values()
]


def triggers(workflow: dict[Any, Any]) -> set[str]:
    return set(workflow[True])  # YAML 1.1 reads the key "on" as a truth value.


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)


def step_of(job: str, name: str, workflow: str = "pull") -> str:
    """The script of the step whose name begins so."""
    steps = WORKFLOWS[workflow]["jobs"][job]["steps"]
    (script,) = (step["run"] for step in steps if step.get("name", "").startswith(name))
    return str(script)


CUBIN = sha256(b"cubin").hexdigest()


def test_actions_are_pinned_by_commit_each_in_one_version() -> None:
    assert [*WORKFLOWS] == [
        "baseline",
        "ci",
        "frontends",
        "gpu",
        "kernels",
        "pages",
        "ptxsan",
        "pull",
        "static",
    ]
    pins = {pin for path in FILES for pin in re.findall(r"uses: (.*)", path.read_text())}
    known = r"(actions/[a-z-]+|github/codeql-action/upload-sarif)@[0-9a-f]{40} # v\d+\.\d+\.\d+|\$/.*"
    assert [pin for pin in pins if not re.fullmatch(known, pin)] == []
    assert len(pins) == len({pin.split("@")[0] for pin in pins})


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_every_job_ends_leaves_no_credentials_and_is_bash(workflow: str, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"] <= 120
    for step in job["steps"]:
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False
        if "run" in step:
            subprocess.run(["bash", "-n", "-c", step["run"]], check=True)


def test_only_the_job_that_compares_commits_fetches_them() -> None:
    """The last commit alone leaves a branch nothing to be compared with; a baseline is a binary."""
    steps = [(name, step) for name, job in JOBS for step in job["steps"]]
    assert [name for name, step in steps if step.get("with", {}).get("fetch-depth") == 0] == ["pull"]


@pytest.mark.parametrize(("workflow", "job"), GPU_JOBS)
def test_gpu_jobs_read_only_run_no_code_of_a_fork_and_wait_for_each_other(
    workflow: str, job: dict[str, Any]
) -> None:
    """They wait also across workflows: the group is the runner's label. A branch's wait for the runner alone:
    of a group GitHub keeps one that waits, and a branch must not end main's."""
    assert len(GPU_JOBS) == 3
    assert triggers(WORKFLOWS[workflow]) <= {"push", "schedule", "workflow_dispatch"}
    assert job["permissions"] == {"contents": "read"}
    assert job["environment"] == ("gpu-branches" if workflow == "pull" else "gpu")
    label = job["runs-on"][-1]
    if workflow == "pull":
        assert "concurrency" not in job
    else:
        group, _, part = job["concurrency"]["group"].partition("${{ matrix.shard ")
        assert group == f"gpu-{label}"
        assert part in ("", "!= '1/1' && format('-{0}', matrix.shard) || '' }}")
        assert job["concurrency"]["cancel-in-progress"] is False
    assert job["steps"][0]["run"] == "nvidia-smi"


def test_the_parts_of_a_gpu_run_are_added_up_whatever_became_of_them() -> None:
    jobs = WORKFLOWS["gpu"]["jobs"]
    assert (jobs["whole"]["needs"], jobs["whole"]["if"]) == ("gpu", "${{ !cancelled() }}")
    script = step_of("whole", "Add them up", "gpu")
    models = jobs["gpu"]["strategy"]["matrix"]["gpu"]
    assert re.findall(r"--model (\S+)", script) == models
    told = re.search(r"--output (\w+)", script)
    assert told
    (again,) = (step for step in jobs["whole"]["steps"] if "-s evidence" in step.get("run", ""))
    assert again["run"].endswith(f" {told[1]}/*.json")
    assert again["if"] == "${{ !cancelled() }}"  # a red run's verdicts, too
    uploads = [s["with"]["name"] for s in jobs["gpu"]["steps"] if "upload-artifact" in s.get("uses", "")]
    assert uploads == ["results-${{ matrix.gpu }}-${{ strategy.job-index }}"]  # no two of one name
    assert not jobs["gpu"]["strategy"]["fail-fast"]


@pytest.mark.parametrize(("workflow", "job"), GPU_JOBS)
def test_a_runner_keeps_its_environments_and_nothing_else(
    workflow: str, job: dict[str, Any], tmp_path: Path
) -> None:
    checkout = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout"))
    assert checkout["with"]["clean"] is False
    clean = job["steps"][job["steps"].index(checkout) + 1]["run"]
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name in (".venv/bin/nox", ".nox/gpu/x", "results/report.txt", "kernels/left.cu", "harness/left.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(["bash", "-e", "-c", clean], cwd=tmp_path, check=True)
    kept = [*tmp_path.glob("[!.]*"), *(file for file in tmp_path.glob(".[!g]*/**/*") if file.is_file())]
    assert {str(file.relative_to(tmp_path)) for file in kept} == {".venv/bin/nox", ".nox/gpu/x"}


def test_what_follows_a_gpu_that_does_not_answer_is_left_out() -> None:
    for step in (step for name, job in GPU_JOBS if name in ("gpu", "pull") for step in job["steps"]):
        if "cancelled" in str(step.get("if", "")):
            assert "steps.install.outcome == 'success'" in step["if"]


def test_a_pull_request_is_checked_once_and_tested_on_each_python() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if ".ci/run" in step.get("run", "")]
    assert sorted(run.split(" -- ")[0] for run in runs) == [
        ".ci/run -s baseline",
        ".ci/run -s check",
        ".ci/run -s docs",
        ".ci/run -s lint typing tests browser",
    ]
    assert list(jobs["tests"]["strategy"]["matrix"]["python"]) == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(
    ("files", "passes"),
    [
        ({}, True),
        ({"nvidia-h200/figures.jsonl": '{"id":1}\n{"id":2}\n'}, True),
        ({"nvidia-h200/figures.jsonl": '{"id":1}\n{"id"\n'}, False),
        ({"nvidia-h200/counters.json": "{"}, False),
        ({"nvidia-h200/run.py": ""}, False),
        ({f"binaries/{CUBIN[:2]}/{CUBIN}.cubin.xz": lzma.compress(b"cubin")}, True),
        ({f"binaries/{CUBIN[:2]}/{CUBIN}.cubin.xz": lzma.compress(b"another")}, False),
        ({f"binaries/{CUBIN[:2]}/{CUBIN}.cubin.xz": b"cubin"}, False),
    ],
)
def test_a_baseline_from_the_gpu_machine_is_figures_and_binaries_only(
    files: dict[str, str | bytes], passes: bool, tmp_path: Path
) -> None:
    for name, content in {**files, "nvidia-h200/tuned.json": "{}"}.items():
        path = tmp_path / "measured" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "baselines").mkdir()
    command = ["bash", "-e", "-c", step_of("propose", "Take over", "baseline")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert (done.returncode == 0) == passes, done.stderr
    assert (tmp_path / "baselines" / "nvidia-h200" / "tuned.json").exists() == passes


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, []),
        ({"SELECT": "tiled and 4096"}, ["-k", "tiled and 4096"]),
        ({"SLOWER": "a-1x1x1", "REASON": "$(its) math"}, ["--accept-slower", "a-1x1x1", "$(its) math"]),
        ({"SLOWER": "a-1x1x1"}, ["--accept-slower", "a-1x1x1", ""]),  # which is refused
    ],
)
def test_a_baseline_is_measured_as_its_form_says(
    inputs: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    steps = WORKFLOWS["baseline"]["jobs"]["measure"]["steps"]
    (step,) = (step for step in steps if "-s baseline" in step.get("run", ""))
    program(tmp_path / ".venv" / "bin" / "nox", '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    env = {"PATH": os.environ["PATH"], **dict.fromkeys(step["env"], ""), **inputs}
    done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=env, capture_output=True)
    assert done.stdout.decode().split("\n")[:-1] == ["-s", "baseline", "--", "--gpus", "all", *words]


def test_every_nox_session_of_a_workflow_exists() -> None:
    own = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    text = "\n".join(path.read_text() for path in FILES)
    asked = set(" ".join(re.findall(r"(?:nox|\.ci/run) -s ([a-z ]+)", text)).split())
    assert {"gpu", "baseline", "compare", "report", "shards", "evidence", "static"} <= asked
    assert asked <= {*COMMANDS, *own}


def test_nox_is_the_same_version_everywhere() -> None:
    files = [*FILES, ROOT / "noxfile.py", ROOT / "pyproject.toml", ROOT / ".ci" / "run", ROOT / "README.md"]
    versions = {version for path in files for version in re.findall(r"nox==([\d.]+\d)", path.read_text())}
    assert len(versions) == 1


# The verdict of a branch

PULL = WORKFLOWS["pull"]
STEPS = [step for job in PULL["jobs"].values() for step in job["steps"]]
GH = """#!/usr/bin/env python3
\"\"\"GitHub's command, on a file with the pull requests and comments.\"\"\"
import json, pathlib, subprocess, sys

words, state = sys.argv[1:], json.loads(pathlib.Path("state.json").read_text())
assert words.pop(0) == "api"
options = {w: words[i + 1] for i, w in enumerate(words) if w in ("--jq", "--method", "--field")}
(path,) = (w for w in words if w.startswith("repos/o/r/"))
if "--method" in options:
    body = pathlib.Path(options["--field"].removeprefix("body=@")).read_text()
    assert len(body) <= 65536
    if options["--method"] == "POST":
        assert path == "repos/o/r/issues/7/comments"
        comment = {"id": 90 + len(state["comments"]), "user": {"login": "github-actions[bot]"}}
        state["comments"].append(comment)
    else:
        (comment,) = (c for c in state["comments"] if path == f"repos/o/r/issues/comments/{c['id']}")
    comment["body"] = body
    pathlib.Path("state.json").write_text(json.dumps(state))
else:
    found = {"repos/o/r/commits/abc/pulls": "pulls", "repos/o/r/issues/7/comments": "comments"}[path]
    subprocess.run(["jq", "-r", options["--jq"]], input=json.dumps(state[found]), text=True, check=True)
"""
HEARD = [
    {"id": 1, "user": {"login": "somebody"}, "body": "<!-- gemm-regression compare --> mine"},
    {"id": 2, "user": {"login": "github-actions[bot]"}, "body": "another workflow's"},
]
HEAD = {"sha": "abc", "repo": {"full_name": "o/r"}}
OPEN = {"state": "open", "number": 7, "base": {"ref": "next"}, "head": HEAD}


@pytest.fixture
def github(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a script with these pull requests and what an earlier call left; returns what GitHub has then."""
    if shutil.which("jq") is None:
        pytest.skip("no jq, which stands for that of gh")
    program(tmp_path / "bin" / "gh", GH)
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"comments": HEARD}))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    def run(script: str, pulls: list[dict[str, Any]]) -> dict[str, Any]:
        state.write_text(json.dumps({**json.loads(state.read_text()), "pulls": pulls}))
        (tmp_path / "output").touch()
        env = {"PATH": path, "REPO": "o/r", "SHA": "abc", "DEFAULT": "main", "RUN": "https://x/1"}
        (told,) = (step["env"] for step in STEPS if step.get("run") == script)
        env |= {name: told[name] for name in ("OF_IT", "MARK") if name in told}
        env["GITHUB_OUTPUT"] = str(tmp_path / "output")
        subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, check=True)
        found: dict[str, Any] = json.loads(state.read_text())
        return {**found, "output": (tmp_path / "output").read_text()}

    return run


def test_a_branch_s_verdict_is_for_branches_of_this_repository_alone() -> None:
    """A push to a fork starts the fork's own workflows; a pull request of one would start those of here."""
    assert triggers(PULL) == {"push", "workflow_dispatch"}
    assert "main" in PULL[True]["push"]["branches-ignore"]
    of = [(name, *job["permissions"].items()) for name, job in PULL["jobs"].items()]
    read, write = ("find", ("pull-requests", "read")), ("comment", ("pull-requests", "write"))
    assert of == [read, ("compare", ("contents", "read")), write]
    assert [name for name, job in PULL["jobs"].items() if "self-hosted" in job["runs-on"]] == ["compare"]


@pytest.mark.parametrize(
    ("pulls", "base"),
    [
        ([], "main"),
        ([{**OPEN, "state": "closed"}], "main"),
        ([{**OPEN, "head": {**HEAD, "sha": "another"}}], "main"),
        ([{**OPEN, "head": {**HEAD, "repo": {"full_name": "fork/r"}}}], "main"),
        ([{**OPEN, "state": "closed", "base": {"ref": "old"}}, OPEN], "next"),
    ],
)
def test_a_branch_is_compared_with_the_base_of_its_pull_request(
    github: Callable[..., dict[str, Any]], pulls: list[dict[str, Any]], base: str
) -> None:
    assert github(step_of("find", "The base"), pulls)["output"] == f"base={base}\n"


def test_the_base_of_a_comparison_is_where_the_branch_began(tmp_path: Path) -> None:
    run = partial(git, tmp_path)
    run("init", "--quiet", "--initial-branch=main")
    run("commit", "--quiet", "--allow-empty", "-m", "1")
    began = run("rev-parse", "HEAD")
    run("switch", "--quiet", "-c", "branch")
    run("commit", "--quiet", "--allow-empty", "-m", "2")
    later = run("commit-tree", "-p", began, "-m", "3", "HEAD^{tree}")
    run("update-ref", "refs/remotes/origin/main", later)
    (tmp_path / "results").mkdir()
    program(tmp_path / ".venv" / "bin" / "nox", '#!/bin/sh\necho "$@"\nexit 3\n')
    script = step_of("compare", "Base and head")
    env = {**os.environ, "BASE": "main"}
    command = ["bash", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 3  # that of the comparison, though its lines go through tee
    words = done.stdout.split()
    assert words[:4] == ["-s", "compare", "--", began]
    assert (tmp_path / "results" / "report.txt").read_text() == done.stdout


def test_one_comment_is_written_anew(github: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    for gpu in ("nvidia-h100", "nvidia-h200"):
        (tmp_path / "results" / f"compare-{gpu}").mkdir(parents=True)
        (tmp_path / "results" / f"compare-{gpu}" / "compare.md").write_text(f"## Green: {gpu}\n")
    script = step_of("comment", "Write it")
    assert github(script, [])["comments"] == HEARD  # nobody has opened a pull request yet
    *others, first = github(script, [OPEN])["comments"]
    assert others == HEARD
    assert re.search(r"\*\*nvidia-h100\*\*\n\n## Green: nvidia-h100\n\n\*\*nvidia-h200", first["body"])
    assert "abc: [the run](https://x/1)" in first["body"]
    (tmp_path / "results" / "compare-nvidia-h100" / "compare.md").write_text("## Red\n" + "x" * 99_999)
    *others, second = github(script, [OPEN])["comments"]
    assert (others, second["id"]) == (HEARD, first["id"])
    assert "## Red" in second["body"]
    assert second["body"].endswith("abc: [the run](https://x/1)\n")


def test_findings_go_to_code_scanning_but_not_from_a_fork() -> None:
    jobs = WORKFLOWS["ci"]["jobs"]
    permissions = {name: job["permissions"] for name, job in jobs.items()}
    assert [name for name, of in permissions.items() if "write" in of.values()] == ["alerts"]
    assert permissions["alerts"] == {"security-events": "write"}
    assert "head.repo.full_name == github.repository" in jobs["alerts"]["if"]
    (check,) = (step["run"] for step in jobs["check"]["steps"] if "-s check" in step.get("run", ""))
    assert "--sarif=check.sarif" in check
    assert jobs["alerts"]["steps"][-1]["with"]["sarif_file"] == "check.sarif"
    assert "check.sarif" in jobs["check"]["steps"][-1]["with"]["path"].split()


def test_the_gpus_of_the_workflows_are_those_with_baselines() -> None:
    """Each with a suite that its baseline has whole: a case that it lacks would be red in every run."""
    (job,) = (job for name, job in GPU_JOBS if name == "gpu")
    named = job["strategy"]["matrix"]["gpu"]
    assert sorted(named) == sorted(path.name for path in (ROOT / "baselines").glob("nvidia-*"))
    assert named == PULL["jobs"]["compare"]["strategy"]["matrix"]["gpu"]
    (suite,) = (step["env"]["SUITE"] for step in job["steps"] if "SUITE" in step.get("env", {}))
    chosen = (
        "matrix.gpu != 'nvidia-h200' && 'smoke' || github.event_name == 'schedule' && 'nightly' || 'full'"
    )
    assert suite == "${{ " + chosen + " }}"
    for slug in named:
        stored = current(ROOT / "baselines", slug)
        assert stored
        choice = Choice("full" if slug == "nvidia-h200" else "smoke")
        timed = [case.id for case in select(PROJECT, choice, (9, 0)).timed]
        lacking = set(timed) - set(stored.case_ids)
        assert len(lacking) <= len(timed) / 2  # what was declared since

"""``gemm-regression doctor``: what this machine has for the suite, one line each, and what to do.

Needs nothing but Python itself. Exit status: 0 all is there that the check without a GPU needs, and, on a
machine with a GPU, timing; 1 something is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError

# Name, path of GitHub's API, a jq query that gives true, and what to do: CONTRIBUTING.md lists the same.
SETTINGS = (
    (
        "pull requests",
        "actions/permissions/workflow",
        ".can_approve_pull_request_reviews",
        "Settings, Actions, General: allow Actions to create pull requests, for the Baseline workflow",
    ),
    (
        "approvals",
        "actions/permissions/fork-pr-contributor-approval",
        '.approval_policy == "all_external_contributors"',
        "Settings, Actions, General: require approval for all external contributors, whose workflows could "
        "ask for your runners",
    ),
    (
        "environment",
        "environments/gpu",
        ".deployment_branch_policy != null",
        "Settings, Environments: one named gpu, to which main alone may deploy",
    ),
    (
        "branches",
        "environments/gpu-branches",
        '.name == "gpu-branches"',
        "Settings, Environments: one named gpu-branches, for the Pull request workflow",
    ),
)
_RUNNER = "[.runners[] | select([.labels[].name] | contains({labels}))] | length > 0"
PARAMETERS = Path("/proc/driver/nvidia/params")


class Line(NamedTuple):
    """``state``: ok, note (works, with a limit) or fail; ``found`` in a few words; ``do``: what to do."""

    state: str
    what: str
    found: str
    do: str = ""

    def __str__(self) -> str:
        return f"{self.state:<5}{self.what:<14}{self.found}" + (f"; {self.do}" if self.do else "")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gemm-regression doctor",
        description="What this machine has for the suite, one line each, and what to do.",
        allow_abbrev=False,
    )
    parser.add_argument("--project", type=Path, metavar="PATH", help="default: the nearest one above")
    given = parser.parse_args(arguments)
    lines = list(examine(given.project or Path.cwd()))
    print("\n".join(map(str, lines)))
    return int(any(line.state == "fail" for line in lines))


def examine(folder: Path) -> Iterator[Line]:
    """Every line, in the order in which they matter."""
    yield python()
    needed = packages("packages", "pytest", "pytest_benchmark", "xdist", "numpy", "ml_dtypes", "pydantic")
    yield needed
    yield compiler()
    yield host_compiler()
    if needed.state == "ok":
        from gemm_regression.compiler.tools import cache_dir

        yield cache(cache_dir())
        yield interpreter()
        yield project(folder)
        yield baselines(folder / "baselines")
    yield history(folder)
    yield from merging(folder)
    yield from repository(folder, sorted(path.name for path in (folder / "baselines").glob("nvidia-*")))
    yield from gpu()


def python() -> Line:
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    return Line("fail" if old else "ok", "python", version, "3.11 or newer is needed" if old else "")


def packages(what: str, *names: str) -> Line:
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        return Line(
            "fail", what, f"{', '.join(missing)} not installed", "run this through nox, or pip install"
        )
    return Line("ok", what, ", ".join(names))


def compiler() -> Line:
    try:
        nvcc = tools.find_nvcc()
    except ToolchainError as error:
        return Line("fail", "nvcc", str(error))
    try:
        tools.pinned_tools()
    except ToolchainError as error:
        return Line("note", "nvcc", f"{nvcc.version}, {nvcc.path}", f"metrics are not compared: {error}")
    return Line("ok", "nvcc", f"{nvcc.version}, {nvcc.path}")


def host_compiler() -> Line:
    found = shutil.which("g++")
    if not found:
        return Line("fail", "g++", "not found", "nvcc needs it: install g++")
    return Line("ok", "g++", found)


def cache(folder: Path) -> Line:
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Line(
            "note",
            "cache",
            f"{folder} cannot be written",
            "kernels are compiled in every run; set GEMM_CACHE_DIR",
        )
    free = shutil.disk_usage(place).free
    if free < 1 << 30:
        return Line("note", "cache", f"{folder}, {free >> 20} MiB free", "make room, or set GEMM_CACHE_DIR")
    return Line("ok", "cache", f"{folder}, {free >> 30} GiB free")


def interpreter() -> Line:
    """What the emulated device runs straight-line code on."""
    from ptxsan.native import describe, library

    found = describe()
    if library() is None:
        return Line("note", "emulation", found, "the same results, but several times slower")
    return Line("ok", "emulation", found)


def project(folder: Path) -> Line:
    from gemm_regression.project.loader import ProjectError, find, load

    try:
        found = load(find(folder))
    except ProjectError as error:
        return Line("fail", "project", str(error), "`gemm-regression init` creates one")
    gpus = ", ".join(sorted(path.name for path in found.baselines.glob("nvidia-*") if path.is_dir()))
    return Line("ok", "project", f"{found.root}, kernels: {len(found.kernels)}, baselines: {gpus or 'none'}")


def baselines(root: Path) -> Line:
    """Whether what is stored can be trusted, and how much of it can be timed beside new code."""
    from gemm_regression.baselines import BaselineError, stored

    try:
        found = stored(root)
    except BaselineError as error:
        return Line("fail", "baselines", str(error))
    if not found:
        return Line("note", "baselines", "none", "nothing timed can be judged: nox -s baseline")
    said, lacking = [], 0
    for baseline in found:
        lacking += sum(bool(e.cubin_sha256) and not e.launch_id for e in baseline.entries.values())
        said.append(f"{baseline.slug}: {len(baseline.entries)} cases")
    if lacking:
        do = "nox -s baseline, so that changes of them can be judged"
        return Line("note", "baselines", f"{', '.join(said)}; {lacking} without their binary", do)
    return Line("ok", "baselines", ", ".join(said))


def history(folder: Path) -> Line:
    """Whether git has the commits that `compare` and `bisect` may be asked for."""
    git = shutil.which("git")
    if not git:
        return Line("note", "git", "not found", "commits cannot be compared")
    said = _said([git, "-C", str(folder), "rev-parse", "--is-shallow-repository"])
    if said is None:
        return Line("note", "git", f"{folder} is in no repository", "commits cannot be compared: git init")
    if said == "true":
        return Line(
            "note",
            "git",
            "a shallow clone",
            "older commits cannot be compared or bisected: git fetch --unshallow, or fetch-depth: 0",
        )
    return Line("ok", "git", f"{_said([git, '-C', str(folder), 'rev-list', '--count', 'HEAD']) or 0} commits")


def merging(folder: Path) -> Iterator[Line]:
    """Whether branches that measure merge by themselves; nothing where there is no git."""
    said = _said(["git", "-C", str(folder), "check-attr", "merge", "baselines/gpu/figures.jsonl"])
    if said is None or said.endswith(": union"):
        return
    yield Line(
        "note",
        "merging",
        "branches that measure conflict",
        "add to .gitattributes: baselines/**/*.jsonl merge=union text eol=lf",
    )


def repository(folder: Path, gpus: Sequence[str] = ()) -> Iterator[Line]:
    """What the workflows need of the repository's settings on GitHub, where gh may ask: with runners for
    these ``gpus``."""
    gh = shutil.which("gh")
    if not gh or _said([gh, "auth", "status"]) is None:
        said = "gh is not signed in" if gh else "gh is not installed"
        yield Line("note", "settings", said, "CONTRIBUTING.md lists what the repository must be set to")
        return
    name = _said([gh, "repo", "view", "--json", "nameWithOwner", "--jq", ".nameWithOwner"], folder)
    if not name:
        yield Line("note", "settings", "the repository is not on GitHub", "the workflows run there alone")
        return
    labels = [["gpu", each] for each in gpus] or [["gpu"]]
    runners = [
        (
            "runner",
            "actions/runners",
            _RUNNER.format(labels=json.dumps(wanted)),
            f"Settings, Actions, Runners: one with the labels {' and '.join(wanted)}",
        )
        for wanted in labels
    ]
    for what, path, query, do in (*SETTINGS, *runners):
        answer = _said([gh, "api", f"repos/{name}/{path}", "--jq", query], folder)
        if answer is None:
            yield Line("note", what, "cannot be read", do)
        else:
            yield Line("ok", what, "set") if answer == "true" else Line("note", what, "not set", do)


def gpu() -> Iterator[Line]:
    """The driver and the GPU, and what timing and profiling need; one note where there is no GPU."""
    if find_spec("pynvml") is None:
        yield Line("note", "gpu", "nvidia-ml-py is not installed", "kernels are checked without a GPU")
        return
    from gemm_regression.devices import NoDevice
    from gemm_regression.devices.cuda.environment import Gpu, driver_refusal

    try:
        there = Gpu()
        info = there.info()
    except NoDevice as error:
        yield Line("note", "gpu", str(error), "kernels are checked without a GPU, and nothing is timed")
        return
    yield Line("ok", "gpu", f"{info.name}, board {info.board}, {info.memory_mib} MiB")
    try:
        refusal = driver_refusal(info.cuda_driver, tools.find_nvcc().version)
    except ToolchainError:
        refusal = None
    driver = f"{info.driver}, CUDA {info.cuda_driver}"
    yield Line("fail", "driver", driver, refusal) if refusal else Line("ok", "driver", driver)
    yield headers()
    yield packages("gpu packages", "pycuda", "nvmath")
    yield clocks(info.applications_sm_clock_mhz, info.max_sm_clock_mhz, info.power_limit_w)
    others = there.others(frozenset())
    yield (
        Line("note", "idle", "; ".join(others), "nothing is timed while others use the GPU")
        if others
        else Line("ok", "idle", "no other process")
    )
    yield counters(lambda: PARAMETERS.read_text(encoding="utf-8"))


def headers() -> Line:
    """Where the headers are that PyCUDA is built with: the places in which noxfile.py looks, too."""
    nvcc = shutil.which("nvcc")
    homes = [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    homes += [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_ROOT", "CUDA_PATH")]
    places = [Path(folder) for folder in os.environ.get("CPATH", "").split(os.pathsep) if folder]
    places += [Path(home, "include") for home in homes if home]
    places += [Path("/usr/local/cuda/include"), Path("/usr/include")]
    found = next((place for place in places if (place / "cuda.h").is_file()), None)
    if found:
        return Line("ok", "headers", f"{found}")
    state = "note" if find_spec("pycuda") else "fail"
    return Line(
        state, "headers", "no cuda.h", "PyCUDA is built with it: install the CUDA toolkit, or set CPATH"
    )


def clocks(application: int | None, maximum: int | None, watts: float | None) -> Line:
    said = f"up to {maximum or '?'} MHz, {watts or '?'} W"
    if application and maximum and application < maximum:
        return Line(
            "note", "clocks", f"{said}, applications at {application} MHz", "a baseline is of this setting"
        )
    return Line("ok", "clocks", said)


def counters(parameters: Callable[[], str]) -> Line:
    """Whether this user may read performance counters, which ncu needs."""
    ncu = shutil.which("ncu")
    if not ncu:
        return Line("note", "ncu", "not found", "`profile` needs Nsight Compute; nothing else does")
    try:
        locked = "RmProfilingAdminOnly: 1" in parameters()
    except OSError:
        locked = False
    if locked and os.geteuid():
        return Line(
            "note",
            "ncu",
            "only root may read counters",
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0 for `profile`",
        )
    return Line("ok", "ncu", ncu)


def _said(command: Sequence[str], folder: Path | None = None) -> str | None:
    """What a command printed; None where it failed."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

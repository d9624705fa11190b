"""``gemm-regression doctor``: what this machine has for the suite, one line each, and what to do."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gemm_regression.baselines import BaselineError, stored
from gemm_regression.cli.common import command, project_of
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import NoDevice
from gemm_regression.hints import typed
from gemm_regression.project.loader import ProjectError
from ptxsan.native import cache_dir, describe, library

PARAMETERS = Path("/proc/driver/nvidia/params")


class Line(NamedTuple):
    """``what`` was looked at; what was ``found``, in a few words; ``do``: what to do, empty where all is
    well; ``fails``: nothing can be checked, or on a GPU timed, without."""

    what: str
    found: str
    do: str = ""
    fails: bool = False

    def __str__(self) -> str:
        state = "fail" if self.fails else "note" if self.do else "ok"
        return f"{state:<5}{self.what:<14}{self.found}" + (f"; {self.do}" if self.do else "")


@command("doctor", "--project")
def main(given: argparse.Namespace) -> int:
    """Checks what the suite needs on this machine: one line for each requirement, and what to do.

    Exit status: 0 nothing is missing for checking without a GPU and, on a machine with a GPU, for timing; 1
    something is missing.
    """
    lines = [
        Line("python", sys.version.partition(" ")[0]),
        nvcc(),
        Line("g++", found)
        if (found := shutil.which("g++"))
        else Line("g++", "not found", "install g++", True),
        cache(cache_dir()),
        Line("emulation", describe(), "" if library() else "the same results, but several times slower"),
        *project(given),
        history(given.project or Path.cwd()),
        *gpu(),
    ]
    print("\n".join(map(str, lines)))
    return int(any(line.fails for line in lines))


def nvcc() -> Line:
    try:
        found = tools.find_nvcc()
    except ToolchainError as error:
        return Line("nvcc", "not found", str(error), True)
    try:
        tools.pinned_tools()
    except ToolchainError as error:
        return Line("nvcc", f"{found.version}, {found.path}", f"metrics are not compared: {error}")
    return Line("nvcc", f"{found.version}, {found.path}")


def cache(folder: Path) -> Line:
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK):
        do = "kernels are compiled in every run; set GEMM_CACHE_DIR"
        return Line("cache", f"{folder} cannot be written", do)
    free = shutil.disk_usage(place).free
    return Line("cache", f"{folder}, {free / 2**30:.1f} GiB free", "make room" * (free < 1 << 30))


def project(given: argparse.Namespace) -> Iterator[Line]:
    try:
        found = project_of(given)
    except ProjectError as error:
        yield Line("project", "none", str(error), True)
        return
    yield Line("project", f"{found.root}, kernels: {len(found.kernels)}")
    yield baselines(found.baselines)


def baselines(root: Path) -> Line:
    """Whether what is stored can be trusted, and how much of it can be timed beside new code."""
    try:
        found = stored(root)
    except BaselineError as error:
        return Line("baselines", "not readable", str(error), True)
    said = ", ".join(f"{baseline.slug}: {len(baseline.entries)} cases" for baseline in found)
    entries = [entry for baseline in found for entry in baseline.entries.values()]
    if lacking := sum(bool(entry.cubin_sha256) and not entry.launch_id for entry in entries):
        do = f"{typed('baseline')}, so that changes of them can be judged"
        return Line("baselines", f"{said}; {lacking} without their binary", do)
    return Line(
        "baselines", said or "none", "" if found else f"nothing timed can be judged: {typed('baseline')}"
    )


def history(folder: Path) -> Line:
    """Whether git has the commits that `compare` and `bisect` may be asked for."""
    command = ["git", "-C", str(folder), "rev-parse", "--is-shallow-repository"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return Line("git", "not found", "commits cannot be compared")
    if done.returncode:
        return Line("git", f"{folder} is in no repository", "commits cannot be compared: git init")
    if done.stdout.strip() == "true":
        do = "older commits cannot be compared: git fetch --unshallow, or fetch-depth: 0"
        return Line("git", "a shallow clone", do)
    return Line("git", "all commits")


def gpu() -> Iterator[Line]:
    """The driver and the GPU, and what timing and profiling need; one note where there is no GPU."""
    try:
        from gemm_regression.devices.cuda.environment import NvmlGpu, driver_refusal

        there = NvmlGpu()
        info = there.info()
    except (ImportError, NoDevice) as error:
        yield Line("gpu", str(error), "kernels are checked without a GPU, and nothing is timed")
        return
    yield Line("gpu", f"{info.name}, board {info.board}, {info.memory_mib} MiB")
    try:
        refusal = driver_refusal(info.cuda_driver, tools.find_nvcc().version)
    except ToolchainError:
        refusal = None
    yield Line("driver", f"{info.driver}, CUDA {info.cuda_driver}", refusal or "", bool(refusal))
    missing = [name for name in ("cuda", "nvmath") if find_spec(name) is None]
    do = "run this through nox, or pip install" if missing else ""
    by = "PyCUDA" if find_spec("pycuda") else "cuda-bindings"
    said = f"missing: {', '.join(missing)}" if missing else f"missing: none; {by} launches"
    yield Line("gpu packages", said, do, bool(missing))
    yield clocks(info.applications_sm_clock_mhz, info.max_sm_clock_mhz, info.power_limit_w)
    others = "; ".join(there.others(frozenset()))
    yield Line(
        "idle", others or "no other process", "nothing is timed while others use the GPU" * bool(others)
    )
    yield counters(lambda: PARAMETERS.read_text(encoding="utf-8"))


def clocks(application: int | None, maximum: int | None, watts: float | None) -> Line:
    said = f"up to {maximum or '?'} MHz, {watts or '?'} W"
    if application and maximum and application < maximum:
        return Line("clocks", f"{said}, applications at {application} MHz", "a baseline is of this setting")
    return Line("clocks", said)


def counters(parameters: Callable[[], str]) -> Line:
    """Whether this user may read performance counters, which ncu needs."""
    ncu = shutil.which("ncu")
    if not ncu:
        return Line("ncu", "not found", "`profile` needs Nsight Compute; nothing else does")
    try:
        locked = "RmProfilingAdminOnly: 1" in parameters()
    except OSError:
        locked = False
    if locked and os.geteuid():
        do = "load the driver with NVreg_RestrictProfilingToAdminUsers=0 for `profile`"
        return Line("ncu", "only root may read counters", do)
    return Line("ncu", ncu)

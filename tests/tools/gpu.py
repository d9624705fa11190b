"""The planted bugs on a GPU: their values alone, compute-sanitizer's tools, and Triton's ConSan.

Needs NumPy, nvcc, a driver, and what is to be compared. Every launch is a process of its own with a time
limit, so that a hang or a crash is a result of its row alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.tools.bugs import ARCH, BUGS, VARIANTS, Bug

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TIMES = 20  # launches whose values are compared
PATIENCE = 15  # seconds for a process; a hang ends there
PATIENCE_WATCHED = 20
WHOLE = 210  # seconds for everything
_end = [math.inf]  # when that is over, by time.monotonic
AT_ONCE = min(16, os.cpu_count() or 1)  # processes
FOUND = 9  # compute-sanitizer's exit status where it found something
LATE, HANG = "not run: out of time", "hang"  # also the output of a process that was not started
Results = dict[str, dict[str, dict[str, str]]]  # tool, bug, variant


def find(name: str) -> str:
    """A program of the CUDA toolkit, "" where there is none."""
    homes = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), Path("/usr/local/cuda")]
    folders = [str(home / part) for home in homes for part in ("bin", "compute-sanitizer")]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders)) or ""


@dataclass(frozen=True)
class Done:
    """A process that ended: its exit status, None where the time limit ended it, and all its output."""

    status: int | None
    output: str


NVCC, SANITIZER = find("nvcc"), find("compute-sanitizer")


def process(command: Sequence[str], limit: float, environment: Mapping[str, str] | None = None) -> Done:
    """Runs a command and its children, which end with it, in what is left of the time."""
    if time.monotonic() + limit > _end[0]:
        return Done(None, LATE)
    env = {**os.environ, **(environment or {})}
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=env, start_new_session=True
        )
        try:
            status: int | None = started.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        if status is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may hold it; it is left behind
                started.wait(10)
        output.seek(0)
        return Done(status, output.read().decode(errors="replace"))


def build(folder: Path) -> dict[tuple[str, str], Path]:
    """The cubins, by file and variant. Raises RuntimeError where nvcc fails or is missing."""
    if not NVCC:
        raise RuntimeError("nvcc is neither on PATH nor in CUDA_HOME")
    wanted = {(bug.file, variant): bug for bug in BUGS for variant in VARIANTS}

    def make(key: tuple[str, str]) -> Path:
        file, variant = key
        out = folder / f"{file}.{variant}.cubin"
        options = ["-cubin", f"-arch={ARCH}", "-std=c++17", "-lineinfo", *["-DBUG"] * (variant == "bug")]
        done = process([NVCC, *options, str(wanted[key].path), "-o", str(out)], 120)
        if done.status:
            raise RuntimeError(f"nvcc: {file}: {done.output[-500:]}")
        return out

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(make, wanted), strict=True))


def child(bug: Bug, cubin: Path, times: int) -> list[str]:
    return [sys.executable, "-m", "tests.tools.launch", bug.name, str(cubin), str(times)]


def values(bug: Bug, cubin: Path) -> str:
    """The digests of the launches, joined by blanks; or ``hang``, or the driver's error."""
    done = process(child(bug, cubin, TIMES), PATIENCE)
    if done.status is None:
        return done.output if done.output == LATE else HANG
    lines = done.output.split()
    if done.status:
        return next(
            (word for word in reversed(lines) if word.startswith("CUDA_ERROR")), f"exit {done.status}"
        )
    return " ".join(lines)


def compared(bug: str, twin: str) -> dict[str, str]:
    """What the digests of both say: of the bug how many launches were wrong, of the twin whether they agree,
    and the twin's digest."""
    right = set(twin.split())
    agree = twin if len(right) != 1 or not re.fullmatch("[0-9a-f]{64}", next(iter(right))) else ""
    said = {"twin": f"launches differ: {len(right)}" if len(right) > 1 else agree, "digest": min(right)}
    if not re.fullmatch(r"([0-9a-f]{64} ?)+", bug):
        return {"bug": bug, **said}
    wrong = sum(each not in right for each in bug.split())
    return {"bug": f"wrong in {wrong} of {TIMES} launches" if wrong else "", **said}


def sanitized(tool: str, bug: Bug, cubin: Path) -> str:
    """What ``report`` makes of a launch under a tool."""
    words = [SANITIZER, "--tool", tool, "--error-exitcode", str(FOUND), "--require-cuda-init", "no"]
    words += ["--report-api-errors", "no", "--target-processes", "all"]
    done = process([*words, *child(bug, cubin, 1)], PATIENCE_WATCHED)
    return report(done)


def report(done: Done) -> str:
    """The first report in a tool's output, empty where it found nothing. A kernel that does not end is
    ``hang``, one that the driver stopped and of which the tool says no more ``stopped: …``; ``failed: …``
    where the tool itself did not run."""
    said = [line[9:].strip() for line in done.output.splitlines() if line.startswith("=========")]
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", "\n".join(said))
    reports = [
        line
        for line in said
        if re.match(r"(Error|Warning|Invalid|Uninitialized|Barrier|Divergent|Race)", line)
    ]
    if reports:
        return re.sub(r"\s+", " ", reports[0])[:160]
    if done.status is None:
        return done.output if done.output == LATE else HANG
    if stops := re.findall("CUDA_ERROR_[A-Z_]+", done.output):
        return f"stopped: {stops[0]}"
    if sum(map(int, summaries)):
        known = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY")
        return next((line for line in said if line and not line.startswith(known)), "found")[:160]
    return "" if summaries and not done.status else f"failed: {done.output[-160:].strip()}"


def consan(name: str, variant: str) -> str:
    """What ConSan says of a bug written in Gluon, empty for nothing."""
    with tempfile.TemporaryDirectory() as cache:
        settings = {
            "TRITON_INSTRUMENTATION_MODE": "consan",
            "CUDA_LAUNCH_BLOCKING": "1",
            "TRITON_CACHE_DIR": cache,
        }
        done = process([sys.executable, "-m", "tests.tools.gluon_kernels", name, variant], 90, settings)
    if done.status is None:
        return done.output if done.output == LATE else HANG
    asserted = re.findall(r"Assertion `(.*?)[`']? failed", done.output)
    if asserted:
        return str(asserted[0])[:160]
    if "OUTPUT" in done.output and not done.status:
        return ""
    lines = [line for line in done.output.splitlines() if line.strip()]
    return f"failed: {lines[-1][:160]}" if lines else f"failed: exit {done.status}"


def run(store: Callable[[Results], None]) -> Results:
    """Runs everything, and stores now and then what there is. Raises RuntimeError where nvcc fails."""
    found: Results = {}
    began = time.monotonic()
    _end[0] = began + WHOLE
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        cubins = build(Path(folder))
        pairs = [(bug, variant) for variant in VARIANTS for bug in BUGS]
        said = list(pool.map(lambda pair: values(pair[0], cubins[pair[0].file, pair[1]]), pairs))
        of = {(bug.name, variant): text for (bug, variant), text in zip(pairs, said, strict=True)}
        found["values"] = {bug.name: compared(of[bug.name, "bug"], of[bug.name, "twin"]) for bug in BUGS}
        store(found)
        print(f"values: {time.monotonic() - began:.0f} s so far", flush=True)
        jobs: dict[Future[str], tuple[str, str, str]] = {}
        for variant in VARIANTS:
            for bug in BUGS:
                if bug.gluon:
                    jobs[pool.submit(consan, bug.name, variant)] = ("consan", bug.name, variant)
        for bug, variant in pairs:
            for tool in TOOLS if SANITIZER else ():
                run = pool.submit(sanitized, tool, bug, cubins[bug.file, variant])
                jobs[run] = (tool, bug.name, variant)
        for done, run in enumerate(as_completed(jobs), 1):
            tool, name, variant = jobs[run]
            found.setdefault(tool, {}).setdefault(name, {})[variant] = run.result()
            if done % 40 == 0 or done == len(jobs):
                store(found)
                print(f"{done} of {len(jobs)}: {time.monotonic() - began:.0f} s so far", flush=True)
    return found


def versions() -> dict[str, str]:
    """What the results depend on, as the tools say it."""
    asked = {
        "gpu": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        "nvcc": [NVCC, "--version"],
        "compute-sanitizer": [SANITIZER, "--version"],
        "triton": [sys.executable, "-c", "import triton; print('Version', triton.__version__)"],
    }
    found = {}
    for name, command in asked.items():
        if not shutil.which(command[0]):
            continue
        done = process(command, 60)
        number = re.search(r"(?:V|[Vv]ersion )(\d[\w.]*)", done.output)
        if not done.status:
            found[name] = number[1] if number else done.output.strip().splitlines()[0]
    return found

"""Measures baselines: verifies the selected cases, times each in five new processes, stores the results; of
several GPUs each its own, at the same time."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.cli.common import KERNELS, PERFORMANCE, SHOWN, files_of_tests, for_pytest
from gemm_regression.cli.gpus import chosen
from gemm_regression.cli.progress import Steps, progress, quiet
from gemm_regression.devices import NoDevice, count_gpus
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Adds
from gemm_regression.run.creep import reasons

RUNS = 5  # New processes, since rounds of one process are not independent.
_SHOWN_LINES = 15  # of the output of a run that failed

# Stores the runs of a GPU, by its number; what may be slower than before, and why.
Store = Callable[[Sequence[str], Project, int | None, Mapping[str, str]], int]


@dataclass(frozen=True)
class _Part:
    """One GPU's runs: its ``number``, empty where it is the only one; the ``folder`` of its JSONs; the
    ``options`` of pytest."""

    number: str
    folder: Path
    options: tuple[str, ...]

    @property
    def runs(self) -> list[str]:
        return [os.path.relpath(self.folder / f"run_{number}.json") for number in range(1, RUNS + 1)]


def accept_slower(add: Adds) -> None:
    add(
        "--accept-slower",
        nargs=2,
        action="append",
        default=[],
        metavar=("CASE", "REASON"),
        help="store a case though it is slower than its best binary; the reason is stored and shown",
    )


def measure(arguments: Sequence[str], store: Store) -> int:
    """Returns the exit status: of the first run that failed, else of ``store``."""
    try:
        about = "Measures this GPU's baseline in five runs and writes it, if every case is correct."
        project, options = for_pytest("gemm-regression baseline", about, arguments, accept_slower)
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--gpus")
        accept_slower(parser.add_argument)
        given, options = parser.parse_known_args(options)
        accepting = reasons(map(tuple, given.accept_slower))
        numbers = chosen(given.gpus, count_gpus()) if given.gpus is not None else []
        timed = files_of_tests(project, PERFORMANCE)
        both = [*files_of_tests(project, KERNELS), *timed]
        # In the project, not in a temporary folder, so that minutes of measuring survive a failed merge.
        folder = project.root / ".benchmarks" / "baseline"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except (OSError, ValueError, NoDevice) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if len(numbers) > 1:
        return _several(project, [*timed], both, numbers, options, store, accepting)
    part = _Part("", folder, (*(("--gpus", f"{numbers[0]},") if numbers else ()), *options))
    with progress("baseline", 1 + RUNS, quiet(options)) as step:
        step.now("verified")
        if status := _verified(part, both, step) or _timed(part, timed, step):
            return status
    return store(part.runs, project, numbers[0] if numbers else None, accepting)


def _several(
    project: Project,
    timed: Sequence[str],
    both: Sequence[str],
    numbers: Sequence[int],
    options: Sequence[str],
    store: Store,
    accepting: Mapping[str, str],
) -> int:
    """All GPUs, each its own baseline. One that fails costs its own; the status is then not 0."""
    root = project.root / ".benchmarks" / "baseline"
    parts = [_Part(str(n), root / f"gpu{n}", ("--gpus", f"{n},", *options)) for n in numbers]
    for part in parts:
        part.folder.mkdir()
    with progress("baseline", len(parts) * (1 + RUNS), quiet(options)) as step:
        # Models differ in what they run, so each GPU verifies for itself.
        with ThreadPoolExecutor(len(parts)) as threads:
            jobs = [threads.submit(_verified, part, both, step) for part in parts]
        statuses = [job.result() for job in jobs]
        left = [part for part, status in zip(parts, statuses, strict=True) if not status]
        with ThreadPoolExecutor(max(1, len(left))) as threads:
            jobs = [threads.submit(_timed, part, timed, step) for part in left]
        statuses += [job.result() for job in jobs]
        left = [part for part, job in zip(left, jobs, strict=True) if not job.result()]
    for part in left:
        print(f"GPU {part.number}:", flush=True)
        statuses.append(store(part.runs, project, int(part.number), accepting))
    return max(statuses)


def _verified(part: _Part, files: Sequence[str], step: Steps) -> int:
    if not (status := _pytest([*files, "--verify-timed"], "verified", part)):
        step(_named("verified", part))
    return status


def _timed(part: _Part, files: Sequence[str], step: Steps) -> int:
    """Five runs, up to the first that fails."""
    for number, run in enumerate(part.runs, 1):
        what = f"run {number} of {RUNS}"
        step.now(_named(what, part))
        measuring = [*files, "--baseline-run", f"--benchmark-json={run}"]
        if status := _pytest(measuring, what, part):
            return status
        step(_named(what, part))
    return 0


def _named(what: str, part: _Part) -> str:
    return f"GPU {part.number}, {what}" if part.number else what


_printing = threading.Lock()


def _pytest(files: Sequence[str], what: str, part: _Part) -> int:
    """The status of one run. Of several GPUs, what a run prints goes to a file, whose end is shown if it
    fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        *SHOWN,
        what,
        "--device",
        "cuda",
        "-m",
        "gpu",
        *part.options,
    ]
    if not part.number:
        return subprocess.run(command, check=False).returncode
    log = part.folder / f"{what.replace(' ', '_')}.txt"
    with log.open("w", encoding="utf-8") as file:
        status = subprocess.run(command, check=False, stdout=file, stderr=subprocess.STDOUT).returncode
    if status:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
        with _printing:
            print(f"GPU {part.number}: {what} failed; the end of {os.path.relpath(log)}:", file=sys.stderr)
            print("\n".join(last), file=sys.stderr, flush=True)
    return status

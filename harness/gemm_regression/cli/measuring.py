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

from gemm_regression.cli.common import (
    KERNELS,
    PERFORMANCE,
    SHOWN,
    add_options,
    fail,
    files_of_tests,
    for_pytest,
    gpu_numbers,
)
from gemm_regression.cli.progress import Steps, progress, quiet
from gemm_regression.devices import NoDevice, count_gpus
from gemm_regression.project.loader import Project
from gemm_regression.run.creep import reasons

RUNS = 5  # New processes, since rounds of one process are not independent.
_SHOWN_LINES = 15  # of the output of a run that failed
_ABOUT = "Measures this GPU's baseline in five runs and writes it, if every case is correct."
_printing = threading.Lock()

# Stores the runs of a GPU, by its number; what may be slower than before, and why.
Store = Callable[[Sequence[str], Project, int | None, Mapping[str, str]], int]


@dataclass(frozen=True)
class _Part:
    """One GPU's runs: its ``number``, None for the default one; whether it is ``alone``; the ``folder`` of
    its JSONs; the ``options`` of pytest."""

    number: int | None
    alone: bool
    folder: Path
    options: tuple[str, ...]

    @property
    def runs(self) -> list[str]:
        return [os.path.relpath(self.folder / f"run_{number}.json") for number in range(1, RUNS + 1)]

    def named(self, what: str) -> str:
        return what if self.alone else f"GPU {self.number}, {what}"


def measure(arguments: Sequence[str], store: Store) -> int:
    """Returns the exit status: of the first run that failed, else of ``store``. Of several GPUs each has its
    own baseline; one that fails costs its own, and the status is then not 0."""
    try:
        project, options = for_pytest("gemm-regression baseline", _ABOUT, arguments, "--accept-slower")
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        add_options(parser.add_argument, "--gpus", "--accept-slower")
        given, options = parser.parse_known_args(options)
        accepting = reasons(map(tuple, given.accept_slower))
        numbers = gpu_numbers(given.gpus, count_gpus()) if given.gpus is not None else [None]
        timed = files_of_tests(project, PERFORMANCE)
        both = [*files_of_tests(project, KERNELS), *timed]
        parts = _parts(project.root / ".benchmarks" / "baseline", numbers, options)
    except (OSError, ValueError, NoDevice) as error:
        return fail(error)
    with progress("baseline", len(parts) * (1 + RUNS), quiet(options)) as step:
        # Models differ in what they run, so each GPU verifies for itself.
        verified = _each(parts, lambda part: _verified(part, both, step))
        left = [part for part in parts if not verified[part]]
        measured = _each(left, lambda part: _timed(part, timed, step))
    statuses = [*verified.values(), *measured.values()]
    for part in (part for part in left if not measured[part]):
        if not part.alone:
            print(f"GPU {part.number}:", flush=True)
        statuses.append(store(part.runs, project, part.number, accepting))
    return max(statuses)


def _parts(root: Path, numbers: Sequence[int | None], options: Sequence[str]) -> list[_Part]:
    """One for each GPU, its folder empty; in the project, so that minutes of measuring survive a failed
    merge."""
    shutil.rmtree(root, ignore_errors=True)
    alone, parts = len(numbers) == 1, []
    for number in numbers:
        own = () if number is None else ("--gpus", f"{number},")
        part = _Part(number, alone, root if alone else root / f"gpu{number}", (*own, *options))
        part.folder.mkdir(parents=True)
        parts.append(part)
    return parts


def _each(parts: Sequence[_Part], work: Callable[[_Part], int]) -> dict[_Part, int]:
    """The status of each part, all at the same time."""
    with ThreadPoolExecutor(max(1, len(parts))) as threads:
        return dict(zip(parts, threads.map(work, parts), strict=True))


def _verified(part: _Part, files: Sequence[str], step: Steps) -> int:
    step.now(part.named("verified"))
    if not (status := _pytest([*files, "--verify-timed"], "verified", part)):
        step(part.named("verified"))
    return status


def _timed(part: _Part, files: Sequence[str], step: Steps) -> int:
    """Five runs, up to the first that fails."""
    for number, run in enumerate(part.runs, 1):
        what = f"run {number} of {RUNS}"
        step.now(part.named(what))
        if status := _pytest([*files, "--baseline-run", f"--benchmark-json={run}"], what, part):
            return status
        step(part.named(what))
    return 0


def _pytest(files: Sequence[str], what: str, part: _Part) -> int:
    """The status of one run. Of several GPUs, what a run prints goes to a file, whose end is shown if it
    fails."""
    shown = (*SHOWN, what, "--device", "cuda", "-m", "gpu")
    command = [sys.executable, "-m", "pytest", *files, *shown, *part.options]
    if part.alone:
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

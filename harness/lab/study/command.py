"""``nox -s lab -- study``: measures how small a slowdown is detected here, and the rate of false alarms.

``measure`` times binaries beside themselves on one GPU or several at once, and appends the times to a file
for each board (GPU). With ``--sizes`` it plants slowdowns. ``report`` judges all stored samples by the
current rule and writes docs/results/detection.md and its plot. ``report --check`` checks whether both are up
to date.

Exit status: 0 done; 1 the budget ended before all processes, or the documentation is out of date; 2 a wrong
command line, no GPU, or an unusable file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pytest_benchmark.utils import get_commit_info

from gemm_regression.baselines import gpu_slug, provenance
from gemm_regression.cli.common import about, busy_text, gpu_numbers
from gemm_regression.devices import DeviceError, Gpu, NoDevice, count_gpus, open_cuda
from gemm_regression.project.loader import ProjectError
from gemm_regression.report.figures import count_text
from lab.study import trials
from lab.study.raw import StudyError, append, read, resume
from lab.study.trials import case_of, project, studied

PROCESSES = 6
_LAST_SECONDS = 2.0  # for the pair at hand when the budget ends
Open = Callable[[str | None, float], list[Any]]


def open_all(text: str | None, time_limit: float) -> list[Any]:
    """The GPUs that ``--gpus`` names, or the first. Raises NoDevice, and ValueError for one that is not
    there."""
    numbers: list[int | None] = [None] if text is None else [*gpu_numbers(text, count_gpus())]
    devices = [open_cuda(time_limit, number) for number in numbers]
    for device in devices[1:]:
        device.compiles_like(devices[0])
    return devices


def main(arguments: Sequence[str] | None = None, open_devices: Open = open_all) -> int:
    given = _parser().parse_args(arguments)
    try:
        if given.command == "measure":
            return _measure(given, open_devices)
        from lab.study.document import report

        return report(given.files, given.docs or project().root / "docs" / "results", given.check)
    except (DeviceError, NoDevice, ProjectError, StudyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nox -s lab -- study", description=about(__doc__, 1))
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure", help="time pairs; append them to a file for each board").add_argument
    add("folder", nargs="?", type=Path, metavar="FOLDER", help="default: docs/results/detection")
    once = f"each times every case once ({PROCESSES})"
    add("--processes", type=int, default=PROCESSES, metavar="N", help=once)
    add("--budget", type=float, metavar="S", help="stop before the pair that would end after S seconds")
    add("--sizes", type=_sizes, default=(0.0,), metavar="PCT,…", help="slowdowns to plant; 0 is an A/A pair")
    add("--gpus", metavar="all|N|LIST", help="GPUs to use: all, how many, or which (0,2; one alone: 1,)")
    add("-q", "--quiet", action="store_true", help="hide progress")
    add("-k", default="", metavar="TEXT", help="only cases whose id contains this")
    add("--allow-busy", action="store_true", help="time even while other processes use the GPU")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds until a kernel counts as hung")
    making = commands.add_parser("report", help="write docs/results/detection.md and its plot")
    making.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: those in docs/results")
    making.add_argument("--docs", type=Path, help=argparse.SUPPRESS)
    making.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    return parser


def _sizes(text: str) -> tuple[float, ...]:
    try:
        found = {round(float(part.strip().removesuffix("%")) / 100, 6) for part in text.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give percentages, such as 0,0.5,1") from None
    if unknown := sorted(found - set(trials.SIZES)):
        known = ", ".join(f"{100 * size:g}" for size in trials.SIZES)
        raise argparse.ArgumentTypeError(f"{100 * unknown[0]:g} % is not studied; known: {known}")
    return tuple(sorted(found))


def _measure(given: argparse.Namespace, open_devices: Open) -> int:
    began = time.monotonic()
    folder: Path = given.folder or project().root / "docs" / "results" / "detection"
    if given.processes < 1:
        raise ValueError("--processes: give a number above 0")
    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder")
    devices = open_devices(given.gpus, given.time_limit)
    try:
        for device in devices if not given.allow_busy else ():
            if others := device.busy():
                raise ValueError(busy_text(device.info.name, others))

        def late() -> bool:
            return given.budget is not None and time.monotonic() - began > given.budget - _LAST_SECONDS

        for device in devices:  # the first compiles for all of its kind
            ids = _ids(given, device)
            device.prepare([case_of(text, device.info.capability) for text in ids])
        with ThreadPoolExecutor(len(devices)) as threads:
            all_done = list(threads.map(lambda device: _board(given, device, folder, late), devices))
        return int(not all(all_done))
    finally:
        for device in devices:
            device.close()


def _ids(given: argparse.Namespace, device: Gpu) -> list[str]:
    every = studied(device.info.capability)
    if ids := [case for case in every if given.k in case]:
        return ids
    raise ValueError(f"-k {given.k!r} matches no case of {', '.join(every)}")


def _board(given: argparse.Namespace, device: Gpu, folder: Path, late: Callable[[], bool]) -> bool:
    """Measures on one board; whether it came to the end."""
    ids, commit = _ids(given, device), commit_id()
    planted = "-planted" if any(given.sizes) else ""
    parts = (gpu_slug(device.info.name), device.info.board or "board", commit[:8])
    file = folder / f"{'-'.join(parts)}{planted}.jsonl.gz"
    if not file.exists():
        about = {
            "datetime": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit,
            "machine_info": provenance.machine_info(device.info),
        }
        append(file, [trials.head(device, ids, given.sizes, about)])
    head, records = resume(file)
    cells = [(case, size) for case in ids for size in given.sizes]
    if set(ids) != set(head["baseline"]) or len(cells) != head["cases"]:
        raise StudyError(f"{file} was begun with other cases or sizes; move it, or give another folder")
    first = 1 + max((r["trial"] for r in records), default=-1)
    for number in range(first, first + given.processes):
        start = time.monotonic()
        if found := trials.process(device, head, number, cells, late):
            append(file, found)
        if not given.quiet:
            print(f"{file.name}: {_progress(number, found, time.monotonic() - start)}", flush=True)
        if len(found) < len(cells):
            print(f"{file.name}: the budget of {given.budget:g} s is used up")
            return False
    print(f"{file}: {count_text(len(read(file)[1]), 'trial')}")
    return True


def commit_id() -> str:
    """What is measured; without git, as in a container, the environment names it."""
    known = get_commit_info()  # type: ignore[no-untyped-call]
    named = os.environ.get("GEMM_COMMIT") or os.environ.get("GITHUB_SHA") or "unknown"
    return str(known["id"]) if known.get("id") not in (None, "unknown", "unversioned") else named


def _progress(number: int, records: Sequence[dict[str, Any]], took: float) -> str:
    errors = [r for r in records if "error" in r]
    looks = [look for r in records for look in r.get("looks", ())]
    said = f"; {errors[0]['case']}: {errors[0]['error']}" if errors else ""
    spent = sum(look["gpu_seconds"] for look in looks)
    return (
        f"process {number}: {len(records)} pairs in {took:.1f} s, {len(records) / max(took, 1e-9):.1f} per "
        f"second (GPU {spent:.1f} s, {len(looks)} looks, {len(errors)} failed{said})"
    )

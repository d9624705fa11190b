"""``nox -s study``: how small a slowdown each method detects here, and how often it raises a false alarm.

``measure FILE`` appends the missing trials to a file; ``report`` judges the stored samples with every method
and writes docs/detection.md and its plot; ``report --check`` says whether they are up to date.

Exit status: 0 done; 1 the budget or a signal ended it before all trials, or the documentation is out of date;
2 a wrong command line, no GPU, or an unusable file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.baselines import provenance
from harness.commands.common import busy_text, end_on_sigterm
from harness.commands.progress import progress
from harness.devices import DeviceError, Gpu, NoDevice, open_cuda
from harness.project.loader import ProjectError
from harness.reports.figures import count_text
from harness.study import trials
from harness.study.ladder import case_of, project, quick
from harness.study.raw import StudyError, append, read, resume, summary
from harness.verdicts.vocabulary import DEFAULT_MARGIN

TRIALS = 40
_LAST_SECONDS = 4.0  # for the case at hand when the budget ends, and a repetition in a new process


def main(arguments: Sequence[str] | None = None, open_device: Callable[[float], Gpu] = open_cuda) -> int:
    given = _parser().parse_args(arguments)
    try:
        if given.command == "measure":
            return _measure(given, open_device)
        from harness.study.document import report

        return report(given.files, given.docs or project().root / "docs", given.check)
    except (DeviceError, NoDevice, ProjectError, StudyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nox -s study --", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser(
        "measure", help="time planted slowdowns, and append them to a file"
    ).add_argument
    add(
        "file",
        type=Path,
        metavar="FILE",
        help="such as docs/detection/nvidia-h200.jsonl.gz; trials are appended",
    )
    add(
        "--trials", type=int, default=TRIALS, metavar="N", help=f"trials per case and size (default {TRIALS})"
    )
    add("--budget", type=float, metavar="S", help="seconds; start no trial that would end later")
    add("--sizes", type=_sizes, metavar="PCT,…", help="only these; 0 is an A/A pair")
    add(
        "--summaries",
        action="store_true",
        help="a new file stores five-number summaries instead of all samples: small, but other tools' "
        "rules cannot be applied",
    )
    add(
        "--quick",
        action="store_true",
        help="a new file of A/A pairs alone, as many a second as possible: summaries of other, short cases, "
        "and the gate's margin alone",
    )
    add("-q", "--quiet", action="store_true", help="do not show how far it is")
    add("-k", default="", metavar="TEXT", help="only cases whose id contains this")
    add("--allow-busy", action="store_true", help="time even while other processes use the GPU")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds until a kernel counts as hung")
    making = commands.add_parser("report", help="write docs/detection.md and its plot")
    making.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: docs/detection/*")
    making.add_argument("--docs", type=Path, help=argparse.SUPPRESS)
    making.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if they are out of date"
    )
    return parser


def _sizes(text: str) -> tuple[float, ...]:
    try:
        found = tuple(round(float(part.strip().removesuffix("%")) / 100, 6) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: give percentages, such as 0,0.5,1") from None
    if unknown := [size for size in found if size not in trials.SIZES]:
        known = ", ".join(f"{100 * size:g}" for size in trials.SIZES)
        raise argparse.ArgumentTypeError(f"{100 * unknown[0]:g} % is not studied; known: {known}")
    return found


def _measure(given: argparse.Namespace, open_device: Callable[[float], Gpu]) -> int:
    began = time.monotonic()
    if given.trials < 1:
        raise ValueError("--trials: give a number above 0")
    if not given.file.absolute().parent.is_dir():
        raise ValueError(f"{given.file}: there is no such folder")
    if given.quick and given.sizes not in (None, (0.0,)):
        raise ValueError("--quick: A/A pairs alone; leave --sizes out, or give 0")
    if not any(given.k in case for case in trials.CASES) and not given.quick:
        raise ValueError(f"-k {given.k!r} matches no case of {', '.join(trials.CASES)}")
    device = open_device(given.time_limit)
    try:
        others = [] if given.allow_busy else device.busy()
        if others:
            raise ValueError(busy_text(device.info.name, others))
        return _trials(given, device, began)
    finally:
        device.close()


def _trials(given: argparse.Namespace, device: Gpu, began: float) -> int:
    every = quick(device.info.capability) if given.quick else list(trials.CASES)
    with progress("compile", 2 * len(every), given.quiet) as step:
        failed = device.prepare([case_of(text, device.info.capability) for text in every], step)
    if failed:
        raise StudyError("; ".join(line.splitlines()[0] for line in failed.values()))
    head, records = resume(given.file) if given.file.exists() else _begun(given, device, every)
    if head["machine_info"]["name"] != device.info.name:
        raise StudyError(
            f"{given.file} was measured on {head['machine_info']['name']}, this is {device.info.name}"
        )
    then, now = head["machine_info"].get("board"), device.info.board
    if None not in (then, now) and then != now:
        raise StudyError(f"{given.file} was measured on board {then}, this is {now}; give another file")
    if head["baseline"].keys() != set(every):
        with_it = "without" if given.quick else "with"
        raise StudyError(f"{given.file} was begun {with_it} --quick, or of other cases; give another file")
    ids = [case for case in every if given.k in case]
    if not ids:
        raise ValueError(f"-k {given.k!r} matches no case of {', '.join(every)}")
    sizes = given.sizes or ((0.0,) if given.quick else trials.SIZES)
    margins = head.get("margins", trials.MARGINS)
    done = {(r["trial"], r["case"], r["size"]) for r in records}
    lacking = []
    for number in range(given.trials):
        cells = [(case, size) for case in ids for size in sizes if (number, case, size) not in done]
        if cells:
            lacking.append((number, cells))

    def late() -> bool:
        return given.budget is not None and time.monotonic() - began > given.budget - _LAST_SECONDS

    for at, (number, cells) in enumerate(lacking):
        start = time.monotonic()
        found = [] if late() else trials.trial(device, head["baseline"], number, cells, margins, late)
        if found:
            append(given.file, [summary(r) for r in found] if head.get("summaries") else found)
        if len(found) < len(cells):
            print(f"the budget of {given.budget:g} s is used up: {len(lacking) - at} trials are missing")
            return 1
        took = time.monotonic() - start
        if not given.quiet:
            print(_progress(at + 1, len(lacking), found, took, time.monotonic() - began), flush=True)
    made = [(given.trials, "trial"), (len(ids), "case"), (len(sizes), "size")]
    print(f"{given.file}: {', '.join(count_text(number, what) for number, what in made)}")
    return 0


def _begun(
    given: argparse.Namespace, device: Gpu, ids: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A new file, with its header."""
    start = time.monotonic()
    about: dict[str, Any] = {
        "datetime": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine_info": provenance.machine_info(device.info),
    }
    if given.summaries or given.quick:
        about["summaries"] = True
    if given.quick:
        about["margins"] = [DEFAULT_MARGIN]
    with progress("baseline", trials.BASELINE_RUNS * len(ids), given.quiet) as step:
        head = trials.head(device, ids, about, step)
    append(given.file, [head])
    print(f"baseline of {trials.BASELINE_RUNS} processes in {time.monotonic() - start:.0f} s", flush=True)
    return read(given.file)


def _progress(done: int, of: int, records: Sequence[dict[str, Any]], took: float, elapsed: float) -> str:
    errors = [r for r in records if "error" in r]
    looks = sum(len(r["looks"]) for r in records if "looks" in r)
    gate = sum(run["gpu_seconds"] for r in records for run in r.get("gate", ()))
    pairs = sum(look["gpu_seconds"] for r in records for look in r.get("looks", ()))
    said = f"; {errors[0]['case']}: {errors[0]['error']}" if errors else ""
    return (
        f"trial {done} of {of}: {took:.1f} s (gate {gate:.1f} s, pairs {pairs:.1f} s in {looks} interim "
        f"analyses of {len(records)} cells, {len(errors)} failed{said}); {elapsed:.0f} s elapsed, "
        f"{took * (of - done):.0f} s remaining"
    )


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())

"""``gemm-regression baseline``: measures this GPU's baseline in five runs and writes it, if every case is
correct (``--gpus``: of each of several GPUs); or merges runs, removes what no longer counts, shows what is
stored and how it changed over time, exports it for pytest-benchmark.

Exit status: 0 done, 1 refused and nothing written, or, with ``history --check``, a case that is slower than
it was, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from gemm_regression import baselines
from gemm_regression.baselines import Baseline, BaselineError
from gemm_regression.baselines.merge import write_export
from gemm_regression.baselines.moves import lost, moves
from gemm_regression.cli import common
from gemm_regression.cli.common import command, fail, option, project_of
from gemm_regression.cli.options import SELECTION
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.compiler.static.store import shown
from gemm_regression.devices import DeviceError, Gpu, NoDevice, count_gpus, open_cuda
from gemm_regression.hints import typed
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project
from gemm_regression.report.figures import (
    aligned,
    dram_share,
    gflops_text,
    noise_text,
    percent_text,
    share_text,
    speed_text,
)
from gemm_regression.report.wording import refresh_lines
from gemm_regression.run.creep import chosen_again, reasons, refresh
from gemm_regression.timing.bounds import roofs_of
from gemm_regression.tune.select import Selector

RUNS = 5  # New processes, since rounds of one process are not independent.
_SHOWN_LINES = 15  # of the output of a run that failed
_STORED = ("--root", "--project")
_OF_ONE = (*_STORED, option("--gpu", metavar="SLUG", help="only this GPU, such as nvidia-h200"))


# Measuring


@command(
    "baseline measure",
    *("--gpus", "--accept-slower"),
    option("--resume", action="store_true", help="keep the runs of an interrupted measurement"),
    failed=1,
    pytests=(*SELECTION, "--allow-busy", "--sustained", "--time-limit"),
)
def _measure(given: argparse.Namespace) -> int:
    """Measures this GPU's baseline in five runs, and stores it if every case is correct.

    Of several GPUs each has its own baseline; one that fails costs its own, and the status is then not 0."""
    project = project_of(given)
    accepting = reasons(map(tuple, given.accept_slower))
    numbers = common.gpu_numbers(given.gpus, count_gpus()) if given.gpus is not None else [None]
    several, status = len(numbers) > 1, dict.fromkeys(numbers, 0)
    timed = common.files_of_tests(project, common.PERFORMANCE)
    both = [*common.files_of_tests(project, common.KERNELS), *timed]
    handed = common.for_pytest(given)
    # In the project, so that minutes of measuring survive a failed merge.
    home = project.root / ".benchmarks" / "baseline"
    if not given.resume:
        shutil.rmtree(home, ignore_errors=True)
    folders = {number: home / f"gpu{number}" if several else home for number in numbers}

    def runs(number: int | None) -> list[Path]:
        return [Path(os.path.relpath(folders[number] / f"run_{run}.json")) for run in range(1, RUNS + 1)]

    def run(number: int | None, what: str, *words: str) -> None:
        """Runs pytest unless an earlier run failed. Of several GPUs, what it prints goes to a file, whose end
        is shown if it fails."""
        if status[number]:
            return
        step.now(named := f"GPU {number}, {what}" if several else what)
        own = () if number is None else ("--gpus", f"{number},")
        shown = (*common.SHOWN, what, "--device", "cuda", "-m", "gpu", *own, *handed)
        command = [sys.executable, "-m", "pytest", *words, *shown]
        log = folders[number] / f"{what.replace(' ', '_')}.txt" if several else None
        with log.open("w", encoding="utf-8") if log else nullcontext() as file:
            out = file and subprocess.STDOUT
            status[number] = subprocess.run(command, check=False, stdout=file, stderr=out).returncode
        if not status[number]:
            step(named)
        elif log:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            print("\n".join([f"{named} failed; the end of {os.path.relpath(log)}:", *last]), file=sys.stderr)

    def verify(number: int | None) -> None:
        folders[number].mkdir(parents=True, exist_ok=True)
        run(number, "verified", *both, "--verify-timed")

    def time(number: int | None) -> None:
        for count, file in enumerate(runs(number), 1):
            if not file.is_file():  # pytest-benchmark writes that of a whole run
                run(number, f"run {count} of {RUNS}", *timed, "--baseline-run", f"--benchmark-json={file}")

    with (
        progress("baseline", len(numbers) * (1 + RUNS), quiet(given.rest)) as step,
        ThreadPoolExecutor(len(numbers)) as threads,
    ):
        # All are verified before the first is timed, each for itself: models differ in what they run.
        list(threads.map(verify, numbers))
        list(threads.map(time, numbers))
    for number in (number for number in numbers if not status[number]):
        if several:
            print(f"GPU {number}:", flush=True)
        try:
            status[number] = store(runs(number), _root(given), project, accepting, number)
        except (BaselineError, DeviceError) as error:
            status[number] = fail(error)
    return max(status.values())


@command(
    "baseline merge",
    option("runs", nargs="+", type=Path, metavar="RUN.json", help="JSON of a run (--benchmark-json)"),
    "--accept-slower",
    *_STORED,
    failed=1,
)
def _merge(given: argparse.Namespace) -> int:
    """Makes a baseline of existing runs, on the GPU that they ran on."""
    project = project_of(given)
    return store(given.runs, _root(given), project, reasons(map(tuple, given.accept_slower)))


def store(
    files: Sequence[Path],
    root: Path,
    project: Project,
    accepting: Mapping[str, str],
    index: int | None = None,
    opens: Callable[[int | None], Gpu] = lambda index: open_cuda(60.0, index),
) -> int:
    """Stores what these runs measured, on the GPU that they ran on; ``index``: its number; ``accepting``: why
    a case may be slower than its best binary.

    The exit status: 0 stored, 1 not, or without the cases that were refused. Raises BaselineError.
    """
    measured = baselines.merge_runs([baselines.load_run(file) for file in files])
    before = baselines.current(root, measured.slug, measured.board)
    if unknown := sorted(set(accepting) - set(measured.entries)):
        raise BaselineError(f"--accept-slower {unknown[0]}: no such case was measured")
    try:
        opened = opens(index)
    except NoDevice as error:
        raise BaselineError(f"{error}; binaries are stored, and compared, on the GPU they ran on") from None
    with closing(opened) as device:
        known = _cases(project, measured, device)
        measured, unmeasured = chosen_again(measured, known)
        made = refresh(device, root, measured, before, known, accepting)
        binaries = {case: binary for case in made.entries if (binary := device.binary(known[case]))}
    print("\n".join([*refresh_lines(before, measured, made), *unmeasured]))
    sys.stdout.flush()
    if not made.entries:
        return fail("nothing written")
    # The margins that kernels declare now judge from the next run on.
    entries = {name: replace(entry, margin=known[name].kernel.margin) for name, entry in made.entries.items()}
    print(f"wrote {baselines.append(root, replace(measured, entries=entries), binaries)}")
    return int(bool(made.refused))


def _cases(project: Project, measured: Baseline, device: Gpu) -> dict[str, Case]:
    """The measured cases, by id; in the place of each that chooses, what it chooses by this measurement.
    Raises BaselineError."""
    capability = device.info.capability
    selector = Selector.of(project, measured.slug, capability, measured)
    try:
        found = {case: cases.find_case(project, case, capability) for case in measured.entries}
    except ValueError as error:
        raise BaselineError(f"{error}; it was measured, but is not in this tree") from None
    return {name: selector.resolved(case) for name, case in found.items()}


# What is stored


def _root(given: argparse.Namespace) -> Path:
    root: Path | None = getattr(given, "root", None)
    return root or Path(shown(project_of(given).baselines))


def _some(given: argparse.Namespace) -> list[Baseline]:
    """What is current of a GPU model, or of all. Raises BaselineError."""
    root, gpu = _root(given), getattr(given, "gpu", None)
    found = baselines.stored(root)
    if not found:
        raise BaselineError(f"{root} contains no baseline; measure one with `{typed('baseline')}`")
    chosen = [baseline for baseline in found if gpu in (None, baseline.slug)]
    if not chosen:
        there = ", ".join(baseline.slug for baseline in found)
        raise BaselineError(f"{root}: no baseline for {gpu!r}; there are: {there}")
    return chosen


def _capability(baseline: Baseline) -> tuple[int, int]:
    major, minor = map(int, baseline.machine_info["capability"].split("."))
    return major, minor


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: keep at least 1 measurement")
    return number


@command(
    "baseline prune",
    option("--keep", type=_count, default=0, metavar="N", help="keep only N measurements of each board"),
    *_STORED,
    failed=1,
)
def _prune(given: argparse.Namespace) -> int:
    """Removes cases that the suite no longer has, and binaries without a time."""
    project, root = project_of(given), _root(given)
    for baseline in _some(given):
        live = cases.timed_by_any(project, _capability(baseline))
        gone = [case for case in baseline.case_ids if case not in live]
        if len(gone) == len(baseline.case_ids):
            raise BaselineError(
                f"{baseline.path}: none of its cases is in the suite; delete the file if that is intended"
            )
        for case in gone:
            print(f"removing {case}")
        removed = baselines.prune(root, baseline.slug, live, given.keep)
        print(f"{baseline.path}: {removed} figures removed")
    binaries, launches = baselines.prune_binaries(root)
    print(f"{root}: {binaries} binaries and {launches} launches removed, which no figure names")
    return 0


@command("baseline show", *_STORED, failed=1)
def _show(given: argparse.Namespace) -> int:
    """Prints the current baseline."""
    project = project_of(given)
    for baseline in _some(given):
        machine = baseline.machine_info
        boards = {entry.board for entry in baseline.entries.values()}
        print(
            f"{baseline.path}: {baseline.name}, {len(baseline.entries)} cases of {len(boards)} boards; the "
            f"newest of {baseline.datetime[:10]}, driver {machine['driver']}, CUDA {machine['cuda_driver']}, "
            f"nvcc {machine['nvcc']}"
        )
        rows = [("case", "GFLOPS", "% of cuBLAS", "% of DRAM", "noise", "board", "commit", "binary")]
        for e in baseline.entries.values():
            # The share of the bandwidth of DRAM that was measured in the same run.
            roofs = roofs_of(e.machine) if e.machine.get("roofs") else None
            dram, unit = None, "GFLOPS"
            with suppress(ValueError):  # nothing like it is declared any more
                case = cases.find_case(project, e.case_id, _capability(baseline))
                dram = dram_share(roofs, case, e.gflops) if roofs else None
                unit = case.kernel.operation.unit
            kept = "library" if e.cubin_sha256 is None else "kept" if e.launch_id else "not kept"
            source = e.board or "unknown", e.commit[:12] + " with changes" * e.dirty
            figures = speed_text(e.gflops, unit), share_text(e.cublas_ratio), share_text(dram)
            rows.append((e.case_id, *figures, noise_text(e.noise_floor), *source, kept))
        print("\n".join(aligned(rows)))
        for e in baseline.entries.values():
            if e.accepted:
                print(f"accepted as slower: {e.case_id}: {e.accepted}")
    return 0


@command(
    "baseline export",
    option("file", nargs="?", type=Path, metavar="FILE", help="default: the name of the GPU, with .json"),
    *_OF_ONE,
    failed=1,
)
def _export(given: argparse.Namespace) -> int:
    """Writes the current baseline as pytest-benchmark's JSON."""
    chosen = _some(given)
    if given.file and len(chosen) > 1:
        there = " or ".join(baseline.slug for baseline in chosen)
        raise BaselineError(f"one file is of one GPU: name it with --gpu {there}")
    for baseline in chosen:
        print(f"wrote {write_export(baseline, given.file or Path(f'{baseline.slug}.json'))}")
    return 0


@command(
    "baseline history",
    option(
        "-k", default="", metavar="EXPRESSION", help='only cases whose id matches, such as "f16 and 4096"'
    ),
    option("--check", action="store_true", help="exit status 1 if a case became slower"),
    *_OF_ONE,
    failed=1,
)
def _history(given: argparse.Namespace) -> int:
    """Lists which cases changed over the measurements, and when."""
    fits, red = cases.fitting(given.k), False
    for baseline in _some(given):
        chosen = [case for case in baseline.case_ids if fits(case)]
        if not chosen:
            raise BaselineError(f"{baseline.path}: no case matches -k {given.k!r}")
        found = baselines.history(_root(given), baseline.slug)
        if len(found) < 2:
            print(f"{baseline.path}: the only measurement; changes need at least two")
        else:
            red |= _moved(found, chosen)
    return int(given.check and red)


def _moved(found: Sequence[Baseline], chosen: Collection[str]) -> bool:
    """Prints what changed. Whether a case is slower now than it was, which nobody has accepted."""
    moved = moves(found, chosen)
    rows = [("case", "changed at", "commit", "GFLOPS before", "after", "change")]
    for move in moved:
        before, after = map(gflops_text, move.gflops)
        rows.append((move.case, move.at, move.commit, before, after, percent_text(move.change, 2)))
    names = {move.case for move in moved}
    said = f"{len(names)} of {len(chosen)} cases changed between {found[0].label} and {found[-1].label}"
    print("\n".join([*(aligned(rows) if moved else []), f"{said} on {found[-1].name}"]))
    now, red = baselines.derived(found), False
    for case, change in sorted(lost(moved).items(), key=lambda item: item[1]):
        accepted = now.entries[case].accepted
        red |= not accepted
        why = f"; accepted: {accepted}" if accepted else ""
        print(f"slower than before: {case}, {percent_text(change, 2)} relative to its best level{why}")
    return red


main = common.Group("baseline", __doc__, (_measure, _merge, _prune, _show, _history, _export))

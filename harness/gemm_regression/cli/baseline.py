"""``gemm-regression baseline``: measures this GPU's baseline in five runs and writes it, if every case is
correct (``--gpus``: of each of several GPUs); or merges runs, removes what no longer counts, shows what is
stored and how it changed over time, exports it for pytest-benchmark.

Exit status: 0 done, 1 refused or declined and nothing written, or, with ``history --check``, a case that is
slower than it was, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gemm_regression.baselines import (
    Baseline,
    BaselineEntry,
    BaselineError,
    derived,
    history,
    prune,
    prune_binaries,
    stored,
)
from gemm_regression.baselines.merge import write_export
from gemm_regression.baselines.moves import lost, moves
from gemm_regression.cli.common import about, project_of
from gemm_regression.cli.measuring import accept_slower, measure
from gemm_regression.cli.storing import store
from gemm_regression.compiler.static.store import shown
from gemm_regression.model import Case
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project
from gemm_regression.report.figures import gflops_text, noise_text, percent_text, share_text
from gemm_regression.report.page.roofs import dram_share
from gemm_regression.report.refresh import aligned
from gemm_regression.run.creep import reasons
from gemm_regression.timing.bounds import roofs_of

_HELP = ("-h", "--help")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression baseline", description=about(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure", help="measure and write the baseline; the default")
    merging = commands.add_parser("merge", help="make a baseline of several runs; shows old and new first")
    merging.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="written by --benchmark-json")
    accept_slower(merging.add_argument)
    merging.add_argument("--yes", action="store_true", help="write without asking")
    pruning = commands.add_parser("prune", help="remove cases that the suite no longer has")
    pruning.add_argument(
        "--keep", type=_count, default=0, metavar="N", help="and all but N measurements of each board"
    )
    showing = commands.add_parser("show", help="print what is stored")
    past = commands.add_parser("history", help="which cases changed over the measurements, and when")
    past.add_argument(
        "-k", default="", metavar="EXPRESSION", help='only cases whose id matches, such as "tiled and 4096"'
    )
    past.add_argument("--check", action="store_true", help="exit status 1 if a case is slower than it was")
    exporting = commands.add_parser("export", help="write what is current as pytest-benchmark's JSON")
    exporting.add_argument("file", nargs="?", type=Path, metavar="FILE", help="default: SLUG.json")
    for command in (past, exporting):
        command.add_argument("--gpu", metavar="SLUG", help="only this GPU, such as nvidia-h200")
    for command in (merging, pruning, showing, past, exporting):
        command.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
        command.add_argument("--project", type=Path, metavar="PATH", help="default: the nearest project")
    first = arguments[0] if arguments else "measure"
    if first == "measure" or (first.startswith("-") and first not in _HELP):
        return measure(arguments[first == "measure" and bool(arguments) :], _stored)
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        root = given.root or Path(shown(project.baselines))
        if given.command == "merge":
            confirmed = (lambda question: True) if given.yes else _confirmed
            return store(given.runs, root, project, confirmed, reasons(map(tuple, given.accept_slower)))
        if given.command == "history":
            return _history(root, given.gpu, given.k, given.check)
        if given.command == "export":
            return _export(root, given.gpu, given.file)
        return _prune(root, project, given.keep) if given.command == "prune" else _show(root, project)
    except (BaselineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: keep at least 1 measurement")
    return number


def _stored(runs: Sequence[str], project: Project, index: int | None, accepting: Mapping[str, str]) -> int:
    root = Path(shown(project.baselines))
    try:
        return store([Path(run) for run in runs], root, project, lambda question: True, accepting, index)
    except BaselineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _confirmed(question: str) -> bool:
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


def _prune(root: Path, project: Project, newest: int) -> int:
    for baseline in _some(root):
        live = {case.id for case in cases.select(project, cases.Choice(), _capability(baseline)).timed}
        gone = [case for case in baseline.case_ids if case not in live]
        if len(gone) == len(baseline.case_ids):
            raise BaselineError(
                f"{baseline.path}: none of its cases is in the suite; delete the file if that is intended"
            )
        for case in gone:
            print(f"removing {case}")
        removed = prune(root, baseline.slug, live, newest)
        print(f"{baseline.path}: {removed} figures removed")
    binaries, launches = prune_binaries(root)
    print(f"{root}: {binaries} binaries and {launches} launches removed, which no figure names")
    return 0


def _show(root: Path, project: Project) -> int:
    for baseline in _some(root):
        machine = baseline.machine_info
        boards = {entry.board for entry in baseline.entries.values()}
        print(
            f"{baseline.path}: {baseline.name}, {len(baseline.entries)} cases of {len(boards)} boards; the "
            f"newest of {baseline.datetime[:10]}, driver {machine['driver']}, CUDA {machine['cuda_driver']}, "
            f"nvcc {machine['nvcc']}"
        )
        rows = [("case", "GFLOPS", "% of cuBLAS", "% of DRAM", "noise", "board", "commit", "binary")]
        for e in baseline.entries.values():
            case = _find(project, baseline, e.case_id)
            shares = share_text(e.cublas_ratio), share_text(_dram(case, e) if case else None)
            kept = "library" if e.cubin_sha256 is None else "kept" if e.launch_id else "not kept"
            source = e.board or "unknown", e.commit[:12] + " with changes" * e.dirty
            rows.append((e.case_id, gflops_text(e.gflops), *shares, noise_text(e.noise_floor), *source, kept))
        print("\n".join(aligned(rows)))
        for e in baseline.entries.values():
            if e.accepted:
                print(f"accepted as slower: {e.case_id}: {e.accepted}")
    return 0


def _find(project: Project, baseline: Baseline, case: str) -> Case | None:
    """A case by its id; None if nothing like it is declared any more."""
    try:
        return cases.find_case(project, case, _capability(baseline))
    except ValueError:
        return None


def _capability(baseline: Baseline) -> tuple[int, int]:
    major, minor = map(int, baseline.machine_info["capability"].split("."))
    return major, minor


def _dram(case: Case, entry: BaselineEntry) -> float | None:
    """The share of the bandwidth of DRAM that was measured in the same run."""
    roofs = roofs_of(entry.machine) if entry.machine.get("roofs") else None
    return dram_share(roofs, case, entry.gflops) if roofs else None


def _export(root: Path, gpu: str | None, file: Path | None) -> int:
    chosen = _chosen(root, gpu)
    if file and len(chosen) > 1:
        there = " or ".join(baseline.slug for baseline in chosen)
        raise BaselineError(f"one file is of one GPU: name it with --gpu {there}")
    for baseline in chosen:
        print(f"wrote {write_export(baseline, file or Path(f'{baseline.slug}.json'))}")
    return 0


def _chosen(root: Path, gpu: str | None) -> list[Baseline]:
    """What is current of a GPU model, or of all. Raises BaselineError."""
    found = _some(root)
    chosen = [baseline for baseline in found if gpu in (None, baseline.slug)]
    if not chosen:
        there = ", ".join(baseline.slug for baseline in found)
        raise BaselineError(f"{root}: no baseline for {gpu!r}; there are: {there}")
    return chosen


def _history(root: Path, gpu: str | None, expression: str, check: bool) -> int:
    fits, red = cases.fitting(expression), False
    for baseline in _chosen(root, gpu):
        chosen = [case for case in baseline.case_ids if fits(case)]
        if not chosen:
            raise BaselineError(f"{baseline.path}: no case matches -k {expression!r}")
        found = history(root, baseline.slug)
        if len(found) < 2:
            print(f"{baseline.path}: the only measurement; changes need at least two")
            continue
        lines, slower = _moved(found, chosen)
        print("\n".join(lines))
        red |= slower
    return int(check and red)


def _moved(found: Sequence[Baseline], chosen: Collection[str]) -> tuple[list[str], bool]:
    """What changed, and whether a case is slower now than it was, which nobody has accepted."""
    try:
        moved = moves(found, chosen)
    except ImportError as error:
        raise BaselineError(f"{error}: install it with `pip install --group test`") from None
    rows = [("case", "changed at", "commit", "GFLOPS before", "after", "change")]
    for move in moved:
        before, after = map(gflops_text, move.gflops)
        rows.append((move.case, move.at, move.commit, before, after, percent_text(move.change, 2)))
    names = {move.case for move in moved}
    lines = aligned(rows) if moved else []
    lines.append(
        f"{len(names)} of {len(chosen)} cases changed between {found[0].label} and {found[-1].label} on "
        f"{found[-1].name}"
    )
    now, red = derived(found), False
    for case, change in sorted(lost(moved).items(), key=lambda item: item[1]):
        accepted = now.entries[case].accepted
        red |= not accepted
        said = f"; accepted: {accepted}" if accepted else ""
        lines.append(
            f"slower than before: {case}, {percent_text(change, 2)} relative to its best level{said}"
        )
    return lines, red


def _some(root: Path) -> list[Baseline]:
    found = stored(root)
    if not found:
        raise BaselineError(f"{root} contains no baseline; measure one with `nox -s baseline`")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
